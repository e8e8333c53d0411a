"""What a real Debezium told of a real Postgres is read, and makes the tables that Postgres had.

`scripts/record_debezium.py` says how it was recorded, and what had happened.
"""

from __future__ import annotations

import json
import sqlite3
from base64 import b64decode
from contextlib import closing
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from holdfast.common import Row, RowKind
from holdfast.datastream.connectors.database import DatabaseSink
from holdfast.datastream.connectors.delta import DeltaSink
from holdfast.datastream.connectors.iceberg import IcebergSink
from holdfast.datastream.formats.debezium import DebeziumJsonDeserializationSchema
from holdfast.testing import EpochProgram
from tests.golden.debezium_log import END, records

CONNECTORS = ("plain", "texts", "wrapped")
NAMES = "id bigint, name string, steps int, lsn bigint"
LSN = {"lsn": "source.lsn"}


def rows_of(topic: str, columns: str, **settings: Any) -> list[Row]:
    schema = DebeziumJsonDeserializationSchema(columns, **settings)
    return [row for _, value in records(topic) if value is not None for row in schema.deserialize_all(value)]


def kinds(connector: str, table: str) -> list[str]:
    rows = rows_of(f"{connector}.public.{table}", NAMES, metadata=LSN)
    return [f"{row.get_row_kind()} {row.id} {row.name}" for row in rows]


@pytest.mark.parametrize("connector", CONNECTORS)
def test_a_history_is_told_with_the_rows_before_or_without(connector: str) -> None:
    begin = ["+I 1 kelp", "+I 2 None", "+I 3 crab"]
    end = ["+I 7 None", "-U 7 None", "+U 7 short", "+I 99 None"]
    moved, born = ["-D 3 None", "+I 4 None"], ["+I 5 sea", '+I 6 é漢"\\']
    told = kinds(connector, "people")
    changed = ["-U 1 kelp", "+U 1 rock", "-U 2 None", "+U 2 sand", "-U 3 crab", "+U 3 None"]
    deleted = ["-D 5 sea", "+I 5 sea again", "-D 2 sand"]
    assert told == [*begin, *changed, *moved, *born, *deleted, *end]
    # Of REPLICA IDENTITY DEFAULT the row before has its key only.
    told = kinds(connector, "things")
    changed, deleted = ["+U 1 rock", "+U 2 sand", "+U 3 None"], ["-D 5 None", "+I 5 sea again", "-D 2 None"]
    assert told == [*begin, *changed, *moved, *born, *deleted, *(step for step in end if step[0] != "-")]


def test_a_deletion_of_a_row_whose_identity_is_its_key_says_defaults_instead_of_what_it_had() -> None:
    rows = rows_of("plain.public.things", NAMES, metadata=LSN)
    assert [(row.id, row.steps) for row in rows if row.get_row_kind() is RowKind.DELETE] == [(3, 3), (5, 3), (2, 3)]
    assert [row.steps for row in rows if row.id in (2, 3)] == [0, 1, 0, 1, 3, 3], "they had 1 and 0"


def test_values_are_read_as_they_are_declared() -> None:
    columns = "id bigint, name string, born date, rate double, height float, steps int, floor smallint, "
    columns += "is_member boolean, photo binary, more string, seen timestamp, amount {}, at {}, wakes {}"
    same = (0.1, 1.5, 7, -2, True, b"\x00\xff\x10", '{"a": [1, null]}', datetime(2024, 10, 4, 10, 30, 0, 500_000, UTC))
    as_texts = (Decimal("12345.67"), datetime(2024, 10, 4, 12, 30, 0, 123_456), time(6, 30))
    # Of the decimal only the schema, where there is one, has the scale.
    as_numbers = ((1_234_567).to_bytes(3, "big"), 1_728_045_000_123_456, 23_400_000_000)
    texts = rows_of("texts.public.people", columns.format("decimal(10,2)", "timestamp_ntz", "time"))
    plain = rows_of("plain.public.people", columns.format("binary", "bigint", "bigint"))
    wrapped = rows_of("wrapped.public.people", columns.format("binary", "bigint", "bigint"))
    for rows, special in ((texts, as_texts), (plain, as_numbers), (wrapped, as_numbers)):
        assert tuple(rows[0]) == (1, "kelp", date(2024, 10, 4), *same, *special)
        assert tuple(rows[1]) == (2, None, None, None, None, 0, *[None] * 8)
        assert [row.born for row in rows if row.id == 2 and row.name == "sand"] == [date(1969, 12, 31)] * 2
    assert rows_of("texts.public.people", "amount decimal(10,2)")[4].amount == Decimal("-0.01")


