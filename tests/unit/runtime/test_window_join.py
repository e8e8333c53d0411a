"""Two streams that meet in windows: pairs, or all elements of a key and a window at once."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.common import Duration, Time, Types, WatermarkStrategy
from holdfast.datastream import CoGroupFunction, JoinFunction, ParquetFileSink
from holdfast.datastream.window import EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows
from holdfast.errors import ConfigurationError
from holdfast.kernel import fault
from tests.examples import examples
from tests.stories import ledger
from tests.stories.local import RESTARTING, Program, run

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


def timed(stream: Any, late: int) -> Any:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(late))
    return stream.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(lambda row, _: row.at))


def streams(program: Program, late: int = 0) -> tuple[Any, Any]:
    left = timed(program.source("left", "k string, at bigint, n bigint"), late)
    return left, timed(program.source("right", "m bigint, name string, at bigint"), late)


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


LATENESS = 5
KINDS = {
    "tumbling": WINDOWS,
    "sliding": SlidingEventTimeWindows.of(Time.milliseconds(20), Time.milliseconds(10)),
    "session": EventTimeSessionWindows.with_gap(Time.milliseconds(6)),
}


def windows_of(kind: str, times: Sequence[int]) -> dict[int, list[int]]:
    """The starts of the windows of each of some times of a key."""
    if kind != "session":
        return {at: [at // 10 * 10 - back for back in ((0, 10) if kind == "sliding" else (0,))] for at in times}
    starts: dict[int, list[int]] = {}
    start = last = None
    for at in sorted(times):
        start = at if last is None or at > last + 6 else start
        starts[at], last = [start], at
    return starts


def met(kind: str, left: list[Any], right: list[Any]) -> list[tuple[str, list[int], list[int]]]:
    """What is in each window of each key: numbers of the left stream, and of the right one."""
    found = []
    for key in {row[0] for row in left} | {row[1] for row in right}:
        windows: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        lefts, rights = [row for row in left if row[0] == key], [row for row in right if row[1] == key]
        starts = windows_of(kind, [row[1] for row in lefts] + [row[2] for row in rights])
        for _, at, n in lefts:
            for start in starts[at]:
                windows[start][0].append(n)
        for m, _, at in rights:
            for start in starts[at]:
                windows[start][1].append(m)
        found += [(key, *both) for both in windows.values()]
    return found


class FailsOnce:
    """Lets a task fail, by the number of those that have begun."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, stage: int, partition: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise fault.FaultInjectedError("a task that fails")


steps = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, LATENESS + 3)), max_size=15)


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lefts=steps,
    rights=steps,
    kind=st.sampled_from(sorted(KINDS)),
    cut=st.sampled_from([3, 5, 15]),
    starts=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3), st.integers(1, 40)), min_size=1, max_size=3),
    amnesia=st.booleans(),
)
def test_joined_pairs_do_not_depend_on_epochs_failures_and_rescalings(
    place: Path, lefts: Any, rights: Any, kind: str, cut: int, starts: list[tuple[int, int, int]], amnesia: bool
) -> None:
    """A job is started several times, each with more of its input, another parallelism and a task that fails."""
    left = [(k, 3 * n + later, n) for n, (k, later) in enumerate(lefts)]
    right = [(m, k, 3 * m + later) for m, (k, later) in enumerate(rights)]
    inputs = [{"left": left[at : at + cut], "right": right[at : at + cut]} for at in range(0, 15, cut)]
    with tempfile.TemporaryDirectory(dir=place) as directory:
        out = Path(directory)
        for number, (upto, parallelism, fails) in enumerate(sorted(starts), start=1):
            program, is_last = Program(), number == len(starts)
            first, second = streams(program, LATENESS)
            joined, grouped = (
                both.where("k").equal_to("name").window(KINDS[kind])
                for both in (first.join(second), first.co_group(second))
            )
            pairs = joined.apply(Pair(), "k string, n bigint, m bigint").uid("pairs")
            pairs.sink_to(ParquetFileSink(out / "pairs")).uid("pairs-out")
            sums = grouped.apply(Sums(), "k string, n bigint, m bigint").uid("sums")
            sums.sink_to(ParquetFileSink(out / "sums")).uid("sums-out")
            how = {"parallelism": parallelism, "interceptor": FailsOnce(fails), "amnesia": amnesia}
            those = [*inputs, {"left": [], "right": []}] if is_last else inputs[:upto]
            run(program, out / "job", those, RESTARTING, is_bounded=is_last, **how)
        found = [sorted(ledger.read(out / name)) for name in ("pairs", "sums")]
    windows = met(kind, left, right)
    assert found[0] == sorted((key, n, m) for key, ns, ms in windows for n in ns for m in ms)
    assert found[1] == sorted((key, sum(ns), sum(ms)) for key, ns, ms in windows)


def test_a_join_is_defined_in_its_order() -> None:
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
