"""The commit of an epoch: one transaction of the catalog, which carries the epoch's number as a property of the table.

::

    load the table; read its property holdfast.<incarnation>.<sink>
    (at least the epoch: it was committed; nothing else is done)
    staged files get their final names; each is looked at: is it there, has it its size?
    one transaction: set the property, add all files, on the snapshot that was loaded
    it failed, because somebody was faster: load again, compare again

The library would retry a commit that failed, on the newest snapshot and without a look at the property: of two leaders
both would add their files. So its retries are off for these commits. The number is a property of the table and not of a
snapshot, because snapshots expire.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from holdfast.datastream.connectors.iceberg.iceberg_table import RETRIES, Place, Table, directory_of
from holdfast.datastream.connectors.table_directory import TableDirectory, target_of
from holdfast.errors import ConfigurationError, HoldfastError, NotExistError, StorageError
from holdfast.runtime.function.sink import CommitRequest, Committer, CommitterInitContext
from holdfast.storage.file_system.scheme import file_system_for, join, local_path

TRIES: Final = 5
"""Against other writers, before the job pauses between the tries."""


class IcebergCommitter(Committer):
    """Commits epochs into one table.

    Args:
        place: Of the table.
        context: Of the job.
    """

    def __init__(self, place: Place, context: CommitterInitContext) -> None:
        self._place = place
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
        files = [f"file://{join(path, final)}" for final in TableDirectory(path).publish(requests)]
        # Of this object alone; the catalog is sent changes, and does not see it.
        table.metadata.properties[RETRIES] = "0"
        with table.transaction() as transaction:
            transaction.set_properties({name: str(first.epoch)})
            # That files are in the table already would be no evidence for what was committed.
            transaction.add_files(files, check_duplicate_files=False)
        return True


def _epoch(table: Table, name: str) -> int | None:
    text = table.properties.get(name)
    if text is None:
        return None
    if not text.isdecimal():
        raise ConfigurationError(
            f"The property {name!r} of the Iceberg table {table.name()!r} says which epochs of the job are in there; "
            f"it is {text!r}, which is no number. Nothing was committed. Set it to the last epoch that was committed."
        )
    return int(text)


def _make_durable(table: Table) -> None:
    """Makes sure that what a catalog points to outlives the machine: the library does not wait for the disk."""
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
