"""Windows by columns give what windows by element give: aggregates, late rows, keys of all kinds, over anything."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.common import ColumnTimestampAssigner, Time, Types, WatermarkStrategy
from holdfast.datastream import OutputTag, ParquetFileSink
from holdfast.datastream.stream.data_stream import DataStream
from holdfast.datastream.window import (
    BatchAggregateFunction,
    CountAggregate,
    CountEvictor,
    CountTrigger,
    DistinctCountAggregate,
    EventTimeSessionWindows,
    FirstAggregate,
    LastAggregate,
    MaxAggregate,
    MeanAggregate,
    MinAggregate,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    SumAggregate,
    TopNAggregate,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
)
from holdfast.errors import ConfigurationError, EngineError, JobExecutionError
from holdfast.kernel.clock import ManualClock
from holdfast.types.type_parser import to_type
from tests.examples import examples
from tests.stories import ledger
from tests.stories.local import RESTARTING, Program, epochs, master, run
from tests.unit.window.stories import late_by

MS = Time.milliseconds
ROW = "sensor string, place int, at bigint, n bigint, x double, word string, money decimal(10, 2)"
LATE = OutputTag("late", ROW)


class Range(BatchAggregateFunction):
    """A user's own: the greatest less the least of a column without nulls."""

    def accumulator_types(self, input_type: Any) -> Sequence[Any]:
        return [to_type("bigint"), to_type("bigint")]

    def result_type(self, input_type: Any) -> Any:
        return to_type("bigint")

    def accumulate(self, batch: pa.RecordBatch, groups: Any, arrival: Any) -> Sequence[pa.Array]:
        return self.merge([batch.column("at"), batch.column("at")], groups)

    def merge(self, accumulators: Sequence[pa.Array], groups: Any) -> Sequence[pa.Array]:
        table = pa.table({"group": groups.in_rows(groups.group), "least": accumulators[0], "most": accumulators[1]})
        found = table.group_by("group").aggregate([("least", "min"), ("most", "max")]).sort_by("group")
        return [found.column("least_min").combine_chunks(), found.column("most_max").combine_chunks()]

    def result(self, accumulators: Sequence[pa.Array]) -> pa.Array:
        return pc.subtract(accumulators[1], accumulators[0])


AGGREGATES: dict[str, BatchAggregateFunction] = {
    "count": CountAggregate(),
    "sum": SumAggregate("n"),
    "sum_x": SumAggregate("x"),
    "money": SumAggregate("money"),
    "mean": MeanAggregate("n"),
    "least": MinAggregate("word"),
    "most": MaxAggregate("x"),
    "first": FirstAggregate("n"),
    "last": LastAggregate("word"),
    "best": TopNAggregate(2, "x"),
    "lowest": TopNAggregate(3, "n", ascending=True),
    "words": DistinctCountAggregate("word"),
    "own": Range(),
}
RESULT = (
    "sensor string, place int, window_start bigint, window_end bigint, count bigint, sum bigint, sum_x double, "
    "money decimal(38, 2), mean double, least string, most double, first bigint, last string, best array<double>, "
    "lowest array<bigint>, words bigint, own bigint"
)


def spark_order(number: float) -> tuple[bool, float]:
    """Sorts NaN after all other numbers."""
    return math.isnan(number), number


