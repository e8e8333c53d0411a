"""Asynchronous calls of a real-time job: a slow one delays neither others nor what follows, except a barrier. No JVM.

The calls wait for as long as the test wants. The interval of checkpoints is an hour.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Time, WatermarkStrategy
from holdfast.datastream import AsyncDataStream, AsyncFunction, KeyedProcessFunction
from holdfast.errors import JobExecutionError, UserFunctionError
from holdfast.runtime.master.job_client import JobClient
from holdfast.testing.real_time_runner import RealTimeProgram
from tests.unit.runtime.realtime.test_real_time_jobs import RESTARTS, Rows, until
from tests.unit.runtime.realtime.test_watermark_alignment import ALLOWED, QUIET, READING, Timed

HELD: set[int] = set()
"""Elements whose calls do not return."""
CALLED: list[int] = []
RETURNED: list[int] = []
CANCELLED: list[int] = []
FAILING: list[int] = []
"""Elements whose next calls fail; each once."""
FIRED: list[tuple[int, tuple[int, ...]]] = []
LATE: list[int] = []
"""Elements that were behind the watermark."""

WAITS = [AsyncDataStream.unordered_wait, AsyncDataStream.ordered_wait]
EACH_WAIT = pytest.mark.parametrize("wait", WAITS, ids=["unordered", "ordered"])
EACH_NUMBER = pytest.mark.parametrize("tasks", [1, 2], ids=["one task", "an exchange"])


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    ALLOWED.clear()
    for several in (HELD, CALLED, RETURNED, CANCELLED, FAILING, FIRED, LATE):
        several.clear()


class Lookup(AsyncFunction):
    """Returns each element, if it is not held.

    Args:
        apart: Added to the number of an element in `CALLED` and `HELD`.
    """

    def __init__(self, apart: int = 0) -> None:
        self.apart = apart

    async def async_invoke(self, value: Any) -> list[Any]:
        CALLED.append(value.at + self.apart)
        try:
            while value.at + self.apart in HELD:
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            CANCELLED.append(value.at)
            raise
        if value.at in FAILING:
            FAILING.remove(value.at)
            raise ValueError(f"no answer for {value.at}")
        return [value]


def returned(row: Any) -> None:
    RETURNED.append(row.at)


class Remembered(KeyedProcessFunction):
    """Says at each time which elements were here before."""

    def open(self, runtime_context: Any) -> None:
        self.seen: list[int] = []

    def process_element(self, row: Any, ctx: Any) -> Any:
        self.seen.append(row.at)
        if ctx.timer_service().current_watermark() >= row.at:
            LATE.append(row.at)
        ctx.timer_service().register_event_time_timer(100)
        yield row

    def on_timer(self, timestamp: int, ctx: Any) -> None:
        FIRED.append((timestamp, tuple(sorted(self.seen))))


def run(
    tmp_path: Path, wait: Any, times: Sequence[int], capacity: int = 100, *, tasks: int = 1, has_time: bool = False
) -> tuple[JobClient, Rows]:
    strategy = WatermarkStrategy.no_watermarks()
    if has_time:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)
    program, found = RealTimeProgram(), Rows()
    rows = program.from_source(Timed("in", times, at_once=4, ends=False), strategy, "in").uid("in")
    asked = wait(rows, Lookup(), Time.seconds(60), capacity, READING).uid("asked")
    asked.for_each(returned).uid("returned")
    asked.key_by("source").process(Remembered(), READING).uid("remembered").for_each_epoch(found.write).uid("out")
    return JobClient(program.master(tmp_path, {**QUIET, **RESTARTS}, parallelism=tasks)), found


def end(client: JobClient, found: Rows, times: Sequence[int]) -> None:
    HELD.clear()
    client.trigger_checkpoint().result(60)
    client.stop()
    client.await_termination()
    assert sorted(row["at"] for row in found) == sorted(times)
    assert LATE == []


@EACH_NUMBER
def test_results_come_while_another_call_waits(tmp_path: Path, tasks: int) -> None:
    HELD.add(0)
    ALLOWED["in"] = 2
    client, found = run(tmp_path, AsyncDataStream.unordered_wait, range(6), tasks=tasks)
    until(lambda: RETURNED == [1])
    ALLOWED["in"] = 6
    until(lambda: sorted(RETURNED) == [1, 2, 3, 4, 5])
    assert 0 in CALLED
    HELD.clear()
    until(lambda: len(RETURNED) == 6)
    end(client, found, range(6))


def test_ordered_results_wait_for_those_before_them_and_are_called_beside_them(tmp_path: Path) -> None:
    HELD.add(1)
    ALLOWED["in"] = 3
    client, found = run(tmp_path, AsyncDataStream.ordered_wait, range(6))
    until(lambda: RETURNED == [0])
    ALLOWED["in"] = 6
    until(lambda: CALLED == [0, 1, 2, 3, 4, 5])
    assert RETURNED == [0]
    HELD.clear()
    until(lambda: RETURNED == [0, 1, 2, 3, 4, 5])
    end(client, found, range(6))


@EACH_WAIT
def test_no_more_calls_are_in_flight_than_the_capacity(tmp_path: Path, wait: Any) -> None:
    HELD.update(range(10))
    client, found = run(tmp_path, wait, range(10), capacity=3)
    until(lambda: len(CALLED) == 3)
    time.sleep(0.2)
    assert sorted(CALLED) == [0, 1, 2]
    HELD.discard(0)
    until(lambda: len(CALLED) == 4)
    time.sleep(0.2)
    assert sorted(CALLED) == [0, 1, 2, 3] and RETURNED == [0]
    end(client, found, range(10))


@EACH_WAIT
@EACH_NUMBER
def test_event_time_does_not_pass_an_element_that_waits(tmp_path: Path, wait: Any, tasks: int) -> None:
    HELD.add(10)
    times = [10, 20, 500, 600]
    client, found = run(tmp_path, wait, times, has_time=True, tasks=tasks)
    until(lambda: len(CALLED) == 4)
    time.sleep(1.0)  # five intervals of watermarks
    assert FIRED == [], "the element of 10 belongs before the timer of 100"
    HELD.clear()
    until(lambda: bool(FIRED))
    ((at, seen),) = FIRED
    assert at == 100 and {10, 20} <= {*seen}
    end(client, found, times)


@EACH_WAIT
def test_event_time_goes_on_when_the_calls_before_it_have_returned(tmp_path: Path, wait: Any) -> None:
    """Later calls may wait: at any moment one does, if there are many."""
    HELD.update([200, 300])
    ALLOWED["in"] = 2
    times = [10, 150, 200, 300]
    client, found = run(tmp_path, wait, times, has_time=True)
    until(lambda: len(RETURNED) == 2)
    ALLOWED["in"] = 4
    until(lambda: len(CALLED) == 4)
    until(lambda: [at for at, _ in FIRED] == [100])
    end(client, found, times)


@EACH_WAIT
def test_a_barrier_waits_for_the_calls_before_it(tmp_path: Path, wait: Any) -> None:
    HELD.add(2)
    client, found = run(tmp_path, wait, range(4))
    until(lambda: len(CALLED) == 4)
    checkpoint = client.trigger_checkpoint()
    time.sleep(0.3)
    assert not checkpoint.done()
    HELD.clear()
    checkpoint.result(60)
    assert sorted(row["at"] for row in found) == [0, 1, 2, 3]
    end(client, found, range(4))


@EACH_WAIT
def test_a_call_that_fails_restarts_the_job_and_cancels_the_others(tmp_path: Path, wait: Any) -> None:
    HELD.update([0, 1])
    FAILING.append(3)
    client, found = run(tmp_path, wait, range(4))
    until(lambda: len(CALLED) == 8)
    until(lambda: sorted(CANCELLED) == [0, 1])
    end(client, found, range(4))


def test_a_call_that_always_fails_ends_the_job_with_its_error(tmp_path: Path) -> None:
    FAILING.extend([2] * 100)
    client, _ = run(tmp_path, AsyncDataStream.unordered_wait, range(4))
    with pytest.raises(JobExecutionError) as failed:
        client.await_termination()
    assert isinstance(failed.value.__cause__, UserFunctionError)
    assert "ValueError: no answer for 2" in str(failed.value.__cause__)


@pytest.mark.parametrize("held", [10, 1010], ids=["in the first", "in the second"])
def test_event_time_passes_two_asynchronous_functions_one_after_the_other(tmp_path: Path, held: int) -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)
    program, found = RealTimeProgram(), Rows()
    wait, times = AsyncDataStream.unordered_wait, [10, 20, 500, 600]
    rows = program.from_source(Timed("in", times, at_once=4, ends=False), strategy, "in").uid("in")
    asked = wait(rows, Lookup(), Time.seconds(60), 100, READING).uid("first")
    again = wait(asked, Lookup(1000), Time.seconds(60), 100, READING).uid("second")
    again.key_by("source").process(Remembered(), READING).uid("remembered").for_each_epoch(found.write).uid("out")
    HELD.add(held)
    client = JobClient(program.master(tmp_path, QUIET))
    until(lambda: len(CALLED) == (7 if held == 10 else 8))
    time.sleep(1.0)
    assert FIRED == []
    HELD.clear()
    until(lambda: bool(FIRED))
    assert {10, 20} <= {*FIRED[0][1]}
    end(client, found, times)
