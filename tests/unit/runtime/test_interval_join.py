"""Joining two streams by time, on the epoch runner, against all pairs of a plain list."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.common import Duration, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, OutputTag, ParquetFileSink, ProcessJoinFunction
from holdfast.errors import ConfigurationError
from tests.examples import examples
from tests.stories import ledger
from tests.stories.local import Program, run

EVENT = "k string, at bigint, n bigint"
PAIR = "k string, left bigint, right bigint, at bigint"
LATENESS = 5
Event = tuple[str, int, int]


class Pair(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterator[Any]:
        assert (left.at, right.at) == (ctx.get_left_timestamp(), ctx.get_right_timestamp())
        yield left.k, left.n, right.n, ctx.get_timestamp()


class Stamped(KeyedProcessFunction):
    """Passes on what was joined if it has the time of the pair."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        assert ctx.timestamp() == value.at
        yield value


def timed(stream: Any) -> Any:
    bounded = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(LATENESS))
    return stream.assign_timestamps_and_watermarks(bounded.with_timestamp_assigner(lambda row, _: row.at))


def joined(program: Program, lower: int, upper: int) -> Any:
    left, right = (timed(program.source(name, EVENT)).key_by("k") for name in ("left", "right"))
    return left.interval_join(right).between(Duration.of_millis(lower), Duration.of_millis(upper))


def in_order(jitter: Sequence[tuple[str, int]]) -> list[Event]:
    """Events whose times grow, each by at most the lateness behind the greatest before it."""
    return [(k, 3 * n + later, n) for n, (k, later) in enumerate(jitter)]


events = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, LATENESS + 3)), max_size=24)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lefts=events,
    rights=events,
    bounds=st.tuples(st.integers(-12, 12), st.integers(0, 12)),
    exclusive=st.tuples(st.booleans(), st.booleans()),
    cut=st.sampled_from([2, 5, 24]),
    parallelism=st.integers(1, 3),
    amnesia=st.booleans(),
)
def test_each_pair_is_found_once_for_any_cut_into_epochs(
    place: Path,
    lefts: list[Any],
    rights: list[Any],
    bounds: tuple[int, int],
    exclusive: tuple[bool, bool],
    cut: int,
    parallelism: int,
    amnesia: bool,
) -> None:
    lower, upper = bounds[0], bounds[0] + bounds[1] + sum(exclusive)
    left, right = in_order(lefts), in_order(rights)
    inputs = [{"left": left[start : start + cut], "right": right[start : start + cut]} for start in range(0, 24, cut)]
    with tempfile.TemporaryDirectory(dir=place) as directory:
        program = Program()
        join = joined(program, lower, upper)
        join = join.lower_bound_exclusive() if exclusive[0] else join
        join = join.upper_bound_exclusive() if exclusive[1] else join
        pairs = join.process(Pair(), PAIR).uid("join").set_parallelism(parallelism)
        pairs.key_by("k").process(Stamped(), PAIR).uid("stamped").sink_to(ParquetFileSink(Path(directory) / "out"))
        run(program, Path(directory) / "job", inputs, amnesia=amnesia, is_bounded=True)
        found = sorted(ledger.read(Path(directory) / "out"))
    first, last = lower + exclusive[0], upper - exclusive[1]
    assert found == sorted(
        (k, n, m, max(at, other))
        for k, at, n in left
        for j, other, m in right
        if k == j and first <= other - at <= last
    )


def test_elements_without_a_possible_partner_are_dropped_and_late_ones_go_to_a_side_output(place: Path) -> None:
    late = OutputTag("late", EVENT)
    program = Program()
    join = joined(program, -5, 10).side_output_left_late_data(late)
    pairs = join.process(Pair(), PAIR).uid("join").set_parallelism(1)
    pairs.sink_to(ParquetFileSink(place / "out")).uid("out")
    pairs.get_side_output(late).sink_to(ParquetFileSink(place / "late")).uid("late")
    inputs: list[Any] = [
        {"left": [("a", 100, 1)], "right": [("a", 95, 2), ("a", 111, 3), ("a", 94, 4)]},
        {"left": [("a", 200, 5)], "right": [("a", 200, 6)]},  # the watermark is at 194: nothing before is kept
        {"left": [("a", 193, 7)], "right": [("a", 193, 8)]},  # late: one goes beside, the other is dropped
        {"left": [("a", 198, 9)]},
    ]
    run(program, place / "job", inputs)
    assert sorted(ledger.read(place / "out")) == [("a", 1, 2, 100), ("a", 5, 6, 200), ("a", 9, 6, 200)]
    assert ledger.read(place / "late") == [("a", 193, 7)]


def test_elements_without_times_and_intervals_without_length_are_refused(place: Path) -> None:
    program = Program()
    left, right = program.source("left", EVENT).key_by("k"), program.source("right", EVENT)
    second = Duration.of_seconds(1)
    refused: Sequence[tuple[Any, str]] = (
        (lambda: left.interval_join(right), "takes a keyed stream"),
        (lambda: left.interval_join(right.key_by("n")), "'string', 'right' has 'bigint'"),
        (lambda: left.interval_join(right.key_by("k")).between(1, 2), "takes two Durations"),
        (lambda: left.interval_join(right.key_by("k")).between(second, -second), "above the upper one"),
        (lambda: joined(program, 1, 1).upper_bound_exclusive().process(Pair()), "leave nothing between them"),
        (lambda: joined(program, 1, 1).process(Pair), "takes an instance of ProcessJoinFunction"),
    )
    for attempt, message in refused:
        with pytest.raises(ConfigurationError, match=message):
            attempt()
    plain = left.interval_join(right.key_by("k")).between(-second, second).process(Pair(), PAIR)
    plain.sink_to(ParquetFileSink(place / "out"))
    with pytest.raises(ConfigurationError, match="an element of its first input has none"):
        run(program, place / "job", [{"left": [("a", 1, 1)]}])
