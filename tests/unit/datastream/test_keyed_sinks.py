"""Tables that are changed by a key want all rows of a key from one subtask: of several nobody knows the last one."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from holdfast.common import Row, RowKind
from holdfast.datastream import DataStream, KeyedProcessFunction
from holdfast.datastream.connectors.database import DatabaseSink
from holdfast.datastream.connectors.delta import DeltaSink
from holdfast.errors import ConfigurationError
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


@pytest.mark.parametrize(
    ("columns", "key", "said"),
    [
        ("tags array<string>, total bigint", "tags", r"cannot use 'tags' as key, because it is list<"),
        ("place struct<x: int>, total bigint", ["place"], r"cannot use 'place' as key, because it is struct<"),
        (TOTALS, ["day", "user", "day"], r"has the column 'day' twice in its key, \['day', 'user', 'day'\]"),
    ],
)
@pytest.mark.parametrize("kind", ["database", "delta"])
def test_a_key_by_which_no_commit_could_find_rows_is_refused_where_it_is_written(
    tmp_path: Path, kind: str, columns: str, key: str | list[str], said: str
) -> None:
    sink = table(tmp_path, key) if kind == "database" else DeltaSink(tmp_path / "t", key=key, create_table=True)
    with pytest.raises(ConfigurationError, match=f"^{type(sink).__name__} {said}"):
        EpochProgram().source("in", columns).sink_to(sink)


def test_what_a_row_does_is_no_part_of_its_key(tmp_path: Path) -> None:
    """It is not written, so no row of the table would be found by it."""
    for sink in (
        DatabaseSink(tmp_path / "t.db", "t", key=["id", "op"], row_kind="op", create_table=True),
        DeltaSink(tmp_path / "t", key=["id", "op"], row_kind="op", create_table=True),
    ):
        with pytest.raises(ConfigurationError, match="has the column 'op' in its key and as row_kind"):
            EpochProgram().source("in", "id bigint, op string").sink_to(sink)


def test_zeros_of_both_signs_are_one_row_of_a_table(tmp_path: Path) -> None:
    program = EpochProgram()
    sink = DeltaSink(tmp_path / "t", key="level", create_table=True)
    program.source("in", "level double, n bigint").sink_to(sink).uid("table")
    epochs = [[(0.0, 1), (-0.0, 2), (1.5, 3)], [(-0.0, 4)], [(-0.0, 5), (0.0, 6)]]
    program.run(tmp_path / "job", [{"in": rows} for rows in epochs], source_tasks=1)
    rows = DeltaTable(tmp_path / "t").to_pyarrow_table().to_pylist()
    assert sorted((row["level"], row["n"]) for row in rows) == [(0.0, 6), (1.5, 3)]
