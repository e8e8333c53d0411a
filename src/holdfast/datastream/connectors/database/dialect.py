"""What databases do not have in common: how one connects, what types are called, where tables are described."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ConfigurationError, HoldfastError, StorageError
from holdfast.kernel.secret import redacted_message, without_credentials

Cursor = Any
Connection = Any


@dataclass(frozen=True)
class TableName:
    """A table, with its schema if it has one.

    Attributes:
        parts: Schema and name, or the name alone.
    """

    parts: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Reads `table` or `schema.table`.

        Raises:
            ConfigurationError: It is neither.
        """
        parts = tuple(str(text).split("."))
        if len(parts) > 2 or not all(parts) or "\0" in text:
            raise ConfigurationError(f"A table is named 'table' or 'schema.table', not {text!r}.")
        return cls(parts)

    @property
    def name(self) -> str:
        """The name without the schema."""
        return self.parts[-1]

    @property
    def schema(self) -> str | None:
        """The schema, None if the database chooses it."""
        return self.parts[0] if len(self.parts) == 2 else None

    @property
    def sql(self) -> str:
        """As it stands in a statement."""
        return ".".join(map(quoted, self.parts))

    def beside(self, suffix: str) -> TableName:
        """A table of the same schema whose name ends so."""
        return TableName((*self.parts[:-1], self.name + suffix))

    def sibling(self, name: str) -> TableName:
        """A table of the same schema."""
        return TableName((*self.parts[:-1], *TableName.parse(name).parts[-1:]))

    def __str__(self) -> str:
        return ".".join(self.parts)


@dataclass(frozen=True)
class TableColumn:
    """A column of a table.

    Attributes:
        name: Its name.
        type: Its type, as the database calls it.
        is_needed: Whether a row must have a value for it: it is not null, and has no default.
        is_never_null: Whether it refuses nulls.
        longest: Characters that a text in it may have; None for any number.
    """

    name: str
    type: str
    is_needed: bool
    is_never_null: bool = False
    longest: int | None = None


class Dialect(ABC):
    """One kind of database.

    Attributes:
        name: What it is called.
    """

    name: str

    @abstractmethod
    def connect(self, uri: str, options: Mapping[str, str], lock_timeout: float, may_make: bool) -> Connection:
        """A connection on which statements are one transaction until `commit` or `rollback`. Blocks.

        Args:
            uri: Of the database.
            options: For the driver.
            lock_timeout: Seconds after which a statement that waits for a lock fails.
            may_make: Whether a database that is not there may be made.
        """

    @abstractmethod
    def mark(self, position: int) -> str:
        """What stands for a parameter in a statement; positions are from 1."""

    @abstractmethod
    def columns(self, cursor: Cursor, table: TableName) -> list[TableColumn]:
        """The columns of a table; none if it is not there."""

    @abstractmethod
    def unique_keys(self, cursor: Cursor, table: TableName) -> list[frozenset[str]]:
        """The sets of columns by which rows of a table are unique."""

    @abstractmethod
    def type_of(self, arrow: pa.DataType) -> str | None:
        """The type of a column that is made for values of an Arrow type; None if there is none."""

    @abstractmethod
    def expression(self, column: str, arrow: pa.DataType, declared: str) -> str | None:
        """What a value of an Arrow type is in a column of a type of the table; None if it does not go in there."""

    @abstractmethod
    def ingestible(self, rows: pa.Table) -> pa.Table:
        """The same rows with the types that the driver takes."""

    @abstractmethod
    def lock_for_creation(self, cursor: Cursor, name: str) -> None:
        """Lets one process after the other make tables, until the transaction ends."""

    @abstractmethod
    def is_refusal(self, error: Exception) -> bool:
        """Whether an error says that the database will never take this."""

    @abstractmethod
    def refuses_rows(self, error: Exception) -> bool:
        """Whether an error, of those that are refusals, is about values of rows."""

    def reason(self, error: Exception) -> str:
        """What the database has said, without the statement."""
        return redacted_message(error)

    def begin_with_savepoints(self, connection: Connection) -> None:  # noqa: B027 - a connection may have them
        """Begins a transaction in which a statement that fails can be taken back, and is told of at once."""

    def commit_with_savepoints(self, connection: Connection) -> None:
        """Commits a transaction that `begin_with_savepoints` has begun."""
        connection.commit()

    def check_batch(self, batch: pa.RecordBatch) -> str | None:
        """Why the database would refuse a batch whose types it takes; None if it would not."""
        return None

    def marks(self, count: int) -> str:
        """Parameters, with commas between them."""
        return ", ".join(self.mark(position) for position in range(1, count + 1))


