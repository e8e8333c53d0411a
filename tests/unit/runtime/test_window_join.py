"""Two streams that meet in windows: pairs, or all elements of a key and a window at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Time, Types, WatermarkStrategy
from holdfast.datastream import CoGroupFunction, JoinFunction, ParquetFileSink
from holdfast.datastream.window import TumblingEventTimeWindows
from holdfast.errors import ConfigurationError
from tests.stories import ledger
from tests.stories.local import Program, run

LEFT = [("a", 1, 1), ("a", 4, 2), ("b", 6, 3), ("a", 13, 4), ("c", 14, 5)]
RIGHT = [(10, "a", 2), (20, "a", 3), (30, "b", 11), (40, "a", 12), (50, "a", 19), (60, "d", 5)]
WINDOWS = TumblingEventTimeWindows.of(Time.milliseconds(10))
PAIRS = sorted(
    (key, n, m) for key, at, n in LEFT for m, other, then in RIGHT if key == other and at // 10 == then // 10
)


class Pair(JoinFunction):
    def join(self, first: Any, second: Any) -> Any:
        return first.k, first.n, second.m


class Sums(CoGroupFunction):
    def co_group(self, first: list[Any], second: list[Any]) -> Iterator[Any]:
        yield (first or second)[0][0 if first else 1], sum(row.n for row in first), sum(row.m for row in second)


def timed(stream: Any) -> Any:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)
    return stream.assign_timestamps_and_watermarks(strategy)


def streams(program: Program) -> tuple[Any, Any]:
    left = timed(program.source("left", "k string, at bigint, n bigint"))
    return left, timed(program.source("right", "m bigint, name string, at bigint"))


@pytest.mark.parametrize("cut", [2, 3])
@pytest.mark.parametrize("by", ["columns", "functions"])
def test_pairs_of_a_key_and_a_window_are_found_once(place: Path, cut: int, by: str) -> None:
    program = Program()
    left, right = streams(program)
    joined = left.join(right)
    if by == "columns":
        joined = joined.where("k").equal_to("name")
    else:
        joined = joined.where(lambda row: row.k, Types.STRING()).equal_to(lambda row: row.name)
    pairs = joined.window(WINDOWS).apply(Pair(), "k string, n bigint, m bigint").uid("pairs")
    pairs.sink_to(ParquetFileSink(place / "out")).uid("out")
    inputs = [{"left": LEFT[at : at + cut], "right": RIGHT[at : at + cut]} for at in range(0, 6, cut)]
    run(program, place / "job", inputs[:1])
    run(program, place / "job", inputs, is_bounded=True)
    assert sorted(ledger.read(place / "out")) == PAIRS


def test_all_elements_of_a_key_and_a_window_are_seen_at_once_also_where_one_stream_has_none(place: Path) -> None:
    program = Program()
    left, right = streams(program)
    grouped = left.co_group(right).where("k").equal_to("name").window(WINDOWS)
    grouped.apply(Sums(), "k string, n bigint, m bigint").uid("sums").sink_to(ParquetFileSink(place / "out"))
    run(program, place / "job", [{"left": LEFT, "right": RIGHT}], is_bounded=True)
    expected = [("a", 3, 30), ("a", 4, 90), ("b", 0, 30), ("b", 3, 0), ("c", 5, 0), ("d", 0, 60)]
    assert sorted(ledger.read(place / "out")) == expected


def test_a_join_is_said_in_its_order() -> None:
    program = Program()
    left, right = streams(program)
    for refused, message in (
        (lambda: left.join(5), "takes another stream of the same environment, not 5"),
        (lambda: left.join(right).equal_to("name"), "the key of the first stream first"),
        (lambda: left.join(right).where("k").window(WINDOWS), "its keys before its windows"),
        (lambda: left.join(right).where("k").equal_to("name").apply(Pair()), "its windows first"),
        (lambda: left.join(right).where("k").equal_to("m"), "'string', 'timestamps' has 'bigint'"),
        (lambda: left.join(right).where("k").equal_to("name").window(WINDOWS).apply(Sums()), "of JoinFunction"),
        (lambda: left.co_group(right).where("k").equal_to("name").window(WINDOWS).apply(Pair()), "of CoGroupFunction"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            refused()
