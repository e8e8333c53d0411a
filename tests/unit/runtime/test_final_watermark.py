"""The end of event time, after a bounded input or a drain: all timers fire, and those that set the next one end."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from holdfast.common import Duration, Time, WatermarkStrategy
from holdfast.datastream import BatchFunction, KeyedProcessFunction, KeyedStream
from holdfast.datastream.state import MapStateDescriptor, ValueStateDescriptor
from holdfast.datastream.window import (
    ContinuousEventTimeTrigger,
    GlobalWindows,
    PurgingTrigger,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
)
from holdfast.testing import EpochProgram, OperatorHarness

END = 2**63 - 1
MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps()
Rows = Sequence[tuple[str, int]]


def emitted(path: Path, build: Any, *epochs: Rows, strategy: WatermarkStrategy = MONOTONOUS) -> list[tuple[Any, ...]]:
    """Return the rows of an operator, with those of the end of event time, in the order of their emission."""
    program, found = EpochProgram(), []
    source = program.source("in", "k string, at bigint")
    keyed = source.assign_timestamps_and_watermarks(strategy.with_timestamp_column("at")).key_by("k")
    out = build(keyed).uid("operator")
    out.for_each_epoch(lambda table, *_: found.extend(tuple(row.values()) for row in table.to_pylist())).uid("out")
    program.run(str(path), [{"in": list(rows)} for rows in epochs], is_bounded=True, parallelism=1, source_tasks=1)
    return found


class Timers(KeyedProcessFunction):
    """Sets a timer for each element, and in each timer those that it returns for its time."""

    def __init__(self, first: Any, following: Any) -> None:
        self.first, self.following = first, following

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(self.first(value.at))

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[tuple[str, int]]:
        for time in self.following(timestamp):
            ctx.timer_service().register_event_time_timer(time)
        yield ctx.get_current_key(), timestamp


def fired(path: Path, first: Any, following: Any, *epochs: Rows) -> list[tuple[str, int]]:
    return emitted(path, lambda stream: stream.process(Timers(first, following), "k string, t bigint"), *epochs)


def test_a_timer_that_sets_the_next_fires_up_to_the_last_event_time_and_then_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "holdfast"):
        found = fired(tmp_path, lambda at: at + 10, lambda time: [time + 10], [("a", 5)], [("b", 37)])
    assert found == [("a", 15), ("a", 25), ("a", 35), ("a", 45), ("b", 47), ("b", 57)]
    (warning,) = [record.getMessage() for record in caplog.records if "event time has ended" in record.getMessage()]
    assert "'operator'" in warning and "2 timers" in warning and "for 55" in warning


@pytest.mark.parametrize(
    "following",
    [lambda time: [time], lambda time: [time - 1], lambda time: [END], lambda time: [time + 1, time - 1, END]],
)
def test_event_time_ends_whatever_timers_are_set(tmp_path: Path, following: Any) -> None:
    def valid(time: int) -> list[int]:
        return [min(next_, END) for next_ in following(time)]

    found = fired(tmp_path, lambda at: at, valid, [("a", 1), ("b", 2)])
    assert {("a", 1), ("b", 2)} <= set(found)
    assert len(found) <= 12


def test_a_timer_at_the_end_of_time_that_sets_itself_again_fires_twice(tmp_path: Path) -> None:
    assert fired(tmp_path, lambda at: END, lambda time: [END], [("a", 1)]) == [("a", END)] * 2


class Sorter(KeyedProcessFunction):
    """Emits the elements of a key in order of time, with one timer at a time."""

    def open(self, runtime_context: Any) -> None:
        self.waiting = runtime_context.get_map_state(MapStateDescriptor("waiting", "bigint", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> None:
        for time in list(self.waiting.keys()):
            ctx.timer_service().delete_event_time_timer(time)
        self.waiting.put(value.at, value.at)
        ctx.timer_service().register_event_time_timer(min(self.waiting.keys()))

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[tuple[str, int]]:
        self.waiting.remove(timestamp)
        yield ctx.get_current_key(), timestamp
        if following := list(self.waiting.keys()):
            ctx.timer_service().register_event_time_timer(min(following))


def test_elements_buffered_in_order_of_time_are_emitted_completely(tmp_path: Path) -> None:
    rows = [("a", at) for at in range(1000, 0, -7)]
    slow = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(10))
    build = lambda stream: stream.process(Sorter(), "k string, at bigint")  # noqa: E731
    found = emitted(tmp_path, build, rows[:100], rows[100:], strategy=slow)
    assert found == sorted(rows)


class Inactivity(KeyedProcessFunction):
    """Emits the time of the last element of a key, when there has been none for a minute."""

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> None:
        if self.last.value() is None:
            ctx.timer_service().register_event_time_timer(value.at + 60)
        self.last.update(value.at)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[tuple[str, int]]:
        if timestamp < self.last.value() + 60:
            ctx.timer_service().register_event_time_timer(self.last.value() + 60)
            return
        yield ctx.get_current_key(), self.last.value()
        self.last.clear()


def test_a_timer_that_is_put_off_once_more_fires(tmp_path: Path) -> None:
    rows = [("a", 1), ("a", 20), ("a", 50)]
    assert emitted(tmp_path, lambda stream: stream.process(Inactivity(), "k string, at bigint"), rows) == [("a", 50)]


def test_a_harness_and_a_job_agree(tmp_path: Path) -> None:
    function = Timers(lambda at: at + 10, lambda time: [time + 10])
    kinds = {"key_type": "string", "output_type": "k string, t bigint"}
    with OperatorHarness(function, key_by="k", **kinds) as harness:
        for row in [("a", 5), ("b", 37)]:
            harness.process_element({"k": row[0], "at": row[1]}, row[1])
        found = harness.process_watermark(END)
    assert [tuple(row) for row in found] == [
        ("a", 15), ("a", 25), ("a", 35), ("a", 45), ("b", 47), ("b", 57)
    ]  # fmt: skip


class BatchTimers(BatchFunction):
    def __init__(self, following: Any) -> None:
        self.following = following

    def process_batch(self, batch: Any, ctx: Any) -> None:
        ctx.register_event_time_timers(pc.add(batch.column("at"), 10))

    def on_timers(self, keys: Any, ctx: Any) -> Any:
        ctx.register_event_time_timers(np.array([self.following(time) for time in ctx.timestamps.to_pylist()]))
        return keys.append_column("t", ctx.timestamps)


def test_timers_of_batches_end_in_the_same_way(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def run(name: str, following: Any) -> list[tuple[Any, ...]]:
        function = BatchTimers(following)
        build = lambda stream: stream.process_batches(function, "k string, t bigint")  # noqa: E731
        return sorted(emitted(tmp_path / name, build, [("a", 5)], [("b", 37)]))

    with caplog.at_level(logging.WARNING, "holdfast"):
        found = run("next", lambda time: time + 10)
    assert found == [("a", 15), ("a", 25), ("a", 35), ("a", 45), ("b", 47), ("b", 57)]
    assert any("2 timers" in record.getMessage() for record in caplog.records)
    assert run("again", lambda time: time) == [("a", 15), ("a", 15), ("b", 47), ("b", 47)]
    assert run("end", lambda time: END) == [("a", 15), ("a", END), ("b", 47), ("b", END)]


def total(stream: KeyedStream, assigner: Any, trigger: Any) -> Any:
    return stream.window(assigner).trigger(trigger).reduce(lambda one, other: (one.k, one.at + other.at))


@pytest.mark.parametrize("interval", [Time.milliseconds(1), Time.days(365)])
@pytest.mark.parametrize("purges", [False, True])
def test_a_global_window_fires_once_for_the_final_watermark(tmp_path: Path, interval: Any, purges: bool) -> None:
    trigger = ContinuousEventTimeTrigger.of(interval)
    trigger = PurgingTrigger.of(trigger) if purges else trigger
    rows = [("a", 1), ("b", 3), ("a", 4)]
    found = emitted(tmp_path, lambda stream: total(stream, GlobalWindows.create(), trigger), rows)
    assert sorted(found) == [("a", 5), ("b", 3)]


def test_a_window_that_ends_fires_at_each_interval_up_to_its_end(tmp_path: Path) -> None:
    windows, trigger = TumblingEventTimeWindows.of(Time.milliseconds(50)), ContinuousEventTimeTrigger.of(10)
    found = emitted(tmp_path, lambda stream: total(stream, windows, trigger), [("a", 1), ("a", 3)])
    assert found == [("a", 4)] * 5, "at 10, 20, 30, 40 and 49, as in Flink"


class Every(Trigger):
    """Fires every ten milliseconds, for ever."""

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        ctx.register_event_time_timer(timestamp + 10)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        ctx.register_event_time_timer(time + 10)
        return TriggerResult.FIRE

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: Any) -> None: ...

    def clear(self, window: Any, ctx: Any) -> None: ...


def test_a_trigger_of_the_program_that_always_sets_the_next_timer_ends_too(tmp_path: Path) -> None:
    found = emitted(tmp_path, lambda stream: total(stream, GlobalWindows.create(), Every()), [("a", 1), ("a", 27)])
    assert found == [("a", 28)] * 6, "at 11, 21, 31 and 37, the last one that was set before, and once after"
