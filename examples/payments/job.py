"""Detect fraud in payments: Kafka in, Kafka and a Delta table out, each row exactly once.

    topic payments -> read -+-> by card, with the rules of topic rules -> topic alerts
                            +-> by merchant, windows of an hour        -> Delta table of turnovers
                            +-> unreadable records                     -> topic unreadable

    python examples/payments/job.py --broker localhost:9092 --table DIR --checkpoints DIR

Run it again after a stop or a crash, and it continues where it stopped. While it runs, query the state of a card on
this machine:

    holdfast query payments cards card-7 --watch
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from holdfast.common import Configuration, Duration, Row, Time, WatermarkStrategy
from holdfast.datastream import (
    DataStream,
    KeyedBroadcastProcessFunction,
    OutputTag,
    ProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from holdfast.datastream.connectors.base import DeliveryGuarantee
from holdfast.datastream.connectors.delta import DeltaSink
from holdfast.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink, KafkaSource
from holdfast.datastream.formats.json import JsonRowDeserializationSchema, JsonRowSerializationSchema
from holdfast.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from holdfast.datastream.window import CountAggregate, SumAggregate, TumblingEventTimeWindows

# Times are milliseconds since 1970, as Kafka has them; money is cents.
PAYMENT = "id bigint, card string, merchant string, country string, cents bigint, at bigint"
RULE = "name string, kind string, cents bigint, payments bigint, seconds bigint, since bigint, until bigint"
ALERT = "payment bigint, card string, rule string, at bigint"
TURNOVER = "merchant string, hour timestamp, payments bigint, cents bigint"
RECORD = "topic string, partition int, offset bigint, value binary, reason string"

HOUR = 3_600_000
KINDS = ("amount", "many", "travel")
RULES: MapStateDescriptor[str, Row] = MapStateDescriptor("rules", "string", RULE)
UNREADABLE = OutputTag("unreadable", RECORD)


class Read(ProcessFunction):
    """Parse the JSON in Kafka's records; unparsable records go to a side output with their offset."""

    def __init__(self, row_type: str, problem: Callable[[Row, Row], str]) -> None:
        self.schema = JsonRowDeserializationSchema.builder().type_info(row_type).fail_on_missing_field().build()
        self.problem = problem

    def process_element(self, record: Row, ctx: ProcessFunction.Context) -> Iterator[object]:
        """Emit the row, or the raw record."""
        try:
            row = self.schema.deserialize(record.value or b"")
            reason = "a field is null" if None in tuple(row) else self.problem(row, record)
        except ValueError as error:
            reason = str(error)
        if reason:
            yield UNREADABLE, (record.topic, record.partition, record.offset, record.value, reason)
        else:
            yield row


def problem_of_payment(payment: Row, record: Row) -> str:
    """Return the problem of a payment, if any. A payment dated tomorrow would make all others late."""
    if not 0 <= payment.at <= record.timestamp + HOUR:
        return f"its time {payment.at} is not before that of its record, {record.timestamp}"
    return "" if 0 < payment.cents < 10**12 else f"nobody pays {payment.cents} cents"


def problem_of_rule(rule: Row, record: Row) -> str:
    """Return the problem of a rule, if any."""
    if rule.kind not in KINDS:
        return f"rules are of the kinds {', '.join(KINDS)}, not {rule.kind!r}"
    return "" if 0 < rule.seconds <= HOUR // 1000 else f"a rule looks back an hour at most, not {rule.seconds} s"


class Fraud(KeyedBroadcastProcessFunction):
    """Check each payment of a card against all rules and against the card's last hour. Rules may change at any time.

    A rule applies to payments from `since` until `until`. So the output does not depend on the time at which a change
    arrives, if it arrives early enough.
    """

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state; it always belongs to the card of the current payment."""
        card = ValueStateDescriptor("card", "payments bigint, cents bigint, alerts bigint, country string, at bigint")
        card.set_queryable("cards")
        self.card = runtime_context.get_state(card)
        self.recent = runtime_context.get_list_state(ListStateDescriptor("recent", "at bigint, cents bigint"))

    def process_broadcast_element(self, rule: Row, ctx: KeyedBroadcastProcessFunction.Context) -> None:
        """Store a new or changed rule. Every subtask does so."""
        ctx.get_broadcast_state(RULES).put(rule.name, rule)

    def process_element(
        self, payment: Row, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext
    ) -> Iterator[tuple[int, str, str, int]]:
        """Emit an alert for each rule that the payment breaks."""
        card = self.card.value() or Row(payments=0, cents=0, alerts=0, country=payment.country, at=payment.at)
        self.recent.add((payment.at, payment.cents))
        ctx.timer_service().register_event_time_timer(payment.at + HOUR)

        alerts = 0
        for name, rule in ctx.get_broadcast_state(RULES).items():
            if rule.since <= payment.at < rule.until and self.is_broken(rule, payment, card):
                alerts += 1
                yield payment.id, payment.card, name, payment.at
        self.card.update(
            (card.payments + 1, card.cents + payment.cents, card.alerts + alerts, payment.country, payment.at)
        )

    def is_broken(self, rule: Row, payment: Row, card: Row) -> bool:
        """Return whether a payment breaks a rule; `card` is the card's state before the payment."""
        begin = payment.at - 1000 * rule.seconds
        if rule.kind == "travel":  # in two countries, faster than anybody travels
            return bool(card.country != payment.country and card.at > begin)
        lately = [cents for at, cents in self.recent.get() if at > begin]  # with this one
        return len(lately) > rule.payments if rule.kind == "many" else sum(lately) > rule.cents

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext) -> None:
        """Drop payments that are older than an hour; no rule needs them."""
        self.recent.update([payment for payment in self.recent.get() if payment.at + HOUR > timestamp])


