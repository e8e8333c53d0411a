"""Finds and reads checkpoints, by the register's pointers or by path, and prepares the replay of one epoch.

A damaged checkpoint is never skipped silently: the error names the file and proposes another checkpoint, which the
operator may choose with `execution.state-recovery.path` (`-s PATH`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint, directory_of, pointer_for
from holdfast.checkpoint.metadata import CLAIMED, EVENT_TIME, EVENT_TIME_AGAIN, TARGETS, CheckpointMetadata, decode
from holdfast.errors import CorruptFileError, FormatVersionError, HoldfastError, NotExistError
from holdfast.kernel.clock import SystemClock
from holdfast.storage.file_system import FileSystem, absolute, base_name, is_absolute, join, parent
from holdfast.storage.job_directory import METADATA_NAME, SHARED, TASK_OWNED, FileName, JobDirectory, checkpoint_id_of
from holdfast.storage.register import CheckpointPointer, RegisterState
from holdfast.storage.scheme import file_system_for

AGAIN: Final = "again"
"""Key in the positions of streams: the newest batch was planned and must be run (again)."""


def recover_newest(directory: JobDirectory, state: RegisterState) -> CompletedCheckpoint | None:
    """Return the checkpoint that a recovery starts from; None if none has completed.

    Args:
        directory: The job's directory.
        state: The job's register, read after the token was raised.

    Raises:
        CorruptFileError: Its document is damaged or gone; the message proposes the one before.
        FormatVersionError: It was written by a newer version.
    """
    return recover(directory, state, state.newest) if state.newest is not None else None


def recover(directory: JobDirectory, state: RegisterState, pointer: CheckpointPointer) -> CompletedCheckpoint:
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


def recover_all(directory: JobDirectory, state: RegisterState) -> list[CompletedCheckpoint]:
    """Read all checkpoints that the register names, oldest first.

    Raises:
        CorruptFileError: One is damaged or missing.
    """
    return [recover(directory, state, pointer) for pointer in state.checkpoints]


def try_recover_all(
    directory: JobDirectory, state: RegisterState
) -> list[tuple[CheckpointPointer, CompletedCheckpoint | HoldfastError]]:
    """Read all checkpoints that the register names; for each its content or the error."""
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
    """Return the directory of the checkpoint at a path, without a trailing slash.

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


class RecordedClock(SystemClock):
    """Clock whose wall-clock time is fixed."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms


@dataclass(frozen=True)
class Replay:
    """Input of a replay of one epoch.

    Attributes:
        metadata: The document to start from.
        now: Wall-clock time during the replay, in milliseconds since 1970.
        recorded: Processing time of the original epoch; None if it is not known any more.
    """

    metadata: CheckpointMetadata
    now: int
    recorded: int | None


def prepare_replay(checkpoint: CompletedCheckpoint) -> Replay:
    """Prepare the replay of the epoch after a checkpoint or savepoint.

    The paths of the returned document are absolute: nothing is copied. Staged output and the targets of sinks are left
    out, because a replay commits nothing. If the checkpoint of the next epoch still exists, its processing time and its
    batch are used.

    Raises:
        StorageError: The directory cannot be listed.
    """
    metadata = checkpoint.metadata
    following = _following(checkpoint)
    positions = metadata.source_positions
    start, now, recorded = metadata.processing_time, metadata.processing_time, None
    root = root_of(checkpoint)
    if following is not None:
        after = following.metadata
        recorded = after.processing_time
        before, newest = _batch(positions), _batch(after.source_positions)
        if newest is not None and newest != before:
            streaming = {**after.source_positions["streaming"], AGAIN: True}
            positions = {**after.source_positions, "streaming": streaming}
            # Timers that have become due meanwhile must not start an epoch before that of the batch.
            start = recorded - 1
        else:
            now = recorded
    extra = {name: value for name, value in metadata.extra.items() if name not in (CLAIMED, TARGETS, EVENT_TIME)}
    if EVENT_TIME in metadata.extra:
        extra[EVENT_TIME_AGAIN] = metadata.extra[EVENT_TIME]
    operators = tuple(
        replace(
            operator,
            runs=tuple(replace(run, path=_absolute(run.path, root)) for run in operator.runs),
            subtasks=tuple(_value(part, root) for part in operator.subtasks),
            committables={},
        )
        for operator in metadata.operators
    )
    made = replace(
        metadata,
        operators=operators,
        source_positions=_value(positions, root),
        processing_time=start,
        properties={**metadata.properties, "type": "CHECKPOINT", "format": None},
        extra=extra,
    )
    return Replay(made, now, recorded)


def _following(checkpoint: CompletedCheckpoint) -> CompletedCheckpoint | None:
    """Return the checkpoint of the next epoch of the same incarnation; None if it does not exist any more."""
    if checkpoint.metadata.is_savepoint:
        return None
    directory = parent(checkpoint.path)
    names = [name for name in file_system_for(directory).list_names(directory) if checkpoint_id_of(name) is not None]
    for name in sorted(names, key=lambda name: checkpoint_id_of(name) or 0):
        if (checkpoint_id_of(name) or 0) <= checkpoint.checkpoint_id:
            continue
        try:
            found = load(join(directory, name))
        except HoldfastError:
            continue  # it was aborted, or is about to be deleted
        same = found.metadata.incarnation == checkpoint.metadata.incarnation
        if same and not found.metadata.is_savepoint and found.metadata.epoch == checkpoint.metadata.epoch + 1:
            return found
    return None


def _batch(positions: Any) -> int | None:
    streaming = positions.get("streaming") if isinstance(positions, Mapping) else None
    return None if not streaming else int(streaming["batch_id"])


def _value(value: Any, root: str) -> Any:
    """Return a JSON value in which the paths of the job's files are absolute."""
    if isinstance(value, str):
        return _absolute(value, root)
    if isinstance(value, Mapping):
        return {name: _value(part, root) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_value(part, root) for part in value]
    return value


def _absolute(path: str, root: str) -> str:
    is_own = path.startswith((SHARED + "/", TASK_OWNED + "/")) and FileName.parse(base_name(path)) is not None
    return join(root, path) if is_own and not is_absolute(path) else path
