"""`TableCommitter`: commits epochs into a table exactly once, through a `TableBackend` of `DeltaSink` or `IcebergSink`.

::

    load the table; read the last epoch of this incarnation and sink OF THIS HANDLE
    (a later one: the epoch was committed; nothing else is done. The same one: only files that it does not name are
    left)
    staged files get their final names, and each is checked: does it exist, is its size right?
    one commit of that handle: add all files, or change the rows of each key, and record the epoch with their names
    the commit conflicts with another writer: load again, compare again

The epoch is compared and recorded on one handle, which is one version of the table. If the table was loaded again
between the two, the second of two leaders would commit the epoch once more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from holdfast.datastream.connectors.row_changes import ChangeColumns, EpochChanges
from holdfast.datastream.connectors.table_files import DataFile, parse_target, table_directory
from holdfast.datastream.sinks.staged_files import name_of, not_recorded, staged_rows
from holdfast.errors import HoldfastError, StorageError
from holdfast.runtime.function.sink import CommitRequest, Committer, CommitterInitContext

TRIES: Final = 5
"""Commits of one epoch that may conflict with other writers before the job pauses."""

Table = Any
"""A handle of the client library: one version of a table, from which a commit starts."""


class Record(NamedTuple):
    """The record of an epoch in a table's commit.

    Attributes:
        marker: The name under which the table keeps the last epoch of one sink in one incarnation.
        epoch: The epoch.
        names: The names of all committables of the epoch that the table has after this commit.
    """

    marker: str
    epoch: int
    names: Sequence[str]


class TableBackend(ABC):
    """The commits of one kind of table, through its client library. Every method blocks.

    `marker` is the name under which the table keeps the last epoch of one sink in one incarnation.
    """

    sink: str
    """The class of the sink, for messages."""

    @abstractmethod
    def load(self) -> Table:
        """Load the newest version of the table into which the sink writes today."""

    @abstractmethod
    def load_target(self, path: str, identity: str, epoch: int) -> Table:
        """Load the newest version of the table for which an epoch was staged.

        Raises:
            StorageError: The table does not exist, or has another identity.
            ConfigurationError: The table has moved to another directory.
        """

    @abstractmethod
    def last_epoch(self, table: Table, marker: str) -> int | None:
        """Return the epoch that this version of the table has recorded; None if none."""

    @abstractmethod
    def recorded_names(self, table: Table, marker: str) -> list[str] | None:
        """Return the names that are recorded with the last epoch; None if an older release has recorded it."""

    @abstractmethod
    def add_files(
        self, table: Table, record: Record, requests: Sequence[CommitRequest], path: str, files: Sequence[DataFile]
    ) -> None:
        """Add files to this version of the table, and record their epoch, in one commit.

        Args:
            table: The handle on which the last epoch was read.
            record: The record.
            requests: The committables of the files, in the same order.
            path: The directory of the table.
            files: The files, relative to `path`.
        """

    @abstractmethod
    def change_rows(self, table: Table, record: Record, upserts: pa.Table, deletes: pa.Table) -> None:
        """Change the rows of some keys, and record their epoch, in one commit. No key occurs twice."""

    @abstractmethod
    def make_durable(self, table: Table, path: str, *, is_new: bool) -> None:
        """Sync the commit of an epoch to disk, because client libraries do not.

        Args:
            table: The handle after the commit.
            path: The directory of the table.
            is_new: False if an earlier process has committed the epoch, in this version or an older one.
        """

    @abstractmethod
    def is_conflict(self, error: Exception) -> bool:
        """Return whether a commit failed because another writer was faster, so that a retry may succeed at once."""

    @abstractmethod
    def failure(self, what: str, error: Exception, path: str | None = None) -> StorageError:
        """Return the error for a failure of the client library.

        Args:
            what: The problem of the table, such as "cannot be read".
            error: The library's own error.
            path: The directory of the table, if it is not the one of `load`.
        """


class TableCommitter(Committer):
    """Commits epochs into one table.

    Args:
        backend: The kind of table.
        changes: The key, and the column of row kinds.
        context: The job and the sink.
    """

    def __init__(self, backend: TableBackend, changes: ChangeColumns, context: CommitterInitContext) -> None:
        self._backend = backend
        self._epoch_changes = EpochChanges(context.uid, changes)
        self._context = context

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        if not requests:  # of a committer that wraps this one, and holds all back
            return
        path, identity = parse_target(self._backend.sink, requests)
        for _ in range(TRIES):
            table = self._backend.load_target(path, identity, requests[0].epoch)
            try:
                is_new = self._commit_unless_recorded(table, path, requests)
            except HoldfastError:
                raise
            except Exception as error:  # noqa: BLE001 - the errors of each table format differ
                # The commit may have succeeded nevertheless: the next try reads the recorded epoch first.
                reason = self._backend.failure("was not written", error, path)
                reason.__cause__ = error
                if not self._backend.is_conflict(error):
                    break
                continue
            self._backend.make_durable(table, path, is_new=is_new)
            try:
                if "staged" in requests[0].committable:
                    table_directory(path).release(requests)
            except StorageError as error:
                reason = error  # the next try finds the epoch recorded, and releases the files
                break
            if not is_new:
                for request in requests:
                    request.signal_already_committed()
            return
        for request in requests:
            request.retry_later(reason)

    def last_epoch(self, incarnation: str) -> int | None:
        table = self._backend.load()
        try:
            return self._backend.last_epoch(table, self._marker(incarnation))
        except HoldfastError:
            raise
        except Exception as error:
            raise self._backend.failure("cannot be read", error) from error

    def _marker(self, incarnation: str) -> str:
        return f"holdfast.{incarnation}.{self._context.uid}"

    def _commit_unless_recorded(self, table: Table, path: str, requests: Sequence[CommitRequest]) -> bool:
        """Commit an epoch unless this version of the table has recorded it; return whether it was new."""
        epoch, marker = requests[0].epoch, self._marker(requests[0].incarnation)
        last = self._backend.last_epoch(table, marker)
        if last is not None and last > epoch:
            return False
        recorded: Sequence[str] = ()
        if last == epoch:
            found = self._backend.recorded_names(table, marker)
            requests, recorded = not_recorded(requests, found), found or ()
            if not requests:
                return False
        record = Record(marker, epoch, [*recorded, *(name_of(request.committable) for request in requests)])
        if "staged" in requests[0].committable:
            files = table_directory(path).publish(requests)
            self._backend.add_files(table, record, requests, path, files)
        else:
            upserts, deletes = self._epoch_changes.last_of_each_key(staged_rows(self._context, requests))
            self._backend.change_rows(table, record, upserts, deletes)
        return True
