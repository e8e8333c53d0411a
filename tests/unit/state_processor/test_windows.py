"""State of windows: read with their start and end, changed, and gone on from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.common import Time
from holdfast.datastream.window import TimeWindow, TumblingProcessingTimeWindows
from holdfast.errors import ConfigurationError, StateError
from holdfast.kernel.clock import ManualClock
from holdfast.state_processor import SavepointReader, SavepointWriter
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
