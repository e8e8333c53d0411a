"""One source ends before the others: event time does not wait for it, by epochs and in real time, as in Flink."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Time, Types, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, TimeDomain
from holdfast.datastream.connectors.datagen import DataGeneratorSource
from holdfast.datastream.window import TumblingEventTimeWindows
from holdfast.kernel.watermark import MAX_WATERMARK, MIN_WATERMARK
from holdfast.runtime.function.bounded_sources import SequentialReader
from holdfast.runtime.function.source import BoundedEnumerator, SourceReader, SplitEnumerator, SplitSource
from holdfast.runtime.graph.compiler import compile_graph
from holdfast.runtime.graph.event_time import EventTime, EventTimeKeeper, WatermarkClock
from holdfast.runtime.job.control import JobStatus
from holdfast.runtime.master.job_client import JobClient
from holdfast.testing.epoch_runner import EpochProgram
from holdfast.testing.real_time_runner import RealTimeProgram
from tests.unit.runtime.realtime.test_real_time_jobs import RESTARTS, Failing, Rows, until

ELEMENT = "key bigint, n bigint"
HISTORY = [(0, 3), (1, 47), (0, 120)]
LIVE = 10_000
"""Times of the endless source start here."""


def timed(stream: Any, *, is_partitioned: bool = False) -> Any:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, before: row.n)
    return stream.assign_timestamps_and_watermarks(strategy.per_partition() if is_partitioned else strategy)


def windows(stream: Any, name: str, found: Rows) -> None:
    """Write a row for each key and window of 50 ms, with its greatest time."""
    windows = stream.key_by("key").window(TumblingEventTimeWindows.of(Time.milliseconds(50)))
    greatest = windows.reduce(lambda one, other: (one[0], max(one[1], other[1]))).uid(name)
    greatest.for_each_epoch(found.write).uid(f"{name} out")


def of_history(found: Rows) -> list[tuple[int, int]]:
    return sorted((row["key"], row["n"]) for row in found if row["n"] < LIVE)


def of_live(found: Rows) -> list[tuple[int, int]]:
    return sorted((row["key"], row["n"]) for row in found if row["n"] >= LIVE)


def live(program: Any) -> Any:
    source = DataGeneratorSource(lambda n: n, rows_per_second=1000).split_source()
    numbers = program.source("live", source, Types.LONG())
    return numbers.map(lambda n: (n % 2, LIVE + n), ELEMENT).uid("live elements")


def test_by_epochs_windows_of_what_has_ended_fire_and_others_do_not_wait_for_it(tmp_path: Path) -> None:
    program, alone, together = EpochProgram(), Rows(), Rows()
    history = timed(program.source("history", ELEMENT, is_bounded=True)).uid("history times")
    present = timed(program.source("live", ELEMENT)).uid("live times")
    windows(history, "alone", alone)
    windows(history.union(present), "together", together)
    inputs = [
        {"history": HISTORY[:2], "live": []},
        {"history": HISTORY[2:], "live": [(0, LIVE)]},
        {"live": [(1, LIVE + 49), (0, LIVE + 60)]},
    ]
    program.run(tmp_path, inputs[:1])
    assert of_history(alone) == HISTORY[:2]
    assert not together, "the other source may have elements as old as these"
    program.run(tmp_path, inputs)
    assert of_history(alone) == sorted(HISTORY)
    assert of_history(together) == sorted(HISTORY)
    assert of_live(together) == [(0, LIVE), (1, LIVE + 49)], "the last window is open"


@pytest.mark.parametrize("is_behind_an_exchange", [False, True])
def test_in_real_time_windows_of_what_has_ended_fire_and_others_do_not_wait_for_it(
    tmp_path: Path, is_behind_an_exchange: bool
) -> None:
    program, alone, together = RealTimeProgram(), Rows(), Rows()
    elements: Any = program.from_collection(HISTORY, ELEMENT).uid("history")
    if is_behind_an_exchange:
        elements = elements.key_by("key").reduce(lambda one, other: other).uid("newest")
    history = timed(elements).uid("history times")
    windows(history, "alone", alone)
    windows(history.union(timed(live(program)).uid("live times")), "together", together)
    client = JobClient(program.master(tmp_path))
    until(lambda: len(alone) == len(HISTORY) and len(of_live(together)) > 10)
    client.stop()
    client.await_termination()
    assert of_history(alone) == of_history(together) == sorted(HISTORY)
    assert len(of_live(together)) == len({*of_live(together)})


def test_what_had_ended_before_a_failure_is_not_waited_for(tmp_path: Path) -> None:
    program, together = RealTimeProgram(), Rows()
    history = timed(program.from_collection(HISTORY, ELEMENT).uid("history")).uid("history times")
    failing = live(program).map(Failing(tmp_path / "failed", LIVE + 500), ELEMENT).uid("failing")
    windows(history.union(timed(failing).uid("live times")), "together", together)
    client = JobClient(program.master(tmp_path / "checkpoints", RESTARTS))
    until(lambda: any(n > LIVE + 600 for _, n in of_live(together)))
    client.stop()
    client.await_termination()
    assert (tmp_path / "failed").exists()
    assert of_history(together) == sorted(HISTORY)
    assert len(of_live(together)) == len({*of_live(together)})


class Partitions(SplitSource):
    """Two ordered partitions in one task: a short one that ends, and a long one that does not."""

    def create_enumerator(self, position: Any, tasks: int) -> SplitEnumerator:
        return BoundedEnumerator({"short": 0, "long": 100} if position is None else position["splits"])

    def create_reader(self, task: int) -> SourceReader:
        return _InTurns()


class _InTurns(SequentialReader):
    polled = ""

    def read(self, split_id: str, state: Any) -> tuple[Sequence[Any], Any]:
        if len(self._open) > 1:  # the other one is next
            self._open[split_id] = self._open.pop(split_id)
        self.polled = split_id
        return [state], None if split_id == "short" and state == 9 else state + 1

    @property
    def polled_split(self) -> str:
        return self.polled


def test_a_partition_that_has_ended_is_not_waited_for_until_the_next_checkpoint(tmp_path: Path) -> None:
    program, seen = RealTimeProgram(), Written
    seen.elements.clear()
    numbers = program.source("numbers", Partitions(), Types.LONG()).map(lambda n: (0, n), ELEMENT).uid("elements")
    keyed = timed(numbers, is_partitioned=True).uid("times").key_by("key")
    keyed.process(Watermarks(), "n bigint, watermark bigint").uid("watermarks").for_each(Written()).uid("out")
    client = JobClient(program.master(tmp_path, {"execution.checkpointing.interval": "1 h"}, source_tasks=1))
    until(lambda: any(MIN_WATERMARK < watermark > 150 for _, watermark in seen.elements))
    client.cancel()
    client.await_termination()
    assert all(watermark < max(n, 10) for n, watermark in seen.elements)


class Watermarks(KeyedProcessFunction):
    """Emits the watermark that each element sees."""

    def process_element(self, row: Any, ctx: Any) -> Iterable[tuple[int, int]]:
        yield row.n, ctx.timer_service().current_watermark()


class Written:
    """A function of `for_each`."""

    elements: list[tuple[int, int]] = []  # noqa: RUF012 - tasks are threads here

    def process(self, row: Any) -> None:
        self.elements.append((row.n, row.watermark))


class Next(KeyedProcessFunction):
    """Sets a timer 10 ms after each element, and in each timer the next one."""

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(value.n + 10)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[tuple[int, int]]:
        ctx.timer_service().register_event_time_timer(timestamp + 10)
        yield ctx.get_current_key(), timestamp


ONCE_MORE = [(0, 15), (0, 25), (0, 35), (0, 45), (1, 47), (1, 57)]
"""Timers fire up to the last time of the input; those that are set then fire once."""


def by_epochs(build: Callable[[Any, Rows], None], directory: Path) -> Rows:
    program, found = EpochProgram(), Rows()
    build(program.source("rows", ELEMENT), found)
    assert program.run(directory, [{"rows": [(0, 5), (1, 37)]}], is_bounded=True) is JobStatus.FINISHED
    return found


def in_real_time(build: Callable[[Any, Rows], None], directory: Path) -> Rows:
    program, found = RealTimeProgram(), Rows()
    build(program.from_collection([(0, 5), (1, 37)], ELEMENT).uid("rows"), found)
    assert program.run(directory) is JobStatus.FINISHED
    return found


def in_real_time_beside_others(build: Callable[[Any, Rows], None], directory: Path) -> Rows:
    program, found, others = RealTimeProgram(), Rows(), Rows()
    build(program.from_collection([(0, 5), (1, 37)], ELEMENT).uid("rows"), found)
    windows(timed(live(program)).uid("live times"), "others", others)
    client = JobClient(program.master(directory))
    until(lambda: len(found) >= len(ONCE_MORE))
    time.sleep(0.5)  # further ones would follow
    client.stop()
    client.await_termination()
    return found


@pytest.mark.parametrize("run", [by_epochs, in_real_time, in_real_time_beside_others])
def test_a_timer_that_sets_the_next_fires_up_to_the_last_event_time_and_then_once(tmp_path: Path, run: Any) -> None:
    def build(stream: Any, found: Rows) -> None:
        timers = timed(stream).uid("times").key_by("key").process(Next(), "key bigint, n bigint").uid("timers")
        timers.for_each_epoch(found.write).uid("out")

    fired = sorted((row["key"], row["n"]) for row in run(build, tmp_path))
    # If the watermark 36 comes before the end of time, the timer for 45 is set before it, and that for 55 behind it.
    assert fired == ONCE_MORE or (run is not by_epochs and fired == sorted([*ONCE_MORE, (0, 55)]))


class Afterwards(KeyedProcessFunction):
    """Sets a timer in processing time, and in that one a timer in event time."""

    def process_element(self, value: Any, ctx: Any) -> None:
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + 1500)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[tuple[int, int]]:
        timers = ctx.timer_service()
        is_event = ctx.time_domain() is TimeDomain.EVENT_TIME
        if not is_event:
            timers.register_event_time_timer(1000)
        yield int(is_event), timers.current_watermark()


def test_timers_in_event_time_that_are_set_after_its_end_do_not_fire(tmp_path: Path) -> None:
    program, found, others = RealTimeProgram(), Rows(), Rows()
    keyed = timed(program.from_collection([(0, 5)], ELEMENT).uid("rows")).uid("times").key_by("key")
    keyed.process(Afterwards(), "key bigint, n bigint").uid("timers").for_each_epoch(found.write).uid("out")
    windows(timed(live(program)).uid("live times"), "others", others)
    client = JobClient(program.master(tmp_path))
    until(lambda: len(found) > 0)
    time.sleep(0.5)
    client.stop()
    client.await_termination()
    assert [(row["key"], row["n"]) for row in found] == [(0, MAX_WATERMARK)]


def test_the_watermark_of_clocks_of_which_some_have_ended() -> None:
    keeper = EventTimeKeeper()
    clocks = {uid: WatermarkClock(0, None) for uid in ("ends", "goes on")}
    observed = {"ends": 1000, "goes on": 5}

    def after(*uids: str) -> int:
        return keeper.begin(clocks, 0, is_over=False).after("step", uids, observed)

    assert after("ends", "goes on") == 4
    keeper.ended = frozenset({"goes on"})
    assert after("ends", "goes on") == 999
    assert after("goes on") == MAX_WATERMARK
    keeper.ended = frozenset(clocks)
    assert after("ends", "goes on") == MAX_WATERMARK
    assert after() == MIN_WATERMARK, "a step without clocks has no event time"
    assert EventTime(clocks, is_over=True).after("step", (), {}) == MAX_WATERMARK


def test_the_sources_of_a_clock_are_found_through_exchanges_and_transforms() -> None:
    program = EpochProgram()
    one, two, three = (program.source(name, ELEMENT) for name in ("one", "two", "three"))
    summed = one.union(two).key_by("key").reduce(lambda a, b: b).uid("newest")
    timed(summed.map(lambda row: row, ELEMENT).uid("same")).uid("behind exchange").print()
    behind = summed.union(three).transform(lambda frame: frame).uid("frames")
    timed(behind).uid("behind transform").print()
    timed(three).uid("near").print()
    plan = compile_graph(program.get_stream_graph(), 2)
    assert plan.sources_of_clocks == {
        "behind exchange": {"one", "two"},
        "behind transform": {"one", "two", "three"},
        "near": {"three"},
    }
    assert plan.ended_clocks({"three", "one"}) == {"near"}
    assert plan.ended_clocks({"one", "two"}) == {"behind exchange"}
