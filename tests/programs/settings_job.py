"""A job with a little of everything, to be run under settings of Spark that its author does not know of.

`settings_job.py INPUT OUTPUT CHECKPOINTS`: event time, values of many types in state, timers, SQL between two keyed
operators, files, and a function that is called with the rows of each epoch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

from holdfast.common import Duration, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, ParquetFileSink, StreamExecutionEnvironment
from holdfast.datastream.state import MapStateDescriptor, ValueStateDescriptor

INPUT = "Key string, value double, ts timestamp, day date, amount decimal(12,2), tags array<string>, group bigint"
ENRICHED = "Key string, group bigint, value double, ts timestamp, amount decimal(12,2), before decimal(12,2), tags long"
COUNTED = "group bigint, n bigint, minute timestamp, value double, amount decimal(12,2)"


class Enrich(KeyedProcessFunction):
    """Each row with what the row before had, and how many tags there were; a minute later a row by itself."""

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(
            ValueStateDescriptor("last", "struct<ts:timestamp,day:date,amount:decimal(12,2)>")
        )
        self.tags = runtime_context.get_map_state(MapStateDescriptor("tags", "string", "bigint"))

    def process_element(self, row: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        before = self.last.value()
        self.last.update((row.ts, row.day, row.amount))
        for tag in row.tags:
            self.tags.put(tag, (self.tags.get(tag) or 0) + 1)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 60_000)
        tags = sum(count for _, count in self.tags.items())
        yield row.Key, row.group, row.value, row.ts, row.amount, before.amount if before else None, tags

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        yield ctx.get_current_key(), -1, float(timestamp), None, None, None, 0


class Count(KeyedProcessFunction):
    """Numbers the rows of a group."""

    def open(self, runtime_context: Any) -> None:
        self.n = runtime_context.get_state(ValueStateDescriptor("n", "bigint", 0))

    def process_element(self, row: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        self.n.update(self.n.value() + 1)
        yield row.group, self.n.value(), row.minute, row.value, row.amount


def main(source: str, output: str, checkpoints: str) -> None:
    """Run the job over what is there."""

    def write(frame: Any, epoch: int, incarnation: str) -> None:
        text = json.dumps([row.asDict() for row in frame.collect()], default=str)
        Path(output, f"{incarnation}-{epoch}.json").write_text(text, encoding="utf-8")

    env = StreamExecutionEnvironment.get_execution_environment(
        {"execution.checkpointing.dir": checkpoints, "execution.trigger": "available-now", "parallelism.default": 2}
    )
    frame = env.spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 2).parquet(source)
    late = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5)).with_timestamp_column("ts")
    rows = env.from_dataframe(frame).uid("in").assign_timestamps_and_watermarks(late)
    enriched = rows.key_by("Key").process(Enrich(), output_type=ENRICHED).uid("enriched")
    enriched.for_each_epoch(write).uid("each")
    doubled = enriched.transform(
        lambda rows: rows.withColumn("minute", F.date_trunc("minute", "ts")).withColumn("value", F.col("value") * 2)
    ).uid("doubled")
    counted = doubled.key_by("group").process(Count(), output_type=COUNTED).uid("counted")
    counted.sink_to(ParquetFileSink(f"{output}/files")).uid("files")
    env.execute("settings")


if __name__ == "__main__":
    main(*sys.argv[1:])
