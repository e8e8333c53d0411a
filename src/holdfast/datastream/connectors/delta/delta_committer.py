"""The commit of an epoch: one version of the table, which carries the epoch's number.

::

    open the table; read its transaction version of this incarnation and sink ON THIS HANDLE
    (at least the epoch: it was committed; nothing else is done)
    staged files get their final names; each is looked at: is it there, has it its size?
    one commit of that handle: add all files, set the transaction version to the epoch
    it failed, because somebody was faster: open again, compare again

A handle that is opened after the look would take the epoch a second time, so look and commit belong to one; and a
handle that has become stale is refused by the log if the other commit was of the same incarnation and sink. Other
writers do no harm: their commits are rebased on.

With a key, rows are merged. A merge that changes nothing makes no version, so one without files is made for the number.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa

from holdfast.datastream.connectors.delta import delta_table
from holdfast.datastream.connectors.row_changes import ChangeColumns, EpochChanges
from holdfast.datastream.connectors.table_bucket import release, table_at
from holdfast.datastream.connectors.table_directory import target_of
from holdfast.datastream.sinks.task_owned import staged_rows
from holdfast.errors import HoldfastError, NotExistError, StorageError
from holdfast.kernel.malformed import MALFORMED
from holdfast.kernel.secret import shown_error
from holdfast.runtime.function.sink import CommitRequest, Committer, CommitterInitContext
from holdfast.storage.file_system.scheme import file_system_for, join, local_path

TRIES: Final = 5
"""Against other writers, before the job pauses between the tries."""

LOOK_BACK: Final = 100
"""Versions whose log is made durable again when an epoch is found that an earlier process has committed."""

_OF_THE_LOG: Final = ("json", "checkpoint.parquet")

DELETED: Final = "__holdfast_deleted"


class DeltaCommitter(Committer):
    """Commits epochs into one table.

    Args:
        path: Of the table into which the sink writes today.
        changes: Key and kind of rows.
        context: Of the job.
    """

    def __init__(self, path: str, changes: ChangeColumns, context: CommitterInitContext) -> None:
        self._path = path
        self._changes = changes
        self._of_epochs = EpochChanges(context.uid, changes)
        self._context = context

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        """Commits one epoch; if the table does not let it, it asks for another try."""
        path, identity = target_of("DeltaSink", requests)
        for _ in range(TRIES):
            table = delta_table.require_table(path, identity)
            try:
                is_new = self._commit_on(table, path, requests)
            except HoldfastError:
                raise
            except Exception as error:
                # Whether it was committed is not known: the table is asked before the next try.
                reason = StorageError(f"The Delta table {path!r} was not written: {shown_error(error)}")
                reason.__cause__ = error
                if not isinstance(error, delta_table.deltalake().exceptions.CommitFailedError):
                    break
                continue
            _make_durable(path, table.version() - (0 if is_new else LOOK_BACK))
            held = release(path, requests)
            if held is not None:
                reason = held  # the next try finds the epoch, and releases it
                break
            if not is_new:
                for request in requests:
                    request.signal_already_committed()
            return
        for request in requests:
            request.retry_later(reason)

    def last_epoch(self, incarnation: str) -> int | None:
        table = delta_table.require_table(self._path, None)
        try:
            version = table.transaction_version(self._application(incarnation))
        except Exception as error:
            raise StorageError(f"The Delta table {self._path!r} cannot be read: {shown_error(error)}") from error
        return None if version is None else int(version)

    def _application(self, incarnation: str) -> str:
        return f"holdfast.{incarnation}.{self._context.uid}"

    def _commit_on(self, table: delta_table.Table, path: str, requests: Sequence[CommitRequest]) -> bool:
        """Commits an epoch unless this version of the table has it; whether it was new."""
        first = requests[0]
        application = self._application(first.incarnation)
        last = table.transaction_version(application)
        if last is not None and last >= first.epoch:
            return False
        transaction = delta_table.deltalake().Transaction(application, first.epoch)
        properties = delta_table.deltalake().CommitProperties(app_transactions=[transaction])
        if "staged" in first.committable:
            _add(table, path, requests, properties)
        else:
            self._merge(table, requests, properties)
        return True

    def _merge(self, table: delta_table.Table, requests: Sequence[CommitRequest], properties: Any) -> None:
        puts, deletes = self._of_epochs.last_of_each_key(staged_rows(self._context, requests))
        rows = pa.concat_tables(
            [part.append_column(DELETED, pa.repeat(is_deleted, part.num_rows)) for part, is_deleted in
             ((puts, pa.scalar(False)), (deletes, pa.scalar(True)))]
        )  # fmt: skip
        key = " and ".join(f"target.{_quoted(name)} = source.{_quoted(name)}" for name in self._changes.key)
        values = {_quoted(name): f"source.{_quoted(name)}" for name in puts.column_names}
        merger = table.merge(rows, key, source_alias="source", target_alias="target", commit_properties=properties)
        merger = merger.when_matched_delete(predicate=f"source.{DELETED}")
        merger = merger.when_matched_update(values, predicate=f"not source.{DELETED}")
        before = table.version()
        merger.when_not_matched_insert(values, predicate=f"not source.{DELETED}").execute()
        if table.version() == before:
            _append(table, [], properties)


def _add(table: delta_table.Table, path: str, requests: Sequence[CommitRequest], properties: Any) -> None:
    """Adds the staged files of an epoch to a table.

    Raises:
        ConfigurationError: One is not there, or not whole.
    """
    actions = [
        delta_table.deltalake().transaction.AddAction(
            path=file.name,
            size=request.committable["bytes"],
            partition_values=request.committable["partition"],
            modification_time=file.modified_at,
            data_change=True,
            stats=json.dumps({"numRecords": request.committable["rows"]}),
        )
        for request, file in zip(requests, table_at(path).publish(requests), strict=True)
    ]
    _append(table, actions, properties)


def _append(table: delta_table.Table, actions: list[Any], properties: Any) -> None:
    columns = list(table.metadata().partition_columns)
    table.create_write_transaction(
        actions, "append", table.schema(), partition_by=columns, commit_properties=properties
    )


def _make_durable(path: str, since: int) -> None:
    """Makes sure that what was committed outlives the machine: the client does not wait for a disk.

    Args:
        path: Of the table.
        since: The version from which on.
    """
    if local_path(path) is None:
        return
    fs, log = file_system_for(path), join(path, "_delta_log")
    for name in fs.list_names(log):
        number, _, kind = name.partition(".")
        if not number.isdecimal() or int(number) < since:
            continue
        if kind == "json":
            for line in fs.read(join(log, name)).splitlines():
                added = _added(line) if line.startswith(b'{"add"') else None
                if added is not None and "://" not in added:
                    with suppress(NotExistError):  # compacted, and cleaned up since
                        fs.make_durable(join(path, unquote(added)))
        if kind in _OF_THE_LOG:
            fs.make_durable(join(log, name))


def _added(line: bytes) -> str | None:
    """The file that a line of the log adds; None for what only other clients write, or take for JSON."""
    try:
        return str(json.loads(line, strict=False)["add"]["path"])
    except MALFORMED:
        return None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
