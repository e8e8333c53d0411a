"""Tables that are changed by a key want all rows of a key from one subtask: of several nobody knows the last one."""

from __future__ import annotations

import logging
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Row, RowKind, Time
from holdfast.datastream import DataStream, KeyedProcessFunction, OutputTag
from holdfast.datastream.connectors.database import DatabaseSink
from holdfast.datastream.connectors.delta import DeltaSink
from holdfast.datastream.connectors.iceberg import IcebergSink
from holdfast.datastream.window import CountAggregate, TumblingProcessingTimeWindows
from holdfast.testing import EpochProgram

TOTALS = "user string, day string, total bigint"


class Same(KeyedProcessFunction):
    def process_element(self, row: Any, ctx: Any) -> Any:
        yield row


class ByDay(KeyedProcessFunction):
    def process_element(self, row: Any, ctx: Any) -> Any:
        yield row.day, row.total


def by_user(program: EpochProgram) -> DataStream:
    return program.source("in", TOTALS).key_by("user").process(Same(), TOTALS).uid("same")


def table(place: Path, key: str | list[str] = "day") -> DatabaseSink:
    return DatabaseSink(f"sqlite:///{place}/t.db", "t", key=key, create_table=True)


def totals(place: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(place / "t.db")) as database:
        return sorted(database.execute("select day, total from t").fetchall())


@pytest.mark.parametrize(
    "sink",
    [
        lambda place: table(place),
        lambda place: DeltaSink(place / "t", key="day", create_table=True),
        lambda place: IcebergSink("test", "db.t", key="day", create_table=True),
    ],
    ids=["database", "Delta", "Iceberg"],
)
def test_a_stream_that_is_keyed_by_something_else_is_warned_of_where_it_is_written(
    tmp_path: Path, sink: Callable[[Path], Any], caplog: pytest.LogCaptureFixture
) -> None:
    by_user(EpochProgram()).sink_to(sink(tmp_path))
    assert re.search(r"\['day'\].*\['user'\].*key_by\('day'\)\.sink_to", caplog.text)


def test_what_is_between_the_operator_and_the_sink_does_not_hide_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = EpochProgram()
    rows = by_user(program)
    other = program.source("other", TOTALS).key_by("day").process(Same(), TOTALS).uid("other days")
    spread = {
        "filter": rows.filter(lambda row: True),
        "map": rows.map(lambda row: row, "total bigint, day string, user string"),
        "union": other.union(rows),
        "side": by_user(EpochProgram()).get_side_output(OutputTag("side", TOTALS)),
        "twice": rows.union(rows).union(rows).union(rows),
        "windows": rows.key_by("user")
        .window(TumblingProcessingTimeWindows.of(Time.minutes(1)))
        .aggregate_batches(total=CountAggregate()),
    }
    for name, stream in spread.items():
        caplog.clear()
        stream.sink_to(table(tmp_path, "window_start" if name == "windows" else "day"))
        assert "['user']" in caplog.text, name
    caplog.clear()
    program.source("unkeyed", TOTALS).key_by("user").sink_to(table(tmp_path))
    assert "['user']" in caplog.text


def test_what_may_be_right_is_not_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program = EpochProgram()
    rows = by_user(program)
    rows.sink_to(table(tmp_path, ["day", "user"]))  # a key is on one subtask because its user is
    rows.map(lambda row: (row.user, row.total), "day string, total bigint").sink_to(table(tmp_path))  # renamed
    rows.key_by(lambda row: row.day).process(Same(), TOTALS).sink_to(table(tmp_path))  # nobody knows what it returns
    rows.key_by("user").process(Same(), TOTALS).force_non_parallel().sink_to(table(tmp_path))
    program.source("source", TOTALS).sink_to(table(tmp_path))  # its partitions may be by day
    rows.sink_to(DatabaseSink(f"sqlite:///{tmp_path}/t.db", "t"))  # adds rows
    assert "left to chance" not in caplog.text


@pytest.mark.parametrize("pair", [("ann", "cy"), ("cy", "ann")])
def test_key_by_before_the_sink_brings_the_rows_of_a_key_together_and_order_by_says_which_is_the_last(
    tmp_path: Path, pair: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    program = EpochProgram()
    by_user(program).key_by("day", order_by="total").sink_to(table(tmp_path)).uid("table")
    epochs = [[(pair[0], "mon", 1), (pair[1], "mon", 2)], [(pair[1], "tue", 4), (pair[0], "tue", 3)]]
    program.run(tmp_path / "job", [{"in": rows} for rows in epochs], source_tasks=1)
    assert totals(tmp_path) == [("mon", 2), ("tue", 4)]
    assert "several subtasks" not in caplog.text


def test_kinds_cross_the_exchange_before_the_sink(tmp_path: Path) -> None:
    program, kinds = EpochProgram(), "changelog<day: string, total: bigint>"
    program.source("in", kinds).key_by("day").sink_to(table(tmp_path)).uid("table")

    def change(kind: RowKind, day: str, total: int) -> Row:
        return Row.of_kind(kind, day=day, total=total)

    first = [change(RowKind.INSERT, day, 1) for day in ("mon", "tue", "wed")]
    second = [change(RowKind.DELETE, "mon", 1), change(RowKind.UPDATE_BEFORE, "tue", 1)]
    second.append(change(RowKind.UPDATE_AFTER, "tue", 2))
    program.run(tmp_path / "job", [{"in": first}, {"in": second}], source_tasks=1)
    assert totals(tmp_path) == [("tue", 2), ("wed", 1)]


def test_what_no_program_tells_is_told_when_it_happens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The column by which the rows were divided is gone, so only the rows themselves show it: the last is not kept."""
    program = EpochProgram()
    days = program.source("in", TOTALS).key_by("user").process(ByDay(), "day string, total bigint").uid("days")
    days.sink_to(table(tmp_path)).uid("table")
    epochs = [{"in": [("cy", day, 1), ("ann", day, 2)]} for day in ("mon", "tue")]
    with caplog.at_level(logging.WARNING):
        program.run(tmp_path / "job", epochs, source_tasks=1)
    assert totals(tmp_path) == [("mon", 1), ("tue", 1)], "ann's came later, and cy's subtask has the greater number"
    told = [record.getMessage() for record in caplog.records if "several subtasks" in record.getMessage()]
    assert len(told) == 1 and "'table'" in told[0] and "{'day': 'mon'}" in told[0]
