"""Streams of changes from end to end: whatever comes how often, tables end as a dict of the rows does."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import load_catalog

from holdfast.common import Row, RowKind, Time
from holdfast.datastream import KeyedProcessFunction, ParquetFileSink
from holdfast.datastream.connectors.database import DatabaseSink
from holdfast.datastream.connectors.delta import DeltaSink
from holdfast.datastream.connectors.iceberg import IcebergSink
from holdfast.datastream.window import SumAggregate, TumblingProcessingTimeWindows
from holdfast.errors import ConfigurationError, UserFunctionError
from holdfast.testing import EpochProgram, OperatorHarness
from tests.examples import examples
from tests.programs import changes_job
from tests.stories.process import run

CHANGES = "changelog<id: bigint, name: string, version: bigint>"
Table = dict[int, tuple[Any, ...]]


def change(kind: RowKind, identity: int, name: str | None, version: int = 0) -> Row:
    return Row.of_kind(kind, id=identity, name=name, version=version)


def apply(table: Table, row: Row) -> None:
    """What a row does to a table, strictly: nothing is put twice, and only what is there is taken back."""
    kind = row.get_row_kind()
    if kind in (RowKind.INSERT, RowKind.UPDATE_AFTER):
        assert row.id not in table, row
        table[row.id] = tuple(row)
    else:
        assert table.pop(row.id) == tuple(row), row


@st.composite
def histories(draw: Any) -> list[Row]:
    """Changes of a table as a database's log has them, with the number of each."""
    rows, table = [], {}
    for number in range(draw(st.integers(1, 14))):
        identity, name = draw(st.integers(0, 3)), draw(st.sampled_from(["kelp", "rock", None]))
        before = table.get(identity)
        if before is None:
            rows.append(change(RowKind.INSERT, identity, name, number))
        elif draw(st.booleans()):
            moved = draw(st.sampled_from([identity, identity + 10]))
            rows.append(change(RowKind.UPDATE_BEFORE, identity, before, number))
            rows.append(change(RowKind.UPDATE_AFTER, moved, name, number))
            del table[identity]
            identity = moved
        else:
            rows.append(change(RowKind.DELETE, identity, None, number))
            del table[identity]
            continue
        table[identity] = name
    return rows


def model(rows: list[Row]) -> dict[int, Any]:
    """Names by id, in the end."""
    table: dict[int, Any] = {}
    for row in rows:
        if row.get_row_kind() in (RowKind.INSERT, RowKind.UPDATE_AFTER):
            table[row.id] = row.name
        else:
            table.pop(row.id, None)
    return table


def emitted(by: str | None, epochs: list[list[Row]]) -> dict[int, Any]:
    """What the clean changes of an operator make of an empty table; each change must be one."""
    program = EpochProgram()
    stream = program.source("in", CHANGES).key_by("id")
    clean = stream.normalize_changes() if by is None else stream.last_value(by)
    operator: Any = clean._node.operator.function  # type: ignore[attr-defined]
    options: dict[str, Any] = {"key_by": "id", "key_type": "bigint", "output_type": clean.get_type(), "amnesia": True}
    table: Table = {}
    with OperatorHarness(operator, **options) as harness:
        for number, rows in enumerate(epochs, 1):
            harness.process_elements(rows)
            harness.snapshot(number)
        for row in harness.output:
            apply(table, row)
    return {identity: name for identity, (_, name, _) in table.items()}


@settings(max_examples=examples(60), deadline=None)
@given(histories(), st.data())
def test_changes_that_come_again_change_nothing(rows: list[Row], data: Any) -> None:
    """A log that is read again from an earlier place, as often as you like, ends as it does once."""
    read, place = [], 0
    while place < len(rows):
        end = data.draw(st.integers(place + 1, len(rows)))
        read += rows[place:end]
        place = end if data.draw(st.booleans()) or len(read) > 60 else data.draw(st.integers(0, place))
    epochs = [read[n : n + 3] for n in range(0, len(read), 3)]
    assert emitted(None, epochs) == model(rows)


def test_a_row_that_was_taken_back_is_not_deleted_once_more() -> None:
    """It has moved to another key; then the log is read again from where an earlier row of that key was deleted."""
    deleted = [change(RowKind.DELETE, 0, None, 1), change(RowKind.INSERT, 0, "rock", 2)]
    moved = [change(RowKind.UPDATE_BEFORE, 0, "rock", 3), change(RowKind.UPDATE_AFTER, 10, "rock", 3)]
    log = [change(RowKind.INSERT, 0, "kelp", 0), *deleted, *moved]
    assert emitted(None, [log, [*deleted, *moved]]) == {10: "rock"}


@settings(max_examples=examples(60), deadline=None)
@given(histories(), st.randoms(use_true_random=False))
def test_the_last_value_by_version_does_not_depend_on_the_order(rows: list[Row], chance: Any) -> None:
    whole = [row for row in rows if row.get_row_kind() is not RowKind.UPDATE_BEFORE]  # a log without rows before
    moved = [change(RowKind.DELETE, row.id, None, row.version) for row in rows
             if row.get_row_kind() is RowKind.UPDATE_BEFORE and not any(
                 other.id == row.id and other.version == row.version for other in whole)]  # fmt: skip
    mixed = [*whole, *moved, *whole]
    chance.shuffle(mixed)
    assert emitted("version", [mixed[n : n + 3] for n in range(0, len(mixed), 3)]) == model(rows)


