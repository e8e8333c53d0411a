"""The transaction of an epoch.

::

    insert into holdfast_ledger (incarnation, sink, epoch) values (...)
        on conflict (incarnation, sink) do update set epoch = excluded.epoch
        where holdfast_ledger.epoch < excluded.epoch returning epoch
    (no row: the epoch was committed; nothing else is done)
    rows into a temporary table; from there into the table; commit

The ledger comes first because it also locks: a second leader waits there until the first has committed or gone, and
then finds the epoch. One that looked first and wrote afterwards would write beside it. A leader that is asleep in its
transaction makes others wait for `lock_timeout`; they try again, and a server such as Postgres ends the sleeper.

A database is known by more than its address: a row of `<ledger>_identity` names it, checkpoints keep the name, and rows
that were staged for one database are not committed into another one.
"""

from __future__ import annotations

import reprlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.datastream.connectors.database.column_limits import ColumnLimit, limits_of
from holdfast.datastream.connectors.database.dialect import (
    Connection,
    Cursor,
    Dialect,
    TableName,
    quoted,
    quoted_list,
)
from holdfast.datastream.connectors.row_changes import ChangeColumns, EpochChanges
from holdfast.datastream.sinks.task_owned import staged_paths
from holdfast.errors import ConfigurationError, HoldfastError, StorageError
from holdfast.kernel.malformed import MALFORMED
from holdfast.kernel.secret import shown_error, without_credentials
from holdfast.runtime.function.sink import CommitRequest, Committer, CommitterInitContext
from holdfast.storage.file_system.scheme import file_system_for
from holdfast.storage.job.naming import FileName

