"""`Dialect`: the differences between databases, such as connecting, types and catalogs, for Postgres and SQLite.

`ColumnLimit` lets tasks reject a value before it is staged, which the column of the table would refuse.
"""

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
_NETWORK: Final = {"connect_timeout": "10", "keepalives_idle": "30", "tcp_user_timeout": "60000"}
"""Without these, a client waits two hours for a host that is gone, the default of most operating systems."""
_IDLE_SECONDS: Final = 60
"""The time after which the server ends the transaction of a sleeping leader, and releases its locks."""
_DURABLE: Final = """
select pg_catalog.set_config('synchronous_commit', 'on', false)
where pg_catalog.current_setting('synchronous_commit') = 'off'
"""
"""With `off`, a commit returns before it is durable, and a crash of the server would lose rows that are committed."""
_CAST: Final = frozenset({"json", "jsonb", "uuid"})
_POSTGRES_ROW_ERRORS: Final = frozenset({"21", "22", "23", "44", "54", "P0"})
"""SQLSTATE classes about rows: cardinality, data, constraints, views with check option, limits, triggers."""
_COLUMNS: Final = """
select a.attname, t.typname, a.attnotnull and not a.atthasdef and a.attidentity = '', a.attnotnull,
    case when t.typname in ('varchar', 'bpchar') and a.atttypmod > 4 then a.atttypmod - 4 end
from pg_catalog.pg_attribute a join pg_catalog.pg_type t on t.oid = a.atttypid
where a.attrelid = pg_catalog.to_regclass($1) and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
order by a.attnum
"""
_PARAMETERS: Final = re.compile(r"\s*(host|hostaddr|port|dbname|user|password|service)\s*=")
"""The beginning of a libpq connection string, which may contain a password and must not be used as a file name."""
_NUMBERS: Final = frozenset({"INTEGER", "REAL", "NUMERIC", "BLOB"})
_TEXTS: Final = frozenset({"TEXT", "BLOB"})
_SQLITE_ROW_ERRORS: Final = ("datatype mismatch", "string or blob too big", "Could not format timestamp")
"""Messages of errors about rows that the driver reports under other classes."""
_INTEGERS: Final = {"int2": 16, "int4": 32}
"""Integer types of Postgres that accept larger integer types if the values fit, with their bits."""


@dataclass(frozen=True)
class TableName:
    """The name of a table, with its schema if it has one."""

    parts: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Parse `table` or `schema.table`.

        Raises:
            ConfigurationError: It is neither.
        """
        parts = tuple(str(text).split("."))
        if len(parts) > 2 or not all(parts) or "\0" in text:
            raise ConfigurationError(f"A table must be named 'table' or 'schema.table', not {text!r}.")
        return cls(parts)

    @property
    def name(self) -> str:
        return self.parts[-1]

    @property
    def schema(self) -> str | None:
        return self.parts[0] if len(self.parts) == 2 else None

    @property
    def sql(self) -> str:
        """The quoted name."""
        return ".".join(map(quoted, self.parts))

    def with_suffix(self, suffix: str) -> TableName:
        return TableName((*self.parts[:-1], self.name + suffix))

    def sibling(self, name: str) -> TableName:
        """Return the name of another table in the same schema."""
        return TableName((*self.parts[:-1], *TableName.parse(name).parts[-1:]))

    def __str__(self) -> str:
        return ".".join(self.parts)


@dataclass(frozen=True)
class TableColumn:
    """A column of a table.

    Attributes:
        name: The name.
        type: The database's name of the type.
        is_required: Whether an insert needs a value: not null, and no default.
        is_never_null: Whether the column is declared not null.
        longest: The maximum length of a text in characters; None for no limit.
    """

    name: str
    type: str
    is_required: bool
    is_never_null: bool = False
    longest: int | None = None


class Dialect(ABC):
    """One kind of database."""

    name: str

    @abstractmethod
    def connect(self, uri: str, options: Mapping[str, str], lock_timeout: float, may_create: bool) -> Connection:
        """Open a connection on which statements are one transaction until `commit` or `rollback`. Blocks.

        Args:
            uri: The address of the database.
            options: Options of the driver.
            lock_timeout: Seconds after which a statement that waits for a lock fails.
            may_create: Whether to create a missing database.
        """

    @abstractmethod
    def placeholder(self, position: int) -> str:
        """Return the placeholder of a parameter in a statement; positions begin at 1."""

    @abstractmethod
    def columns(self, cursor: Cursor, table: TableName) -> list[TableColumn]:
        """Return the columns of a table; none if it does not exist."""

    @abstractmethod
    def unique_keys(self, cursor: Cursor, table: TableName) -> list[frozenset[str]]:
        """Return the column sets of unique indexes and of the primary key."""

    @abstractmethod
    def type_of(self, arrow: pa.DataType) -> str | None:
        """Return the column type for an Arrow type; None if there is none."""

    @abstractmethod
    def expression(self, column: str, arrow: pa.DataType, declared: str) -> str | None:
        """Return the SQL expression that writes an Arrow type into a declared type; None if it does not fit."""

    @abstractmethod
    def to_ingestible(self, rows: pa.Table) -> pa.Table:
        """Cast rows to types that the driver supports."""

    @abstractmethod
    def lock_for_creation(self, cursor: Cursor, name: str) -> None:
        """Let one process at a time create tables, until the transaction ends."""

    @abstractmethod
    def is_refusal(self, error: Exception) -> bool:
        """Return whether the database refuses a statement for good, so that no retry can help."""

    @abstractmethod
    def refuses_rows(self, error: Exception) -> bool:
        """Return whether a refusal is about the values of rows."""

    def reason(self, error: Exception) -> str:
        """Return the message of the database without the statement."""
        return redacted_message(error)

    def begin_with_savepoints(self, connection: Connection) -> None:  # noqa: B027 - a connection may have them
        """Begin a transaction in which failed statements can be rolled back, and constraints are checked at once."""

    def commit_with_savepoints(self, connection: Connection) -> None:
        connection.commit()

    def check_batch(self, batch: pa.RecordBatch) -> str | None:
        """Return why the database would refuse values of a batch; None if it would not."""
        return None

    def placeholders(self, count: int) -> str:
        """Return the first `count` placeholders, separated by commas."""
        return ", ".join(self.placeholder(position) for position in range(1, count + 1))


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quoted_list(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))


def missing_driver_error(error: ImportError) -> HoldfastError:
    return ConfigurationError(
        f"DatabaseSink needs ADBC, which is not installed ({error}): pip install 'holdfast[database]'."
    )


_ACCEPTED_TYPES: Final[Mapping[str, frozenset[str]]] = {
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

_UNIQUE: Final = """
select array_agg(a.attname::text)
from pg_catalog.pg_index i join pg_catalog.pg_attribute a
    on a.attrelid = i.indrelid and a.attnum = any ((i.indkey::int2[])[0:i.indnkeyatts - 1])
