"""Pair each order with the payment that comes within 15 minutes of it."""

from datetime import datetime

from holdfast.common import Duration, WatermarkStrategy
from holdfast.datastream import ProcessJoinFunction, StreamExecutionEnvironment

ORDERS = [(1, "ada", "09:00"), (2, "bob", "09:05"), (3, "cid", "09:10")]
PAYMENTS = [(2, 80, "09:06"), (1, 500, "09:14"), (3, 10, "09:50")]


class Paid(ProcessJoinFunction):
    def process_element(self, order, payment, ctx):
        minutes = (ctx.get_right_timestamp() - ctx.get_left_timestamp()) // 60_000
        yield order.id, order.customer, payment.cents, minutes


def read(name, elements, schema):
    rows = [(*element, datetime.fromisoformat(f"2026-11-30T{time}Z")) for *element, time in elements]
    times = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_minutes(5)).with_timestamp_column("at")
    stream = env.from_collection(rows, f"{schema}, at timestamp").uid(name)
    return stream.assign_timestamps_and_watermarks(times).key_by("id")


env = StreamExecutionEnvironment.get_execution_environment()
orders = read("orders", ORDERS, "id bigint, customer string")
payments = read("payments", PAYMENTS, "id bigint, cents bigint")
pairs = orders.interval_join(payments).between(Duration.of_minutes(0), Duration.of_minutes(15))
paid = pairs.process(Paid(), "id bigint, customer string, cents bigint, minutes bigint").uid("paid")

for row in sorted(paid.execute_and_collect()):
    print(f"order {row.id} of {row.customer}: {row.cents} cents after {row.minutes} min")