STAGED_TABLE: Final = "holdfast_staged"
T = TypeVar("T")


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
    """

    dialect: Dialect
    uri: str = field(repr=False)
    options: dict[str, str] = field(repr=False)
    table: TableName
    ledger: TableName
    changes: ChangeColumns
    lock_timeout: float

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
            is_new = self._transaction(lambda cursor: self._write(cursor, requests))
        except StorageError as error:
            for request in requests:
                request.retry_later(error)
            return
        if not is_new:
            for request in requests:
                request.signal_already_committed()

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

    def _transaction(self, work: Callable[[Cursor], T]) -> T:
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
            with self._connection.cursor() as cursor:
                result = work(cursor)
            self._connection.commit()
        except HoldfastError:
            self.close()
            raise
        except Exception as error:
            self.close()
            if settings.dialect.is_refusal(error):
                raise ConfigurationError(
                    f"{settings.dialect.name} at {settings.shown!r} refuses what the sink {self._context.uid!r} writes "
                    f"into {str(settings.table)!r}: {shown_error(error)} Nothing of the epoch was committed. Change "
                    "the table so that it takes the rows, and start the job again."
                ) from error
            raise StorageError(
                f"{settings.dialect.name} at {settings.shown!r} did not do what the sink {self._context.uid!r} asked "
                f"for: {shown_error(error)}"
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
        if schema is not None:
            if may_make and not dialect.columns(cursor, settings.table):
                dialect.lock_for_creation(cursor, str(settings.table))
                cursor.execute(self._creation(schema))
            self._expressions(cursor, settings.table, schema)
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

    def _creation(self, schema: pa.Schema) -> str:
        settings = self._settings
        columns = []
        for name in settings.changes.written(schema.names):
            declared = settings.dialect.type_of(schema.field(name).type)
            if declared is None:
                raise ConfigurationError(self._no_type(name, schema.field(name).type))
            columns.append(f"{quoted(name)} {declared}{' not null' if name in settings.changes.key else ''}")
        key = settings.changes.key
        columns += [f"primary key ({quoted_list(key)})"] if key else []
        return f"create table if not exists {settings.table.sql} ({', '.join(columns)})"

    def _expressions(self, cursor: Cursor, table: TableName, schema: pa.Schema) -> list[str]:
        """What is written into the columns of the table, in the order of the stream's.

        Raises:
            ConfigurationError: The table does not fit the stream; names why.
        """
        dialect, changes = self._settings.dialect, self._settings.changes
        columns = {column.name: column for column in dialect.columns(cursor, table)}
        if not columns:
            raise ConfigurationError(
                f"There is no table {str(table)!r} in {self._settings.shown!r}: make it, or give create_table=True."
            )
        written = changes.written(schema.names)
        unknown = [name for name in written if name not in columns]
        needed = [name for name, column in columns.items() if column.is_needed and name not in written]
        if unknown or needed:
            missing = f"has no columns {unknown!r}" if unknown else f"needs values for {needed!r}"
            raise ConfigurationError(
                f"The table {str(table)!r} {missing}; the stream has {written!r}, the table {list(columns)!r}. Nothing "
                "was written. Change the table, or map the stream to its columns."
            )
        if changes.key and frozenset(changes.key) not in dialect.unique_keys(cursor, table):
            raise ConfigurationError(
                f"The table {str(table)!r} may hold several rows with the same {list(changes.key)!r}, by which rows "
                "are to be put: give it a primary key or a unique index on exactly these columns."
            )
        expressions = []
        for name in written:
            arrow = schema.field(name).type
            if dialect.type_of(arrow) is None:
                raise ConfigurationError(self._no_type(name, arrow))
            expression = dialect.expression(name, arrow, columns[name].type)
            if expression is None:
                raise ConfigurationError(
                    f"The column {name!r} of the table {str(table)!r} is {columns[name].type!r}, and that of the "
                    f"stream is {arrow}, which does not go in there. Nothing was written. Change one of them; for "
                    f"{arrow} the sink would make {dialect.type_of(arrow)!r}."
                )
            expressions.append(expression)
        return expressions

    def _no_type(self, name: str, arrow: pa.DataType) -> str:
        return (
            f"{self._settings.dialect.name} has no type for the column {name!r}, which is {arrow}: map it to one or "
            "several columns of simple types, or to a string of JSON."
        )

    def _write(self, cursor: Cursor, requests: Sequence[CommitRequest]) -> bool:
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
            self._write_rows(cursor, TableName.parse(table), staged_paths(self._context, requests))
        return is_new

    def _write_rows(self, cursor: Cursor, table: TableName, paths: Sequence[str]) -> None:
        dialect, changes = self._settings.dialect, self._settings.changes
        with file_system_for(paths[0]).open_input(paths[0]) as file:
            schema = pq.read_schema(file)
        expressions = self._expressions(cursor, table, schema)
        names = changes.written(schema.names)
        into = f"insert into {table.sql} ({quoted_list(names)}) select {', '.join(expressions)} from {STAGED_TABLE}"
        if not changes.key:
            reader = pa.RecordBatchReader.from_batches(
                dialect.ingestible(schema.empty_table()).schema, _batches(dialect, paths)
            )
            self._through_staged_table(cursor, reader, into)
            return
        puts, deletes = self._of_epochs.last_of_each_key(_tables(paths))
        if deletes.num_rows:
            pairs = (f"{table.sql}.{quoted(name)} = {STAGED_TABLE}.{quoted(name)}" for name in changes.key)
            found = f"exists (select 1 from {STAGED_TABLE} where {' and '.join(pairs)})"
            keys = dialect.ingestible(deletes.select(list(changes.key)))
            self._through_staged_table(cursor, keys, f"delete from {table.sql} where {found}")
        if puts.num_rows:
            others = [name for name in names if name not in changes.key]
            then = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in others)
            then = f"do update set {then}" if others else "do nothing"
            # Without a condition SQLite reads "on conflict" as a condition of a join.
            into += f" where true on conflict ({quoted_list(changes.key)}) {then}"
            self._through_staged_table(cursor, dialect.ingestible(puts), into)

    def _through_staged_table(self, cursor: Cursor, rows: pa.Table | pa.RecordBatchReader, statement: str) -> None:
        cursor.adbc_ingest(STAGED_TABLE, rows, mode="create", temporary=True)
        cursor.execute(statement)
        cursor.execute(f"drop table {STAGED_TABLE}")


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
    except MALFORMED as error:
        shown = reprlib.repr([request.committable for request in requests])
        raise ConfigurationError(
            f"The checkpoint names output that no DatabaseSink has written, {shown}: {error!r:.200}. Nothing was "
            "committed. Start from a checkpoint that nobody has changed (-s PATH)."
        ) from error
    return target


def _tables(paths: Sequence[str]) -> list[pa.Table]:
    return list(_read(paths))


def _read(paths: Sequence[str]) -> Iterator[pa.Table]:
    for path in paths:
        with file_system_for(path).open_input(path) as file:
            yield pq.read_table(file)


def _batches(dialect: Dialect, paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for table in _read(paths):
        yield from dialect.ingestible(table).to_batches()
