"""A program whose windows have changed: what is open goes on where it can, and is refused where it would be mixed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Time
from holdfast.datastream import ParquetFileSink
from holdfast.datastream.window import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    SumAggregate,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
)
from holdfast.errors import StateMigrationError
from holdfast.runtime.graph.plan import Step
from tests.stories import ledger
from tests.stories.local import Program, epochs, run
from tests.unit.window.stories import late_by

MS = Time.milliseconds
FIVE, TEN, TWENTY = (TumblingEventTimeWindows.of(MS(size)) for size in (5, 10, 20))
SLIDING = SlidingEventTimeWindows.of(MS(10), MS(5))
SESSION = EventTimeSessionWindows.with_gap(MS(5))
BATCHES = [[(11, 1), (12, 2)], [(14, 4)], [(50, 8)]]


def program(place: Path, assigner: WindowAssigner[Any, Any], *, by_columns: bool = True) -> Program:
    """The sums of windows."""
    program = Program()
    stream = program.source("rows", "at bigint, n bigint").assign_timestamps_and_watermarks(late_by(0))
    windows = stream.window_all(assigner)
    if by_columns:
        sums = windows.aggregate_batches(n=SumAggregate("n"))
    else:
        sums = windows.apply(
            lambda window, rows: [(window.start, window.end, sum(row.n for row in rows))],
            "window_start bigint, window_end bigint, n bigint",
        )
    sums.uid("sums").sink_to(ParquetFileSink(place / "out")).uid("out")
    return program


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (TEN, TWENTY),
        (SLIDING, FIVE),
        (FIVE, SLIDING),
        (TEN, TumblingEventTimeWindows.of(MS(10), MS(1))),
        (TEN, TumblingProcessingTimeWindows.of(MS(10))),
        (TEN, SESSION),
        (SESSION, TEN),
    ],
)
def test_open_windows_by_columns_are_not_taken_for_others(
    place: Path, before: WindowAssigner[Any, Any], after: WindowAssigner[Any, Any]
) -> None:
    """Also where the panes are the same: those of ten milliseconds every five are those of five."""
    run(program(place, before), place / "job", epochs("rows", BATCHES[:1]))
    with pytest.raises(
        StateMigrationError, match=r"'sums' has open windows of another kind: the checkpoint has .*'columns'"
    ):
        run(program(place, after), place / "job", epochs("rows", BATCHES))
    assert not list((place / "out").glob("*.parquet"))
    run(program(place, before), place / "job", epochs("rows", BATCHES), is_bounded=True)
    assert sum(n for *_, n in ledger.read(place / "out")) == 15 * (2 if before is SLIDING else 1)


@pytest.mark.parametrize("by_columns", [True, False])
def test_open_windows_by_element_are_no_windows_by_columns_and_the_other_way_round(
    place: Path, by_columns: bool
) -> None:
    run(program(place, TEN, by_columns=by_columns), place / "job", epochs("rows", BATCHES[:1]))
    with pytest.raises(StateMigrationError, match="'sums' has open windows of another kind"):
        run(program(place, TEN, by_columns=not by_columns), place / "job", epochs("rows", BATCHES))


@pytest.mark.parametrize(
    ("before", "after", "known"),
    [
        (TEN, TWENTY, "start=10, end=20"),
        (TWENTY, TEN, "start=0, end=20"),
        (TEN, TumblingEventTimeWindows.of(MS(10), MS(1)), "start=10, end=20"),
        (TEN, SESSION, "start=10, end=20"),
        (SESSION, TEN, "start=0, end=0"),
    ],
)
def test_windows_of_an_older_release_that_did_not_say_what_they_are_fail_the_job_when_they_end(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: WindowAssigner[Any, Any],
    after: WindowAssigner[Any, Any],
    known: str,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Step, "windows", {})
        run(program(place, before), place / "job", epochs("rows", BATCHES[:1]))
    with pytest.raises(StateMigrationError, match=rf"'sums' has windows in state .* TimeWindow\({known}\)"):
        run(program(place, after), place / "job", epochs("rows", BATCHES))
    assert not list((place / "out").glob("*.parquet"))


def test_windows_by_element_may_become_others_and_open_ones_end_as_they_began(place: Path) -> None:
    """As in Flink, because each of them has its own contents."""
    run(program(place, TEN, by_columns=False), place / "job", epochs("rows", BATCHES[:1]))
    run(program(place, TWENTY, by_columns=False), place / "job", epochs("rows", BATCHES), is_bounded=True)
    assert sorted(ledger.read(place / "out")) == [(0, 20, 4), (10, 20, 3), (40, 60, 8)]


def test_sessions_may_have_another_gap_and_those_that_are_open_keep_their_ends(place: Path) -> None:
    run(program(place, SESSION), place / "job", epochs("rows", BATCHES[:1]))
    longer = EventTimeSessionWindows.with_gap(MS(7))
    run(program(place, longer), place / "job", epochs("rows", [BATCHES[0], [(40, 8)]]), is_bounded=True)
    assert sorted(ledger.read(place / "out")) == [(11, 17, 3), (40, 47, 8)]


def test_windows_that_are_all_over_may_become_others(place: Path) -> None:
    run(program(place, TEN), place / "job", epochs("rows", [[]]))
    run(program(place, TWENTY), place / "job", epochs("rows", [[], [(11, 1)]]), is_bounded=True)
    assert ledger.read(place / "out") == [(0, 20, 1)]
