"""`DatabaseCommitter`: writes each epoch in one transaction, and sets the rows aside that the database refuses.

::

    insert into holdfast_ledger (incarnation, sink, epoch) values (...)
        on conflict (incarnation, sink) do update set epoch = excluded.epoch
        where holdfast_ledger.epoch < excluded.epoch returning epoch
    (no row: the epoch was committed; only files are left that holdfast_ledger_files does not name for it)
    copy rows into a temporary table; from there into the table; commit

If the database refuses a row, this is rolled back. A second transaction begins in the same way and finds the refused
rows by bisection (`BisectingWriter`). They go into the refused table, and the others into the table. Without a refused
table the job ends with an error that shows them.

The ledger comes first because its row is also a lock: a second leader waits there until the first has committed or
died, and then finds the epoch committed. If it read first and wrote afterwards, both would write. A leader that sleeps
in its transaction makes others wait for `lock_timeout`; they retry, and a server such as Postgres ends the sleeper.

A row of `<ledger>_files` names the staged files of the epoch that the row of the ledger has. Older releases wrote none:
their epochs count as complete. If the user may not write that table, a committer takes an epoch in one call only.

A row of `<ledger>_identity` identifies the database. Checkpoints contain it, so that rows that were staged for one
database are not committed into another one under the same address.
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
from holdfast.datastream.sinks.staged_files import (
    foreign_committables_error,
    name_of,
    not_recorded,
    open_staged_file,
    read_rows,
    require_whole_epoch,
    verified_paths,
)
from holdfast.errors import ConfigurationError, HoldfastError, StorageError
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.kernel.secret import get_logger, redacted_message, without_credentials
from holdfast.runtime.function.sink import CommitRequest, Committer, CommitterInitContext
from holdfast.storage.job_directory import FileName
from holdfast.types.serialization import json_text, nonfinite_to_text

logger = get_logger(__name__)

_POSITION: Final = "holdfast_position"
_SAVEPOINT: Final = "holdfast_try"
_LONGEST_REASON: Final = 1000
REFUSED_TABLE: Final = "holdfast_refused"
T = TypeVar("T")
_WriteRows = Callable[[Cursor, TableName, Sequence[CommitRequest]], None]


@dataclass(frozen=True)
class RefusedRow:
    """A row that the database refuses.

    Attributes:
        operation: `insert`, `upsert` or `delete`.
        row: The values by column.
        reason: The message of the database.
    """

    operation: str
    row: dict[str, Any]
    reason: str


@dataclass(frozen=True)
class _RefusedPosition:
    change: TableChange
    position: int
    reason: str
    is_staged: bool


class BisectingWriter:
    """Writes the rows of an epoch that the database takes, and finds the others by writer.

    Everything is in the transaction of the epoch, and each try is behind a savepoint: to find k refused rows of n,
    about k log n tries are needed. The rows are in temporary tables with their positions, so a try is one statement on
    the server.

    A constraint may depend on other rows: a later row of the epoch may free a unique value. So refused rows are tried
    again one by one, after all others, as long as one of them succeeds.

    Args:
        cursor: A cursor in the transaction of the epoch, which has savepoints.
        dialect: The kind of database.
        max_refused: Refused rows; with one more the writer gives up.
    """

    def __init__(self, cursor: Cursor, dialect: Dialect, max_refused: int) -> None:
        self._cursor = cursor
        self._dialect = dialect
        self._max_refused = max_refused
        self._refused: list[_RefusedPosition] = []

    @property
    def has_given_up(self) -> bool:
        """Whether more than `max_refused` rows are refused, so that the transaction must be rolled back."""
        return len(self._refused) > self._max_refused

    def write(self, changes: Sequence[TableChange], schema: pa.Schema) -> list[RefusedRow]:
        """Write the rows that the table takes; return the others, incomplete if the writer has given up."""
        rows = [self._stage(change, schema) for change in changes]
        for change, number in zip(changes, rows, strict=True):
            self._apply(change, number)
        before = 0 if self.has_given_up else len(self._refused) + 1
        while 0 < len(self._refused) < before:
            before = len(self._refused)
            self._refused = [place for place in self._refused if not place.is_staged or self._fails_again(place)]
        return [row for change in changes for row in self._refused_rows(change)]

    def _stage(self, change: TableChange, schema: pa.Schema) -> int:
        """Copy rows into the temporary table with their positions; return their number."""
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

        self._bisect(change, range(first, first + rows.num_rows), append, is_staged=False)

    def _apply(self, change: TableChange, rows: int) -> None:
        def execute(part: range) -> None:
            condition = f"{_POSITION} >= {part.start} and {_POSITION} < {part.stop}"
            self._cursor.execute(change.statement(condition))

        self._bisect(change, range(rows), execute, is_staged=True)

    def _bisect(
        self, change: TableChange, positions: range, write: Callable[[range], None], *, is_staged: bool
    ) -> None:
        """Write the rows at these positions in order; halve each range that is refused."""
        parts = [positions]
        while parts and not self.has_given_up:
            part = parts.pop()
            reason = self._try(partial(write, part)) if part else None
            if reason is not None and len(part) == 1:
                self._refused.append(_RefusedPosition(change, part.start, reason, is_staged))
            elif reason is not None:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]

    def _fails_again(self, place: _RefusedPosition) -> bool:
        statement = place.change.statement(f"{_POSITION} = {place.position}")
        return self._try(partial(self._cursor.execute, statement)) is not None

    def _try(self, work: Callable[[], object]) -> str | None:
        """Run statements behind a savepoint; if the database refuses a row, roll back and return the reason."""
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

    def _refused_rows(self, change: TableChange) -> Iterator[RefusedRow]:
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
    except (OverflowError, ValueError):  # Arrow has dates that Python cannot represent
        return str(scalar.value)


_REFUSED_COLUMNS: Final = {
    "incarnation": "varchar(255) not null",
    "sink": "varchar(255) not null",
    "epoch": "bigint not null",
    "number": "bigint not null",
    "target": "varchar(255) not null",
    "operation": "varchar(10) not null",
    "row": "text not null",
    "reason": "text not null",
}


class RefusedTable:
    """The table for refused rows, written in the transaction that records their epoch."""

    def __init__(self, dialect: Dialect, name: TableName) -> None:
        self._dialect = dialect
        self._name = name

    def prepare(self, cursor: Cursor) -> None:
        """Create the table if it does not exist.

        Raises:
            ConfigurationError: A table of this name has other columns.
        """
        found = {column.name for column in self._dialect.columns(cursor, self._name)}
        if found and not found >= _REFUSED_COLUMNS.keys():
            raise ConfigurationError(
                f"The table {str(self._name)!r} has the columns {sorted(found)!r}, but a table for refused rows needs "
                f"{list(_REFUSED_COLUMNS)!r}: pass another refused_table, or rename that table."
            )
        if not found:
            self._dialect.lock_for_creation(cursor, str(self._name))
            columns = ", ".join(f"{quoted_list([name])} {kind}" for name, kind in _REFUSED_COLUMNS.items())
            cursor.execute(
                f"create table if not exists {self._name.sql} ({columns}, primary key (incarnation, sink, epoch, "
                "number))"
            )

    def insert(self, cursor: Cursor, key: tuple[str, str, int], target: TableName, rows: Sequence[RefusedRow]) -> None:
        """Insert the refused rows of an epoch.

        Args:
            cursor: A cursor in the transaction of the epoch.
            key: Incarnation, sink and epoch.
            target: The table that refuses the rows.
            rows: At least one.

        Raises:
            StorageError: The database fails.
            ConfigurationError: It refuses these rows, too.
        """
        values = [
            (*key, number, str(target), row.operation, _row_to_json(row.row), row.reason[:_LONGEST_REASON])
            for number, row in enumerate(rows, start=1)
        ]
        try:
            cursor.executemany(
                f"insert into {self._name.sql} ({quoted_list(list(_REFUSED_COLUMNS))}) values "
                f"({self._dialect.placeholders(len(_REFUSED_COLUMNS))})",
                values,
            )
        except Exception as error:
            kind = ConfigurationError if self._dialect.is_refusal(error) else StorageError
            raise kind(
                f"{len(rows)} rows of epoch {key[2]} that the table {str(target)!r} refuses cannot be inserted into "
                f"{str(self._name)!r}: {redacted_message(error)} Nothing of the epoch was committed. Make that table "
                "writable for the sink, and start the job again."
            ) from error


def _row_to_json(row: dict[str, Any]) -> str:
    """Return a row as ASCII, which every database stores."""
    return json.dumps(json.loads(json_text(nonfinite_to_text(row, str))))


def _row_for_message(row: dict[str, Any]) -> str:
    """Return a row without credentials, cut if it is long."""
    return f"{without_credentials(repr(row)):.300}"


@dataclass(frozen=True)
class DatabaseSettings:
    """The settings of a committer; they stay in the driver.

    Attributes:
        dialect: The kind of database.
        uri: The address, with the password.
        options: Options of the driver.
        table: The table for the rows.
        ledger: The table of committed epochs.
        changes: Key and row kind.
        lock_timeout: Seconds for which a statement waits for locks.
        refused: The table for refused rows; None if they end the job.
        max_refused: Refused rows that an epoch may have.
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
    def redacted_uri(self) -> str:
        """The address without credentials."""
        return without_credentials(self.uri)

    @property
    def identity_table(self) -> TableName:
        """The table with the identity of the database."""
        return self.ledger.with_suffix("_identity")

    @property
    def files_table(self) -> TableName:
        """The table with the names of the files of the last epoch."""
        return self.ledger.with_suffix("_files")


