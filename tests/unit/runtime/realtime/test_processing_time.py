"""Processing time in real time: it goes on between barriers, for windows, triggers, times to live and generators.

The clock stands until the test moves it, and there is no barrier before the last one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Time, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, ProcessWindowFunction
from holdfast.datastream.state import StateTtlConfig, ValueStateDescriptor
from holdfast.datastream.window import (
    ContinuousProcessingTimeTrigger,
    CountAggregate,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    ProcessingTimeTrigger,
    SlidingProcessingTimeWindows,
    TumblingProcessingTimeWindows,
)
from holdfast.kernel.watermark import Watermark, WatermarkGenerator
from holdfast.runtime.master.job_client import JobClient
from holdfast.testing.real_time_runner import RealTimeProgram
from tests.stories.turns import HeldClock
from tests.unit.runtime.realtime.test_real_time_jobs import ONE_OR_TWO, Rows, until
from tests.unit.runtime.realtime.test_watermark_alignment import ALLOWED, QUIET, READ, Timed, stop

SECOND = 1000
BEGIN = 1_900_000_000_000
"""A multiple of ten seconds, in 2030."""
OUTPUT = "start bigint, count bigint"
TAKEN: list[int] = []
"""The elements that have reached the operator under test; tasks are threads here."""
EMITTED: list[tuple[int, int]] = []


@pytest.fixture(autouse=True)
def nothing_taken() -> Iterator[None]:
    for record in (ALLOWED, READ, TAKEN, EMITTED):
        record.clear()
    yield
    ALLOWED.clear()


class AtTheEnd(ProcessingTimeTrigger):
    """Records the elements that it is called with."""

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> Any:
        answer = super().on_element(element, timestamp, window, ctx)
        TAKEN.append(element.at)
        return answer


class EachTenSeconds(ContinuousProcessingTimeTrigger):
    def __init__(self) -> None:
        super().__init__(10 * SECOND)

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> Any:
        answer = super().on_element(element, timestamp, window, ctx)
        TAKEN.append(element.at)
        return answer


def emit(key: Any, window: Any, rows: Any) -> Iterator[Any]:
    """Emit when a window began, in seconds, and its elements."""
    start = (window.start - BEGIN) // SECOND if hasattr(window, "start") else -1
    EMITTED.append((start, len(list(rows))))
    yield EMITTED[-1]


class Job:
    """Elements come, and the clock is moved, when the test says so."""

    def __init__(self, place: Path, tasks: int) -> None:
        self.clock, self.found, self.program = HeldClock(BEGIN + SECOND), Rows(), RealTimeProgram()
        self._place, self._tasks = place, tasks
        ALLOWED["in"] = 0
        source = Timed("in", list(range(100)), ends=False)
        stream = self.program.from_source(source, WatermarkStrategy.no_watermarks(), "in").uid("in")
        self.keyed = stream.key_by(lambda row: 0, "int")

    def start(self, stream: Any) -> None:
        stream.for_each_epoch(self.found.write).uid("out")
        self.client = JobClient(
            self.program.master(self._place, QUIET, parallelism=self._tasks, source_tasks=self._tasks, clock=self.clock)
        )
        self.client.trigger_checkpoint().result(60)  # the last barrier but one is at second 1

    def add(self, count: int, *, at: int, windows: int = 1) -> None:
        """Let elements come at a second, and wait until they are there, in so many windows each."""
        self.clock.time = BEGIN + at * SECOND
        ALLOWED["in"] += count
        until(lambda: len(TAKEN) == windows * ALLOWED["in"])

    def until_emitted(self, *rows: tuple[int, int], at: int) -> None:
        self.clock.time = BEGIN + at * SECOND
        until(lambda: len(EMITTED) >= len(rows))
        assert list(rows) == EMITTED

    def finish(self) -> list[tuple[int, int]]:
        stop(self.client)
        return [(row["start"], row["count"]) for row in self.found]


@ONE_OR_TWO
def test_tumbling_windows_begin_when_their_elements_come(tmp_path: Path, tasks: int) -> None:
    job = Job(tmp_path, tasks)
    windows = job.keyed.window(TumblingProcessingTimeWindows.of(Time.seconds(10)))
    job.start(windows.trigger(AtTheEnd()).apply(emit, OUTPUT).uid("windows"))
    job.add(2, at=1)
    job.add(1, at=8)
    job.until_emitted((0, 3), at=25)
    job.add(2, at=26)
    job.add(2, at=29)
    job.until_emitted((0, 3), (20, 4), at=31)
    assert job.finish() == [(0, 3), (20, 4)]


@ONE_OR_TWO
def test_sliding_windows_hold_what_came_in_their_time(tmp_path: Path, tasks: int) -> None:
    job = Job(tmp_path, tasks)
    windows = job.keyed.window(SlidingProcessingTimeWindows.of(Time.seconds(10), Time.seconds(5)))
    job.start(windows.trigger(AtTheEnd()).apply(emit, OUTPUT).uid("windows"))
    job.add(1, at=16, windows=2)
    job.until_emitted((10, 1), at=21)
    job.add(1, at=22, windows=2)
    job.until_emitted((10, 1), (15, 2), (20, 1), at=31)
    assert job.finish() == [(10, 1), (15, 2), (20, 1)]


@ONE_OR_TWO
def test_sessions_end_when_nothing_came_for_their_gap(tmp_path: Path, tasks: int) -> None:
    job = Job(tmp_path, tasks)
    windows = job.keyed.window(ProcessingTimeSessionWindows.with_gap(Time.seconds(5)))
    job.start(windows.trigger(AtTheEnd()).apply(emit, OUTPUT).uid("windows"))
    job.add(1, at=11)
    job.add(1, at=15)
    job.add(1, at=19)
    job.until_emitted((11, 3), at=24)
    job.add(1, at=31)
    job.until_emitted((11, 3), (31, 1), at=36)
    assert job.finish() == [(11, 3), (31, 1)]


@ONE_OR_TWO
def test_a_trigger_that_repeats_begins_with_the_first_element(tmp_path: Path, tasks: int) -> None:
    job = Job(tmp_path, tasks)
    job.start(job.keyed.window(GlobalWindows.create()).trigger(EachTenSeconds()).apply(emit, OUTPUT).uid("windows"))
    job.add(2, at=45)
    job.until_emitted((-1, 2), at=50)
    job.add(1, at=58)
    job.until_emitted((-1, 2), (-1, 3), at=61)
    assert job.finish() == [(-1, 2), (-1, 3)]


@ONE_OR_TWO
def test_windows_by_columns_begin_when_their_elements_come(tmp_path: Path, tasks: int) -> None:
    job = Job(tmp_path, tasks)
    windows = job.keyed.window(TumblingProcessingTimeWindows.of(Time.seconds(10)))
    job.start(windows.aggregate_batches(count=CountAggregate()).uid("windows"))
    for at, count in ((1, 2), (8, 1), (26, 2), (29, 2), (40, 1)):
        job.clock.time = BEGIN + at * SECOND
        ALLOWED["in"] += count
        until(lambda: len(READ) == ALLOWED["in"])
        time.sleep(0.3)
    stop(job.client)
    starts = [((row["window_start"] - BEGIN) // SECOND, row["count"]) for row in job.found]
    assert starts == [(0, 3), (20, 4)]


class Told(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        EMITTED.append(((context.current_processing_time() - BEGIN) // SECOND, len(list(elements))))
        yield EMITTED[-1]


@ONE_OR_TWO
def test_a_window_function_sees_the_time_at_which_it_is_called(tmp_path: Path, tasks: int) -> None:
    job = Job(tmp_path, tasks)
    windows = job.keyed.window(TumblingProcessingTimeWindows.of(Time.seconds(10)))
    job.start(windows.trigger(AtTheEnd()).process(Told(), OUTPUT).uid("windows"))
    job.add(2, at=1)
    job.until_emitted((25, 2), at=25)
    job.add(1, at=38)
    job.until_emitted((25, 2), (57, 1), at=57)
    assert job.finish() == [(25, 2), (57, 1)]


class Counts(KeyedProcessFunction):
    """Counts until nothing came for ten seconds; asks for its state when the first element has come."""

    count: Any = None

    def open(self, runtime_context: Any) -> None:
        self.context = runtime_context

    def process_element(self, row: Any, ctx: Any) -> Iterator[Any]:
        if self.count is None:
            descriptor = ValueStateDescriptor("count", "bigint", 0)
            descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.seconds(10)).build())
            self.count = self.context.get_state(descriptor)
        self.count.update(self.count.value() + 1)
        TAKEN.append(row.at)
        yield (ctx.timer_service().current_processing_time() - BEGIN) // SECOND, self.count.value()


@ONE_OR_TWO
def test_the_time_to_live_of_a_state_begins_when_it_is_written(tmp_path: Path, tasks: int) -> None:
    job = Job(tmp_path, tasks)
    job.start(job.keyed.process(Counts(), OUTPUT).uid("counts"))
    job.add(1, at=50)
    job.add(1, at=59)
    job.add(1, at=68)
    job.add(1, at=79)
    assert job.finish() == [(50, 1), (59, 2), (68, 3), (79, 1)]


class Behind(WatermarkGenerator):
    """Event time is processing time; the generator sees the watermark before."""

    def __init__(self, context: Any) -> None:
        self.context = context

    def on_event(self, event: Any, event_timestamp: int, output: Any) -> None:
        TAKEN.append(event.at)

    def on_periodic_emit(self, output: Any) -> None:
        output.emit_watermark(Watermark(self.context.processing_time))


class Alarm(KeyedProcessFunction):
    def process_element(self, row: Any, ctx: Any) -> Iterator[Any]:
        ctx.timer_service().register_event_time_timer(BEGIN + 30 * SECOND)
        return iter(())

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        EMITTED.append(((timestamp - BEGIN) // SECOND, 1))
        yield EMITTED[-1]


@ONE_OR_TWO
def test_a_watermark_generator_sees_the_time_go_on(tmp_path: Path, tasks: int) -> None:
    """Nothing comes after the first element, and event time goes on."""
    job = Job(tmp_path, tasks)
    strategy: WatermarkStrategy = WatermarkStrategy.for_generator(Behind).with_timestamp_assigner(lambda row, _: row.at)
    source = Timed("in", [1], ends=False)
    stream = job.program.from_source(source, strategy, "timed").uid("timed")
    job.start(stream.key_by(lambda row: 0, "int").process(Alarm(), OUTPUT).uid("alarms"))
    job.add(1, at=10)
    job.until_emitted(at=29)
    job.until_emitted((30, 1), at=31)
    assert job.finish() == [(30, 1)]
