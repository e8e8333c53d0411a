"""A drain of a real-time job: its windows and timers fire once, and a job that continues does not repeat them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Duration, Time, WatermarkStrategy
from holdfast.datastream import DataStream, KeyedProcessFunction
from holdfast.datastream.window import TumblingEventTimeWindows
from holdfast.runtime.master.job_client import JobClient
from tests.stories.turns import ENGINES, Partitions, start
from tests.unit.runtime.realtime.test_real_time_jobs import ONE_OR_TWO, Rows, until

ROW = "key string, at bigint, n bigint"
OUTPUT = "what string, key string, at bigint, n bigint"
FAR = 10_000
"""No watermark gets so far ahead of the elements: all windows and timers are open until the drain."""
FIRST = [[("a", at, 1) for at in range(0, 40, 3)], [("b", at, 2) for at in range(0, 60, 7)], [("a", 15, 5)]]
THEN = [[("a", at, 1) for at in range(100, 130, 3)], [("b", 105, 2)], [("c", 117, 5)]]


class Once(KeyedProcessFunction):
    """Emits each element as it comes, and the key by a timer ten milliseconds later."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        ctx.timer_service().register_event_time_timer(value.at + 10)
        yield "element", value.key, value.at, value.n

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield "timer", ctx.get_current_key(), timestamp, 0


def total(key: Any, window: Any, values: Any) -> Iterator[Any]:
    yield "window", key, window.start, sum(value.n for value in values)


def program(stream: DataStream, found: Rows) -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(FAR))
    timed = stream.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(lambda row, _: row.at))
    keyed = timed.uid("times").key_by("key")
    windows = keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(20))).apply(total, OUTPUT).uid("windows")
    windows.union(keyed.process(Once(), OUTPUT).uid("timers")).for_each_epoch(found.write).uid("out")


def model(rows: list[list[tuple[str, int, int]]]) -> list[tuple[Any, ...]]:
    windows: dict[tuple[str, int], int] = defaultdict(int)
    elements = [row for part in rows for row in part]
    for key, at, n in elements:
        windows[key, at // 20 * 20] += n
    timers = {(key, at + 10) for key, at, _ in elements}
    return sorted(
        [
            *(("element", *row) for row in elements),
            *(("window", key, begin, n) for (key, begin), n in windows.items()),
            *(("timer", key, at, 0) for key, at in timers),
        ]
    )


def running(
    engine: str, place: Path, rows: list[list[Any]], found: Rows, name: str = "job", tasks: int = 2, **options: str
) -> JobClient:
    source = Partitions(f"{place} {name} {len(rows[0])}", rows)
    client = start(
        engine,
        lambda stream: program(stream, found),
        source,
        ROW,
        place / "jobs",
        options,
        name=name,
        parallelism=tasks,
        source_tasks=tasks,
    )
    until(lambda: source.is_read)
    return client


def drain(client: JobClient, place: Path) -> str:
    path = client.stop_with_savepoint(True, str(place / "savepoints")).result(60)
    client.await_termination()
    return path


def written(found: Rows) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in found)


@ONE_OR_TWO
def test_a_drain_fires_windows_and_timers_once(tmp_path: Path, tasks: int) -> None:
    found = Rows()
    client = running("real-time", tmp_path, FIRST, found, tasks=tasks)
    until(lambda: len(found) == sum(map(len, FIRST)))
    client.trigger_checkpoint().result(60)
    assert {row["what"] for row in found} == {"element"}, "all windows and timers are open"
    drain(client, tmp_path)
    assert written(found) == model(FIRST)


@pytest.mark.parametrize("is_savepoint", [True, False], ids=["from the savepoint", "from its last checkpoint"])
@pytest.mark.parametrize("then", ENGINES)
@ONE_OR_TWO
def test_a_job_that_continues_after_a_drain_repeats_nothing(
    tmp_path: Path, tasks: int, then: str, is_savepoint: bool
) -> None:
    found, later = Rows(), Rows()
    path = drain(running("real-time", tmp_path, FIRST, found, tasks=tasks), tmp_path)
    start_from = {"execution.state-recovery.path": path} if is_savepoint else {}
    rows = [[*one, *other] for one, other in zip(FIRST, THEN, strict=True)]
    client = running(then, tmp_path, rows, later, "other" if is_savepoint else "job", 3 - tasks, **start_from)
    until(lambda: len(later) >= sum(map(len, THEN)))
    client.trigger_checkpoint().result(60)
    assert {row["what"] for row in later} == {"element"}, "event time does not go on where the drain has ended it"
    drain(client, tmp_path)
    assert written(later) == model(THEN)