class DatabaseSession:
    """One connection to the database, which is opened again after each failure.

    Args:
        settings: The settings of the sink.
        uid: The sink, for messages.

    Attributes:
        may_create: Whether to create the file of a database.
    """

    def __init__(self, settings: DatabaseSettings, uid: str) -> None:
        self._settings = settings
        self._uid = uid
        self._connection: Connection | None = None
        self.may_create = False

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # closing the connection rolls back what is not committed
                connection.close()

    def run(self, work: Callable[[Cursor], T], *, with_savepoints: bool = False) -> T:
        """Call `work` in a transaction, and commit. Blocks.

        Raises:
            StorageError: The database fails or is busy; the outcome may be unknown.
            ConfigurationError: It refuses, and would do so again.
        """
        settings = self._settings
        try:
            if self._connection is None:
                self._connection = settings.dialect.connect(
                    settings.uri, settings.options, settings.lock_timeout, self.may_create
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
                    f"{settings.dialect.name} at {settings.redacted_uri!r} refuses what the sink {self._uid!r} writes "
                    f"into {str(settings.table)!r}: {redacted_message(error)} Nothing of the transaction was "
                    "committed. Change the table so that it accepts the rows, and start the job again."
                ) from error
            raise StorageError(
                f"A transaction of the sink {self._uid!r} in {settings.dialect.name} at "
                f"{settings.redacted_uri!r} failed: {redacted_message(error)}"
            ) from error
        return result

    def read_identity(self, cursor: Cursor) -> str | None:
        if not self._settings.dialect.columns(cursor, self._settings.identity_table):
            return None
        cursor.execute(f"select identity from {self._settings.identity_table.sql}")
        row = cursor.fetchone()
        return None if row is None else str(row[0])

    def check_identity(self, cursor: Cursor, identity: str) -> None:
        """Check that the database is the one of the job.

        Raises:
            StorageError: It is another one.
        """
        found = self.read_identity(cursor)
        if found != identity:
            raise StorageError(
                f"The database at {self._settings.redacted_uri!r} is not the one that the job writes into: expected "
                f"the identity {identity!r} in the table {str(self._settings.identity_table)!r}, found "
                f"{'none' if found is None else repr(found)}. Nothing was written. Restore that database, or start "
                "the job once with its old address, so that its staged rows are committed."
            )


