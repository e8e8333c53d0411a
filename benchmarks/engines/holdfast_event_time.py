"""Holdfast with a plain generator behind an assigner of timestamps, and a timer a key that is never due."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.engines.holdfast import Counter, HoldfastEngine
from benchmarks.harness.workload import Engine, Workload
from holdfast.common import Duration, WatermarkStrategy
from holdfast.datastream import DataStream
from holdfast.datastream.functions import KeyedProcessFunction

FAR = 10**15


class TimedCounter(Counter):
    """Counts the rows of a key, and sets a timer with the first."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[str, int, int]]:
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        if count == 1:
            ctx.timer_service().register_event_time_timer(FAR)
        yield value.key, value.value, count

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[tuple[str, int, int]]:
        raise AssertionError("no timer is due")


class EventTimeEngine(HoldfastEngine):
    """The job with event time."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload, lambda stream: stream.process(TimedCounter(), "key string, value long, count long"))

    def counted(self, stream: DataStream) -> DataStream:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(1))
        return super().counted(stream.assign_timestamps_and_watermarks(strategy.with_timestamp_column("ts")))


def make_engine(workload: Workload) -> Engine:
    return EventTimeEngine(workload)
