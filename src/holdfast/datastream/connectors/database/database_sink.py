"""`DatabaseSink`: writes rows into a table of a database, exactly once.

Tasks stage the rows of an epoch in the job's own directory. When the checkpoint that names them is complete, the driver
writes them in one transaction, whose first statement records the epoch in a ledger table (`database_committer`). So
readers see all rows of an epoch or none, and each epoch once, however often a commit is repeated.

A real-time job can write at least once instead: its tasks write rows as they arrive, and each of their transactions is
visible at once.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.datastream.connectors.base import DeliveryGuarantee
from holdfast.datastream.connectors.database.database_committer import (
    DatabaseCommitter,
    DatabaseSession,
    DatabaseSettings,
)
from holdfast.datastream.connectors.database.dialect import (
    Cursor,
    Dialect,
    Postgres,
    SQLite,
    TableName,
    check_limits,
    file_of,
)
from holdfast.datastream.connectors.database.table_change import TargetTable
from holdfast.datastream.connectors.row_changes import ChangeColumns, EpochChanges, columns_of
from holdfast.datastream.sinks.staged_files import sweep_staged_files
from holdfast.errors import ConfigurationError, OutputTypeError
from holdfast.kernel import fault
from holdfast.kernel.secret import without_credentials
from holdfast.runtime.function.sink import (
    BatchSinkWriter,
    Committer,
    CommitterInitContext,
    ParquetStaging,
    Sink,
    WriterInitContext,
    require_columns,
)
from holdfast.storage.job_directory import FileName
from holdfast.types.arrow import element_schema
from holdfast.types.type_information import TypeInformation

SUFFIX = ".parquet"
LEDGER_TABLE = "holdfast_ledger"


class DatabaseSink(Sink):
    """Writes a stream into a table of Postgres or SQLite, exactly once. Needs `pip install 'holdfast[database]'`.

    Without a key, each row is inserted. With a key, the last row of each key in an epoch is upserted. The address of
    the database stays in the driver; tasks only stage rows.

    With `AT_LEAST_ONCE`, tasks of a real-time job write rows as they arrive, over a connection each, and after a
    failure they write the rows since the last checkpoint again. Rows with a key then replace themselves. Tasks get the
    address with its password. Jobs by epochs write as with `EXACTLY_ONCE`. Only for Postgres.

    Args:
        uri: `postgresql://user:password@host:port/database`, or a file of SQLite as `sqlite:///path` or `file:path`.
        table: `table` or `schema.table`. Columns of the stream are written to the columns of the same name.
        key: The columns that identify a row; the table must have a primary key or unique index on exactly these. The
            last row of a key in an epoch wins, so key the stream by these columns before the sink.
        row_kind: A column of the stream with the kind of each row, as in Flink's `RowKind`: `+I`, `-U`, `+U`, `-D` or 0
            to 3. It is not written. Needs a key. Rows with a kind (`Types.CHANGELOG`) need no such column.
        create_table: Whether to create a missing table, with the types of the stream.
        ledger_table: The table with the last epoch of each sink, in the schema of the table. It is created if it is
            missing, and so is a table of the same name with the suffix `_identity`.
        lock_timeout: Seconds for which a statement waits for locks before the commit is retried.
        refused_table: A table for rows that the database refuses at the commit, by a constraint for instance, in the
            schema of the table; `holdfast_refused` is a good name. It is created if it is missing. Without it such rows
            end the job.
        max_refused: Refused rows that an epoch may have; with more, the job ends.
        options: Options of the ADBC driver of Postgres.
        delivery_guarantee: `EXACTLY_ONCE` or `AT_LEAST_ONCE`.

    Raises:
        ConfigurationError: The address is of an unknown kind, or an argument is malformed.

    Example:
        >>> import sqlite3, tempfile
        >>> from holdfast.datastream.connectors.database import DatabaseSink
        >>> from holdfast.testing import EpochProgram
        >>> place, program = tempfile.mkdtemp(), EpochProgram()
        >>> words = program.source("words", "word string, n bigint")
        >>> sink = DatabaseSink(f"sqlite:///{place}/counts.db", "counts", key="word", create_table=True)
        >>> result = words.sink_to(sink).uid("counts")
        >>> job = program.run(f"{place}/job", [{"words": [("kelp", 1)]}, {"words": [("kelp", 2)]}])
        >>> sqlite3.connect(f"{place}/counts.db").execute("select * from counts").fetchall()
        [('kelp', 2)]
    """

    def __init__(  # noqa: PLR0913 - options of a sink, by keyword
        self,
        uri: str | os.PathLike[str],
        table: str,
        *,
        key: str | Sequence[str] = (),
        row_kind: str | None = None,
        create_table: bool = False,
        ledger_table: str = LEDGER_TABLE,
        lock_timeout: float = 10.0,
        refused_table: str | None = None,
        max_refused: int = 1000,
        options: Mapping[str, str] | None = None,
        delivery_guarantee: DeliveryGuarantee = DeliveryGuarantee.EXACTLY_ONCE,
    ) -> None:
        self.table = TableName.parse(table)
        self.changes = ChangeColumns(columns_of(key), row_kind)
        self._create_table = create_table
        self._schema: pa.Schema | None = None
        dialect, address = _dialect_of(os.fspath(uri))
        self._connection: _ConnectionSettings | None = _ConnectionSettings(dialect, address, dict(options or {}))
        if options and isinstance(dialect, SQLite):
            raise ConfigurationError(
                f"The ADBC driver of SQLite has no options, but got {sorted(options)!r}. Remove them."
            )
        self._ledger = self.table.sibling(ledger_table)
        self._refused = None if refused_table is None else self.table.sibling(refused_table)
        if self._refused in (self.table, self._ledger):
            raise ConfigurationError(
                f"refused_table must be a table of its own, not {refused_table!r}, which contains the rows or the "
                "epochs."
            )
        if type(max_refused) is not int or max_refused < 1:
            raise ConfigurationError(f"max_refused must be an integer of at least 1, not {max_refused!r}.")
        self._max_refused = max_refused
        if delivery_guarantee not in (DeliveryGuarantee.EXACTLY_ONCE, DeliveryGuarantee.AT_LEAST_ONCE):
            raise ConfigurationError(
                "delivery_guarantee must be DeliveryGuarantee.EXACTLY_ONCE or AT_LEAST_ONCE, not "
                f"{delivery_guarantee!r}."
            )
        self._is_exact = delivery_guarantee is DeliveryGuarantee.EXACTLY_ONCE
        if isinstance(dialect, SQLite) and not self._is_exact:
            raise ConfigurationError(
                "With AT_LEAST_ONCE all tasks write, but SQLite allows one writer at a time: leave out "
                "delivery_guarantee, or use Postgres."
            )
        if refused_table is not None and not self._is_exact:
            raise ConfigurationError(
                "refused_table belongs to the transaction of an epoch, which AT_LEAST_ONCE does not have: leave "
                "out one of them."
            )
        if not lock_timeout > 0:
            raise ConfigurationError(f"lock_timeout must be a number of seconds above 0, not {lock_timeout!r}.")
        self._lock_timeout = lock_timeout
        self._checks_values = isinstance(dialect, Postgres)

    def __getstate__(self) -> dict[str, Any]:
        # Tasks must not get the password, unless they write.
        return {**vars(self), "_connection": None} if self._is_exact else vars(self)

    def check_input(self, element_type: TypeInformation) -> None:
        """Check that the stream has a declared type, and the columns that the sink names.

        Raises:
            ConfigurationError: It has not.
        """
        require_columns("DatabaseSink", element_type)
        self.changes = self.changes.for_stream("DatabaseSink", element_type)
        schema = element_schema(element_type)
        if self._schema is not None and self._schema != schema:
            raise ConfigurationError(
                f"{self!r} is used for two streams of different types, {self._schema.names!r} and {schema.names!r}: "
                "make a sink for each."
            )
        self._schema = schema

    def key_columns(self) -> Sequence[str]:
        return self.changes.key

    def prepare(self, context: CommitterInitContext, kept: Any) -> Any:
        """Check that the database is the same as before, and that the table fits; create missing tables. Blocks.

        Raises:
            StorageError: The database is not the one of the checkpoint, or fails.
            ConfigurationError: The table is missing, or does not fit the stream.
        """
        if kept is not None and not (type(kept) is dict and {"database", "identity"} <= kept.keys()):
            raise ConfigurationError(
                f"The checkpoint does not say which database {self!r} wrote into, but {reprlib.repr(kept)}. Start from "
                "another one (-s PATH)."
            )
        settings = self._settings()
        wanted = kept["identity"] if kept is not None and kept["database"] == settings.redacted_uri else None
        committer = DatabaseCommitter(settings, context)
        try:
            identity, limits = committer.prepare(self._schema, wanted, self._create_table)
        finally:
            committer.close()
        target = {"database": settings.redacted_uri, "table": str(self.table), "identity": identity}
        return {**target, "limits": [limit.to_json() for limit in limits]}

    def create_writer(self, context: WriterInitContext) -> ParquetStaging | _DirectWriter:
        if context.is_real_time and not self._is_exact:
            return _DirectWriter(self, context, self._settings())
        name = context.file_name(SUFFIX)
        target = context.target or {"table": str(self.table), "identity": None}
        committable = {"file": name, "table": target["table"], "identity": target["identity"]}
        return _CheckedStaging(self, context, name, committable, target.get("limits", ()))

    def create_committer(self, context: CommitterInitContext) -> Committer:
        return DatabaseCommitter(self._settings(), context)

    def sweep(self, context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
        return sweep_staged_files(context, is_dead)

    def check_batch(self, uid: str, batch: pa.RecordBatch, limits: Sequence[Mapping[str, Any]]) -> None:
        """Check that the database would take the rows.

        Args:
            uid: The sink, for messages.
            batch: The rows.
            limits: The limits of the columns, as `prepare` has found them.

        Raises:
            OutputTypeError: It would not.
        """
        self.changes.check_rows("DatabaseSink", uid, batch)
        reason = Postgres().check_batch(batch) if self._checks_values else None
        if reason is None and limits:
            reason = check_limits(self.changes.upserts(batch), limits)
        if reason is not None:
            raise OutputTypeError(uid, f"{self!r} got a row that cannot be written: {reason}.")

    def _settings(self) -> DatabaseSettings:
        assert self._connection is not None, "tasks that stage rows do not know the database"
        connection = self._connection
        return DatabaseSettings(
            dialect=connection.dialect,
            uri=connection.uri,
            options=connection.options,
            table=self.table,
            ledger=self._ledger,
            changes=self.changes,
            lock_timeout=self._lock_timeout,
            refused=self._refused,
            max_refused=self._max_refused,
        )

    def __repr__(self) -> str:
        where = "" if self._connection is None else f"{without_credentials(self._connection.uri)!r}, "
        return f"DatabaseSink({where}{str(self.table)!r})"


@dataclass(frozen=True)
class _ConnectionSettings:
    """The settings that stay in the driver, because they may contain passwords."""

    dialect: Dialect
    uri: str = field(repr=False)
    options: dict[str, str] = field(repr=False)


class _CheckedStaging(ParquetStaging):
    """Rejects rows that the database would refuse before they are staged, while the epoch can still run again."""

    def __init__(
        self,
        sink: DatabaseSink,
        context: WriterInitContext,
        name: str,
        committable: dict[str, Any],
        limits: Sequence[Mapping[str, Any]],
    ) -> None:
        super().__init__(context.staging_dir, name, committable)
        self._limits = limits
        self._sink = sink
        self._uid = context.uid

    def write_batch(self, batch: pa.RecordBatch) -> None:
        self._sink.check_batch(self._uid, batch, self._limits)
        super().write_batch(batch)


class _DirectWriter(BatchSinkWriter):
    """Writes each batch in a transaction of its own, at least once."""

    writes_directly = True

    def __init__(self, sink: DatabaseSink, context: WriterInitContext, settings: DatabaseSettings) -> None:
        self._sink = sink
        self._uid = context.uid
        self._target = context.target or {"identity": None}
        self._session = DatabaseSession(settings, context.uid)
        self._table = TargetTable(settings.dialect, settings.redacted_uri, settings.table, settings.changes)
        self._changes = EpochChanges(context.uid, settings.changes)
        self._dialect = settings.dialect
        self._is_checked = False

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Write the rows, which are visible when this returns. Blocks.

        Raises:
            OutputTypeError: The database would refuse a row.
            ConfigurationError: It refuses a row.
            StorageError: It fails; the outcome may be unknown.
        """
        if batch.num_rows:
            self._sink.check_batch(self._uid, batch, self._target.get("limits", ()))
            with fault.point("sink.write"):
                self._session.run(lambda cursor: self._write(cursor, pa.Table.from_batches([batch])))
            self._is_checked = True

    def _write(self, cursor: Cursor, rows: pa.Table) -> None:
        if not self._is_checked and self._target["identity"] is not None:
            self._session.check_identity(cursor, self._target["identity"])
        for change in self._table.changes_of(cursor, rows.schema, lambda: [rows], self._changes):
            change.apply(cursor, self._dialect, rows.schema)

    def close(self) -> None:
        self._session.close()

    def abort(self) -> None:
        self._session.close()


def _dialect_of(uri: str) -> tuple[Dialect, str]:
    if uri.startswith(("postgresql://", "postgres://")):
        return Postgres(), uri
    return SQLite(), f"file:{file_of(uri)}"
