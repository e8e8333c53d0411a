"""Uids that are derived from the structure of a program stay what they were, or running jobs would lose their state.

The expected ones were recorded at version 0.1.0, before classes were renamed.
"""

from __future__ import annotations

from typing import Any

from holdfast.common import Encoder, Time, WatermarkStrategy
from holdfast.datastream import (
    CoMapFunction,
    JoinFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ParquetFileSink,
    ProcessJoinFunction,
)
from holdfast.datastream.connectors.file_system import FileSink
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.datastream.window import (
    CountAggregate,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from holdfast.testing import EpochProgram

SECONDS = Time.seconds(10)


class Count(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("n", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Any: ...


class Both(KeyedCoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> Any: ...

    def process_element2(self, value: Any, ctx: Any) -> Any: ...


class Pairs(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Any: ...


class Joined(JoinFunction):
    def join(self, first: Any, second: Any) -> Any: ...


class Mapped(CoMapFunction):
    def map1(self, value: Any) -> Any: ...

    def map2(self, value: Any) -> Any: ...


def program() -> EpochProgram:
    """A step of each kind, without uids."""
    row = "k string, n bigint, at bigint"
    p = EpochProgram()
    source = p.source("in", row)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")
    rows = source.map(lambda r: r, row).filter(lambda r: True).assign_timestamps_and_watermarks(strategy)
    keyed = rows.key_by("k")
    tumbling = TumblingEventTimeWindows.of(SECONDS)
    streams = [
        keyed.process(Count(), row),
        keyed.reduce(lambda a, b: a),
        keyed.count(),
        keyed.sum("n"),
        keyed.min_by("n"),
        keyed.deduplicate(),
        keyed.top_n(2, "n"),
        keyed.window(tumbling).aggregate_batches(n=CountAggregate()),
        keyed.window(EventTimeSessionWindows.with_gap(SECONDS)).aggregate_batches(n=CountAggregate()),
        keyed.window(SlidingEventTimeWindows.of(SECONDS, Time.seconds(5))).reduce(lambda a, b: a),
        rows.connect(rows).key_by("k", "k").process(Both(), "k string"),
        rows.connect(rows).map(Mapped(), "k string"),
        keyed.interval_join(keyed).between(Time.seconds(-1), Time.seconds(1)).process(Pairs(), "k string"),
        rows.join(rows).where(lambda r: r.k).equal_to(lambda r: r.k).window(tumbling).apply(Joined(), "k string"),
        rows.union(source).key_by("k").process(Count(), "k string"),
        source.map(lambda r: (r.k, r.n)).key_by(lambda r: r[0]).sum(1),
    ]
    for stream in streams:
        stream.print()
    keyed.as_queryable_state("last")
    rows.sink_to(ParquetFileSink("/out"))
    rows.map(lambda r: r.k, "string").sink_to(
        FileSink.for_row_format("/lines", Encoder.simple_string_encoder()).build()
    )
    rows.for_each_epoch(lambda frame, epoch, info: None)
    return p


def test_derived_uids_are_those_of_the_first_version() -> None:
    assert sorted(node.uid for node in program().get_stream_graph().nodes) == EXPECTED


EXPECTED = [
    "batches-01fef816ce",
    "batches-36a4062957",
    "batches-516541df51",
    "batches-e1b5eddfc3",
    "co-map-17",
    "filesink-22a70f8f44",
    "filter-2",
    "foreachepochsink-bac18b9ae6",
    "in",
    "map-1",
    "map-20",
    "map-21",
    "map-26",
    "map-47",
    "panes-88cc147e1b",
    "panes-ffab43cefb",
    "parquetfilesink-6db5227107",
    "printsink-0b2d0bb589",
    "printsink-100c9d1d7f",
    "printsink-210fe075a3",
    "printsink-257930fd39",
    "printsink-2f3cd1a751",
    "printsink-3839f983e6",
    "printsink-41c4018239",
    "printsink-41c8099f2b",
    "printsink-49f126651a",
    "printsink-4ba2c56cf9",
    "printsink-543f6dbb16",
    "printsink-809fcf6fb1",
    "printsink-9909b03016",
    "printsink-cd16dec023",
    "printsink-dc1940989e",
    "printsink-e18b2fd94c",
    "process-084c9265c9",
    "process-595419e769",
    "process-7384a83d81",
    "process-c8a95a917d",
    "queryable-last",
    "queryable-last-end",
    "reduce-0626225055",
    "reduce-96e4f9d2e2",
    "reduce-adb8325877",
    "timestamps-14",
    "timestamps-16",
    "timestamps-18",
    "timestamps-3",
    "union-22",
    "union-24",
    "window-4700402ff6",
    "window-5fffb834fd",
]
