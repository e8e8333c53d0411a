"""The transaction of an epoch.

::

    insert into holdfast_ledger (incarnation, sink, epoch) values (...)
        on conflict (incarnation, sink) do update set epoch = excluded.epoch
        where holdfast_ledger.epoch < excluded.epoch returning epoch
    (no row: the epoch was committed; nothing else is done)
    rows into a temporary table; from there into the table; commit

If the database refuses a row, this is rolled back, and a second transaction begins in the same way, which finds the
rows that are refused (`bisection`). It puts them into the table for such rows and the others into theirs, or, where the
sink has no such table, says which they are and ends the job.

The ledger comes first because it also locks: a second leader waits there until the first has committed or gone, and
then finds the epoch. One that looked first and wrote afterwards would write beside it. A leader that is asleep in its
transaction makes others wait for `lock_timeout`; they try again, and a server such as Postgres ends the sleeper.

A database is known by more than its address: a row of `<ledger>_identity` names it, checkpoints keep the name, and rows
that were staged for one database are not committed into another one.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.datastream.connectors.database.dialect import (
    ColumnLimit,
    Connection,
    Cursor,
    Dialect,
    TableName,
    limits_of,
    quoted,
    quoted_list,
)
from holdfast.datastream.connectors.database.table_change import TableChange, TargetTable
from holdfast.datastream.connectors.row_changes import ChangeColumns, EpochChanges
from holdfast.datastream.sinks.staged_files import foreign_committables_error, open_staged_file, verified_paths
from holdfast.errors import ConfigurationError, HoldfastError, StorageError
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.kernel.secret import get_logger, redacted_message, without_credentials
from holdfast.runtime.function.sink import CommitRequest, Committer, CommitterInitContext
from holdfast.storage.job_directory import FileName
from holdfast.types.serialization import json_text, nonfinite_to_text

# Finds the rows of an epoch that a database refuses, by halves, and writes the others.
#
# All of it is in the transaction of the epoch, and each try behind a savepoint: of n rows k that are refused are found
# by about k log n tries. The rows lie in temporary tables with their positions, so a try is one statement on the
# server.
#
# A constraint may look at other rows: an address that is unique may be given back by a later row of the epoch. So what
# was refused is tried again, row by row, behind all others, for as long as another one is taken.

_POSITION: Final = "holdfast_position"
_SAVEPOINT: Final = "holdfast_try"


@dataclass(frozen=True)
class RefusedRow:
    """A row, and why it is not in the table.

    Attributes:
        operation: What was to be done with it: `insert`, `upsert` or `delete`.
        row: Its values by column.
        reason: What the database has said.
    """

    operation: str
    row: dict[str, Any]
    reason: str


@dataclass(frozen=True)
class _Place:
    change: TableChange
    position: int
    reason: str
    is_staged: bool


class Bisection:
    """Writes one epoch.

    Args:
        cursor: In the transaction of the epoch, which has savepoints.
        dialect: The kind of database.
        most: Refused rows; with one more it gives up.
    """

    def __init__(self, cursor: Cursor, dialect: Dialect, most: int) -> None:
        self._cursor = cursor
        self._dialect = dialect
        self._most = most
        self._refused: list[_Place] = []

    @property
    def has_given_up(self) -> bool:
        """Whether more rows are refused than may be; the transaction is to be rolled back then."""
        return len(self._refused) > self._most

    def write(self, changes: Sequence[TableChange], schema: pa.Schema) -> list[RefusedRow]:
        """Changes the table by all rows that it takes; returns the others, as far as it has come."""
        rows = [self._stage(change, schema) for change in changes]
        for change, number in zip(changes, rows, strict=True):
            self._apply(change, number)
        before = 0 if self.has_given_up else len(self._refused) + 1
        while 0 < len(self._refused) < before:
            before = len(self._refused)
            self._refused = [place for place in self._refused if not place.is_staged or self._fails(place)]
        return [row for change in changes for row in self._rows(change)]

    def _stage(self, change: TableChange, schema: pa.Schema) -> int:
        """Puts rows into the temporary table, with their positions; returns how many there were."""
        columns = change.staged_schema(self._dialect, schema).append(pa.field(_POSITION, pa.int64()))
        self._cursor.adbc_ingest(change.staged, columns.empty_table(), mode="create", temporary=True)
        first = 0
        for batch in change.batches(self._dialect):
            positions = pa.array(range(first, first + batch.num_rows), pa.int64())
            self._ingest(change, pa.Table.from_batches([batch]).append_column(_POSITION, positions), first)
            first += batch.num_rows
        self._cursor.execute(f"create index {change.staged}_position on {change.staged} ({_POSITION})")
        return first

    def _ingest(self, change: TableChange, rows: pa.Table, first: int) -> None:
        def append(part: range) -> None:
            taken = rows.slice(part.start - first, len(part))
            self._cursor.adbc_ingest(change.staged, taken, mode="append", temporary=True)

        self._by_halves(change, range(first, first + rows.num_rows), append, is_staged=False)

    def _apply(self, change: TableChange, rows: int) -> None:
        def execute(part: range) -> None:
            condition = f"{_POSITION} >= {part.start} and {_POSITION} < {part.stop}"
            self._cursor.execute(change.statement(condition))

        self._by_halves(change, range(rows), execute, is_staged=True)

    def _by_halves(
        self, change: TableChange, positions: range, write: Callable[[range], None], *, is_staged: bool
    ) -> None:
        """Writes the rows at these positions, in their order."""
        parts = [positions]
        while parts and not self.has_given_up:
            part = parts.pop()
            reason = self._try(partial(write, part)) if part else None
            if reason is not None and len(part) == 1:
                self._refused.append(_Place(change, part.start, reason, is_staged))
            elif reason is not None:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]

    def _fails(self, place: _Place) -> bool:
        statement = place.change.statement(f"{_POSITION} = {place.position}")
        return self._try(partial(self._cursor.execute, statement)) is not None

    def _try(self, work: Callable[[], object]) -> str | None:
        """Does some work, unless the database refuses a row of it: then nothing of it; returns the reason."""
        self._cursor.execute(f"savepoint {_SAVEPOINT}")
        reason = None
        try:
            work()
        except Exception as error:
            if not self._dialect.refuses_rows(error):
                raise
            reason = self._dialect.reason(error)
            self._cursor.execute(f"rollback to savepoint {_SAVEPOINT}")
        self._cursor.execute(f"release savepoint {_SAVEPOINT}")
        return reason

    def _rows(self, change: TableChange) -> Iterator[RefusedRow]:
        reasons = {place.position: place.reason for place in self._refused if place.change is change}
        first = 0
        for table in change.rows() if reasons else ():
            for position in sorted(place for place in reasons if first <= place < first + table.num_rows):
                row = table.slice(position - first, 1)
                values = {name: _value(row[name][0]) for name in row.column_names}
                yield RefusedRow(change.operation, values, reasons[position])
            first += table.num_rows


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):  # Arrow has dates that Python has not
        return str(scalar.value)


# The table for rows that a database refuses: they get there in the transaction that records their epoch.

_COLUMNS: Final = {
    "incarnation": "varchar(255) not null",
    "sink": "varchar(255) not null",
    "epoch": "bigint not null",
    "number": "bigint not null",
    "target": "varchar(255) not null",
    "operation": "varchar(10) not null",
    "row": "text not null",
    "reason": "text not null",
}
_LONGEST_REASON: Final = 1000


class RefusedTable:
    """A table for rows that others refuse.

    Args:
        dialect: The kind of database.
        name: The table.
    """

    def __init__(self, dialect: Dialect, name: TableName) -> None:
        self._dialect = dialect
        self._name = name

    def prepare(self, cursor: Cursor) -> None:
        """Makes it if it is not there.

        Raises:
            ConfigurationError: There is another table of its name.
        """
        found = {column.name for column in self._dialect.columns(cursor, self._name)}
        if found and not found >= _COLUMNS.keys():
            raise ConfigurationError(
                f"The table {str(self._name)!r} has the columns {sorted(found)!r}, and one for refused rows has "
                f"{list(_COLUMNS)!r}: give refused_table= another name, or rename that table."
            )
        if not found:
            self._dialect.lock_for_creation(cursor, str(self._name))
            columns = ", ".join(f"{quoted_list([name])} {kind}" for name, kind in _COLUMNS.items())
            cursor.execute(
                f"create table if not exists {self._name.sql} ({columns}, primary key (incarnation, sink, epoch, "
                "number))"
            )

    def put(self, cursor: Cursor, key: tuple[str, str, int], target: TableName, rows: Sequence[RefusedRow]) -> None:
        """Puts rows of an epoch aside.

        Args:
            cursor: In the transaction of the epoch.
            key: Incarnation, sink and epoch.
            target: The table that refuses them.
            rows: At least one.

        Raises:
            StorageError: It cannot be reached.
            ConfigurationError: It refuses them too.
        """
        values = [
            (*key, number, str(target), row.operation, as_json(row.row), row.reason[:_LONGEST_REASON])
            for number, row in enumerate(rows, start=1)
        ]
        try:
            cursor.executemany(
                f"insert into {self._name.sql} ({quoted_list(list(_COLUMNS))}) values "
                f"({self._dialect.marks(len(_COLUMNS))})",
                values,
            )
        except Exception as error:
            kind = ConfigurationError if self._dialect.is_refusal(error) else StorageError
            raise kind(
                f"{len(rows)} rows of epoch {key[2]} that the table {str(target)!r} refuses cannot be put aside into "
                f"{str(self._name)!r}: {redacted_message(error)} Nothing of the epoch was committed. Make that table "
                "writable for the sink, and start the job again."
            ) from error


def as_json(row: dict[str, Any]) -> str:
    """A row in characters that every database stores."""
    return json.dumps(json.loads(json_text(nonfinite_to_text(row, str))))


def shown_row(row: dict[str, Any]) -> str:
    """A row as messages have it: not all of it if it is long, and without passwords in addresses."""
    return f"{without_credentials(repr(row)):.300}"


logger = get_logger(__name__)

REFUSED_TABLE: Final = "holdfast_refused"
T = TypeVar("T")
_Put = Callable[[Cursor, TableName, Sequence[CommitRequest]], None]


@dataclass(frozen=True)
class DatabaseSettings:
    """What a committer knows of its database.

    Attributes:
        dialect: The kind of database.
        uri: Its address, with the password.
        options: Of the driver.
        table: Where rows go.
        ledger: Where epochs are recorded.
        changes: Key and kind of rows.
        lock_timeout: Seconds for which a statement waits for locks of others.
        refused: Where rows go that the database refuses; None if they end the job.
        max_refused: How many of an epoch may.
    """

    dialect: Dialect
    uri: str = field(repr=False)
    options: dict[str, str] = field(repr=False)
    table: TableName
    ledger: TableName
    changes: ChangeColumns
    lock_timeout: float
    refused: TableName | None
    max_refused: int

    @property
    def shown(self) -> str:
        """The address without who one is."""
        return without_credentials(self.uri)

    @property
    def identity_table(self) -> TableName:
        """What the database calls itself."""
        return self.ledger.beside("_identity")


class DatabaseCommitter(Committer):
    """Writes epochs over one connection, which is made anew after each failure.

    Args:
        settings: The database.
        context: Of the job.
    """

    def __init__(self, settings: DatabaseSettings, context: CommitterInitContext) -> None:
        self._settings = settings
        self._context = context
        self._connection: Connection | None = None
        self._may_make = False
        self._of_epochs = EpochChanges(context.uid, settings.changes)

    def prepare(self, schema: pa.Schema | None, identity: str | None, may_make: bool) -> tuple[str, list[ColumnLimit]]:
        """Makes ledger, identity and table where they are not there; returns the identity, and what columns refuse.

        Args:
            schema: Of the stream, if it is known.
            identity: What the database must call itself; None if it is new to the job.
            may_make: Whether the table, and the file of the database, are made if they are not there.

        Raises:
            StorageError: The database is not there, or is another one.
            ConfigurationError: The table is not there, or does not fit.
        """
        # A database that a checkpoint knows is there; if it is not, an empty one in its place would be the wrong one.
        self._may_make = may_make and identity is None
        return self._transaction(lambda cursor: self._prepare(cursor, schema, identity, may_make))

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        """Commits one epoch; if the database does not answer, or is busy, it asks for another try."""
        try:
            is_new = self._commit(requests)
        except StorageError as error:
            for request in requests:
                request.retry_later(error)
            return
        if not is_new:
            for request in requests:
                request.signal_already_committed()

    def _commit(self, requests: Sequence[CommitRequest]) -> bool:
        with suppress(_RowsRefusedError):
            return self._transaction(lambda cursor: self._write(cursor, requests, self._put))
        try:
            return self._transaction(
                lambda cursor: self._write(cursor, requests, self._put_what_is_taken), with_savepoints=True
            )
        finally:
            self.close()

    def last_epoch(self, incarnation: str) -> int | None:
        def read(cursor: Cursor) -> int | None:
            mark = self._settings.dialect.mark
            cursor.execute(
                f"select epoch from {self._settings.ledger.sql} where incarnation = {mark(1)} and sink = {mark(2)}",
                [incarnation, self._context.uid],
            )
            row = cursor.fetchone()
            return None if row is None else int(row[0])

        return self._transaction(read)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # what is not committed is rolled back by the end of the connection
                connection.close()

    def _transaction(self, work: Callable[[Cursor], T], *, with_savepoints: bool = False) -> T:
        """Does some work and commits it.

        Raises:
            StorageError: The database cannot be reached, or is busy; the outcome may be unknown.
            ConfigurationError: It refuses.
        """
        settings = self._settings
        try:
            if self._connection is None:
                self._connection = settings.dialect.connect(
                    settings.uri, settings.options, settings.lock_timeout, self._may_make
                )
            if with_savepoints:
                settings.dialect.begin_with_savepoints(self._connection)
            with self._connection.cursor() as cursor:
                result = work(cursor)
            if with_savepoints:
                settings.dialect.commit_with_savepoints(self._connection)
            else:
                self._connection.commit()
        except HoldfastError:
            self.close()
            raise
        except Exception as error:
            self.close()
            if settings.dialect.is_refusal(error):
                kind = _RowsRefusedError if settings.dialect.refuses_rows(error) else ConfigurationError
                raise kind(
                    f"{settings.dialect.name} at {settings.shown!r} refuses what the sink {self._context.uid!r} writes "
                    f"into {str(settings.table)!r}: {redacted_message(error)} Nothing of the epoch was committed. "
                    "Change the table so that it takes the rows, and start the job again."
                ) from error
            raise StorageError(
                f"{settings.dialect.name} at {settings.shown!r} did not do what the sink {self._context.uid!r} asked "
                f"for: {redacted_message(error)}"
            ) from error
        return result

    def _prepare(
        self, cursor: Cursor, schema: pa.Schema | None, identity: str | None, may_make: bool
    ) -> tuple[str, list[ColumnLimit]]:
        settings = self._settings
        dialect, ledger, own = settings.dialect, settings.ledger, settings.identity_table
        if identity is not None:
            self._require_identity(cursor, identity)
        elif not dialect.columns(cursor, ledger) or not dialect.columns(cursor, own):
            dialect.lock_for_creation(cursor, str(ledger))
            cursor.execute(
                f"create table if not exists {ledger.sql} (incarnation varchar(255) not null, sink varchar(255) not "
                "null, epoch bigint not null, primary key (incarnation, sink))"
            )
            cursor.execute(
                f"create table if not exists {own.sql} (one integer primary key check (one = 1), "
                "identity varchar(36) not null)"
            )
        mark = dialect.mark(1)
        cursor.execute(f"insert into {own.sql} values (1, {mark}) on conflict (one) do nothing", [str(uuid.uuid4())])
        found = self._identity(cursor)
        if settings.refused is not None:
            RefusedTable(dialect, settings.refused).prepare(cursor)
        if schema is not None:
            target = self._target_table(settings.table)
            if may_make and not dialect.columns(cursor, settings.table):
                dialect.lock_for_creation(cursor, str(settings.table))
                cursor.execute(target.creation(schema))
            target.expressions(cursor, schema)
        assert found is not None
        written = settings.changes.written([] if schema is None else schema.names)
        return found, limits_of(dialect.columns(cursor, settings.table), written)

    def _identity(self, cursor: Cursor) -> str | None:
        if not self._settings.dialect.columns(cursor, self._settings.identity_table):
            return None
        cursor.execute(f"select identity from {self._settings.identity_table.sql}")
        row = cursor.fetchone()
        return None if row is None else str(row[0])

    def _require_identity(self, cursor: Cursor, identity: str) -> None:
        found = self._identity(cursor)
        if found != identity:
            what = "has no identity" if found is None else f"calls itself {found!r}"
            raise StorageError(
                f"The database at {self._settings.shown!r} is not the one that the job writes into: that one is "
                f"{identity!r}, and this one {what} (table {str(self._settings.identity_table)!r}). Nothing was "
                "written. Bring that database to its place, or start the job once with its old address, so that what "
                "is staged for it is committed."
            )

    def _write(self, cursor: Cursor, requests: Sequence[CommitRequest], put: _Put) -> bool:
        """Writes an epoch unless it is recorded; whether it was new."""
        dialect, ledger, first = self._settings.dialect, self._settings.ledger, requests[0]
        cursor.execute(
            f"insert into {ledger.sql} values ({dialect.marks(3)}) on conflict (incarnation, sink) do update set epoch "
            f"= excluded.epoch where {quoted(ledger.name)}.epoch < excluded.epoch returning epoch",
            [first.incarnation, self._context.uid, first.epoch],
        )
        is_new = cursor.fetchone() is not None
        table, identity = _target(requests)
        if identity is not None:
            self._require_identity(cursor, identity)
        if is_new:
            put(cursor, TableName.parse(table), requests)
        return is_new

    def _put(self, cursor: Cursor, table: TableName, requests: Sequence[CommitRequest]) -> None:
        """Changes the table by all rows of an epoch."""
        changes, schema = self._changes(cursor, table, requests)
        for change in changes:
            change.apply(cursor, self._settings.dialect, schema)

    def _put_what_is_taken(self, cursor: Cursor, table: TableName, requests: Sequence[CommitRequest]) -> None:
        """Changes the table by those rows of an epoch that it takes, and puts the others aside.

        Raises:
            ConfigurationError: There are others, and none may be put aside, or not so many.
        """
        settings, first = self._settings, requests[0]
        changes, schema = self._changes(cursor, table, requests)
        bisection = Bisection(cursor, settings.dialect, settings.max_refused)
        refused = bisection.write(changes, schema)
        if not refused:
            return
        if bisection.has_given_up or settings.refused is None:
            raise ConfigurationError(self._why_not(table, first.epoch, refused, bisection.has_given_up))
        key = (first.incarnation, self._context.uid, first.epoch)
        RefusedTable(settings.dialect, settings.refused).put(cursor, key, table, refused)
        logger.warning(
            "the sink %r: the table %r refuses %d rows of epoch %d, which go into %r; the first: %s: %s",
            self._context.uid, str(table), len(refused), first.epoch, str(settings.refused), refused[0].reason,
            shown_row(refused[0].row),
        )  # fmt: skip

    def _changes(
        self, cursor: Cursor, table: TableName, requests: Sequence[CommitRequest]
    ) -> tuple[list[TableChange], pa.Schema]:
        paths = verified_paths(self._context, requests)
        with open_staged_file(paths[0]) as file:
            schema = pq.read_schema(file)
        return self._target_table(table).changes_of(cursor, schema, paths, self._of_epochs), schema

    def _target_table(self, table: TableName) -> TargetTable:
        return TargetTable(self._settings.dialect, self._settings.shown, table, self._settings.changes)

    def _why_not(self, table: TableName, epoch: int, refused: Sequence[RefusedRow], has_given_up: bool) -> str:
        settings, first = self._settings, refused[0]
        number = f"more than {settings.max_refused}" if has_given_up else str(len(refused))
        advice = (
            f"give DatabaseSink refused_table={REFUSED_TABLE!r}, a table into which such rows go instead"
            if settings.refused is None
            else f"raise max_refused={settings.max_refused}"
        )
        return (
            f"{settings.dialect.name} at {settings.shown!r} refuses {number} of the rows that the sink "
            f"{self._context.uid!r} writes into {str(table)!r} in epoch {epoch}. The first, to {first.operation}: "
            f"{first.reason:.500}: {shown_row(first.row)}. Nothing of the epoch was committed. Change the table so "
            f"that it takes them, or {advice}, and start the job again."
        )


class _RowsRefusedError(ConfigurationError):
    """The database refuses a row, and does not say which."""


def _target(requests: Sequence[CommitRequest]) -> tuple[str, str | None]:
    """The table into which the rows of an epoch go, and the identity of its database.

    Raises:
        ConfigurationError: The committables are not those of a `DatabaseSink`, or name other places.
    """
    try:
        for request in requests:
            committable = request.committable
            if FileName.parse(committable["file"]) is None or type(committable["identity"]) not in (str, type(None)):
                raise ValueError("it names another file")
        [target] = {(str(r.committable["table"]), r.committable["identity"]) for r in requests}
    except PARSE_ERRORS as error:
        committables = [request.committable for request in requests]
        raise foreign_committables_error("DatabaseSink", committables, error) from error
    return target
