"""An event half a millisecond before 1970 has the event time -1 everywhere: times are rounded down, never up."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.common import Duration, Time, WatermarkStrategy
from holdfast.datastream import (
    BatchFunction,
    DataStream,
    KeyedProcessFunction,
    ProcessJoinFunction,
    ProcessWindowFunction,
)
from holdfast.datastream.window import (
    CountAggregate,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from holdfast.testing import EpochProgram

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MS = Time.milliseconds
MOMENTS = [EPOCH - timedelta(microseconds=500), EPOCH, EPOCH - timedelta(days=5000, microseconds=300)]
TIMES = [-1, 0, -5000 * 86_400_000 - 1]
SLOW = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_days(9000))


def of_column(kind: str) -> Callable[[EpochProgram, str], DataStream]:
    strategy = SLOW.with_timestamp_column("at")
    return lambda program, name: program.source(name, f"k string, at {kind}").assign_timestamps_and_watermarks(strategy)


def of_function(program: EpochProgram, name: str) -> DataStream:
    strategy = SLOW.with_timestamp_assigner(lambda row, _: (row.at - EPOCH) // timedelta(milliseconds=1))
    return program.source(name, "k string, at timestamp").assign_timestamps_and_watermarks(strategy)


STREAMS = {
    "column": of_column("timestamp"),
    "column without a zone": of_column("timestamp_ntz"),
    "function": of_function,
}


@pytest.fixture(params=STREAMS)
def stream(request: pytest.FixtureRequest) -> Callable[[EpochProgram, str], DataStream]:
    return STREAMS[request.param]


@pytest.fixture
def moments(stream: Any) -> list[datetime]:
    return [at.replace(tzinfo=None) if stream is STREAMS["column without a zone"] else at for at in MOMENTS]


def run(path: Path, program: EpochProgram, out: DataStream, inputs: dict[str, list[datetime]]) -> list[Any]:
    found: list[Any] = []
    out.uid("operator").for_each_epoch(
        lambda table, *_: found.extend(tuple(row.values()) for row in table.to_pylist())
    ).uid("out")
    epochs = [{name: [("a", at) for at in moments] for name, moments in inputs.items()}]
    program.run(str(path), epochs, is_bounded=True, parallelism=1, source_tasks=1)
    return sorted(found)


class Bounds(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield key, context.window().start, context.window().end, len(list(elements))


@pytest.mark.parametrize("by_columns", [True, False])
def test_windows(tmp_path: Path, stream: Any, moments: list[datetime], by_columns: bool) -> None:
    far = TIMES[2] + 1
    for name, assigner, expected in (
        (
            "days",
            TumblingEventTimeWindows.of(Time.days(1)),
            [(far - 86_400_000, far), (-86_400_000, 0), (0, 86_400_000)],
        ),
        (
            "slides",
            SlidingEventTimeWindows.of(MS(2), MS(1)),
            [(far - 2, far), (far - 1, far + 1), (-2, 0), (-1, 1), (0, 2)],
        ),
        ("sessions", EventTimeSessionWindows.with_gap(MS(10)), [(far - 1, far + 9), (-1, 10)]),
    ):
        program = EpochProgram()
        windows = stream(program, "in").key_by("k").window(assigner)
        schema = "k string, window_start bigint, window_end bigint, n bigint"
        out = windows.aggregate_batches(n=CountAggregate()) if by_columns else windows.process(Bounds(), schema)
        found = run(tmp_path / name, program, out, {"in": moments})
        assert [(start, end) for _, start, end, _ in found] == expected


class TimersAt(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(ctx.timestamp())

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp


class BatchTimersAt(BatchFunction):
    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        ctx.register_event_time_timers(ctx.timestamps)

    def on_timers(self, keys: Any, ctx: Any) -> Any:
        return keys.append_column("t", ctx.timestamps)


def test_timers(tmp_path: Path, stream: Any, moments: list[datetime]) -> None:
    for name in ("elements", "batches"):
        program = EpochProgram()
        keyed = stream(program, "in").key_by("k")
        schema = "k string, t bigint"
        by_element = name == "elements"
        out = keyed.process(TimersAt(), schema) if by_element else keyed.process_batches(BatchTimersAt(), schema)
        found = run(tmp_path / name, program, out, {"in": moments})
        assert found == [("a", time) for time in sorted(TIMES)]


class Pairs(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Any:
        yield ctx.get_left_timestamp(), ctx.get_right_timestamp()


def test_interval_joins(tmp_path: Path, stream: Any, moments: list[datetime]) -> None:
    program = EpochProgram()
    left, right = (stream(program, name).key_by("k") for name in ("left", "right"))
    out = left.interval_join(right).between(MS(0), MS(0)).process(Pairs(), "l bigint, r bigint")
    found = run(
        tmp_path, program, out, {"left": moments, "right": [at + timedelta(microseconds=100) for at in moments]}
    )
    assert found == [(time, time) for time in sorted(TIMES)]


@pytest.mark.parametrize(
    "given",
    [
        pa.array(MOMENTS, pa.timestamp("us", "UTC")),
        pa.chunked_array([pa.array(MOMENTS[:1], pa.timestamp("ns")), pa.array(MOMENTS[1:], pa.timestamp("ns"))]),
        np.array([at.replace(tzinfo=None) for at in MOMENTS], "datetime64[us]"),
        pa.array(TIMES),
        TIMES,
    ],
    ids=["arrow", "chunks", "numpy", "milliseconds", "list"],
)
def test_timestamps_that_a_function_of_batches_gives(tmp_path: Path, given: Any) -> None:
    class Given(BatchFunction):
        def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> pa.RecordBatch:
            ctx.give_timestamps(given)
            return batch

    program = EpochProgram()
    stream = of_function(program, "in").key_by("k").process_batches(Given(), "k string, at timestamp").uid("given")
    out = stream.key_by("k").process(TimersAt(), "k string, t bigint")
    assert run(tmp_path, program, out, {"in": MOMENTS}) == [("a", time) for time in sorted(TIMES)]
