"""Debezium's JSON as rows with kinds, and into tables."""

from __future__ import annotations

import json
import pickle
import sqlite3
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import RowKind
from holdfast.datastream.connectors.database import DatabaseSink
from holdfast.datastream.formats.debezium import DebeziumJsonDeserializationSchema
from holdfast.errors import ConfigurationError
from holdfast.testing import EpochProgram

COLUMNS = "id bigint, name string, born date, lsn bigint"


def message(operation: str, before: Any, after: Any, lsn: int = 7, wrapped: bool = False) -> bytes:
    """As Debezium's connector of Postgres writes it, with the parts that nobody asks for."""
    source = {"version": "3.2.0.Final", "connector": "postgresql", "snapshot": "false", "table": "people", "lsn": lsn}
    payload = {"before": before, "after": after, "source": source, "op": operation, "ts_ms": 1, "transaction": None}
    return json.dumps({"schema": {"type": "struct"}, "payload": payload} if wrapped else payload).encode()


def person(identity: int, name: str | None, born: Any = 20_000) -> dict[str, Any]:
    return {"id": identity, "name": name, "born": born, "column_of_tomorrow": [1]}


def schema(**more: Any) -> DebeziumJsonDeserializationSchema:
    made = DebeziumJsonDeserializationSchema(COLUMNS, metadata={"lsn": "source.lsn"}, **more)
    again: DebeziumJsonDeserializationSchema = pickle.loads(pickle.dumps(made))
    return again


@pytest.mark.parametrize("wrapped", [False, True])
def test_operations_are_rows_with_kinds(wrapped: bool) -> None:
    born, kelp, rock = date(2024, 10, 4), person(1, "kelp"), person(1, "rock", "2024-10-04")
    for operation, before, after, expected in (
        ("c", None, kelp, [("+I", "kelp")]),
        ("r", None, kelp, [("+I", "kelp")]),
        ("u", kelp, rock, [("-U", "kelp"), ("+U", "rock")]),
        ("u", None, rock, [("+U", "rock")]),
        ("d", kelp, None, [("-D", "kelp")]),
        ("m", None, None, []),
    ):
        rows = schema().deserialize_all(message(operation, before, after, wrapped=wrapped))
        assert [(str(row.get_row_kind()), row.name) for row in rows] == expected
        assert all(row == (1, row.name, born, 7) for row in rows)
    assert schema().deserialize(message("c", None, kelp)).get_row_kind() is RowKind.INSERT


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"{}", "no 'op'"),
        (b"[]", "no 'op'"),
        (b'{"payload": null}', "no 'op'"),
        (b'{"op": "c"}', "'after' of an operation 'c' is no row"),
        (message("d", None, None), "'before' of an operation 'd' is no row"),
        (message("x", None, None), "its operation is 'x'"),
        (message("t", None, None), "truncated"),
        (message("c", None, person(1, "kelp", 10**12)), "is out of range"),
        (message("c", None, {"id": "one"}), "whole number"),
        (b'{"op": "c", "after": {"id": 1}}', "no 'source.lsn'"),
        (b"?", "Expecting value"),
    ],
)
def test_what_is_no_change_is_refused_with_the_reason_or_left_out(value: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=f"(?s)the message is not a Debezium change event of .*{reason}"):
        schema().deserialize_all(value)
    assert schema(ignore_parse_errors=True).deserialize_all(value) == []


def test_metadata_has_columns() -> None:
    with pytest.raises(ConfigurationError, match="metadata names 'pos'"):
        DebeziumJsonDeserializationSchema("id bigint", metadata={"pos": "source.pos"})


def test_a_log_that_is_told_twice_and_out_of_order_ends_in_the_table_of_the_database(tmp_path: Path) -> None:
    log = [
        message("r", None, person(1, "kelp"), 1),
        message("c", None, person(2, "rock"), 2),
        message("u", person(1, "kelp"), person(1, "crab"), 3),
        message("d", person(2, "rock"), None, 4),
        message("c", None, person(3, "sand"), 5),
        message("d", person(3, "sand"), None, 6),
        message("c", None, person(3, "sea"), 7),
    ]
    program = EpochProgram()
    read = schema()
    changes = program.source("log", "binary").flat_map(read.deserialize_all, read.get_produced_type()).uid("read")
    last = changes.key_by("id").last_value(by="lsn").uid("last")
    last.sink_to(DatabaseSink(f"sqlite:///{tmp_path}/people.db", "people", key="id", create_table=True)).uid("people")
    told = [*log, *log[3:], *reversed(log)]
    epochs = [{"log": told[n : n + 2]} for n in range(0, len(told), 2)]
    program.run(tmp_path / "job", epochs[:4])
    program.run(tmp_path / "job", epochs, amnesia=True)
    with sqlite3.connect(tmp_path / "people.db") as database:
        found = database.execute("select id, name, lsn from people order by id").fetchall()
    assert found == [(1, "crab", 3), (3, "sea", 7)]