def quoted(name: str) -> str:
    """A name as it stands in a statement."""
    return '"' + name.replace('"', '""') + '"'


def quoted_list(names: Sequence[str]) -> str:
    """Names as they stand in a statement, with commas between them."""
    return ", ".join(map(quoted, names))


def require_driver(error: ImportError) -> HoldfastError:
    """What to say when the driver is not installed."""
    return ConfigurationError(
        f"DatabaseSink needs ADBC, which is not installed ({error}): pip install 'holdfast[database]'."
    )


# Postgres. Rows travel in COPY's binary form.

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
_POSTGRES_ROW_ERRORS: Final = frozenset({"21", "22", "23", "44", "54", "P0"})
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
        return _state(error)[:2] in _POSTGRES_ROW_ERRORS

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


# SQLite: a database in a file that the driver alone must reach.

_PARAMETERS: Final = re.compile(r"\s*(host|hostaddr|port|dbname|user|password|service)\s*=")
"""How the other way begins to say where a Postgres is; it may have a password, which is no name of a file."""

_NUMBERS: Final = frozenset({"INTEGER", "REAL", "NUMERIC", "BLOB"})
_TEXTS: Final = frozenset({"TEXT", "BLOB"})
_SQLITE_ROW_ERRORS: Final = ("datatype mismatch", "string or blob too big", "Could not format timestamp")
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
        return type(error).__name__ in ("IntegrityError", "DataError") or any(
            words in str(error) for words in _SQLITE_ROW_ERRORS
        )

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


# What columns of a table take of the values whose types they take, so that a task can tell before it stages a row.
#
# The driver asks the database, and the answer goes to the tasks as JSON. Keys and checks that rows must meet together
# are seen by the database alone, when it has them all.

_INTEGERS: Final = {"int2": 16, "int4": 32}
"""Types of Postgres that take whole numbers of other columns if they are small enough, and their bits."""


@dataclass(frozen=True)
class ColumnLimit:
    """What a column refuses.

    Attributes:
        name: Of the column.
        is_never_null: Whether it refuses nulls.
        longest: Characters that a text may have.
        bits: Of a whole number, with its sign.
    """

    name: str
    is_never_null: bool = False
    longest: int | None = None
    bits: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As tasks get it."""
        return asdict(self)

    def refused(self, column: pa.Array) -> tuple[int, str] | None:
        """The first value that the column refuses, and why; None if it takes all."""
        if self.is_never_null and column.null_count:
            return _first(column.is_null()), f"{self.name!r} is null, and the table says that it never is"
        if self.bits is not None and pa.types.is_integer(column.type) and column.type.bit_width > self.bits:
            greatest = 2 ** (self.bits - 1) - 1
            is_out = pc.or_(pc.greater(column, greatest), pc.less(column, -greatest - 1))
            if pc.any(is_out).as_py():
                row = _first(is_out)
                return row, f"{self.name!r} is {column[row]}, and the column of the table has {self.bits} bits"
        if self.longest is not None and (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            lengths = pc.utf8_length(pc.utf8_rtrim(column, characters=" "))  # spaces at the end are cut off
            is_out = pc.greater(lengths, self.longest)
            if pc.any(is_out).as_py():
                row = _first(is_out)
                return row, f"{self.name!r} has {lengths[row]} characters, and the column takes {self.longest}"
        return None


def limits_of(columns: Iterable[TableColumn], names: Sequence[str]) -> list[ColumnLimit]:
    """The limits of those columns that have any, of those that are written."""
    found = [
        ColumnLimit(column.name, column.is_never_null, column.longest, _INTEGERS.get(column.type))
        for column in columns
        if column.name in names
    ]
    return [limit for limit in found if limit != ColumnLimit(limit.name)]


def why_refused(batch: pa.RecordBatch, limits: Sequence[Mapping[str, Any]]) -> str | None:
    """Why a table would refuse a batch, with the first row that it would; None if it would not.

    Args:
        batch: Of rows that are to be put.
        limits: `ColumnLimit.to_json` of each column that has one.
    """
    for said in limits:
        limit = ColumnLimit(**said)
        refused = limit.refused(batch.column(limit.name)) if limit.name in batch.schema.names else None
        if refused is not None:
            row, reason = refused
            return f"{reason}: {batch.slice(row, 1).to_pylist()[0]!r:.300}"
    return None


def _first(mask: pa.Array) -> int:
    return int(pc.index(mask, True).as_py())
