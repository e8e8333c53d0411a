"""Reads the documents of checkpoints, by the register's pointers or by path. Runs are opened in tasks.

A damaged checkpoint is never skipped silently: the error names the file and proposes another checkpoint, which the
operator may choose with `execution.state-recovery.path` (`-s PATH`).
"""

from __future__ import annotations

import hashlib

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint, directory_of, pointer_for
from holdfast.checkpoint.metadata import decode
from holdfast.errors import CorruptFileError, FormatVersionError, HoldfastError, NotExistError
from holdfast.storage.file_system import absolute, join, parent
from holdfast.storage.job_directory import METADATA_NAME, JobDirectory, resolve_pointer
from holdfast.storage.register import CheckpointPointer, RegisterState
from holdfast.storage.scheme import file_system_for


def read_newest(directory: JobDirectory, state: RegisterState) -> CompletedCheckpoint | None:
    """Return the checkpoint that a recovery starts from; None if none has completed.

    Args:
        directory: The job's directory.
        state: The job's register, read after the token was raised.

    Raises:
        CorruptFileError: Its document is damaged or gone; the message proposes the one before.
        FormatVersionError: It was written by a newer version.
    """
    return read_by_pointer(directory, state, state.newest) if state.newest is not None else None


def read_by_pointer(directory: JobDirectory, state: RegisterState, pointer: CheckpointPointer) -> CompletedCheckpoint:
    """Read a checkpoint that the register names, and compare it with its pointer.

    Raises:
        CorruptFileError: Its document is damaged or gone; the message proposes the one before.
        FormatVersionError: It was written by a newer version.
    """
    path = directory.absolute(pointer.path)
    try:
        data = directory.fs.read(path, 0, pointer.length + 1)
        if len(data) != pointer.length or hashlib.sha256(data).hexdigest() != pointer.digest:
            raise CorruptFileError(
                path, None, f"it differs from the document of {pointer.length} bytes that was completed."
            )
        metadata = decode(data, path)
    except (CorruptFileError, NotExistError) as error:
        damage = f"checkpoint {pointer.checkpoint_id} cannot be restored. {error} "
        raise CorruptFileError(path, None, damage + _proposal(directory, state, pointer)) from error
    return CompletedCheckpoint(metadata, directory_of(path), pointer, fs=directory.fs)


def read_retained(directory: JobDirectory, state: RegisterState) -> list[CompletedCheckpoint]:
    """Read all checkpoints that the register names, oldest first.

    Raises:
        CorruptFileError: One is damaged or missing.
    """
    return [read_by_pointer(directory, state, pointer) for pointer in state.checkpoints]


def try_read_retained(
    directory: JobDirectory, state: RegisterState
) -> list[tuple[CheckpointPointer, CompletedCheckpoint | HoldfastError]]:
    """Read all checkpoints that the register names; for each its content or the error."""
    found: list[tuple[CheckpointPointer, CompletedCheckpoint | HoldfastError]] = []
    for pointer in state.checkpoints:
        try:
            found.append((pointer, read_by_pointer(directory, state, pointer)))
        except HoldfastError as error:
            found.append((pointer, error))
    return found


def read_by_path(path: str) -> CompletedCheckpoint:
    """Read the checkpoint or savepoint at a path or URI.

    Args:
        path: Its directory, with or without a slash at the end, or its `_metadata` file.

    Raises:
        ConfigurationError: The path is empty.
        NotExistError: There is no checkpoint.
        CorruptFileError: Its document is damaged.
        FormatVersionError: It was written by a newer version.
    """
    if path is None:
        raise TypeError("The path of a checkpoint cannot be None.")
    fs = file_system_for(path.strip())
    directory = resolve_pointer(fs, absolute(path.strip()))
    document = join(directory, METADATA_NAME)
    data = fs.read(document)
    metadata = decode(data, document)
    return CompletedCheckpoint(metadata, directory, pointer_for(metadata, data, document), fs=fs)


def root_of(checkpoint: CompletedCheckpoint) -> str:
    """Return the directory to which the paths in the document are relative."""
    return checkpoint.path if checkpoint.metadata.is_savepoint else parent(checkpoint.path)


def is_in(checkpoint: CompletedCheckpoint, directory: JobDirectory) -> bool:
    """Return whether a checkpoint is in a job's directory, also if the paths differ by a link or a scheme."""
    root = root_of(checkpoint)
    return file_system_for(root).resolved(root).rstrip("/") == directory.fs.resolved(directory.path).rstrip("/")


def _proposal(directory: JobDirectory, state: RegisterState, damaged: CheckpointPointer) -> str:
    """Describe which other checkpoint can be restored: the newest undamaged one."""
    position = state.checkpoints.index(damaged)
    for pointer in reversed(state.checkpoints):
        path = directory.absolute(pointer.path)
        if pointer == damaged or not _is_whole(directory, path, pointer):
            continue
        is_older = state.checkpoints.index(pointer) < position
        which = "The one before it" if is_older else "The newest one"
        return (
            f"{which}, checkpoint {pointer.checkpoint_id}, is whole: start with -s {directory_of(path)} "
            f"(execution.state-recovery.path) to go {'back to it' if is_older else 'on from it'}; what came after it "
            "is processed again."
        )
    return (
        "No other checkpoint of the job is whole. Bring the file back from a copy, start from a savepoint with "
        "-s PATH, or start without state with --fresh."
    )


def _is_whole(directory: JobDirectory, path: str, pointer: CheckpointPointer) -> bool:
    try:
        data = directory.fs.read(path, 0, pointer.length + 1)
        decode(data, path)
    except (CorruptFileError, NotExistError, FormatVersionError):
        return False
    return hashlib.sha256(data).hexdigest() == pointer.digest