class DatabaseCommitter(Committer):
    """Writes epochs, each in one transaction."""

    def __init__(self, settings: DatabaseSettings, context: CommitterInitContext) -> None:
        self._settings = settings
        self._context = context
        self._session = DatabaseSession(settings, context.uid)
        self._has_names: bool | None = None
        self._epoch_changes = EpochChanges(context.uid, settings.changes)

    def prepare(
        self, schema: pa.Schema | None, identity: str | None, may_create: bool
    ) -> tuple[str, list[ColumnLimit]]:
        """Create missing ledger, identity and table; return the identity, and the limits of the columns. Blocks.

        Args:
            schema: The schema of the stream, if it is known.
            identity: The identity that the database must have; None if it is new to the job.
            may_create: Whether to create a missing table, and the file of a database.

        Raises:
            StorageError: The database is missing, or is another one.
            ConfigurationError: The table is missing, or does not fit.
        """
        # A database that a checkpoint names must exist: an empty one in its place would be the wrong one.
        self._session.may_create = may_create and identity is None
        return self._session.run(lambda cursor: self._prepare(cursor, schema, identity, may_create))

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        if not requests:  # of a committer that wraps this one, and holds all back
            return
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
        if self._has_names is None:
            self._has_names = self._can_record_names(requests)
        if not self._has_names:
            require_whole_epoch(requests, "DatabaseSink without a table of committed files")
        with suppress(_RowsRefusedError):
            return self._session.run(lambda cursor: self._write(cursor, requests, self._write_all))
        try:
            return self._session.run(
                lambda cursor: self._write(cursor, requests, self._write_accepted), with_savepoints=True
            )
        finally:
            self.close()

    def last_epoch(self, incarnation: str) -> int | None:
        def read(cursor: Cursor) -> int | None:
            placeholder = self._settings.dialect.placeholder
            cursor.execute(
                f"select epoch from {self._settings.ledger.sql} where incarnation = {placeholder(1)} and sink = "
                f"{placeholder(2)}",
                [incarnation, self._context.uid],
            )
            row = cursor.fetchone()
            return None if row is None else int(row[0])

        return self._session.run(read)

    def close(self) -> None:
        self._session.close()

    def _prepare(
        self, cursor: Cursor, schema: pa.Schema | None, identity: str | None, may_create: bool
    ) -> tuple[str, list[ColumnLimit]]:
        settings = self._settings
        dialect, ledger, own = settings.dialect, settings.ledger, settings.identity_table
        if identity is not None:
            self._session.check_identity(cursor, identity)
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
        first = dialect.placeholder(1)
        cursor.execute(f"insert into {own.sql} values (1, {first}) on conflict (one) do nothing", [str(uuid.uuid4())])
        found = self._session.read_identity(cursor)
        if settings.refused is not None:
            RefusedTable(dialect, settings.refused).prepare(cursor)
        if schema is not None:
            target = self._target_table(settings.table)
            if may_create and not dialect.columns(cursor, settings.table):
                dialect.lock_for_creation(cursor, str(settings.table))
                cursor.execute(target.creation(schema))
            target.expressions(cursor, schema)
        assert found is not None
        written = settings.changes.written([] if schema is None else schema.names)
        return found, limits_of(dialect.columns(cursor, settings.table), written)

    def _write(self, cursor: Cursor, requests: Sequence[CommitRequest], write_rows: _WriteRows) -> bool:
        """Write an epoch unless the ledger has it; return whether it was new."""
        dialect, ledger, first = self._settings.dialect, self._settings.ledger, requests[0]
        cursor.execute(
            f"insert into {ledger.sql} values ({dialect.placeholders(3)}) on conflict (incarnation, sink) do update "
            f"set epoch = excluded.epoch where {quoted(ledger.name)}.epoch < excluded.epoch returning epoch",
            [first.incarnation, self._context.uid, first.epoch],
        )
        is_new = cursor.fetchone() is not None
        table, identity = _target(requests)
        if identity is not None:
            self._session.check_identity(cursor, identity)
        recorded = [] if is_new else self._recorded_names(cursor, first)
        left = not_recorded(requests, recorded) if not is_new else list(requests)
        if left:
            write_rows(cursor, TableName.parse(table), left)
            self._record_names(cursor, first, [*(recorded or ()), *(name_of(request.committable) for request in left)])
        return bool(left)

    def _can_record_names(self, requests: Sequence[CommitRequest]) -> bool:
        """Return whether the table of committed files can be written; create it if it is missing.

        Users of older releases may have no right to create it.
        """
        settings, (_, identity) = self._settings, _target(requests)
        table = settings.files_table.sql

        def probe(cursor: Cursor) -> None:
            if identity is not None:
                self._session.check_identity(cursor, identity)
            if not settings.dialect.columns(cursor, settings.files_table):
                settings.dialect.lock_for_creation(cursor, str(settings.files_table))
                cursor.execute(
                    f"create table if not exists {table} (incarnation varchar(255) not null, sink varchar(255) not "
                    "null, epoch bigint not null, names text not null, primary key (incarnation, sink))"
                )
            cursor.execute(f"update {table} set epoch = epoch where 1 = 0")
            cursor.execute(f"insert into {table} select * from {table} where 1 = 0")

        try:
            self._session.run(probe)
        except ConfigurationError as error:
            logger.warning(
                "the sink %r cannot record which files it commits into %s; create this table, or grant select, insert "
                "and update on it: %s", self._context.uid, settings.files_table, error.__cause__ or error,
            )  # fmt: skip
            return False
        return True

    def _recorded_names(self, cursor: Cursor, first: CommitRequest) -> list[str] | None:
        """Return the names recorded with an epoch; None if there are none, or the ledger has a later epoch."""
        settings, placeholder = self._settings, self._settings.dialect.placeholder
        if not self._has_names:
            return None
        cursor.execute(
            f"select names from {settings.files_table.sql} f join {settings.ledger.sql} l on f.incarnation = "
            f"l.incarnation and f.sink = l.sink and f.epoch = l.epoch where l.incarnation = {placeholder(1)} and "
            f"l.sink = {placeholder(2)} and l.epoch = {placeholder(3)}",
            [first.incarnation, self._context.uid, first.epoch],
        )
        row = cursor.fetchone()
        return None if row is None else str(row[0]).split()

    def _record_names(self, cursor: Cursor, first: CommitRequest, names: Sequence[str]) -> None:
        if self._has_names:
            dialect = self._settings.dialect
            cursor.execute(
                f"insert into {self._settings.files_table.sql} values ({dialect.placeholders(4)}) on conflict "
                "(incarnation, sink) do update set epoch = excluded.epoch, names = excluded.names",
                [first.incarnation, self._context.uid, first.epoch, " ".join(names)],
            )

    def _write_all(self, cursor: Cursor, table: TableName, requests: Sequence[CommitRequest]) -> None:
        changes, schema = self._changes(cursor, table, requests)
        for change in changes:
            change.apply(cursor, self._settings.dialect, schema)

    def _write_accepted(self, cursor: Cursor, table: TableName, requests: Sequence[CommitRequest]) -> None:
        """Write the accepted rows of an epoch, and insert the others into the refused table.

        Raises:
            ConfigurationError: Rows are refused, and there is no table for them, or there are too many.
        """
        settings, first = self._settings, requests[0]
        changes, schema = self._changes(cursor, table, requests)
        writer = BisectingWriter(cursor, settings.dialect, settings.max_refused)
        refused = writer.write(changes, schema)
        if not refused:
            return
        if writer.has_given_up or settings.refused is None:
            raise ConfigurationError(self._refusal_message(table, first.epoch, refused, writer.has_given_up))
        key = (first.incarnation, self._context.uid, first.epoch)
        RefusedTable(settings.dialect, settings.refused).insert(cursor, key, table, refused)
        logger.warning(
            "the sink %r: the table %r refuses %d rows of epoch %d; they are inserted into %r; the first: %s: %s",
            self._context.uid, str(table), len(refused), first.epoch, str(settings.refused), refused[0].reason,
            _row_for_message(refused[0].row),
        )  # fmt: skip

    def _changes(
        self, cursor: Cursor, table: TableName, requests: Sequence[CommitRequest]
    ) -> tuple[list[TableChange], pa.Schema]:
        paths = verified_paths(self._context, requests)
        with open_staged_file(paths[0]) as file:
            schema = pq.read_schema(file)
        return self._target_table(table).changes_of(
            cursor, schema, lambda: map(read_rows, paths), self._epoch_changes
        ), schema

    def _target_table(self, table: TableName) -> TargetTable:
        return TargetTable(self._settings.dialect, self._settings.redacted_uri, table, self._settings.changes)

    def _refusal_message(self, table: TableName, epoch: int, refused: Sequence[RefusedRow], has_given_up: bool) -> str:
        settings, first = self._settings, refused[0]
        number = f"more than {settings.max_refused}" if has_given_up else str(len(refused))
        advice = (
            f"pass refused_table={REFUSED_TABLE!r} to DatabaseSink, a table for such rows"
            if settings.refused is None
            else f"raise max_refused={settings.max_refused}"
        )
        return (
            f"{settings.dialect.name} at {settings.redacted_uri!r} refuses {number} of the rows that the sink "
            f"{self._context.uid!r} writes into {str(table)!r} in epoch {epoch}. The first, to {first.operation}: "
            f"{first.reason:.500}: {_row_for_message(first.row)}. Nothing of the epoch was committed. Change the "
            f"table so that it accepts them, or {advice}, and start the job again."
        )


class _RowsRefusedError(ConfigurationError):
    """The database refuses a row of a statement for many rows, so it is not known which."""


def _target(requests: Sequence[CommitRequest]) -> tuple[str, str | None]:
    """Return the table for which the rows of an epoch were staged, and the identity of its database.

    Raises:
        ConfigurationError: A sink of another kind has made the committables.
    """
    try:
        for request in requests:
            committable = request.committable
            if FileName.parse(committable["file"]) is None or type(committable["identity"]) not in (str, type(None)):
                raise ValueError("it is not the name of a staged file")
        [target] = {(str(r.committable["table"]), r.committable["identity"]) for r in requests}
    except PARSE_ERRORS as error:
        committables = [request.committable for request in requests]
        raise foreign_committables_error("DatabaseSink", committables, error) from error
    return target
