"""Where a savepoint goes, and copies of all files that it names, so that it needs no other directory."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from holdfast.checkpoint.config.options import SAVEPOINT_DIRECTORY
from holdfast.checkpoint.document.completed_checkpoint import CompletedCheckpoint, pointer_for
from holdfast.checkpoint.document.metadata import CLAIMED, PREVIOUS_EPOCH, CheckpointMetadata, encode
from holdfast.checkpoint.protocol.pending_checkpoint import PendingCheckpoint
from holdfast.checkpoint.recovery.adoption import adopt
from holdfast.checkpoint.storage.location import FileCheckpointLocation
from holdfast.checkpoint.storage.savepoint_place import check_place
from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import new_nonce
from holdfast.runtime.job.control import SnapshotRequest
from holdfast.storage.file_system.scheme import join
from holdfast.storage.job.job_directory import JobDirectory

_PROBE: Final = ".holdfast-probe-"


def place_of(request: SnapshotRequest, configuration: Configuration) -> str:
    """The directory that a savepoint is to go to.

    Raises:
        ConfigurationError: No directory is given or configured.
    """
    directory = request.directory or configuration.get(SAVEPOINT_DIRECTORY)
    if directory is None:
        raise ConfigurationError(
            "no savepoint directory: pass one, or set execution.checkpointing.savepoint-dir to a directory that "
            "outlives the job"
        )
    return directory


def try_place(directory: str) -> None:
    """Makes sure that something can be written where a savepoint is to go. Blocks.

    Raises:
        HoldfastError: Nothing can be written there, or it is no place for a savepoint.
    """
    fs = check_place(directory)
    fs.write_atomic(join(directory, f"{_PROBE}{new_nonce()}"), b"")
    for name in fs.list_names(directory):
        if name.startswith(_PROBE):  # also those of others who died here
            fs.delete_in(fs.resolved(directory), name)


def copied(pending: PendingCheckpoint, metadata: CheckpointMetadata, own: JobDirectory) -> CheckpointMetadata:
    """The document with all runs and source entries copied to the savepoint.

    Staged output is left out: the checkpoint of the same epoch has named it, and it is committed.

    Args:
        pending: The savepoint.
        metadata: What it names in the job's directory.
        own: That directory.

    Raises:
        HoldfastError: A file could not be copied.
    """
    location = pending.location
    assert isinstance(location, FileCheckpointLocation)
    target = JobDirectory(location.fs, location.path, own.job_id, create_subdir=False)
    without_output = tuple(replace(operator, committables={}) for operator in metadata.operators)
    # All files are copied, so all of them are new.
    extra = {name: value for name, value in metadata.extra.items() if name != CLAIMED}
    checkpoint = replace(metadata, operators=without_output, extra={**extra, PREVIOUS_EPOCH: 0})
    pointer = pointer_for(checkpoint, encode(checkpoint), own.metadata_path(metadata.checkpoint_id))
    source = CompletedCheckpoint(checkpoint, own.chk_dir(metadata.checkpoint_id), pointer, fs=own.fs)
    return adopt(source, target, metadata.token)
