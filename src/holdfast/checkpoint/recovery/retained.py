"""Finding and reading the checkpoint that a job starts from.

Either the newest one that the job's register names, or the one of a path: its directory, with or without a slash at the
end, or its `_metadata` file. A damaged one is never skipped in silence: the error names the file and proposes the one
before, which the operator may choose with `execution.state-recovery.path` (`-s PATH`).
"""

from __future__ import annotations

import hashlib

from holdfast.checkpoint.document.completed_checkpoint import CompletedCheckpoint, directory_of, pointer_for
from holdfast.checkpoint.document.metadata import decode
from holdfast.errors import CorruptFileError, FormatVersionError, HoldfastError, NotExistError
from holdfast.storage.file_system.path import absolute, base_name, parent
from holdfast.storage.file_system.scheme import FileSystem, file_system_for, join
from holdfast.storage.job.job_directory import METADATA_NAME, JobDirectory
from holdfast.storage.register.register_state import CheckpointPointer, RegisterState


def newest(directory: JobDirectory, state: RegisterState) -> CompletedCheckpoint | None:
    """Return the checkpoint that a recovery starts from, None if none has completed.

    Args:
        directory: The job's directory.
        state: The job's register, read after the token was raised.

    Raises:
        CorruptFileError: Its document is damaged or gone; the message proposes the one before.
        FormatVersionError: It was written by a newer version.
    """
    return recover(directory, state, state.newest) if state.newest is not None else None


def recover(directory: JobDirectory, state: RegisterState, pointer: CheckpointPointer) -> CompletedCheckpoint:
    """Read one of the checkpoints that the register names, and compare it with its pointer.

    Raises:
        CorruptFileError: Its document is damaged or gone; the message proposes the one before.
        FormatVersionError: It was written by a newer version.
    """
    path = directory.absolute(pointer.path)
    try:
        data = directory.fs.read(path, 0, pointer.length + 1)
        if len(data) != pointer.length or hashlib.sha256(data).hexdigest() != pointer.digest:
            raise CorruptFileError(path, None, f"it is not the document of {pointer.length} bytes that was completed.")
        metadata = decode(data, path)
    except (CorruptFileError, NotExistError) as error:
        damage = f"checkpoint {pointer.checkpoint_id} cannot be restored. {error} "
        raise CorruptFileError(path, None, damage + _proposal(directory, state, pointer)) from error
    return CompletedCheckpoint(metadata, directory_of(path), pointer, fs=directory.fs)


def recover_all(directory: JobDirectory, state: RegisterState) -> list[CompletedCheckpoint]:
    """Read all checkpoints that the register names, in its order; what the completed checkpoint store starts with.

    Raises:
        CorruptFileError: One is damaged or gone: none is skipped.
    """
    return [recover(directory, state, pointer) for pointer in state.checkpoints]


def readable(
    directory: JobDirectory, state: RegisterState
) -> list[tuple[CheckpointPointer, CompletedCheckpoint | HoldfastError]]:
    """Read all checkpoints that the register names, each with its content or what is wrong with it; for listings."""
    found: list[tuple[CheckpointPointer, CompletedCheckpoint | HoldfastError]] = []
    for pointer in state.checkpoints:
        try:
            found.append((pointer, recover(directory, state, pointer)))
        except HoldfastError as error:
            found.append((pointer, error))
    return found


def load(path: str) -> CompletedCheckpoint:
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


def resolve_pointer(fs: FileSystem, path: str) -> str:
    """Return the directory of the checkpoint that a path means, without a slash at the end.

    Raises:
        NotExistError: There is no checkpoint.
    """
    trimmed = path.rstrip("/") or "/"
    directory = parent(trimmed) if base_name(trimmed) == METADATA_NAME else trimmed
    if not fs.exists(join(directory, METADATA_NAME)):
        where = "the file does not exist" if not fs.exists(directory) else f"it has no {METADATA_NAME!r} file"
        raise NotExistError(
            f"No checkpoint or savepoint at {path!r}: {where}. Give its directory, or its {METADATA_NAME!r} file; "
            "`holdfast checkpoints DIR` lists those of a job."
        )
    return directory


def root_of(checkpoint: CompletedCheckpoint) -> str:
    """Return the directory to which the paths in a checkpoint's document are relative."""
    return checkpoint.path if checkpoint.metadata.is_savepoint else parent(checkpoint.path)


def is_in(checkpoint: CompletedCheckpoint, directory: JobDirectory) -> bool:
    """Whether a checkpoint lies in a job's directory, by whatever path, URI or link it was named."""
    root = root_of(checkpoint)
    return file_system_for(root).resolved(root).rstrip("/") == directory.fs.resolved(directory.path).rstrip("/")


def _proposal(directory: JobDirectory, state: RegisterState, damaged: CheckpointPointer) -> str:
    """Say which other checkpoint can be restored: the newest one that is whole."""
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
