"""Recovery proposals for damaged files: names the newest checkpoint that does not need the damaged file.

Nothing is skipped silently: the job refuses to start, and the error names the file and the checkpoint to start from.
The operator decides whether to go back, or to restore the file from a copy.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint, try_read_retained
from holdfast.errors import CorruptFileError, HoldfastError
from holdfast.storage.file_system import base_name, join, parent
from holdfast.storage.job_directory import FileName, JobDirectory
from holdfast.storage.register import CheckpointPointer, FencedRegister, RegisterRecord

_VERSION: Final = re.compile(r"v-([0-9]{20})")
_WITHOUT_CHECKPOINT: Final = (
    "Restore it from a copy, start from a savepoint (-s PATH), or start without state (--fresh)."
)


def add_recovery_proposal(
    directory: JobDirectory, register: FencedRegister, error: CorruptFileError
) -> CorruptFileError:
    """Return the error with a proposal; the same error if it has one already, or none is known. Never raises.

    Args:
        directory: Directory of the job that found the damaged file.
        register: Register of the job.
        error: The error, which names the file.
    """
    if parent(error.path) == directory.register_dir:
        return add_register_proposal(directory, error)
    try:
        damaged = FileName.parse(base_name(error.path))
        if damaged is None:
            return error
        return CorruptFileError(
            error.path, error.offset, f"{error.reason} {_file_proposal(directory, register, damaged)}"
        )
    except HoldfastError:
        return error


def add_register_proposal(directory: JobDirectory, error: CorruptFileError) -> CorruptFileError:
    """Return the error with a proposal if the damaged file is a version of the job's register. Never raises."""
    try:
        if parent(error.path) != directory.register_dir:
            return error
        return CorruptFileError(error.path, error.offset, f"{error.reason} {_register_proposal(directory, error.path)}")
    except HoldfastError:
        return error


def _file_proposal(directory: JobDirectory, register: FencedRegister, damaged: FileName) -> str:
    """Describe what to do if a run or a state file is damaged."""
    state = register.read()
    documents = try_read_retained(directory, state)
    naming = [pointer.checkpoint_id for pointer, found in documents if _names(found, damaged)]
    named = f"Checkpoints {naming} name it. " if naming else ""
    for pointer, found in reversed(documents):
        if isinstance(found, CompletedCheckpoint) and not _names(found, damaged) and _has_its_runs(found, directory):
            return named + _start_from(directory, pointer)
    return f"{named}Every checkpoint of the job needs it. {_WITHOUT_CHECKPOINT}"


def _register_proposal(directory: JobDirectory, path: str) -> str:
    """Describe what to do if a version of the register is damaged: without it, the version before it counts."""
    match = _VERSION.fullmatch(base_name(path))
    what = "It is a version of the job's register, which names the newest checkpoint; nothing was changed. "
    if match is None or directory.fs.exists(_version_path(path, int(match[1]) + 1)):
        return what + _WITHOUT_CHECKPOINT
    before = _version_path(path, int(match[1]) - 1)
    record = RegisterRecord.decode(directory.fs.read(before), before)
    newest = record.state.newest
    if newest is None:
        return f"{what}Restore it from a copy. The version before it names no checkpoint."
    return (
        f"{what}Restore it from a copy, or move it out of its directory, so that the version before it counts. "
        f"{_start_from(directory, newest)}"
    )


def _start_from(directory: JobDirectory, pointer: CheckpointPointer) -> str:
    path = parent(directory.absolute(pointer.path))
    return (
        f"Checkpoint {pointer.checkpoint_id} does not need it: start with -s {path} (execution.state-recovery.path) "
        "to go back to it; later input is processed again."
    )


def _names(found: CompletedCheckpoint | HoldfastError, damaged: FileName) -> bool:
    if isinstance(found, HoldfastError):
        return False
    return any(FileName.parse(base_name(text)) == damaged for text in found.metadata.strings())


def _has_its_runs(checkpoint: CompletedCheckpoint, directory: JobDirectory) -> bool:
    """Return whether all runs of a checkpoint exist in full length; their content is checked on reading."""
    runs = [run for operator in checkpoint.metadata.operators for run in operator.runs]
    try:
        return all(directory.fs.status(directory.absolute(run.path)).size == run.size for run in runs)
    except HoldfastError:
        return False


def _version_path(path: str, number: int) -> str:
    return join(parent(path), f"v-{number:020d}")
