"""Watermarks in real time that a program generates itself: they count, and not the timestamps of elements."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Watermark, WatermarkGenerator, WatermarkGeneratorContext, WatermarkOutput, WatermarkStrategy
from holdfast.datastream import DataStream, KeyedProcessFunction
from holdfast.runtime.master.job_client import JobClient
from holdfast.testing.real_time_runner import RealTimeProgram
from tests.stories import tidiness
from tests.stories.turns import Partitions, start
from tests.unit.runtime.realtime.test_real_time_jobs import ONE_OR_TWO, Rows, until
from tests.unit.runtime.realtime.test_watermark_alignment import ALLOWED, READ, READING, Timed, stop
from tests.unit.runtime.test_watermark_generators import LATENESS, AsLateAsEver, expected_after

FIRED: list[int] = []
"""Times of the timers that have fired; tasks are threads here."""
PLACED = pytest.mark.parametrize("place", ["at the source", "behind an exchange"])


@pytest.fixture(autouse=True)
def nothing_read() -> Iterator[None]:
    for record in (ALLOWED, READ, FIRED):
        record.clear()
    yield
    ALLOWED.clear()


class Tens(WatermarkGenerator):
    """Each time that is a multiple of ten is a watermark. At 100 the task is idle, until there is another one."""

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        assert event_timestamp == event.at
        if event.at == 100:
            output.mark_idle()
        elif event.at % 10 == 0:
            output.emit_watermark(Watermark(event.at))

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        pass


class Alarm(KeyedProcessFunction):
    def process_element(self, row: Any, ctx: Any) -> Iterator[Any]:
        ctx.timer_service().register_event_time_timer(row.at)
        return iter(())

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        FIRED.append(timestamp)
        yield timestamp


def tens(stream: Any = None) -> Any:
    strategy = WatermarkStrategy.for_generator(lambda context: Tens()).with_timestamp_assigner(lambda row, _: row.at)
    return strategy if stream is None else stream.assign_timestamps_and_watermarks(strategy)


def started(directory: Path, place: str, tasks: int, *sources: Timed, interval: str = "20 ms") -> JobClient:
    program = RealTimeProgram()
    given = tens() if place == "at the source" else WatermarkStrategy.no_watermarks()
    streams: list[DataStream] = []
    for source in sources:
        stream = program.from_source(source, given, source.name).uid(source.name)
        if place == "behind an exchange":
            stream = tens(stream.key_by("source").process(Same(), READING).uid(f"{source.name}-same"))
        streams.append(stream)
    first, *others = streams
    keyed = first.union(*others).key_by("source")
    keyed.process(Alarm(), "bigint").uid("alarms").for_each_epoch(Rows().write).uid("out")
    options = {"execution.checkpointing.interval": interval}
    return JobClient(program.master(directory, options, parallelism=tasks, source_tasks=tasks))


class Same(KeyedProcessFunction):
    def process_element(self, row: Any, ctx: Any) -> Iterator[Any]:
        yield row


def require_fired(client: JobClient, *times: int) -> None:
    """Check that these timers have fired, and no others when everything that is under way has arrived."""
    until(lambda: len(FIRED) >= len(times))
    for _ in range(3):
        client.trigger_checkpoint().result(60)
    assert sorted(FIRED) == list(times)


@ONE_OR_TWO
@PLACED
@pytest.mark.parametrize("is_partitioned", [False, True], ids=["", "partitions"])
def test_a_punctuated_watermark_counts_and_not_the_timestamps(
    tmp_path: Path, tasks: int, place: str, is_partitioned: bool
) -> None:
    ALLOWED.update(only=3)
    source = Timed("only", [5, 17, 6, 10, 25, 8, 20], ends=False, is_partitioned=is_partitioned)
    client = started(tmp_path, place, 1 if place == "behind an exchange" else tasks, source)
    until(lambda: len(READ) == 3)
    require_fired(client)
    ALLOWED.update(only=4)
    require_fired(client, 5, 6, 10)
    ALLOWED.update(only=6)
    require_fired(client, 5, 6, 8, 10)
    ALLOWED.update(only=7)
    require_fired(client, 5, 6, 8, 10, 17, 20)
    stop(client)


@PLACED
def test_a_task_that_is_marked_idle_holds_nobody_up_until_it_has_a_watermark(tmp_path: Path, place: str) -> None:
    ALLOWED.update(left=2, right=2)
    left = Timed("left", [5, 10, 25, 30, 35, 40], ends=False)
    right = Timed("right", [6, 10, 100, 20, 30], ends=False)
    client = started(tmp_path, place, 1, left, right)
    require_fired(client, 5, 6, 10, 10)
    ALLOWED.update(left=4)
    require_fired(client, 5, 6, 10, 10)
    ALLOWED.update(right=3)
    require_fired(client, 5, 6, 10, 10, 25, 30)
    ALLOWED.update(left=6)
    require_fired(client, 5, 6, 10, 10, 25, 30, 35, 40)
    ALLOWED.update(right=5)
    # Event time is there already: the timers of 20 and 30 are late, and fire at once.
    require_fired(client, 5, 6, 10, 10, 20, 25, 30, 30, 35, 40)
    stop(client)


def test_a_generator_keeps_its_state_across_barriers(tmp_path: Path) -> None:
    """One of a new attempt of the job begins anew, as by epochs."""
    rows = [(sensor, at) for sensor, at, _ in LATENESS]
    strategy: Any = WatermarkStrategy.for_generator(AsLateAsEver).with_timestamp_assigner(lambda row, _: row.at)
    source = Partitions("readings", [rows], at_once=1)
    source.allow(0)

    def build(stream: DataStream) -> None:
        timed = stream.assign_timestamps_and_watermarks(strategy)
        timed.key_by("source").process(Alarm(), "bigint").uid("alarms").for_each_epoch(Rows().write).uid("out")

    options = {"execution.checkpointing.interval": "1 h"}
    client = start("real-time", build, source, READING, tmp_path, options, source_tasks=1)
    for count in range(1, len(rows) + 1):
        source.allow(count)
        until(lambda: source.is_read)
        client.trigger_checkpoint().result(60)
        last = tidiness.retained(tidiness.job_directory(tmp_path, "job"))[-1]
        [reached] = last.metadata.extra["event_time"]["reached"].values()
        assert reached == max(expected_after(number) for number in range(1, count + 1))
    stop(client)


class Seen(WatermarkGenerator):
    """Keeps the greatest of the watermarks that it saw before an element, with the element."""

    def __init__(self, context: WatermarkGeneratorContext) -> None:
        self.context = context

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        FIRED.append(self.context.current_watermark)
        output.emit_watermark(event.at)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        pass


def test_a_generator_sees_the_watermark_that_the_elements_before_have_left(tmp_path: Path) -> None:
    ALLOWED.update(only=1)
    program = RealTimeProgram()
    strategy: Any = WatermarkStrategy.for_generator(Seen).with_timestamp_assigner(lambda row, _: row.at)
    stream = program.from_source(Timed("only", [5, 9, 7, 12], ends=False), strategy, "only").uid("only")
    stream.for_each_epoch(Rows().write).uid("out")
    client = JobClient(program.master(tmp_path, {"execution.checkpointing.interval": "1 h"}, source_tasks=1))
    for count in range(1, 5):
        ALLOWED.update(only=count)
        until(lambda count=count: len(FIRED) == count)  # type: ignore[misc]
    assert FIRED == [-(2**63), 5, 9, 9]
    stop(client)
