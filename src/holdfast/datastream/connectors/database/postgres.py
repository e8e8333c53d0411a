"""Postgres. Rows travel in COPY's binary form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.datastream.connectors.database.dialect import (
    Connection,
    Cursor,
    Dialect,
    TableColumn,
    TableName,
    quoted,
    require_driver,
)
from holdfast.kernel.secret import without_credentials

_NETWORK: Final = {"connect_timeout": "10", "keepalives_idle": "30", "tcp_user_timeout": "60000"}
"""Without these a client waits for a host that is gone for as long as its operating system likes: two hours."""

_IDLE_SECONDS: Final = 60
"""A leader that sleeps in its transaction loses it, and its locks, after this."""

_DURABLE: Final = """
select pg_catalog.set_config('synchronous_commit', 'on', false)
where pg_catalog.current_setting('synchronous_commit') = 'off'
"""
"""A server may answer before a commit is durable; a checkpoint then forgets rows that a crash of the server loses."""

_CAST: Final = frozenset({"json", "jsonb", "uuid"})
_TAKES: Final[Mapping[str, frozenset[str]]] = {
    "boolean": frozenset({"bool"}),
    "smallint": frozenset({"int2", "int4", "int8", "numeric", "float4", "float8"}),
    "integer": frozenset({"int2", "int4", "int8", "numeric", "float8"}),
    "bigint": frozenset({"int2", "int4", "int8", "numeric"}),
    "real": frozenset({"float4", "float8"}),
    "double precision": frozenset({"float4", "float8"}),
    "text": frozenset({"text", "varchar", "bpchar", "citext", "name"}) | _CAST,
    "bytea": frozenset({"bytea"}),
    "date": frozenset({"date"}),
    "time": frozenset({"time"}),
    "timestamp": frozenset({"timestamp"}),
    "timestamptz": frozenset({"timestamptz"}),
    "numeric": frozenset({"numeric"}),
}
_OF_ROWS: Final = frozenset({"21", "22", "23", "44", "54", "P0"})
"""Classes of errors that are about rows: a key twice, data, constraints, views with a check, limits, triggers."""

_COLUMNS: Final = """
select a.attname, t.typname, a.attnotnull and not a.atthasdef and a.attidentity = '', a.attnotnull,
    case when t.typname in ('varchar', 'bpchar') and a.atttypmod > 4 then a.atttypmod - 4 end
from pg_catalog.pg_attribute a join pg_catalog.pg_type t on t.oid = a.atttypid
where a.attrelid = pg_catalog.to_regclass($1) and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
order by a.attnum
"""
_UNIQUE: Final = """
select array_agg(a.attname::text)
from pg_catalog.pg_index i join pg_catalog.pg_attribute a
    on a.attrelid = i.indrelid and a.attnum = any ((i.indkey::int2[])[0:i.indnkeyatts - 1])
where i.indrelid = pg_catalog.to_regclass($1) and i.indisunique and i.indisvalid and i.indimmediate
    and i.indpred is null and i.indexprs is null
