"""Windows at the ends of 64 bits: by columns and by element they are exact, or refuse an element by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.common import Time, WatermarkStrategy
from holdfast.datastream import ProcessJoinFunction, ProcessWindowFunction
from holdfast.datastream.window import (
    CountAggregate,
    DynamicEventTimeSessionWindows,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from holdfast.errors import HoldfastError
from holdfast.testing import EpochProgram
from tests.examples import examples

FIRST, LAST = -(2**63), 2**63 - 1
TIMED = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")
MS = Time.milliseconds
ASSIGNERS = {
    "of one": TumblingEventTimeWindows.of(MS(1)),
    "tumbling": TumblingEventTimeWindows.of(MS(10), MS(3)),
    "back": TumblingEventTimeWindows.of(MS(10), MS(-7)),
    "days": TumblingEventTimeWindows.of(Time.days(1)),
    "sliding": SlidingEventTimeWindows.of(MS(10), MS(3), MS(-1)),
    "sliding by one": SlidingEventTimeWindows.of(MS(7), MS(1)),
    "gaps": SlidingEventTimeWindows.of(MS(3), MS(10)),
    "sessions": EventTimeSessionWindows.with_gap(MS(5)),
}


class Bounds(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield key, context.window().start, context.window().end, len(list(elements))


def rows_of(table: Any) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in table.to_pylist()]


def windows(path: Path, assigner: Any, epochs: list[list[int]], *, by_columns: bool) -> list[tuple[Any, ...]]:
    program, found = EpochProgram(), []
    keyed = program.source("in", "k string, at bigint").assign_timestamps_and_watermarks(TIMED).key_by("k")
    windowed = keyed.window(assigner)
    if by_columns:
        out = windowed.aggregate_batches(n=CountAggregate())
    else:
        out = windowed.process(Bounds(), "k string, window_start bigint, window_end bigint, n bigint")
    collect = out.uid("windows").for_each_epoch(
        lambda table, *_: found.extend(map(tuple, map(dict.values, table.to_pylist())))
    )
    collect.uid("out")
    inputs = [{"in": [("a", at) for at in epoch]} for epoch in epochs]
    program.run(str(path), inputs, is_bounded=True, parallelism=1, source_tasks=1)
    return sorted(found)


def outcome(path: Path, assigner: Any, epochs: list[list[int]], *, by_columns: bool) -> Any:
    try:
        return windows(path, assigner, epochs, by_columns=by_columns)
    except HoldfastError as error:
        text = str(error)
        assert "do not fit 64 bits" in text
        at = next(at for epoch in epochs for at in epoch if f"has the event time {at}," in text)
        assert f"Row(k='a', at={at})" in text
        return f"refuses {at}"


near = st.one_of(st.integers(FIRST + 1, FIRST + 60), st.integers(LAST - 60, LAST - 1), st.integers(-20, 20))


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(sorted(ASSIGNERS)),
    epochs=st.lists(st.lists(near, min_size=1, max_size=3), min_size=1, max_size=2).map(
        lambda epochs: sorted(map(sorted, epochs))
    ),
)
def test_by_columns_is_as_by_element(tmp_path_factory: Any, name: str, epochs: list[list[int]]) -> None:
    found = [
        outcome(tmp_path_factory.mktemp("w"), ASSIGNERS[name], epochs, by_columns=by_columns)
        for by_columns in (True, False)
    ]
    assert found[0] == found[1]
    if isinstance(found[0], list):
        for _, start, end, _ in found[0]:
            assert FIRST <= start < end <= LAST
            assert any(start <= at < end for epoch in epochs for at in epoch)


@pytest.mark.parametrize("by_columns", [True, False])
@pytest.mark.parametrize("at", [FIRST + 2, LAST - 2])
def test_windows_of_a_millisecond_reach_almost_to_the_ends(tmp_path: Path, at: int, by_columns: bool) -> None:
    found = windows(tmp_path, TumblingEventTimeWindows.of(MS(1)), [[at], [at]], by_columns=by_columns)
    assert found == [("a", at, at + 1, 2)]


def test_a_gap_that_goes_beyond_the_end_is_refused(tmp_path: Path) -> None:
    assigner = DynamicEventTimeSessionWindows.with_dynamic_gap(lambda row: 10)
    assert windows(tmp_path / "fits", assigner, [[LAST - 10]], by_columns=False) == [("a", LAST - 10, LAST, 1)]
    assert outcome(tmp_path / "not", assigner, [[LAST - 9]], by_columns=False) == f"refuses {LAST - 9}"


class Pairs(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Any:
        yield left.at, right.at


def test_an_interval_join_waits_for_partners_until_the_end_of_time(tmp_path: Path) -> None:
    program, found = EpochProgram(), []
    left, right = (
        program.source(name, "k string, at bigint").assign_timestamps_and_watermarks(TIMED).key_by("k")
        for name in ("left", "right")
    )
    joined = (
        left.interval_join(right)
        .between(Time.milliseconds(-5), Time.milliseconds(5))
        .process(Pairs(), "l bigint, r bigint")
    )
    joined.uid("join").for_each_epoch(
        lambda table, *_: found.extend(map(tuple, map(dict.values, table.to_pylist())))
    ).uid("out")
    inputs = [{"left": [("a", LAST - 3)], "right": []}, {"left": [], "right": [("a", LAST - 1), ("a", FIRST + 1)]}]
    program.run(str(tmp_path), inputs, is_bounded=True)
    assert found == [(LAST - 3, LAST - 1)]
