"""Rows into a table of a database, exactly once.

Tasks stage the rows of an epoch in the job's own directory. When the checkpoint that names them is complete, the driver
writes them in one transaction, whose first statement records the epoch in a ledger table beside them
(`database_committer`). So readers see all rows of an epoch or none, and each epoch once, whoever commits it again.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.datastream.connectors.database.database_committer import DatabaseCommitter, DatabaseSettings
from holdfast.datastream.connectors.database.dialect import Dialect, Postgres, SQLite, TableName, file_of, why_refused
from holdfast.datastream.connectors.row_changes import ChangeColumns, columns_of
from holdfast.datastream.sinks.staged_files import sweep_staged_files
from holdfast.errors import ConfigurationError, OutputTypeError
from holdfast.kernel.secret import without_credentials
from holdfast.runtime.function.sink import (
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
    """Writes a stream into a table, exactly once: it adds rows, or with a key puts the last row of each key.

    The address of the database stays in the driver: tasks only stage.

    Args:
        uri: `postgresql://user:password@host:port/database`, or a file of SQLite as `sqlite:///path` or `file:path`.
        table: `table` or `schema.table`. Columns of the stream are written to the columns of the same name.
        key: The columns by which rows are put or deleted; the table must be unique in them. Of several rows of one key
            in an epoch the last counts, so a stream should be keyed by these columns before. Without a key rows are
            added.
        row_kind: A column of the stream that says what a row does, as Flink's `RowKind`: `+I`, `-U`, `+U`, `-D` or 0 to
            3. It is not written. Needs a key.
        create_table: Whether a table that is not there is made, with the types of the stream.
        ledger_table: Where the last epoch of each sink is recorded, in the schema of the table; it is made if it is not
            there, and so is a table of the same name with `_identity` behind it.
        lock_timeout: Seconds for which a statement waits for locks of others before the commit is tried again.
        refused_table: Where rows go that the database refuses at the commit, by a constraint for instance, in the
            schema of the table; `holdfast_refused` is a good name. It is made if it is not there. Without it such rows
            end the job.
        max_refused: Rows of an epoch that may go there; if more are refused, the job ends.
        options: Of the ADBC driver of Postgres, as strings.

    Raises:
        ConfigurationError: There is no such kind of database, or the arguments do not go together.
    """

    def __init__(
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
    ) -> None:
        self.table = TableName.parse(table)
        self.changes = ChangeColumns(columns_of(key), row_kind)
        self._create_table = create_table
        self._schema: pa.Schema | None = None
        self._private: _Private | None = _Private(*_dialect_of(os.fspath(uri)), dict(options or {}))
        if options and isinstance(self._private.dialect, SQLite):
            raise ConfigurationError(f"The ADBC driver of SQLite takes no options, but {sorted(options)!r} are given.")
        self._ledger = self.table.sibling(ledger_table)
        self._refused = None if refused_table is None else self.table.sibling(refused_table)
        if self._refused in (self.table, self._ledger):
            raise ConfigurationError(
                f"refused_table is a table of its own, not {refused_table!r}, which has the rows or the epochs."
            )
        if type(max_refused) is not int or max_refused < 1:
            raise ConfigurationError(f"max_refused is a whole number of at least 1, not {max_refused!r}.")
        self._max_refused = max_refused
        if not lock_timeout > 0:
            raise ConfigurationError(f"lock_timeout is a number of seconds above 0, not {lock_timeout!r}.")
        self._lock_timeout = lock_timeout
        self._checks_values = isinstance(self._private.dialect, Postgres)

    def __getstate__(self) -> dict[str, Any]:
        # The password has no business in tasks.
        return {**vars(self), "_private": None}

    def check_input(self, element_type: TypeInformation) -> None:
        """Refuses a stream of undeclared type, and one without the columns of the key."""
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
        """Those of the key."""
        return self.changes.key

    def prepare(self, context: CommitterInitContext, kept: Any) -> Any:
        """Makes sure that the database is the one it was, and that the table fits; makes what may be made."""
        if kept is not None and not (type(kept) is dict and {"database", "identity"} <= kept.keys()):
            raise ConfigurationError(
                f"The checkpoint does not say which database {self!r} wrote into, but {reprlib.repr(kept)}. Start from "
                "another one (-s PATH)."
            )
        settings = self._settings()
        wanted = kept["identity"] if kept is not None and kept["database"] == settings.shown else None
        committer = DatabaseCommitter(settings, context)
        try:
            identity, limits = committer.prepare(self._schema, wanted, self._create_table)
        finally:
            committer.close()
        target = {"database": settings.shown, "table": str(self.table), "identity": identity}
        return {**target, "limits": [limit.to_json() for limit in limits]}

    def create_writer(self, context: WriterInitContext) -> ParquetStaging:
        """Stages a file in the job's directory."""
        name = context.file_name(SUFFIX)
        target = context.target or {"table": str(self.table), "identity": None}
        committable = {"file": name, "table": target["table"], "identity": target["identity"]}
        return _CheckedStaging(self, context, name, committable, target.get("limits", ()))

    def create_committer(self, context: CommitterInitContext) -> Committer:
        """Writes each epoch in one transaction."""
        return DatabaseCommitter(self._settings(), context)

    def sweep(self, context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
        """Deletes staged files that no checkpoint names any more."""
        return sweep_staged_files(context, is_dead)

    def why_refused(self, batch: pa.RecordBatch) -> str | None:
        """Why the database would refuse a batch whose types it takes; None if it would not."""
        return Postgres().check_batch(batch) if self._checks_values else None

    def _settings(self) -> DatabaseSettings:
        assert self._private is not None, "a committer runs in the driver only"
        private = self._private
        return DatabaseSettings(
            dialect=private.dialect,
            uri=private.uri,
            options=private.options,
            table=self.table,
            ledger=self._ledger,
            changes=self.changes,
            lock_timeout=self._lock_timeout,
            refused=self._refused,
            max_refused=self._max_refused,
        )

    def __repr__(self) -> str:
        where = "" if self._private is None else f"{without_credentials(self._private.uri)!r}, "
        return f"DatabaseSink({where}{str(self.table)!r})"


@dataclass(frozen=True)
class _Private:
    """What stays in the driver."""

    dialect: Dialect
    uri: str = field(repr=False)
    options: dict[str, str] = field(repr=False)


class _CheckedStaging(ParquetStaging):
    """Refuses what the database would refuse, while the epoch can still run again."""

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
        """Takes a batch of rows that can be written."""
        self._sink.changes.check_rows("DatabaseSink", self._uid, batch)
        reason = self._sink.why_refused(batch)
        if reason is None and self._limits:
            reason = why_refused(self._sink.changes.upserts(batch), self._limits)
        if reason is not None:
            raise OutputTypeError(self._uid, f"{self._sink!r} got a row that cannot be written: {reason}.")
        super().write_batch(batch)


def _dialect_of(uri: str) -> tuple[Dialect, str]:
    if uri.startswith(("postgresql://", "postgres://")):
        return Postgres(), uri
    return SQLite(), f"file:{file_of(uri)}"
