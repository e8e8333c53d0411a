"""Writing a checkpoint: its document, then its pointer, which is the commit point."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.checkpoint.document.completed_checkpoint import CompletedCheckpoint, pointer_for
from holdfast.checkpoint.document.metadata import CheckpointMetadata, encode
from holdfast.checkpoint.protocol.pending_checkpoint import PendingCheckpoint
from holdfast.checkpoint.storage.checkpoint_storage import CheckpointStorageAccess, FileCheckpointStorageAccess
from holdfast.checkpoint.storage.location import CheckpointStorageLocation, FileCheckpointLocation
from holdfast.checkpoint.store.completed_store import CompletedCheckpointStore
from holdfast.errors import (
    AlreadyExistError,
    CheckpointError,
    CheckpointFailureReason,
    ConflictError,
    HoldfastError,
    PossibleInconsistentStateError,
    StateError,
    StorageError,
)
from holdfast.kernel import fault
from holdfast.storage.file_system.os_error import translate


@dataclass(frozen=True)
class Completed:
    """A checkpoint that was written.

    Attributes:
        checkpoint: The checkpoint.
        subsumed: The newest one that it replaced, None if it replaced none.
    """

    checkpoint: CompletedCheckpoint
    subsumed: CompletedCheckpoint | None


class CompletionError(CheckpointError):
    """A checkpoint could not be written.

    Attributes:
        keep_files: Whether it may be complete after all, or is another leader's business by now: nothing that it may
            refer to is deleted.
    """

    def __init__(self, cause: BaseException, *, keep_files: bool) -> None:
        super().__init__(CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE, str(cause), cause)
        self.keep_files = keep_files


def write_checkpoint(
    pending: PendingCheckpoint,
    metadata: CheckpointMetadata,
    storage: CheckpointStorageAccess,
    store: CompletedCheckpointStore,
) -> Completed:
    """Write a checkpoint that everybody has acknowledged; savepoints get no pointer.

    Raises:
        CompletionError: It is not complete, or nobody knows whether it is.
    """
    location = pending.location
    if location is None:
        raise StateError(f"{pending!r} has no place.")
    try:
        data = _write_document(location, metadata)
    except (HoldfastError, TypeError, ValueError) as error:
        # A document that was there before is not ours to delete.
        raise CompletionError(error, keep_files=isinstance(error, AlreadyExistError)) from error
    path = _pointer_path(location, storage)
    checkpoint = CompletedCheckpoint(
        metadata,
        location.get_external_pointer(),
        pointer_for(metadata, data, path),
        properties=pending.properties,
        timestamp=pending.timestamp,
        fs=location.fs if isinstance(location, FileCheckpointLocation) else None,
    )
    if pending.properties.is_savepoint():
        return Completed(checkpoint, None)
    try:
        return Completed(checkpoint, store.add_checkpoint_and_subsume_oldest_one(checkpoint))
    except (StorageError, ConflictError, StateError) as error:
        # These three say that nothing happened; everything else leaves it open.
        raise CompletionError(error, keep_files=False) from error
    except HoldfastError as error:
        raise CompletionError(error, keep_files=True) from error


def _write_document(location: CheckpointStorageLocation, metadata: CheckpointMetadata) -> bytes:
    """Write the document; if the answer got lost, look whether it is there. Ids are unique, so it can only be ours."""
    try:
        with fault.point("metadata.write"):
            return location.write_metadata(metadata)
    except (fault.AnswerLostError, PossibleInconsistentStateError, AlreadyExistError):
        data = encode(metadata)
        if isinstance(location, FileCheckpointLocation) and location.holds(data):
            return data
        raise
    except OSError as error:
        raise translate(error, "write the document of", location.get_external_pointer()) from error


def _pointer_path(location: CheckpointStorageLocation, storage: CheckpointStorageAccess) -> str:
    if not isinstance(location, FileCheckpointLocation):
        return location.get_external_pointer()
    if isinstance(storage, FileCheckpointStorageAccess) and location.path.startswith(storage.directory.path + "/"):
        return storage.directory.relative(location.metadata_path)
    return location.metadata_path
