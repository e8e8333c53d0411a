"""All sources of a real-time job are idle: event time stands, and goes on with the next elements.

Sources become idle when the test moves the clock, and not before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Duration, Time, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction
from holdfast.datastream.window import TumblingEventTimeWindows
from holdfast.runtime.master.job_client import JobClient
from holdfast.testing.real_time_runner import RealTimeProgram
from tests.stories.turns import HeldClock
from tests.unit.runtime.realtime.test_real_time_jobs import ONE_OR_TWO, Rows, until
from tests.unit.runtime.realtime.test_watermark_alignment import ALLOWED, READ, Timed, alone, stop

IDLE_AFTER = 1000
OUTPUT = "what string, at bigint"


@pytest.fixture(autouse=True)
def nothing_read() -> Iterator[None]:
    ALLOWED.clear()
    READ.clear()
    yield
    ALLOWED.clear()


class Timers(KeyedProcessFunction):
    """Sets a timer for the time of each element."""

    def process_element(self, row: Any, ctx: Any) -> Iterator[Any]:
        ctx.timer_service().register_event_time_timer(row.at)
        return iter(())

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield "timer", timestamp


def window(key: Any, window: Any, rows: Any) -> Iterator[Any]:
    yield "window", window.start


class Job:
    """Windows of 100 ms and timers over sources that share an operator; what they gave is in `rows()`."""

    def __init__(self, place: Path, tasks: int, *sources: Timed) -> None:
        self._found, self._clock = Rows(), HeldClock()
        program = RealTimeProgram()
        strategy: WatermarkStrategy = alone().with_idleness(Duration.of_millis(IDLE_AFTER))
        first, *others = [program.from_source(source, strategy, source.name).uid(source.name) for source in sources]
        keyed = first.union(*others).key_by(lambda row: 0, "int")
        windows = keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(100))).apply(window, OUTPUT).uid("windows")
        timers = keyed.process(Timers(), OUTPUT).uid("timers")
        windows.union(timers).for_each_epoch(self._found.write).uid("out")
        options = {"execution.checkpointing.interval": "20 ms"}
        self.client = JobClient(
            program.master(place, options, parallelism=tasks, source_tasks=tasks, clock=self._clock)
        )

    def rows(self) -> list[tuple[str, int]]:
        return sorted((row["what"], row["at"]) for row in self._found)

    def until_fired(self, *rows: tuple[str, int]) -> None:
        """Wait until these have come, and no others."""
        until(lambda: len(self._found) >= len(rows))
        self.require(*rows)

    def require(self, *rows: tuple[str, int]) -> None:
        """Check that these have come, also when everything that is under way has arrived."""
        for _ in range(2):
            time.sleep(0.3)
            self.client.trigger_checkpoint().result(60)
        assert self.rows() == sorted(rows)

    def make_idle(self) -> None:
        self._clock.time += 10 * IDLE_AFTER


@ONE_OR_TWO
def test_event_time_stands_while_all_sources_are_idle(tmp_path: Path, tasks: int) -> None:
    left, right = Timed("left", [10, 150, 500, 900], ends=False), Timed("right", [20, 130, 400, 950], ends=False)
    ALLOWED.update(left=2, right=2)
    job = Job(tmp_path, tasks, left, right)
    begun = [("timer", 10), ("timer", 20), ("window", 0)]
    job.until_fired(*begun)
    job.make_idle()
    time.sleep(1)
    # A task may hear of one that it is idle before it hears of the other: then event time reaches 149 and not 129.
    stands = job.rows()
    assert stands in (begun, sorted([*begun, ("timer", 130)]))
    job.make_idle()
    job.require(*stands)
    ALLOWED.update(left=3)
    job.until_fired(*begun, ("timer", 130), ("timer", 150), ("window", 100))
    ALLOWED.clear()
    # The element at 400 is late for its window, and its timer fires at once.
    job.until_fired(
        *begun, ("timer", 130), ("timer", 150), ("window", 100), ("timer", 400), ("timer", 500), ("window", 500)
    )
    stop(job.client)


@ONE_OR_TWO
def test_sources_that_are_idle_from_the_beginning_do_not_end_event_time(tmp_path: Path, tasks: int) -> None:
    ALLOWED.update(left=0, right=0)
    job = Job(tmp_path, tasks, Timed("left", [10, 250], ends=False), Timed("right", [20], ends=False))
    job.require()
    job.make_idle()
    job.require()
    ALLOWED.update(left=1)
    until(lambda: len(READ) == 1)
    job.require()
    job.make_idle()
    job.require()
    ALLOWED.update(right=1)
    job.until_fired(("timer", 10))
    ALLOWED.clear()
    job.require(("timer", 10))
    stop(job.client)


@ONE_OR_TWO
def test_a_source_that_has_ended_does_not_end_event_time_while_the_other_one_is_idle(
    tmp_path: Path, tasks: int
) -> None:
    ALLOWED.update(left=1)
    job = Job(tmp_path, tasks, Timed("left", [10, 250, 400], ends=False), Timed("right", [20, 30]))
    until(lambda: len(READ) == 3)
    job.require()
    job.make_idle()
    job.require()
    ALLOWED.update(left=2)
    job.until_fired(("timer", 10), ("timer", 20), ("timer", 30), ("window", 0))
    stop(job.client)
