"""The job of the rounds in tests/chaos: two keyed operators, a broadcast stream, event time and two sinks, on Spark."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from holdfast.common import Configuration, Duration, TimestampAssigner, WatermarkStrategy
from holdfast.datastream import KeyedBroadcastProcessFunction, KeyedProcessFunction, StreamExecutionEnvironment
from holdfast.datastream.sinks import ParquetFileSink
from holdfast.datastream.state import MapStateDescriptor, ValueStateDescriptor
from tests.programs.session import session_of

PAYMENT = "payment bigint, account string, amount bigint"
RULE = "rule bigint"
ENTRY = "payment bigint, account string, seq bigint, total bigint, rules bigint"
WINDOW = "bucket bigint, ends bigint, payments bigint, amount bigint"
BUCKETS = 3
WIDTH = 500
"""Payments that a window spans; a payment's number is its time."""
DISORDER = 2000
RULES = MapStateDescriptor("rules", "bigint", "bigint")
NAME = "chaos"


def queryable(descriptor: Any) -> Any:
    """A state that can be asked for under its own name."""
    descriptor.set_queryable(descriptor.name)
    return descriptor


class Ledger(KeyedBroadcastProcessFunction):
    """Numbers and sums the payments of an account, and says how many rules it knew."""

    def open(self, runtime_context: Any) -> None:
        self.seq = runtime_context.get_state(queryable(ValueStateDescriptor("seq", "bigint")))
        self.total = runtime_context.get_state(queryable(ValueStateDescriptor("total", "bigint")))

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(RULES).put(value.rule, value.rule)
        return ()

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.seq.update((self.seq.value() or 0) + 1)
        self.total.update((self.total.value() or 0) + value.amount)
        rules = len(list(ctx.get_broadcast_state(RULES).keys()))
        yield value.payment, value.account, self.seq.value(), self.total.value(), rules


class PaymentTime(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        number: int = value.payment
        return number


class Windows(KeyedProcessFunction):
    """Counts the entries of each stretch of event time, and shows them when the watermark has passed its end."""

    def open(self, runtime_context: Any) -> None:
        self.counts = runtime_context.get_map_state(queryable(MapStateDescriptor("counts", "bigint", "bigint")))
        self.sums = runtime_context.get_map_state(queryable(MapStateDescriptor("sums", "bigint", "bigint")))

    def process_element(self, value: Any, ctx: Any) -> Any:
        ends = value.payment // WIDTH * WIDTH + WIDTH - 1
        self.counts.put(ends, (self.counts.get(ends) or 0) + 1)
        self.sums.put(ends, (self.sums.get(ends) or 0) + value.seq)
        ctx.timer_service().register_event_time_timer(ends)
        return ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp, self.counts.get(timestamp), self.sums.get(timestamp)
        self.counts.remove(timestamp)
        self.sums.remove(timestamp)


def keep_books(payments: Any, rules: Any, outputs: Path) -> None:
    """The job: from payments and rules to entries and windows."""
    entries = (
        payments.key_by("account", order_by=["payment"])
        .connect(rules.broadcast(RULES))
        .process(Ledger(), ENTRY)
        .uid("ledger")
    )
    entries.sink_to(ParquetFileSink(str(outputs / "entries"))).uid("entries")
    late = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(DISORDER))
    windows = (
        entries.assign_timestamps_and_watermarks(late.with_timestamp_assigner(PaymentTime()))
        .key_by(lambda entry: entry.payment % BUCKETS, key_type="bigint")
        .process(Windows(), WINDOW)
        .uid("windows")
    )
    windows.sink_to(ParquetFileSink(str(outputs / "windows"))).uid("shown")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("inputs", type=Path)
    parser.add_argument("outputs", type=Path)
    parser.add_argument("--master", default="local-cluster[2,1,700]")
    parser.add_argument("-D", dest="options", action="append", default=[])
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    logging.getLogger("py4j").setLevel(logging.WARNING)

    spark = session_of(arguments.master, {"spark.driver.memory": "700m", "spark.executor.memory": "700m"})
    configuration = Configuration()
    for option in arguments.options:
        key, _, value = option.partition("=")
        configuration.set_string(key, value)
    env = StreamExecutionEnvironment.get_execution_environment(configuration, spark=spark)
    env.set_parallelism(2)

    def files(schema: str, name: str) -> Any:
        reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        return env.from_dataframe(reader.parquet(str(arguments.inputs / name))).uid(name)

    keep_books(files(PAYMENT, "payments"), files(RULE, "rules"), arguments.outputs)
    env.execute(NAME)


if __name__ == "__main__":
    main()