group by i.indexrelid
"""
"""Of an index that only includes columns those do not count, and `on conflict` takes none that is checked later."""


class Postgres(Dialect):
    """Postgres, and what speaks its protocol and its SQL."""

    name = "Postgres"

    def connect(self, uri: str, options: Mapping[str, str], lock_timeout: float, may_make: bool) -> Connection:
        try:
            from adbc_driver_postgresql import dbapi
        except ImportError as error:
            raise require_driver(error) from error
        connection = dbapi.connect(_with_network_options(uri), db_kwargs=dict(options))
        try:
            with connection.cursor() as cursor:
                cursor.execute(f"set lock_timeout = {max(1, int(1000 * lock_timeout))}")
                cursor.execute(f"set idle_in_transaction_session_timeout = {1000 * _IDLE_SECONDS}")
                cursor.execute(_DURABLE)
                cursor.fetchall()
            connection.commit()
        except BaseException:
            connection.close()
            raise
        return connection

    def mark(self, position: int) -> str:
        return f"${position}"

    def columns(self, cursor: Cursor, table: TableName) -> list[TableColumn]:
        cursor.execute(_COLUMNS, [table.sql])
        return [TableColumn(*row) for row in cursor.fetchall()]

    def unique_keys(self, cursor: Cursor, table: TableName) -> list[frozenset[str]]:
        cursor.execute(_UNIQUE, [table.sql])
        return [frozenset(row[0]) for row in cursor.fetchall()]

    def type_of(self, arrow: pa.DataType) -> str | None:
        if pa.types.is_decimal(arrow):
            return f"numeric({arrow.precision}, {arrow.scale})"
        if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
            element = None if pa.types.is_nested(arrow.value_type) else self.type_of(arrow.value_type)
            return None if element is None else f"{element}[]"
        return _family(arrow)

    def expression(self, column: str, arrow: pa.DataType, declared: str) -> str | None:
        if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
            if not declared.startswith("_") or pa.types.is_nested(arrow.value_type):
                return None
            inner = self.expression(column, arrow.value_type, declared[1:])
            return quoted(column) if inner is not None and declared[1:] not in _CAST else None
        family = _family(arrow)
        if family is None or declared not in _TAKES[family]:
            return None
        return f"cast({quoted(column)} as {declared})" if declared in _CAST else quoted(column)

    def ingestible(self, rows: pa.Table) -> pa.Table:
        return rows

    def lock_for_creation(self, cursor: Cursor, name: str) -> None:
        cursor.execute("select pg_advisory_xact_lock(hashtextextended($1, 0))::text", [name])
        cursor.fetchall()

    def is_refusal(self, error: Exception) -> bool:
        # Syntax, types and rights. What a table that is not there is, nobody knows.
        state = _state(error)
        return self.refuses_rows(error) or (state[:2] in ("42", "0A") and state != "42P01")

    def refuses_rows(self, error: Exception) -> bool:
        return _state(error)[:2] in _OF_ROWS

    def reason(self, error: Exception) -> str:
        said = dict(getattr(error, "details", None) or ())
        primary, detail = said.get(b"PG_DIAG_MESSAGE_PRIMARY"), said.get(b"PG_DIAG_MESSAGE_DETAIL")
        if primary is None:
            return super().reason(error)
        words = b": ".join(part for part in (primary, detail) if part)
        return without_credentials(words.decode(errors="replace"))

    def begin_with_savepoints(self, connection: Connection) -> None:
        # Where the driver begins transactions, it lets nobody go back to a savepoint after an error.
        connection.adbc_connection.set_autocommit(True)
        with connection.cursor() as cursor:
            cursor.execute("begin")
            cursor.execute("set constraints all immediate")

    def commit_with_savepoints(self, connection: Connection) -> None:
        with connection.cursor() as cursor:
            cursor.execute("commit")

    def check_batch(self, batch: pa.RecordBatch) -> str | None:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if pa.types.is_string(column.type) and pc.any(pc.match_substring(column, "\0")).as_py():
                return f"{name!r} has a text with the character NUL, which Postgres does not store"
        return None


def _family(arrow: pa.DataType) -> str | None:
    simple = {
        pa.bool_(): "boolean",
        pa.int8(): "smallint",
        pa.int16(): "smallint",
        pa.int32(): "integer",
        pa.int64(): "bigint",
        pa.float32(): "real",
        pa.float64(): "double precision",
        pa.string(): "text",
        pa.large_string(): "text",
        pa.binary(): "bytea",
        pa.large_binary(): "bytea",
        pa.date32(): "date",
    }
    if arrow in simple:
        return simple[arrow]
    if pa.types.is_timestamp(arrow):
        return "timestamp" if arrow.tz is None else "timestamptz"
    if pa.types.is_time(arrow):
        return "time"
    return "numeric" if pa.types.is_decimal(arrow) else None


def _state(error: Exception) -> str:
    return getattr(error, "sqlstate", None) or ""


def _with_network_options(uri: str) -> str:
    before, _, query = uri.partition("?")
    given = {part.partition("=")[0] for part in query.split("&")}
    added = [f"{key}={value}" for key, value in _NETWORK.items() if key not in given]
    return f"{before}?{'&'.join([*([query] if query else []), *added])}"
