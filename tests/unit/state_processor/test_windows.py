"""State of windows is read with start and end, changed, and continued by a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.common import Time
from holdfast.common.watermark_strategy import WatermarkStrategy
from holdfast.datastream.window import (
    CountTrigger,
    EventTimeSessionWindows,
    MaxAggregate,
    SlidingEventTimeWindows,
    SumAggregate,
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from holdfast.errors import ConfigurationError, StateError, StateMigrationError
from holdfast.kernel.clock import ManualClock
from holdfast.state_processor import OperatorTransformation, SavepointReader, SavepointWriter
from tests.stories import journal, tidiness
from tests.stories.journal import Journal
from tests.stories.local import Program, epochs, run

PATH = "execution.state-recovery.path"
FIRST = [[("a", 1), ("b", 2)], [("a", 3)]]


def sums(place: Path, name: str, inputs: Any, now: int, path: str | None = None) -> str:
    """Sums by key and window of a second; returns the newest checkpoint."""
    program = Program()
    keyed = program.source("in", "word string, n bigint").key_by("word")
    windowed = keyed.window(TumblingProcessingTimeWindows.of(Time.milliseconds(1000)))
    windowed.reduce(lambda a, b: (a[0], a[1] + b[1])).uid("sums").sink_to(Journal(place / f"out-{name}")).uid("out")
    options = {} if path is None else {PATH: path}
    run(program, place / name, epochs("in", inputs), options, clock=ManualClock(now))
    return tidiness.retained(tidiness.job_directory(place / name))[-1].path


def rows(table: pa.Table) -> list[Any]:
    return sorted((row["key"], row["window_start"], row["window_end"], row["value"]["n"]) for row in table.to_pylist())


def test_windows_are_read_with_their_bounds_and_by_them(place: Path) -> None:
    reader = SavepointReader.read(None, sums(place, "job", FIRST, 5000))
    assert reader.states("sums")["window-contents"] == "reducing"
    table = reader.read_keyed_state("sums", "window-contents")
    assert rows(table) == [("a", 5000, 6000, 4), ("b", 5000, 6000, 2)]
    assert table.equals(reader.read_keyed_state("sums", "window-contents", namespaces=[TimeWindow(5000, 6000)]))
    assert reader.read_keyed_state("sums", "window-contents", namespaces=[TimeWindow(0, 1000)]).num_rows == 0
    with pytest.raises(ConfigurationError, match="TimeWindow"):
        reader.read_keyed_state("sums", "window-contents", namespaces=[5000])
    timers = reader.read_timers("sums").to_pylist()
    assert {(row["service"], row["timestamp"]) for row in timers} == {("window-timers", 5999)}


def test_what_a_window_holds_is_changed_and_comes_out_of_it(place: Path) -> None:
    path = sums(place, "job", FIRST, 5000)
    table = SavepointReader.read(None, path).read_keyed_state("sums", "window-contents")
    value = pa.array([{"word": row["key"], "n": row["value"]["n"] + 100} for row in table.to_pylist()])
    changed = table.set_column(table.column_names.index("value"), "value", value)
    better = SavepointWriter.from_existing_savepoint(None, path).replace_state("sums", "window-contents", changed)
    copy = better.write(str(place / "better"))
    sums(place, "again", [*FIRST, [("a", 1)]], 7000, copy)
    assert sorted(journal.as_tuples(journal.read(place / "out-again")))[:2] == [("a", 104), ("b", 102)]
    moved = changed.set_column(changed.column_names.index("window_start"), "window_start", pa.array([0, 0]))
    with pytest.raises(StateError, match="window_start"):
        wrong = SavepointWriter.from_existing_savepoint(None, path).replace_state("sums", "window-contents", moved)
        wrong.write(str(place / "wrong"))


def added(a: Any, b: Any) -> tuple[Any, ...]:
    return a[0], max(a[1], b[1]), a[2] + b[2]


@pytest.mark.parametrize("kind", ["tumbling", "session"])
def test_history_is_put_into_windows_and_comes_out_of_them_with_what_the_job_adds(place: Path, kind: str) -> None:
    windows = {
        "tumbling": TumblingEventTimeWindows.of(Time.milliseconds(1000)),
        "session": EventTimeSessionWindows.with_gap(Time.milliseconds(400)),
    }[kind]
    history = pa.table({"word": ["a", "b", "a", "a"], "at": [5100, 5200, 5300, 6900], "n": [1, 2, 4, 8]})
    bootstrap = OperatorTransformation.bootstrap_with(history).assign_timestamps("at").key_by("word").window(windows)
    made = bootstrap.reduce(added)
    path = SavepointWriter.new_savepoint(None, 8).with_operator("sums", made).write(str(place / "made"))
    held = SavepointReader.read(None, path).read_keyed_state("sums", "window-contents")
    if kind == "tumbling":  # windows that merge are kept under one of those that they were made of
        assert rows(held) == [("a", 5000, 6000, 5), ("a", 6000, 7000, 8), ("b", 5000, 6000, 2)]

    program = Program()
    timed = program.source("in", "word string, at bigint, n bigint").assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)
    )
    timed.key_by("word").window(windows).reduce(added).uid("sums").sink_to(Journal(place / "out")).uid("out")
    inputs = epochs("in", [[("a", 5400, 16), ("c", 6950, 0)], [("c", 9000, 0)]])
    run(program, place / "job", inputs, {PATH: path})
    emitted = sorted((word, n) for word, _, n in journal.as_tuples(journal.read(place / "out")))
    assert emitted == [("a", 8), ("a", 21), ("b", 2), ("c", 0)]


def test_history_is_aggregated_by_columns_and_the_job_goes_on_with_its_panes(place: Path) -> None:
    windows = SlidingEventTimeWindows.of(Time.milliseconds(1000), Time.milliseconds(500))
    aggregates = {"n": SumAggregate("n"), "most": MaxAggregate("n")}
    history = pa.table({"word": ["a", "b", "a", "a"], "at": [5100, 5200, 5300, 6900], "n": [1, 2, 4, 8]})

    def results(name: str, inputs: list[Any], path: str | None = None, windows: Any = windows) -> list[Any]:
        program = Program()
        timed = program.source("in", "word string, at bigint, n bigint").assign_timestamps_and_watermarks(
            WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)
        )
        summed = timed.key_by("word").window(windows).aggregate_batches(**aggregates).uid("sums")
        summed.sink_to(Journal(place / f"out-{name}")).uid("out")
        run(program, place / name, epochs("in", inputs), {} if path is None else {PATH: path})
        return sorted(journal.as_tuples(journal.read(place / f"out-{name}")))

    first = list(zip(*history.to_pydict().values(), strict=True))
    later = [[("a", 6950, 16), ("c", 6950, 0)], [("c", 9000, 0)]]
    for time_of in ("at", lambda row: row.at):
        timed = OperatorTransformation.bootstrap_with(history).assign_timestamps(time_of).key_by("word")
        made = timed.window(windows).aggregate_batches(**aggregates)
        name = "column" if time_of == "at" else "function"
        path = SavepointWriter.new_savepoint(None, 8).with_operator("sums", made).write(str(place / f"made-{name}"))
        # The same as if the job had had the history too.
        assert results(name, later, path) == results(f"all-{name}", [first, *later])
    with pytest.raises(StateMigrationError, match="'sums' has open windows of another kind"):
        results("tumbling", later, path, TumblingEventTimeWindows.of(Time.milliseconds(500)))
    with pytest.raises(ConfigurationError, match="default trigger"):
        timed.window(windows).trigger(CountTrigger.of(2)).aggregate_batches(**aggregates)


def test_windows_that_history_completes_and_rows_without_a_time_are_refused(place: Path) -> None:
    history = pa.table({"word": ["a", "a"], "at": [5100, None], "n": [1, 2]})
    rows_of = OperatorTransformation.bootstrap_with(history)
    by_time = TumblingEventTimeWindows.of(Time.milliseconds(1000))
    with pytest.raises(ConfigurationError, match="assign_timestamps"):
        rows_of.key_by("word").window(by_time)
    with pytest.raises(ConfigurationError, match="instance of WindowAssigner"):
        rows_of.key_by("word").window(1000)
    writer = SavepointWriter.new_savepoint(None, 8)
    timed = rows_of.assign_timestamps("at").key_by("word").window(by_time).apply()
    with pytest.raises(StateError, match="'at' of times is null in row 1"):
        writer.with_operator("op", timed).write(str(place / "null"))
    counted = rows_of.key_by("word").window(TumblingProcessingTimeWindows.of(Time.milliseconds(1000)))
    full = counted.trigger(CountTrigger.of(2)).process()
    with pytest.raises(StateError, match="is complete with the rows that are given"):
        writer.remove_operator("op").with_operator("op", full).write(str(place / "full"))
    assert not (place / "null" / "_metadata").exists()
    assert not (place / "full" / "_metadata").exists()