def define(
    payments: DataStream, rules: DataStream, order_by: Sequence[str] = ("at", "id")
) -> tuple[DataStream, DataStream, DataStream]:
    """Define the program on streams of Kafka records; return alerts, turnovers and unreadable records.

    It does not depend on sources and sinks, so a test can run it without Kafka and without Spark. A real-time job
    cannot sort payments: the payments of a card then have the order of their partition.
    """
    read_payments = payments.process(Read(PAYMENT, problem_of_payment), PAYMENT).uid("read-payments")
    read_rules = rules.process(Read(RULE, problem_of_rule), RULE).uid("read-rules")
    unreadable = read_payments.get_side_output(UNREADABLE).union(read_rules.get_side_output(UNREADABLE))

    in_time = (
        WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_minutes(10))
        .with_timestamp_column("at")
        .per_partition()
    )
    timed = read_payments.assign_timestamps_and_watermarks(in_time).uid("event-time")
    alerts = (
        timed.key_by("card", order_by=order_by)
        .connect(read_rules.broadcast(RULES))
        .process(Fraud(), ALERT)
        .name("fraud")
        .uid("fraud")
    )
    turnovers = (
        timed.key_by("merchant")
        .window(TumblingEventTimeWindows.of(Time.hours(1)))
        .aggregate_batches(payments=CountAggregate(), cents=SumAggregate("cents"))
        .uid("turnover")
        .map(lambda row: (row.merchant, instant(row.window_start), row.payments, row.cents), TURNOVER)
        .uid("turnover-rows")
    )
    return alerts, turnovers, unreadable


def instant(milliseconds: int) -> datetime:
    """Return the time of a timestamp, for a readable table."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def topic(broker: str, name: str, rows_per_epoch: int) -> KafkaSource:
    """Return a source of a topic's records, from the beginning."""
    source = KafkaSource.builder().set_bootstrap_servers(broker).set_topics(name)
    return source.set_max_rows_per_epoch(rows_per_epoch).build()


def alert_topic(broker: str, guarantee: DeliveryGuarantee) -> KafkaSink:
    """Return a sink of alerts as JSON, with the alerts of a card in order."""
    as_json = JsonRowSerializationSchema.builder().with_type_info(ALERT).build()
    record = KafkaRecordSerializationSchema.builder().set_topic("alerts").set_value_serialization_schema(as_json)
    record.set_key_serialization_schema(lambda alert: alert.card)
    sink = KafkaSink.builder().set_bootstrap_servers(broker).set_record_serializer(record.build())
    return sink.set_delivery_guarantee(guarantee).build()


def unreadable_topic(broker: str) -> KafkaSink:
    """Return a sink of raw records, with their offset and the reason in headers."""

    def headers(record: Row) -> list[tuple[str, bytes]]:
        place = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        return [("place", json.dumps(place).encode()), ("reason", record.reason.encode())]

    record = KafkaRecordSerializationSchema.builder().set_topic("unreadable").set_header_provider(headers)
    record.set_value_serialization_schema(lambda record: record.value)
    return KafkaSink.builder().set_bootstrap_servers(broker).set_record_serializer(record.build()).build()


def main() -> int:
    """Run the job until it is stopped."""
    parser = argparse.ArgumentParser(description="Detect fraud in payments, exactly once.")
    parser.add_argument("--broker", required=True, help="host:port of Kafka")
    parser.add_argument("--table", required=True, help="directory of the Delta table, shared by all hosts")
    parser.add_argument("--checkpoints", required=True, help="directory for checkpoints, shared by all hosts")
    parser.add_argument("--rows-per-epoch", type=int, default=100_000, help="payments in one epoch (default: 100000)")
    parser.add_argument("--real-time", action="store_true", help="alerts within milliseconds, at least once")
    parser.add_argument("--query-port", default="9069", help="port for state queries (default: 9069)")
    arguments = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("holdfast").setLevel(logging.INFO)

    configuration = Configuration()
    configuration.set("execution.checkpointing.dir", arguments.checkpoints)
    configuration.set("queryable-state.enable", True)
    configuration.set("queryable-state.proxy.ports", arguments.query_port)
    if arguments.real_time:
        configuration.set("execution.trigger", "real-time")
    env = StreamExecutionEnvironment.get_execution_environment(configuration)

    untimed = WatermarkStrategy.no_watermarks()
    payments = topic(arguments.broker, "payments", arguments.rows_per_epoch)
    rules = topic(arguments.broker, "rules", arguments.rows_per_epoch)
    alerts, turnovers, unreadable = define(
        env.from_source(payments, untimed, "payments").uid("payments"),
        env.from_source(rules, untimed, "rules").uid("rules"),
        () if arguments.real_time else ("at", "id"),
    )
    guarantee = DeliveryGuarantee.AT_LEAST_ONCE if arguments.real_time else DeliveryGuarantee.EXACTLY_ONCE
    alerts.sink_to(alert_topic(arguments.broker, guarantee)).uid("alerts")
    turnovers.sink_to(DeltaSink(arguments.table, create_table=True)).uid("turnovers")
    unreadable.sink_to(unreadable_topic(arguments.broker)).uid("unreadable")
    env.execute("payments")
    return 0


if __name__ == "__main__":
    sys.exit(main())
