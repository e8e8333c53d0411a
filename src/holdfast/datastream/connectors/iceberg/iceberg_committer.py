"""The commit of an epoch: one transaction of the catalog, which carries the epoch's number as a property of the table.

::

    load the table; read its property holdfast.<incarnation>.<sink>
    (at least the epoch: it was committed; nothing else is done)
    staged files get their final names; each is looked at: is it there, has it its size?
    one transaction: set the property, add all files, on the snapshot that was loaded
    (with a key: set the property, delete the keys of the epoch, append the rows that are put)
    it failed, because somebody was faster: load again, compare again

A catalog compares snapshots and not properties. So each epoch makes a snapshot, one without files if it changes
nothing: otherwise who wakes up in it, when others are several epochs further, would set the number back.

The library would retry a commit that failed, on the newest snapshot and without a look at the property: of two leaders
both would add their files. So its retries are off for these commits. The number is a property of the table and not of a
snapshot, because snapshots expire.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa

from holdfast.datastream.connectors.iceberg.field_ids import names_now
from holdfast.datastream.connectors.iceberg.iceberg_table import (
    RETRIES,
    Place,
    Table,
    directory_of,
    name_of,
    needed_columns,
    never_null,
    tell_of_partitions,
)
from holdfast.datastream.connectors.row_changes import ChangeColumns, EpochChanges
from holdfast.datastream.connectors.table_bucket import release, table_at
from holdfast.datastream.connectors.table_directory import target_of
from holdfast.datastream.sinks.task_owned import staged_rows
from holdfast.errors import ConfigurationError, HoldfastError, NotExistError, StorageError
from holdfast.runtime.function.sink import CommitRequest, Committer, CommitterInitContext
from holdfast.storage.file_system.scheme import file_system_for, join, local_path

_NUMBER: Final = re.compile("[0-9]{1,18}")
TRIES: Final = 5
"""Against other writers, before the job pauses between the tries."""


class IcebergCommitter(Committer):
    """Commits epochs into one table.

    Args:
        place: Of the table.
        changes: Key and kind of rows.
        context: Of the job.
    """

    def __init__(self, place: Place, changes: ChangeColumns, context: CommitterInitContext) -> None:
        self._place = place
        self._changes = changes
        self._of_epochs = EpochChanges(context.uid, changes)
        self._context = context

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        """Commits one epoch; if the catalog does not let it, it asks for another try."""
        from pyiceberg.exceptions import CommitFailedException

        path, identity = target_of("IcebergSink", requests)
        reason: StorageError | None = None
        for _ in range(TRIES):
            table = self._place.require(identity)
            if directory_of(table) != path:
                raise ConfigurationError(
                    f"The files of epoch {requests[0].epoch} were staged in {path!r}, and the Iceberg table "
                    f"{self._place.name!r} is in {directory_of(table)!r} now: it was moved. Nothing was committed. "
                    "Move it back until the job has committed what its checkpoint names."
                )
            try:
                is_new = self._commit_on(table, path, requests)
            except HoldfastError:
                raise
            except Exception as error:
                # Whether it was committed is not known: the table is asked before the next try.
                reason = self._place.failure("was not written", error)
                reason.__cause__ = error
                if not isinstance(error, CommitFailedException):
                    break
                continue
            _make_durable(table if is_new else self._place.require(identity))
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
        return _epoch(self._place.require(None), self._property(incarnation))

    def _property(self, incarnation: str) -> str:
        return f"holdfast.{incarnation}.{self._context.uid}"

    def _commit_on(self, table: Table, path: str, requests: Sequence[CommitRequest]) -> bool:
        """Commits an epoch unless this version of the table has it; whether it was new."""
        first = requests[0]
        name = self._property(first.incarnation)
        last = _epoch(table, name)
        if last is not None and last >= first.epoch:
            return False
        # Of this object alone; the catalog is sent changes, and does not see it.
        table.metadata.properties[RETRIES] = "0"
        if "staged" not in first.committable:
            self._put_and_delete(table, {name: str(first.epoch)}, requests)
            return True
        _look_as_staged(table, first.committable.get("schema"))
        tell_of_partitions(table)
        base = path if local_path(path) is None else f"file://{path}"
        files = [join(base, file.name) for file in table_at(path).publish(requests)]
        with table.transaction() as transaction:
            transaction.set_properties({name: str(first.epoch)})
            # That files are in the table already would be no evidence for what was committed.
            transaction.add_files(files, check_duplicate_files=False)
        return True

    def _put_and_delete(self, table: Table, properties: dict[str, str], requests: Sequence[CommitRequest]) -> None:
        """Replaces the rows of all keys of an epoch; files that have such a row are written anew."""
        puts, deletes = self._of_epochs.last_of_each_key(staged_rows(self._context, requests))
        keys = pa.concat_tables([part.select(list(self._changes.key)) for part in (puts, deletes)])
        puts, keys = self._as_named_now(table, puts), self._as_named_now(table, keys)
        puts = puts.cast(never_null(puts.schema, needed_columns(table)))  # of what is deleted only the key is there
        with table.transaction() as transaction, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Delete operation did not match any records")
            transaction.set_properties(properties)
            if keys.num_rows and table.current_snapshot() is not None:
                transaction.delete(_rows_with(keys))
            made_none = transaction.table_metadata.current_snapshot_id == table.metadata.current_snapshot_id
            if puts.num_rows or made_none:
                transaction.append(puts)

    def _as_named_now(self, table: Table, rows: pa.Table) -> pa.Table:
        """Rows with the names that their columns have now; without those that the table has dropped.

        Raises:
            ConfigurationError: One of the key is dropped.
        """
        names = names_now(rows.schema, table.schema().fields)
        for name in self._changes.key:
            if names[name] is None:
                raise ConfigurationError(
                    f"The Iceberg table {self._place.name!r} has lost the column {name!r} since rows were staged that "
                    "are found by it. Nothing was committed. Take the table back to a schema that has it, and the job "
                    "goes on."
                )
        kept = {name: now for name, now in names.items() if now is not None}
        return rows.select(list(kept)).rename_columns(list(kept.values()))


def _look_as_staged(table: Table, schema: int | None) -> None:
    """Gives this object the schema by which files were staged: the library finds their columns by names.

    A name may be that of another column by now. The files have the ids, and so have the statistics that it makes.
    """
    if schema in table.schemas():
        table.metadata = table.metadata.model_copy(update={"current_schema_id": schema})


def _rows_with(keys: pa.Table) -> Any:
    """The condition that a row has one of these keys."""
    from pyiceberg.expressions import And, EqualTo, In, Or

    if keys.num_columns == 1:
        return In(term=keys.column_names[0], values=keys.column(0).to_pylist())
    each = [And(*(EqualTo(term=name, value=value) for name, value in key.items())) for key in keys.to_pylist()]
    return each[0] if len(each) == 1 else Or(*each)


def _epoch(table: Table, name: str) -> int | None:
    text = table.properties.get(name)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        raise ConfigurationError(
            f"The property {name!r} of the Iceberg table {name_of(table)!r} says which epochs of the job are in there; "
            f"it is {text!r:.80}, which is no number. Nothing was committed. Set it to the last epoch that was "
            "committed."
        )
    return int(text)


def _make_durable(table: Table) -> None:
    """Makes sure that what a catalog points to outlives the machine: the library does not wait for a disk."""
    if local_path(table.location()) is None:
        return
    snapshot = table.current_snapshot()
    files = [table.metadata_location]
    if snapshot is not None:
        manifests = [m for m in snapshot.manifests(table.io) if m.added_snapshot_id == snapshot.snapshot_id]
        files += [snapshot.manifest_list, *(manifest.manifest_path for manifest in manifests)]
    for file in files:
        path = local_path(file)
        if path is not None:
            with suppress(NotExistError):  # expired since, and cleaned up
                file_system_for(path).make_durable(path)