where i.indrelid = pg_catalog.to_regclass($1) and i.indisunique and i.indisvalid and i.indimmediate
    and i.indpred is null and i.indexprs is null
group by i.indexrelid
"""
"""Without columns that an index only includes, and without deferrable indexes, which `on conflict` cannot use."""


class Postgres(Dialect):
    """Postgres, and databases with its protocol and SQL. Rows are sent as binary COPY."""

    name = "Postgres"

    def connect(self, uri: str, options: Mapping[str, str], lock_timeout: float, may_create: bool) -> Connection:
        try:
            from adbc_driver_postgresql import dbapi
        except ImportError as error:
            raise missing_driver_error(error) from error
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

    def placeholder(self, position: int) -> str:
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
        if family is None or declared not in _ACCEPTED_TYPES[family]:
            return None
        return f"cast({quoted(column)} as {declared})" if declared in _CAST else quoted(column)

    def to_ingestible(self, rows: pa.Table) -> pa.Table:
        return rows

    def lock_for_creation(self, cursor: Cursor, name: str) -> None:
        cursor.execute("select pg_advisory_xact_lock(hashtextextended($1, 0))::text", [name])
        cursor.fetchall()

    def is_refusal(self, error: Exception) -> bool:
        # Syntax, types and privileges; but a missing table (42P01) may come back.
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
        # In transactions that the driver begins itself, it does not allow a rollback to a savepoint after an error.
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
                return f"{name!r} has a text with the character NUL, which Postgres cannot store"
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


class SQLite(Dialect):
    """SQLite: a database in a file that only the driver must reach, with one writer at a time."""

    name = "SQLite"

    def connect(self, uri: str, options: Mapping[str, str], lock_timeout: float, may_create: bool) -> Connection:
        try:
            from adbc_driver_sqlite import dbapi
        except ImportError as error:
            raise missing_driver_error(error) from error
        file = uri.removeprefix("file:")  # `file_of` has decoded percent-escapes
        if not may_create and not Path(file).exists():
            raise StorageError(
                f"The database {file!r} does not exist: probably its disk is not mounted. Nothing was written. Mount "
                "it, and the job goes on."
            )
        # By default SQLite would create a missing file.
        connection = dbapi.connect(f"file:{quote(file)}?mode={'rwc' if may_create else 'rw'}")
        try:
            with connection.cursor() as cursor:
                cursor.execute(f"pragma busy_timeout = {max(1, int(1000 * lock_timeout))}")
                cursor.fetchall()
            connection.rollback()
        except BaseException:
            connection.close()
            raise
        return connection

    def placeholder(self, position: int) -> str:
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

    def to_ingestible(self, rows: pa.Table) -> pa.Table:
        fields = [
            field.with_type(pa.string()) if pa.types.is_decimal(field.type) or pa.types.is_time(field.type) else field
            for field in rows.schema
        ]
        return rows.cast(pa.schema(fields))

    def lock_for_creation(self, cursor: Cursor, name: str) -> None:
        """Do nothing: SQLite has one writer at a time."""

    def is_refusal(self, error: Exception) -> bool:
        # A table can declare that a conflict rolls back the whole transaction, so the savepoint is gone.
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
    """Return whether values are dates or times, which are text that also fits NUMERIC columns: `DATE` is `NUMERIC`."""
    return bool(pa.types.is_date(arrow) or pa.types.is_time(arrow) or pa.types.is_timestamp(arrow))


def _affinity(declared: str) -> str:
    """Return the affinity of a declared type (https://www.sqlite.org/datatype3.html, 3.1)."""
    upper = declared.upper()
    if "INT" in upper:
        return "INTEGER"
    if any(word in upper for word in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if not upper or "BLOB" in upper:
        return "BLOB"
    return "REAL" if any(word in upper for word in ("REAL", "FLOA", "DOUB")) else "NUMERIC"


def file_of(uri: str) -> str:
    """Return the absolute path of `sqlite:///path`, `file:path` or a path.

    Raises:
        ConfigurationError: The address is not a file, or has parameters.
    """
    if _PARAMETERS.match(uri):
        raise ConfigurationError(
            "DatabaseSink needs the address of a Postgres as postgresql://user:password@host:5432/database, not as "
            "key=value pairs."
        )
    path = uri.removeprefix("sqlite:///") if uri.startswith("sqlite:") else uri
    if path.startswith("file:"):
        path = unquote(path.removeprefix("file:").removeprefix("//"))
    if not path or "?" in path or ":memory:" in path or "://" in path or path.startswith("sqlite:"):
        raise ConfigurationError(
            f"DatabaseSink needs postgresql://... or a file of SQLite, sqlite:///path or file:path, not "
            f"{without_credentials(uri)!r}. (A database in memory would lose committed rows.)"
        )
    return str(Path(path).absolute())


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


@dataclass(frozen=True)
class ColumnLimit:
    """The limits of one column. The driver reads them from the database, and tasks get them as JSON with the target.

    Keys and constraints on several columns or rows can only be checked by the database.

    Attributes:
        name: The name of the column.
        is_never_null: Whether the column is declared not null.
        longest: The maximum length of a text in characters.
        bits: The bits of an integer, including the sign.
    """

    name: str
    is_never_null: bool = False
    longest: int | None = None
    bits: int | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def first_violation(self, column: pa.Array) -> tuple[int, str] | None:
        """Return the first row that violates a limit, and the reason; None if there is none."""
        if self.is_never_null and column.null_count:
            return _first(column.is_null()), f"{self.name!r} is null; the table requires it"
        if self.bits is not None and pa.types.is_integer(column.type) and column.type.bit_width > self.bits:
            greatest = 2 ** (self.bits - 1) - 1
            is_out = pc.or_(pc.greater(column, greatest), pc.less(column, -greatest - 1))
            if pc.any(is_out).as_py():
                row = _first(is_out)
                return row, f"{self.name!r} is {column[row]}, but the column of the table has {self.bits} bits"
        if self.longest is not None and (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            lengths = pc.utf8_length(pc.utf8_rtrim(column, characters=" "))  # the database cuts off trailing spaces
            is_out = pc.greater(lengths, self.longest)
            if pc.any(is_out).as_py():
                row = _first(is_out)
                return row, f"{self.name!r} has {lengths[row]} characters, but the column allows {self.longest}"
        return None


def limits_of(columns: Iterable[TableColumn], names: Sequence[str]) -> list[ColumnLimit]:
    """Return the limits of those written columns that have any."""
    found = [
        ColumnLimit(column.name, column.is_never_null, column.longest, _INTEGERS.get(column.type))
        for column in columns
        if column.name in names
    ]
    return [limit for limit in found if limit != ColumnLimit(limit.name)]


def check_limits(batch: pa.RecordBatch, limits: Sequence[Mapping[str, Any]]) -> str | None:
    """Return why a table would refuse a batch, with the first such row; None if it would not.

    Args:
        batch: The rows to insert or upsert.
        limits: `ColumnLimit.to_json` of each column that has limits.
    """
    for fields in limits:
        limit = ColumnLimit(**fields)
        violation = limit.first_violation(batch.column(limit.name)) if limit.name in batch.schema.names else None
        if violation is not None:
            row, reason = violation
            return f"{reason}: {batch.slice(row, 1).to_pylist()[0]!r:.300}"
    return None


def _first(mask: pa.Array) -> int:
    return int(pc.index(mask, True).as_py())
