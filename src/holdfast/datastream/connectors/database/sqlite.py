"""SQLite: a database in a file that the driver alone must reach."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import pyarrow as pa

from holdfast.datastream.connectors.database.dialect import (
    Connection,
    Cursor,
    Dialect,
    TableColumn,
    TableName,
    quoted,
    require_driver,
)
from holdfast.errors import ConfigurationError, StorageError
from holdfast.kernel.secret import without_credentials

_PARAMETERS: Final = re.compile(r"\s*(host|hostaddr|port|dbname|user|password|service)\s*=")
"""How the other way begins to say where a Postgres is; it may have a password, which is no name of a file."""

_NUMBERS: Final = frozenset({"INTEGER", "REAL", "NUMERIC", "BLOB"})
_TEXTS: Final = frozenset({"TEXT", "BLOB"})
_OF_ROWS: Final = ("datatype mismatch", "string or blob too big", "Could not format timestamp")
"""Errors about rows that the driver takes for those of a disk or of a program, by their words."""


class SQLite(Dialect):
    """SQLite, which has one writer at a time."""

    name = "SQLite"

    def connect(self, uri: str, options: Mapping[str, str], lock_timeout: float, may_make: bool) -> Connection:
        try:
            from adbc_driver_sqlite import dbapi
        except ImportError as error:
            raise require_driver(error) from error
        file = uri.removeprefix("file:")  # as it is called: `file_of` has taken what an address escapes for what it is
        if not may_make and not Path(file).exists():
            raise StorageError(
                f"The database {file!r} is not there: probably its disk is not mounted. Nothing was written; bring it "
                "back, and the job goes on."
            )
        # By default SQLite makes a file that is not there.
        connection = dbapi.connect(f"file:{quote(file)}?mode={'rwc' if may_make else 'rw'}")
        try:
            with connection.cursor() as cursor:
                cursor.execute(f"pragma busy_timeout = {max(1, int(1000 * lock_timeout))}")
                cursor.fetchall()
            connection.rollback()
        except BaseException:
            connection.close()
            raise
        return connection

    def mark(self, position: int) -> str:
        return "?"

    def columns(self, cursor: Cursor, table: TableName) -> list[TableColumn]:
        schema = "" if table.schema is None else f", {_text(table.schema)}"
        cursor.execute(
            "select name, type, \"notnull\" and dflt_value is null and not (pk and upper(type) = 'INTEGER'), "
            "\"notnull\" and not (pk and upper(type) = 'INTEGER') "
            f"from pragma_table_info({_text(table.name)}{schema})"
        )
        found = cursor.fetchall()
        return [
            TableColumn(str(name), str(kind or ""), bool(needed), bool(never)) for name, kind, needed, never in found
        ]

    def unique_keys(self, cursor: Cursor, table: TableName) -> list[frozenset[str]]:
        schema = "" if table.schema is None else f", {_text(table.schema)}"
        cursor.execute(f"select name from pragma_table_info({_text(table.name)}{schema}) where pk")
        keys = [frozenset(str(row[0]) for row in cursor.fetchall())]
        cursor.execute(
            f"select l.name, i.name from pragma_index_list({_text(table.name)}{schema}) l "
            'join pragma_index_info(l.name) i where l."unique" = 1 and l.partial = 0'
        )
        indexes: dict[str, set[str]] = {}
        for index, column in cursor.fetchall():
            indexes.setdefault(index, set()).add(str(column))
        return [key for key in (*keys, *map(frozenset, indexes.values())) if key]

    def type_of(self, arrow: pa.DataType) -> str | None:
        if pa.types.is_boolean(arrow) or pa.types.is_integer(arrow):
            return "integer"
        if pa.types.is_floating(arrow):
            return "real"
        if pa.types.is_binary(arrow) or pa.types.is_large_binary(arrow):
            return "blob"
        return "text" if _is_text(arrow) else None

    def expression(self, column: str, arrow: pa.DataType, declared: str) -> str | None:
        kind, affinity = self.type_of(arrow), _affinity(declared)
        if kind is None or (kind == "blob" and affinity != "BLOB"):
            return None
        fits = affinity in (_TEXTS if kind == "text" else _NUMBERS) or (
            affinity == "NUMERIC" and _is_of_calendar(arrow)
        )
        return quoted(column) if fits else None

    def ingestible(self, rows: pa.Table) -> pa.Table:
        fields = [
            field.with_type(pa.string()) if pa.types.is_decimal(field.type) or pa.types.is_time(field.type) else field
            for field in rows.schema
        ]
        return rows.cast(pa.schema(fields))

    def lock_for_creation(self, cursor: Cursor, name: str) -> None:
        """There is one writer at a time."""

    def is_refusal(self, error: Exception) -> bool:
        # A table may say that a conflict rolls everything back; the savepoint has gone then.
        is_other = type(error).__name__ == "NotSupportedError" or "no such savepoint" in str(error)
        return is_other or self.refuses_rows(error)

    def refuses_rows(self, error: Exception) -> bool:
        return type(error).__name__ in ("IntegrityError", "DataError") or any(words in str(error) for words in _OF_ROWS)

    def reason(self, error: Exception) -> str:
        said = super().reason(error)
        return said.partition(": ")[2] or said


def _is_text(arrow: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_decimal, _is_of_calendar)
    return any(test(arrow) for test in tests)


def _is_of_calendar(arrow: pa.DataType) -> bool:
    """Whether values are dates and times, which are texts that SQLite takes for no numbers: `DATE` is `NUMERIC`."""
    return bool(pa.types.is_date(arrow) or pa.types.is_time(arrow) or pa.types.is_timestamp(arrow))


def _affinity(declared: str) -> str:
    """What SQLite makes of a declared type (https://www.sqlite.org/datatype3.html, 3.1)."""
    upper = declared.upper()
    if "INT" in upper:
        return "INTEGER"
    if any(word in upper for word in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if not upper or "BLOB" in upper:
        return "BLOB"
    return "REAL" if any(word in upper for word in ("REAL", "FLOA", "DOUB")) else "NUMERIC"


def file_of(uri: str) -> str:
    """The file that `sqlite:///path`, `file:path` or a path means, absolute.

    Raises:
        ConfigurationError: It is no file, or has parameters.
    """
    if _PARAMETERS.match(uri):
        raise ConfigurationError(
            "DatabaseSink takes the address of a Postgres as postgresql://user:password@host:5432/database, not as a "
            "list of key=value."
        )
    path = uri.removeprefix("sqlite:///") if uri.startswith("sqlite:") else uri
    if path.startswith("file:"):
        path = unquote(path.removeprefix("file:").removeprefix("//"))
    if not path or "?" in path or ":memory:" in path or "://" in path or path.startswith("sqlite:"):
        raise ConfigurationError(
            f"DatabaseSink writes to postgresql://... or to a file of SQLite, sqlite:///path or file:path, not to "
            f"{without_credentials(uri)!r}. (A database in memory would forget what was committed.)"
        )
    return str(Path(path).absolute())


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