@pytest.mark.parametrize(
    ("topic", "columns", "reason"),
    [
        ("plain.public.people", "at timestamp_ntz", "'at': 1728045000123456 is a number.*isostring"),
        ("plain.public.people", "wakes time", "'wakes': 23400000000 is a number"),
        ("wrapped.public.people", "amount decimal(10,2)", "'amount': 'EtaH' is not a number"),
        ("wrapped.transaction", "id bigint", "there is no 'op' in it"),
    ],
)
def test_what_does_not_say_what_it_means_is_refused(topic: str, columns: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        rows_of(topic, columns)


LONG = {
    "long_story string": "c4ca4238",
    "long_photo binary": b"c4ca4238",
    "long_more string": '["c4ca42',
    "long_words array<string>": ["c4ca4238a0b923820dcc509a6f75849b"],
    "long_numbers array<int>": [1, 4, 9],
}


@pytest.mark.parametrize("column", LONG)
@pytest.mark.parametrize("connector", CONNECTORS)
def test_a_value_that_was_not_told_again_is_never_taken_for_one(connector: str, column: str) -> None:
    """Postgres does not log a value that lies beside its row and has not changed, but for REPLICA IDENTITY FULL."""
    columns, name = f"id bigint, {column}", column.split(maxsplit=1)[0]
    for row in rows_of(f"{connector}.public.people", columns):
        found = row[1]
        assert (found is None) == (row.id != 7)
        assert row.id != 7 or found[: len(LONG[column])] == LONG[column]
    with pytest.raises(ValueError, match=f"{name!r} is missing, because .* 'alter table .* identity full'"):
        rows_of(f"{connector}.public.things", columns)
    rows = rows_of(f"{connector}.public.things", columns, ignore_parse_errors=True)
    assert [row.id for row in rows].count(7) == 1, "what nobody asks for may be missing"


def test_the_placeholder_is_what_we_look_for() -> None:
    [told] = [value for key, value in records("plain.public.things") if value and b"unavailable" in value]
    after = json.loads(told)["after"]
    assert b64decode(after["long_photo"]) == bytes(after["long_numbers"]) == after["long_story"].encode()


@pytest.mark.parametrize("table", ["people", "things"])
@pytest.mark.parametrize("connector", CONNECTORS)
def test_tables_end_as_the_table_of_postgres(connector: str, table: str, tmp_path: Path) -> None:
    """Also where the connector tells a part of its log again, as it does after a crash, and the job dies."""
    told = [value for _, value in records(f"{connector}.public.{table}") if value is not None]
    log = [*told[:9], *told[4:]]
    schema = DebeziumJsonDeserializationSchema(NAMES, metadata=LSN)
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    program = EpochProgram()
    changes = program.source("log", "binary").flat_map(schema.deserialize_all, schema.get_produced_type()).uid("read")
    clean = changes.key_by("id").normalize_changes().uid("clean")
    clean.key_by("id").sink_to(DeltaSink(tmp_path / "delta", key="id", create_table=True)).uid("delta")
    iceberg = IcebergSink("test", "db.t", properties=catalog, key="id", create_table=True)
    clean.key_by("id").sink_to(iceberg).uid("iceberg")
    last = changes.key_by("id").last_value(by="lsn").uid("last")
    last.sink_to(DatabaseSink(f"sqlite:///{tmp_path}/t.db", "t", key="id", create_table=True)).uid("database")
    epochs = [{"log": log[n : n + 4]} for n in range(0, len(log), 4)]
    program.run(tmp_path / "job", epochs[:3], source_tasks=1)
    program.run(tmp_path / "job", epochs, source_tasks=1, amnesia=True)

    with closing(sqlite3.connect(tmp_path / "t.db")) as database:
        found = [database.execute("select id, name, steps from t").fetchall()]
    found += [
        [(row["id"], row["name"], row["steps"]) for row in rows.to_pylist()]
        for rows in (
            DeltaTable(tmp_path / "delta").to_pyarrow_table(),
            load_catalog("test", **catalog).load_table("db.t").scan().to_arrow(),
        )
    ]
    for rows in found:
        assert {key: rest for key, *rest in rows} == {key: list(rest) for key, rest in END.items()}
        assert len(rows) == len(END)
