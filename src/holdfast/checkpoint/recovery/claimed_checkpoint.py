"""A checkpoint of another job that belongs to the job that was started from it.

Only who leads a job may delete what belongs to it. So claiming a checkpoint is to lead its job, for as long as it takes
to raise the token of its register: a driver of that job that still runs is fenced, and the register says whose the job
is from then on. When the new job needs the checkpoint no more, it takes the pointer out of that register, which is when
it is gone, and then deletes its document and those files that no other retained checkpoint of that job names.

If somebody has led the job meanwhile, it has taken itself back, and nothing of it is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from holdfast.checkpoint.document.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.document.metadata import CheckpointMetadata
from holdfast.checkpoint.recovery.retained import load, recover_all, root_of
from holdfast.errors import ConfigurationError, HoldfastError, NotExistError
from holdfast.kernel import fault
from holdfast.kernel.ids import JobID
from holdfast.kernel.secret import get_logger
from holdfast.storage.file_system.path import base_name, is_absolute, parent
from holdfast.storage.file_system.scheme import file_system_for
from holdfast.storage.job.job_directory import METADATA_NAME, JobDirectory
from holdfast.storage.job.naming import FileName
from holdfast.storage.register.file_register import FileRegister
from holdfast.storage.register.register_state import CheckpointPointer, RegisterState

_log: Final = get_logger(__name__)


def directory_of_job(snapshot: CompletedCheckpoint) -> JobDirectory:
    """Return the directory of the job that has a checkpoint, absolute where paths are local."""
    root = root_of(snapshot)
    fs = file_system_for(root)
    place = root if is_absolute(root) else fs.resolved(root)
    return JobDirectory(fs, place, JobID.from_hex(snapshot.get_job_id()), create_subdir=False)


def take(snapshot: CompletedCheckpoint, owner: str) -> None:
    """Fence the job of a checkpoint, which then is the owner's. Blocks. May be repeated.

    Args:
        snapshot: The checkpoint.
        owner: Who claims it, as the register is to say.

    Raises:
        ConfigurationError: Its job does not retain it any more.
        StorageError, ConflictError: The register could not be written.
    """
    register = FileRegister.of(directory_of_job(snapshot))
    found = _pointer(register.read(), snapshot.pointer.digest)
    if found is not None:
        found = _pointer(register.raise_token(owner).state, snapshot.pointer.digest)
    if found is None:
        raise ConfigurationError(
            f"{snapshot.path!r} cannot be claimed: job {snapshot.get_job_id()} does not retain it, so somebody deletes "
            "it already. Claim one of `holdfast checkpoints`, or start with NO_CLAIM."
        )


def give_up(path: str, digest: str, job: str, owner: str) -> None:
    """Delete a checkpoint that was claimed, as far as no other one needs its files. Blocks. May be repeated.

    Args:
        path: Its directory.
        digest: SHA-256 of its document.
        job: The job that had it, 32 hexadecimal digits.
        owner: Who has claimed it.

    Raises:
        HoldfastError: Something could not be deleted; a part may be.
    """
    fs = file_system_for(path)
    directory = JobDirectory(fs, parent(path), JobID.from_hex(job), create_subdir=False)
    register = FileRegister.of(directory)
    state = register.read()
    if state.owner != owner:
        _log.warning("%r is left alone: job %s, which had it, was led by %r meanwhile", path, job, state.owner)
        return
    if _pointer(state, digest) is not None:
        lease = register.raise_token(owner)
        with fault.point("subsume.delete"):
            state = lease.write(lambda old: _without(old, digest))
    try:
        claimed = load(path)
    except NotExistError:
        fs.delete_directory(path)
        return
    if claimed.pointer.digest != digest:
        return
    needed = {name for other in recover_all(directory, state) for name in _names(other.metadata)}
    _delete(directory, set(_names(claimed.metadata)) - needed)
    for status in sorted(fs.list(path), key=lambda status: status.name != METADATA_NAME):
        if not status.is_directory:
            fs.delete_in(path, status.name)
    fs.delete_directory(path)


def _pointer(state: RegisterState, digest: str) -> CheckpointPointer | None:
    return next((pointer for pointer in state.checkpoints if pointer.digest == digest), None)


def _without(state: RegisterState, digest: str) -> RegisterState:
    return replace(state, checkpoints=tuple(one for one in state.checkpoints if one.digest != digest))


def _names(metadata: CheckpointMetadata) -> Iterator[FileName]:
    for text in metadata.strings():
        name = FileName.parse(base_name(text))
        if name is not None:
            yield name


def _delete(directory: JobDirectory, names: set[FileName]) -> None:
    failures: list[HoldfastError] = []
    for place in (directory.shared_dir, directory.taskowned_dir):
        if directory.fs.is_link(place):
            continue  # no deletion follows a link
        for name in directory.fs.list_names(place):
            if FileName.parse(name) not in names:
                continue
            try:
                directory.fs.delete_in(place, name)
            except HoldfastError as error:
                failures.append(error)
    if failures:
        raise failures[0]
