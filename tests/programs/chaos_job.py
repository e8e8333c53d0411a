"""The job of the rounds in tests/chaos: two keyed operators, a broadcast stream, event time and two sinks, on Spark.

It runs by epochs or, with `-D execution.trigger=real-time`, in real time.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from holdfast.common import Configuration, Duration, TimestampAssigner, WatermarkStrategy
from holdfast.datastream import KeyedBroadcastProcessFunction, KeyedProcessFunction, StreamExecutionEnvironment
from holdfast.datastream.connectors.file_system import FileSource
from holdfast.datastream.formats.parquet import ParquetColumnarRowInputFormat
from holdfast.datastream.sinks import ParquetFileSink
from holdfast.datastream.state import MapStateDescriptor, ValueStateDescriptor
from holdfast.runtime.job.options import EXECUTION_TRIGGER
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
POLL = Duration.of_millis(50)
"""The pause between two looks for new files in real time."""
NAME = "chaos"
REAL_TIME = "real-time"


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


def keep_books(payments: Any, rules: Any, outputs: Path, *, is_real_time: bool = False, tasks: int = 2) -> None:
    """The job: from payments and rules to entries and windows.

    By epochs the payments of an account are sorted, and the entries have the timestamps. In real time, where nothing is
    sorted, one task reads all payments, in order; they have the timestamps, so that each barrier finds the watermark of
    the last payment before it.
    """
    late = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(DISORDER))
    late = late.with_timestamp_assigner(PaymentTime())
    if is_real_time:
        accounts = payments.assign_timestamps_and_watermarks(late).key_by("account")
    else:
        accounts = payments.key_by("account", order_by=["payment"])
    entries = accounts.connect(rules.broadcast(RULES)).process(Ledger(), ENTRY).uid("ledger").set_parallelism(tasks)
    entries.sink_to(ParquetFileSink(str(outputs / "entries"))).uid("entries")
    timed = entries if is_real_time else entries.assign_timestamps_and_watermarks(late)
    windows = (
        timed.key_by(lambda entry: entry.payment % BUCKETS, key_type="bigint")
        .process(Windows(), WINDOW)
        .uid("windows")
        .set_parallelism(tasks)
    )
    windows.sink_to(ParquetFileSink(str(outputs / "windows"))).uid("shown")


def read_files(env: Any, directory: Path, name: str, schema: str, *, is_real_time: bool) -> Any:
    """The rows of the files in a folder: by epochs a file an epoch, in real time each as it comes."""
    if is_real_time:
        rows = ParquetColumnarRowInputFormat(schema)
        source = FileSource.for_bulk_file_format(rows, str(directory / name)).monitor_continuously(POLL).build()
        return env.from_source(source, WatermarkStrategy.no_watermarks(), name).uid(name)
    reader = env.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    return env.from_dataframe(reader.parquet(str(directory / name))).uid(name)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("inputs", type=Path)
    parser.add_argument("outputs", type=Path)
    parser.add_argument("--master", help="by default one with two executors, and a slot more than a real-time job has")
    parser.add_argument("--tasks", type=int, default=2, help="of each keyed operator")
    parser.add_argument("-D", dest="options", action="append", default=[])
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    logging.getLogger("py4j").setLevel(logging.WARNING)

    configuration = Configuration()
    for option in arguments.options:
        key, _, value = option.partition("=")
        configuration.set_string(key, value)
    is_real_time = configuration.get(EXECUTION_TRIGGER) == REAL_TIME
    spark = session_of(
        arguments.master or f"local-cluster[2,{3 if is_real_time else 1},700]",
        {"spark.driver.memory": "700m", "spark.executor.memory": "700m"},
        is_real_time=is_real_time,
    )
    env = StreamExecutionEnvironment.get_execution_environment(configuration, spark=spark)
    env.set_parallelism(1 if is_real_time else 2)  # in real time also the number of tasks that read

    payments, rules = (
        read_files(env, arguments.inputs, name, schema, is_real_time=is_real_time)
        for name, schema in (("payments", PAYMENT), ("rules", RULE))
    )
    keep_books(payments, rules, arguments.outputs, is_real_time=is_real_time, tasks=arguments.tasks)
    env.execute(NAME)


if __name__ == "__main__":
    main()