def by_element(key: Any, window: Any, rows: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The same aggregates, of a list of rows."""

    def present(column: str) -> list[Any]:
        return [row[column] for row in rows if row[column] is not None]

    n, x, words = present("n"), present("x"), present("word")
    money = present("money")
    return [
        (
            *key,
            window.start,
            window.end,
            len(rows),
            sum(n) if n else None,
            sum(x) if x else None,
            sum(money, Decimal(0)) if money else None,
            sum(n) / len(n) if n else None,
            min(words, default=None),
            max(x, key=spark_order, default=None),
            n[0] if n else None,
            words[-1] if words else None,
            sorted(x, key=spark_order, reverse=True)[:2],
            sorted(n)[:3],
            len(set(words)),
            max(row.at for row in rows) - min(row.at for row in rows),
        )
    ]


ASSIGNERS: dict[str, WindowAssigner[Any, Any]] = {
    "tumbling": TumblingEventTimeWindows.of(MS(10), MS(3)),
    "sliding": SlidingEventTimeWindows.of(MS(20), MS(8), MS(-2)),
    "overlapping": SlidingEventTimeWindows.of(MS(30), MS(10)),
    "gaps": SlidingEventTimeWindows.of(MS(4), MS(10)),
}


SESSIONS: dict[str, WindowAssigner[Any, Any]] = {
    "sessions": EventTimeSessionWindows.with_gap(MS(5)),
    "long sessions": EventTimeSessionWindows.with_gap(MS(12)),
}
"""Which session takes a late element depends by element on which came first, so these are compared without them."""


def both(stream: DataStream, assigner: WindowAssigner[Any, Any], place: Path) -> None:
    """Writes what comes by columns and by element, with late rows."""
    keyed = stream.key_by(["sensor", "place"])
    fast = keyed.window(assigner).side_output_late_data(LATE).aggregate_batches(**AGGREGATES).uid("fast")
    slow = keyed.window(assigner).side_output_late_data(LATE).apply(by_element, RESULT).uid("slow")
    for name, windows in (("fast", fast), ("slow", slow)):
        windows.sink_to(ParquetFileSink(place / name)).uid(f"{name}-out")
        windows.get_side_output(LATE).sink_to(ParquetFileSink(place / f"{name}-late")).uid(f"{name}-late-out")


def written(place: Path) -> list[str]:
    """All rows of an output in order; as text, because NaN is not equal to itself."""
    return sorted(map(repr, ledger.read(place)))


rows = st.tuples(
    st.sampled_from("ab"),
    st.integers(0, 1),
    st.integers(-20, 80),
    st.none() | st.integers(-5, 5),
    st.none() | st.sampled_from([-1.5, 0.25, 2.0, 8.0, math.nan]),
    st.none() | st.sampled_from(["kelp", "rock", "sand", ""]),
    st.none() | st.sampled_from([Decimal("1.25"), Decimal("-0.50")]),
)


@settings(max_examples=examples(24), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(st.lists(rows, max_size=12), min_size=1, max_size=5),
    name=st.sampled_from(sorted(ASSIGNERS)),
    bound=st.sampled_from([0, 20, 200]),
    backend=st.sampled_from(["hashmap", "columnar"]),
)
def test_by_columns_is_as_by_element(
    tmp_path_factory: Any, batches: list[list[tuple[Any, ...]]], name: str, bound: int, backend: str
) -> None:
    """Also with late rows, nulls, NaN and keys of two columns."""
    place = tmp_path_factory.mktemp("columns")
    program = Program()
    both(program.source("rows", ROW).assign_timestamps_and_watermarks(late_by(bound)), ASSIGNERS[name], place)
    run(program, place / "job", epochs("rows", batches), {"state.backend.type": backend}, is_bounded=True)
    assert written(place / "fast") == written(place / "slow")
    assert written(place / "fast-late") == written(place / "slow-late")


@settings(max_examples=examples(24), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    drawn=st.lists(st.tuples(rows, st.integers(0, 15)), max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=5),
    name=st.sampled_from(sorted(ASSIGNERS | SESSIONS)),
    fails=st.sets(st.integers(0, 30), max_size=2),
    stops=st.integers(0, 5),
    parallelism=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
def test_by_columns_is_as_by_element_over_failures_and_rescalings(
    tmp_path_factory: Any,
    drawn: list[tuple[Any, int]],
    cuts: list[int],
    name: str,
    fails: set[int],
    stops: int,
    parallelism: tuple[int, int],
) -> None:
    """Rows that are on time: a restart begins with no watermark, and late ones would be on time again."""
    place = tmp_path_factory.mktemp("columns")
    ordered = [row for row, late in sorted(drawn, key=lambda one: one[0][2] + one[1])]
    bounds = [0, *sorted(min(cut, len(ordered)) for cut in cuts), len(ordered)]
    inputs = epochs("rows", [ordered[start:end] for start, end in itertools.pairwise(bounds)])
    tasks = itertools.count()

    def strike(stage: int, partition: int) -> None:
        if next(tasks) in fails:
            raise EngineError("struck")

    for before_end, subtasks in zip((True, False), parallelism, strict=True):
        program = Program()
        both(
            program.source("rows", ROW).assign_timestamps_and_watermarks(late_by(15)),
            (ASSIGNERS | SESSIONS)[name],
            place,
        )
        given_ = inputs[: min(stops, len(inputs) - 1)] if before_end else inputs
        ends = not before_end
        run(program, place / "job", given_, RESTARTING, parallelism=subtasks, is_bounded=ends, interceptor=strike)
    assert written(place / "fast") == written(place / "slow")
    assert written(place / "fast-late") == written(place / "slow-late") == []


READING = "sensor string, at bigint, n bigint"


def test_a_late_row_counts_if_its_session_goes_on_and_goes_aside_otherwise(place: Path) -> None:
    program, late = Program(), OutputTag("late", READING)
    stream = program.source("rows", READING).assign_timestamps_and_watermarks(late_by(0))
    sessions = stream.key_by("sensor").window(EventTimeSessionWindows.with_gap(MS(10))).side_output_late_data(late)
    sums = sessions.aggregate_batches(n=SumAggregate("n"), first=FirstAggregate("at")).uid("sums")
    sums.sink_to(ParquetFileSink(place / "out")).uid("out")
    sums.get_side_output(late).sink_to(ParquetFileSink(place / "late")).uid("late")
    batches = [
        [("a", 100, 1), ("a", 95, 2), ("b", 60, 4), ("b", 101, 8)],
        # The watermark is 100: 88 meets the session that is open, 79 and 70 one that was over before, 50 nobody.
        [("a", 88, 16), ("a", 79, 32), ("b", 70, 64), ("a", 50, 128)],
        [("a", 120, 256)],
    ]
    run(program, place / "job", epochs("rows", batches), is_bounded=True)
    assert sorted(ledger.read(place / "out")) == [
        ("a", 79, 110, 1 + 2 + 16 + 32, 100),
        ("a", 120, 130, 256, 120),
        ("b", 60, 70, 4, 60),
        ("b", 101, 111, 8, 101),
    ]
    assert sorted(ledger.read(place / "late")) == [("a", 50, 128), ("b", 70, 64)]


def test_late_rows_that_nobody_wants_are_counted(tmp_path: Path) -> None:
    """3 and 13 are late for windows of ten, 3 for sessions: 13 joins the one that 22 has begun."""
    program = Program()
    keyed = program.source("rows", READING).assign_timestamps_and_watermarks(late_by(0)).key_by("sensor")
    for name, assigner in (
        ("ten", TumblingEventTimeWindows.of(MS(10))),
        ("gap", EventTimeSessionWindows.with_gap(MS(9))),
    ):
        keyed.window(assigner).aggregate_batches(n=CountAggregate()).uid(f"{name} fast").print()
        keyed.window(assigner).apply(lambda key, window, all_: []).uid(f"{name} slow").print()
    running = master(program, tmp_path, epochs("rows", [[("a", 22, 1)], [("a", 3, 1), ("a", 13, 1)]]))
    running.run()
    counted = {uid: operator.own for uid, operator in running.metrics.numbers.operators.items() if operator.own}
    late = "numLateRecordsDropped"
    assert counted == {
        "ten fast": {late: ["counter", 2]},
        "ten slow": {late: ["counter", 2]},
        "gap fast": {late: ["counter", 1]},
        "gap slow": {late: ["counter", 1]},
    }


@pytest.mark.parametrize(
    "assigner", [TumblingProcessingTimeWindows.of(MS(10)), SlidingProcessingTimeWindows.of(MS(10), MS(4), MS(1))]
)
def test_windows_of_processing_time_by_columns(place: Path, assigner: WindowAssigner[Any, Any]) -> None:
    clock = ManualClock(1_000)
    program = Program()
    stream = program.source("rows", READING)
    keyed = stream.key_by(lambda row: row.sensor, "string").window(assigner)
    fast = keyed.aggregate_batches(n=SumAggregate("n")).uid("fast")
    slow = keyed.apply(
        lambda key, window, all_: [(key, window.start, window.end, sum(row.n for row in all_))],
        "key string, window_start bigint, window_end bigint, n bigint",
    ).uid("slow")
    assert fast.get_type() == slow.get_type()
    for name, windows in (("fast", fast), ("slow", slow)):
        windows.sink_to(ParquetFileSink(place / name)).uid(f"{name}-out")

    def tick(stage: int, partition: int) -> None:
        clock.advance(1)

    batches = [[("a", 0, number), ("b", 0, 1)] for number in range(1, 12)]
    run(program, place / "job", epochs("rows", batches), clock=clock, interceptor=tick)
    assert written(place / "fast") == written(place / "slow") != []


def test_windows_behind_windows_by_columns(place: Path) -> None:
    """The sum of each sensor in ten milliseconds, and the greatest of these in each ten, of all sensors."""
    program = Program()
    stream = program.source("rows", READING).assign_timestamps_and_watermarks(late_by(0))
    ten = TumblingEventTimeWindows.of(MS(10))
    sums = stream.key_by("sensor").window(ten).aggregate_batches(n=SumAggregate("n")).uid("sums")
    most = sums.window_all(ten).aggregate_batches(most=MaxAggregate("n"), sensors=CountAggregate()).uid("most")
    most.sink_to(ParquetFileSink(place / "out")).uid("out")
    batches = [[("a", 1, 1), ("b", 2, 5)], [("a", 3, 6), ("a", 12, 1)], [("b", 33, 9)]]
    run(program, place / "job", epochs("rows", batches), is_bounded=True)
    assert sorted(ledger.read(place / "out")) == [(0, 10, 7, 2), (10, 20, 1, 1), (30, 40, 9, 1)]


def test_timestamps_are_taken_from_a_column(place: Path) -> None:
    """Whole numbers, or timestamps, of which what is less than a millisecond is left out."""
    ten = TumblingEventTimeWindows.of(MS(10))
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    program = Program()
    by_number = program.source("rows", "sensor string, at int, n bigint").assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner(ColumnTimestampAssigner("at"))
    )
    times = program.source("timed", "sensor string, at timestamp, n bigint").assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner(ColumnTimestampAssigner("at"))
    )
    for name, stream in (("numbers", by_number), ("times", times)):
        sums = stream.key_by("sensor").window(ten).aggregate_batches(n=SumAggregate("n")).uid(name)
        sums.sink_to(ParquetFileSink(place / name)).uid(f"{name}-out")
    rows_ = [[("a", 1, 1), ("a", 9, 2)], [("b", 25, 3)], [("a", 2, 9), ("b", 40, 1)]]
    start = datetime(1970, 1, 1, tzinfo=UTC)
    inputs = [
        {"rows": batch, "timed": [(who, start + timedelta(milliseconds=at, microseconds=9), n) for who, at, n in batch]}
        for batch in rows_
    ]
    run(program, place / "job", inputs)
    assert written(place / "numbers") == written(place / "times") == ["('a', 0, 10, 3)", "('b', 20, 30, 3)"]

    missing = Program()
    source = missing.source("rows", "sensor string, at bigint, x double")
    for column, message in (("when", "no column 'when'"), ("x", "not whole milliseconds or timestamps")):
        with pytest.raises(ConfigurationError, match=message):
            source.assign_timestamps_and_watermarks(strategy.with_timestamp_column(column))
    timed = source.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(ColumnTimestampAssigner("at")))
    timed.key_by("sensor").window(ten).aggregate_batches(n=CountAggregate()).uid("rows-in").print()
    with pytest.raises(JobExecutionError, match="column 'at' has no timestamp in row 1"):
        run(missing, place / "missing", epochs("rows", [[("a", 1, 1.0), ("a", None, 1.0)]]), source_tasks=1)


def test_decimals_are_summed_with_all_their_digits(place: Path) -> None:
    program = Program()
    stream = program.source("rows", "at bigint, money decimal(38, 10)").assign_timestamps_and_watermarks(late_by(0))
    sums = stream.window_all(TumblingEventTimeWindows.of(MS(10))).aggregate_batches(money=SumAggregate("money"))
    sums.uid("sums").sink_to(ParquetFileSink(place / "out")).uid("out")
    long, little = Decimal("12345678901234567890.0000000001"), Decimal("0.0000000002")
    run(program, place / "job", epochs("rows", [[(1, long), (2, little)], [(3, long)]]), is_bounded=True)
    assert ledger.read(place / "out") == [(0, 10, Decimal("24691357802469135780.0000000004"))]


def test_large_numbers_have_a_mean_and_a_sum_that_does_not_fit_is_refused(place: Path) -> None:
    def means(name: str, rows: list[Any], **aggregates: BatchAggregateFunction) -> list[Any]:
        program = Program()
        stream = program.source("rows", "at bigint, n bigint, money decimal(38, 0)")
        ten = stream.assign_timestamps_and_watermarks(late_by(0)).window_all(TumblingEventTimeWindows.of(MS(10)))
        ten.aggregate_batches(**aggregates).uid("windows").sink_to(ParquetFileSink(place / name)).uid("out")
        run(program, place / f"{name}-job", epochs("rows", [rows]), is_bounded=True)
        return ledger.read(place / name)

    rows = [(1, 1_700_000_000_000_000_001, Decimal(9 * 10**37)), (2, 1_700_000_000_000_000_003, Decimal(9 * 10**37))]
    assert means("mean", rows, n=MeanAggregate("n")) == [(0, 10, 1.7e18)]
    for column in ("n", "money"):
        many = [(at, 2**62, money) for at, _, money in rows] if column == "n" else rows
        with pytest.raises(JobExecutionError, match="A sum does not fit"):
            means(column, many, sum=SumAggregate(column))


def test_an_aggregate_may_have_the_name_of_the_count_that_is_kept_beside_it(place: Path) -> None:
    """A window whose sum is null has rows all the same, and the type of an aggregate is its own."""
    program = Program()
    stream = program.source("rows", "at bigint, n bigint, x double").assign_timestamps_and_watermarks(late_by(0))
    sliding = stream.window_all(SlidingEventTimeWindows.of(MS(20), MS(10)))
    for name, aggregate in (("sum", SumAggregate("n")), ("max", MaxAggregate("x")), ("count", CountAggregate())):
        windows = sliding.aggregate_batches(rows=aggregate).uid(name)
        windows.sink_to(ParquetFileSink(place / name)).uid(f"{name}-out")
    run(program, place / "job", epochs("rows", [[(1, None, 1.5), (2, None, 2.5)], [(3, None, 0.5), (30, 7, 1.0)]]))
    assert ledger.read(place / "sum") == [(-10, 10, None), (0, 20, None)]
    assert ledger.read(place / "max") == [(-10, 10, 2.5), (0, 20, 2.5)]
    assert ledger.read(place / "count") == [(-10, 10, 3), (0, 20, 3)]


def test_the_last_row_of_a_session_is_the_one_that_came_last_though_it_is_late(place: Path) -> None:
    program = Program()
    stream = program.source("rows", "sensor string, at bigint, n bigint").assign_timestamps_and_watermarks(late_by(0))
    sessions = stream.key_by("sensor").window(EventTimeSessionWindows.with_gap(MS(5)))
    fast = sessions.aggregate_batches(first=FirstAggregate("n"), last=LastAggregate("n")).uid("fast")
    slow = sessions.apply(
        lambda sensor, window, rows: [(sensor, window.start, window.end, rows[0].n, rows[-1].n)], fast.get_type()
    ).uid("slow")
    for name, windows in (("fast", fast), ("slow", slow)):
        windows.sink_to(ParquetFileSink(place / name)).uid(f"{name}-out")
    batches = [[("a", 25, 1), ("a", 27, 1), ("b", 30, 0)], [("a", 28, 2), ("a", 22, 3)], [("a", 90, 0)]]
    run(program, place / "job", epochs("rows", batches), source_tasks=1)
    assert written(place / "fast") == written(place / "slow") == ["('a', 22, 33, 1, 3)", "('b', 30, 35, 0, 0)"]


def test_what_does_not_go_by_columns_is_refused(place: Path) -> None:
    program = Program()
    stream = program.source("rows", ROW).assign_timestamps_and_watermarks(late_by(0))
    keyed, untyped = stream.key_by("sensor"), program.source("untyped").key_by(lambda row: row)
    ten, count = TumblingEventTimeWindows.of(MS(10)), CountAggregate()

    class Own(TumblingEventTimeWindows[Any]):
        pass

    wrong: list[tuple[Any, str]] = [
        (lambda: keyed.window(ProcessingTimeSessionWindows.with_gap(5)).aggregate_batches(n=count), "of one size"),
        (lambda: keyed.window(Own(10)).aggregate_batches(n=count), "of one size"),
        (lambda: keyed.count_window(3).aggregate_batches(n=count), r"use aggregate\(\)"),
        (lambda: keyed.window(ten).trigger(CountTrigger.of(1)).aggregate_batches(n=count), "default trigger"),
        (lambda: keyed.window(ten).evictor(CountEvictor.of(1)).aggregate_batches(n=count), "without an evictor"),
        (lambda: keyed.window(ten).allowed_lateness(1).aggregate_batches(n=count), "without allowed lateness"),
        (lambda: keyed.window(ten).aggregate_batches(), r"n=CountAggregate\(\), not 'none'"),
        (lambda: keyed.window(ten).aggregate_batches(n=CountAggregate), "aggregates by the names"),
        (lambda: keyed.window(ten).aggregate_batches(sensor=count), "need different names"),
        (lambda: keyed.window(ten).aggregate_batches(n=SumAggregate("m")), "no column 'm'"),
        (lambda: keyed.window(ten).aggregate_batches(n=SumAggregate("word")), "no number"),
        (lambda: TopNAggregate(0, "n"), "at least one value"),
        (lambda: untyped.window(ten).aggregate_batches(n=count), "works on columns"),
        (lambda: stream.key_by(lambda row: row.n).window(ten).aggregate_batches(n=count), "pass key_type"),
    ]
    for make, message in wrong:
        with pytest.raises(ConfigurationError, match=message):
            make()
    assert keyed.window(ten).aggregate_batches(n=count).get_type().get_field_types()[-1] == Types.LONG()  # type: ignore[attr-defined]

    huge = Program()
    source = huge.source("rows", READING).assign_timestamps_and_watermarks(late_by(0))
    source.key_by("sensor").window(ten).aggregate_batches(n=SumAggregate("n")).uid("sums").print()
    with pytest.raises(JobExecutionError, match="does not fit 64 bits"):
        run(huge, place / "job", epochs("rows", [[("a", 1, 2**62)], [("a", 1, 2**62), ("a", 2, 5)]]))
    bare = Program()
    bare.source("rows", READING).key_by("sensor").window(ten).aggregate_batches(n=count).uid("sums").print()
    with pytest.raises(ConfigurationError, match=r"call assign_timestamps_and_watermarks\(\) before window"):
        run(bare, place / "bare", epochs("rows", [[("a", 1, 1)]]))