@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(histories(), st.integers(1, 5))
def test_tables_end_as_the_changes_say(tmp_path_factory: Any, rows: list[Row], size: int) -> None:
    """Across an exchange, with the two halves of an update of a key on their way to two tasks; run twice."""
    place: Path = tmp_path_factory.mktemp("tables")
    epochs = [{"in": rows[n : n + size]} for n in range(0, len(rows), size)]
    program = EpochProgram()
    changes = program.source("in", CHANGES)
    spread = changes.filter(lambda row: True).key_by("id").process(_Same(), CHANGES).uid("same")
    spread.sink_to(DatabaseSink(f"sqlite:///{place}/x.db", "x", key="id", create_table=True)).uid("database")
    spread.sink_to(DeltaSink(f"{place}/delta", key="id", create_table=True)).uid("delta")
    catalog = {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": f"file://{place}/warehouse"}
    iceberg = IcebergSink("test", "db.t", properties=catalog, key="id", partition_by="name", create_table=True)
    spread.sink_to(iceberg).uid("iceberg")
    if cut_in_two(rows, size):
        return  # the two halves of a change come in one epoch, because they are of one record
    program.run(place / "job", epochs[: len(epochs) // 2])
    program.run(place / "job", epochs)
    with sqlite3.connect(place / "x.db") as database:
        found = dict(database.execute("select id, name from x").fetchall())
    assert found == model(rows)
    table = DeltaTable(f"{place}/delta").to_pyarrow_table()
    assert table.schema.names == ["id", "name", "version"]
    assert {row["id"]: row["name"] for row in table.to_pylist()} == model(rows)
    seen = load_catalog("test", **catalog).load_table("db.t").scan().to_arrow().to_pylist()
    assert {row["id"]: row["name"] for row in seen} == model(rows) and len(seen) == len(model(rows))


def cut_in_two(rows: list[Row], size: int) -> bool:
    return any(rows[end - 1].get_row_kind() is RowKind.UPDATE_BEFORE for end in range(size, len(rows), size))


class _Same(KeyedProcessFunction):
    def process_element(self, row: Row, ctx: Any) -> Any:
        yield row


@pytest.mark.parametrize(
    "fault",
    [
        "before:sink.commit:5=kill",
        "after:sink.commit:4=kill",
        "lost:sink.commit:6=raise,after:sink.commit:8=kill",
        "after:pointer.write:3=kill",
        "before:notify:2=kill",
        "after:sink.stage:9=kill",
    ],
)
def test_killed_at_any_step_the_tables_end_as_the_changes_say(tmp_path: Path, fault: str) -> None:
    """The next process goes on; of three sinks some have an epoch already, and some not."""
    first = run("changes_job.py", tmp_path, fault=fault)
    assert first.was_killed or first.code == 1, first.output
    second = run("changes_job.py", tmp_path)
    assert second.code == 0, second.output
    _, expected = changes_job.history()
    assert len(expected) > 5
    with sqlite3.connect(tmp_path / "table.db") as database:
        rows = database.execute("select id, name from t").fetchall()
    delta = [tuple(row.values()) for row in DeltaTable(f"{tmp_path}/delta").to_pyarrow_table().to_pylist()]
    iceberg = load_catalog("test", **changes_job.catalog(tmp_path)).load_table("db.t").scan().to_arrow()
    for found in (rows, delta, [tuple(row.values()) for row in iceberg.to_pylist()]):
        assert sorted(found) == sorted(expected.items())


def test_a_first_row_without_a_version_is_refused_and_not_the_next_one_that_has_one() -> None:
    program = EpochProgram()
    last = program.source("in", "id bigint, version bigint").key_by("id").last_value("version")
    operator: Any = last._node.operator.function  # type: ignore[attr-defined]
    options: dict[str, Any] = {"key_by": "id", "key_type": "bigint", "output_type": last.get_type()}
    with (
        OperatorHarness(operator, **options) as harness,
        pytest.raises(UserFunctionError, match="a row has no version: 'version' is null"),
    ):
        harness.process_element(Row(id=1, version=None))


def test_what_cannot_know_of_changes_refuses_them(tmp_path: Path) -> None:
    program = EpochProgram()
    changes = program.source("in", CHANGES)
    keyed = changes.key_by("id")
    for refused in (
        lambda: keyed.count(),
        lambda: keyed.sum("version"),
        lambda: keyed.max("version"),
        lambda: keyed.deduplicate(),
        lambda: keyed.max_by("version"),
        lambda: keyed.top_n(1, "version"),
        lambda: keyed.window(TumblingProcessingTimeWindows.of(Time.seconds(1))).aggregate_batches(n=SumAggregate("id")),
    ):
        with pytest.raises(ConfigurationError, match="cannot subtract the retractions of a changelog"):
            refused()
    with pytest.raises(ConfigurationError, match="would lose the kinds"):
        changes.project(0)
    with pytest.raises(ConfigurationError, match="without a key only appends"):
        changes.sink_to(DatabaseSink(f"sqlite:///{tmp_path}/x.db", "x"))
    with pytest.raises(ConfigurationError, match="have kinds of their own"):
        changes.sink_to(DeltaSink(f"{tmp_path}/delta", key="id", row_kind="name"))
    with pytest.raises(ConfigurationError, match="there is no column 'lsn'"):
        keyed.last_value("lsn")
    with pytest.raises(ConfigurationError, match="works on rows"):
        program.source("numbers", "bigint").key_by(lambda n: n).normalize_changes()
    changes.sink_to(ParquetFileSink(tmp_path / "log")).uid("log")
    program.run(tmp_path / "job", [{"in": [change(RowKind.DELETE, 1, "kelp")]}])
    [file] = (tmp_path / "log").glob("*.parquet")
    assert pq.read_table(file).to_pylist() == [{"id": 1, "name": "kelp", "version": 0, "row_kind": 3}]
