"""Stateful processors of Spark in real time: timers and times to live are those of a job by epochs. No JVM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql.streaming.stateful_processor", reason="StatefulProcessor came with Spark 4.0")

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from holdfast.datastream import DataStream
from holdfast.spark import transform_with_state
from tests.stories.turns import ENGINES, MovedClock, Partitions, start
from tests.unit.runtime.realtime.test_real_time_jobs import ONE_OR_TWO, Rows, until

OUTPUT = "what string, key string, n bigint"
MINUTE = 60_000
LIVES, WAITS = 60, 90


class Visits(StatefulProcessor):
    """Numbers the rows of a key until there was none for an hour; a timer emits the number after 90 minutes."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n bigint", ttlDurationMs=LIVES * MINUTE)
        self.is_set = handle.getValueState("set", "is_set boolean")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for _ in rows:
            number = (self.count.get() or (0,))[0] + 1
            self.count.update((number,))
            yield Row(what="row", key=key[0], n=number)
        if not self.is_set.exists():
            self.is_set.update((True,))
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + WAITS * MINUTE)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        self.is_set.clear()
        yield Row(what="timer", key=key[0], n=(self.count.get() or (0,))[0])

    def close(self) -> None:
        return


PHASES: list[tuple[int, list[str], list[tuple[str, str, int]]]] = [
    (0, ["a", "b", "a", "c"], [("row", "a", 1), ("row", "a", 2), ("row", "b", 1), ("row", "c", 1)]),
    (50, ["a", "a"], [("row", "a", 3), ("row", "a", 4)]),
    (75, ["b"], [("row", "b", 1)]),
    (95, [], [("timer", "a", 4), ("timer", "b", 1), ("timer", "c", 0)]),
    (200, ["a", "c"], [("row", "a", 1), ("row", "c", 1)]),
]
"""Minutes, the rows that come then, and what is emitted: state without a write for an hour is gone."""


def program(stream: DataStream, found: Rows) -> None:
    visits = transform_with_state(stream.key_by("key"), Visits(), OUTPUT, "Append", "ProcessingTime")
    visits.uid("visits").for_each_epoch(found.write).uid("out")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("restarts", [False, True], ids=["in one run", "with restarts"])
@ONE_OR_TWO
def test_a_processor_has_timers_and_times_to_live(tmp_path: Path, tasks: int, restarts: bool, engine: str) -> None:
    clock, found, expected = MovedClock(), Rows(), list[tuple[str, str, int]]()
    rows = [(key, at) for at, (_, keys, _) in enumerate(PHASES) for key in keys]
    source = Partitions(str(tmp_path), [rows], at_once=1)
    count = passed = 0
    client = None
    for minutes, keys, emitted in PHASES:
        count += len(keys)
        expected.extend(emitted)
        clock.advance((minutes - passed) * MINUTE)
        passed = minutes
        source.allow(count)
        if client is None:
            client = start(
                engine,
                lambda stream: program(stream, found),
                source,
                "key string, at bigint",
                tmp_path / "jobs",
                {"execution.checkpointing.interval": "1 h"},
                clock=clock,
                parallelism=tasks,
                source_tasks=tasks,
            )
        until(lambda: source.is_read)
        client.trigger_checkpoint().result(60)
        assert sorted(tuple(row.values()) for row in found) == sorted(expected)
        if restarts:
            client.stop()
            client.await_termination()
            client = None
    if client is not None:
        client.stop()
        client.await_termination()
    assert sorted(tuple(row.values()) for row in found) == sorted(expected)
