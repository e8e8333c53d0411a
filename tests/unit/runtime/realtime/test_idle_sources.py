"""All sources of a real-time job are idle: event time stands, and goes on with the next elements."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from holdfast.common import Duration, Time, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction
from holdfast.datastream.window import TumblingEventTimeWindows
from holdfast.kernel.watermark import MIN_WATERMARK
from holdfast.runtime.master.job_client import JobClient
from holdfast.testing.real_time_runner import RealTimeProgram
from tests.unit.runtime.realtime.test_real_time_jobs import ONE_OR_TWO, Rows, until
from tests.unit.runtime.realtime.test_watermark_alignment import ALLOWED, READ, Timed, alone, stop

IDLE_AFTER = 200
OUTPUT = "what string, at bigint"


@pytest.fixture(autouse=True)
def nothing_read() -> None:
    ALLOWED.clear()
    READ.clear()
    Watching.seen.clear()


class Watching(KeyedProcessFunction):
    """Sets an event-time timer for each element, and looks at the watermark every ten milliseconds."""

    seen: ClassVar[list[int]] = []

    def process_element(self, row: Any, ctx: Any) -> Iterator[Any]:
        timers = ctx.timer_service()
        timers.register_event_time_timer(row.at)
        timers.register_processing_time_timer(timers.current_processing_time() + 10)
        return iter(())

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        timers = ctx.timer_service()
        Watching.seen.append(timers.current_watermark())
        if timestamp > 1_000_000_000_000:
            timers.register_processing_time_timer(timers.current_processing_time() + 10)
        else:
            yield "timer", timestamp


def count(key: Any, window: Any, rows: Any) -> Iterator[Any]:
    yield "window", window.start


def watched(tmp_path: Path, tasks: int, found: Rows, *sources: Timed) -> JobClient:
    program = RealTimeProgram()
    strategy: WatermarkStrategy = alone().with_idleness(Duration.of_millis(IDLE_AFTER))
    first, *others = [program.from_source(source, strategy, source.name).uid(source.name) for source in sources]
    keyed = first.union(*others).key_by(lambda row: 0, "int")
    windows = keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(100))).apply(count, OUTPUT).uid("windows")
    timers = keyed.process(Watching(), OUTPUT).uid("timers")
    windows.union(timers).for_each_epoch(found.write).uid("out")
    options = {"execution.checkpointing.interval": "20 ms"}
    return JobClient(program.master(tmp_path, options, parallelism=tasks, source_tasks=tasks))


def written(found: Rows) -> list[tuple[str, int]]:
    return sorted((row["what"], row["at"]) for row in found)


@ONE_OR_TWO
def test_event_time_stands_while_all_sources_are_idle(tmp_path: Path, tasks: int) -> None:
    found = Rows()
    left, right = Timed("left", [10, 150, 500, 900], ends=False), Timed("right", [20, 330, 400, 950], ends=False)
    ALLOWED.update(left=2, right=2)
    client = watched(tmp_path, tasks, found, left, right)
    until(lambda: len(READ) == 4)
    until(lambda: max(Watching.seen, default=MIN_WATERMARK) >= 149)
    time.sleep(5 * IDLE_AFTER / 1000)  # both are idle now
    client.trigger_checkpoint().result(60)
    stands = [("timer", 10), ("timer", 20), ("window", 0)]
    assert Watching.seen[-1] in (149, 329), "of the one that became idle last"
    reached = Watching.seen[-1]
    before, looked = written(found), len(Watching.seen)
    assert before == (stands if reached == 149 else sorted([*stands, ("timer", 150), ("window", 100)]))
    time.sleep(5 * IDLE_AFTER / 1000)
    client.trigger_checkpoint().result(60)
    assert len(Watching.seen) > looked + 20
    assert {*Watching.seen[looked:]} == {reached}
    assert written(found) == before, "nothing has fired"
    ALLOWED.update(left=3)
    until(lambda: Watching.seen[-1] == 499)
    ALLOWED.clear()
    until(lambda: ("timer", 900) in written(found) or Watching.seen[-1] >= 899)
    stop(client)
    assert Watching.seen == sorted(Watching.seen), "the watermark never goes back"
    assert max(Watching.seen) < 950
    assert len(found) == len({*written(found)})


@ONE_OR_TWO
def test_sources_that_are_idle_from_the_beginning_do_not_end_event_time(tmp_path: Path, tasks: int) -> None:
    found = Rows()
    left, right = Timed("left", [10, 250], ends=False), Timed("right", [20], ends=False)
    ALLOWED.update(left=0, right=0)
    client = watched(tmp_path, tasks, found, left, right)
    time.sleep(3 * IDLE_AFTER / 1000)
    ALLOWED.update(left=1)
    until(lambda: bool(Watching.seen))
    time.sleep(3 * IDLE_AFTER / 1000)  # it is idle again
    client.trigger_checkpoint().result(60)
    assert {*Watching.seen} <= {MIN_WATERMARK, 9}
    assert written(found) == []
    ALLOWED.clear()
    until(lambda: ("timer", 10) in written(found))
    stop(client)
    assert Watching.seen == sorted(Watching.seen)


@ONE_OR_TWO
def test_a_source_that_has_ended_does_not_end_event_time_while_the_other_one_is_idle(
    tmp_path: Path, tasks: int
) -> None:
    found = Rows()
    left, right = Timed("left", [10, 250, 400], ends=False), Timed("right", [20, 30])
    ALLOWED.update(left=1)
    client = watched(tmp_path, tasks, found, left, right)
    until(lambda: len(READ) == 3)
    time.sleep(5 * IDLE_AFTER / 1000)
    client.trigger_checkpoint().result(60)
    assert max(Watching.seen) in (MIN_WATERMARK, 9), "the idle one may have been heard too late"
    assert written(found) == []
    ALLOWED.update(left=2)
    until(lambda: ("window", 0) in written(found))
    assert max(Watching.seen) == 249
    assert written(found) == [("timer", 10), ("timer", 20), ("timer", 30), ("window", 0)]
    stop(client)
