"""Finding jobs and checkpoints under a path that somebody typed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing

import click

from holdfast.checkpoint.document.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.recovery.retained import load, newest
from holdfast.cli.registers import Registers
from holdfast.errors import ConfigurationError, HoldfastError, NotExistError
from holdfast.ha.services.job_register import MARKER_NAME, job_id_in
from holdfast.kernel.ids import JobID
from holdfast.kernel.secret import shown_error
from holdfast.storage.file_system.path import base_name, parent
from holdfast.storage.file_system.scheme import file_system_for, join
from holdfast.storage.job.job_directory import METADATA_NAME, REGISTER, JobDirectory
from holdfast.storage.register.register_state import RegisterState

_JOB = re.compile(r"[0-9a-f]{32}")


def job_directories(path: str, registers: Registers) -> Iterator[tuple[JobDirectory, RegisterState]]:
    """The jobs at a path, with their registers: the path is a job's directory, or one that holds several.

    Of several jobs those are left out, with a word on standard error, whose registers cannot be found.

    Raises:
        NotExistError: The path does not exist, or has no jobs.
        ConfigurationError: The register of the one job is in a coordination store that was not named.
    """
    found = directories_at(path)
    if not found:
        raise NotExistError(
            f"There is no job in {path!r}; give the directory of a job, or the one set as execution.checkpointing.dir."
        )
    for directory in found:
        try:
            state = registers.of(directory).read()
        except ConfigurationError as error:
            if len(found) == 1:
                raise
            click.echo(shown_error(error), err=True)
            continue
        yield _with_stored_id(directory, state), state


def directories_at(path: str) -> list[JobDirectory]:
    """The directories of the jobs at a path, wherever their registers are.

    Raises:
        NotExistError: The path does not exist.
    """
    fs = file_system_for(path)
    path = path.rstrip("/") or "/"
    if not fs.exists(path):
        raise NotExistError(f"There is no directory {path!r}; give the one that is set as execution.checkpointing.dir.")
    is_job = fs.exists(join(path, REGISTER)) or fs.exists(join(path, MARKER_NAME))
    if is_job or _JOB.fullmatch(base_name(path)):
        return [_directory(path)]
    names = [status.name for status in fs.list(path) if status.is_directory and _JOB.fullmatch(status.name)]
    return [_directory(join(path, name)) for name in names]


def checkpoint_at(path: str, properties: tuple[str, ...]) -> CompletedCheckpoint:
    """The checkpoint or savepoint that a path means: itself, or the newest completed one of the job at the path.

    Args:
        path: What somebody typed.
        properties: Options that say where registers are.

    Raises:
        NotExistError: There is none.
        CorruptFileError: It is damaged.
    """
    with closing(Registers(properties)) as registers:  # which has read how to reach an object store
        if base_name(path) == METADATA_NAME or file_system_for(path).exists(join(path, METADATA_NAME)):
            return load(path)
        return newest_checkpoint(path, registers)


def newest_checkpoint(path: str, registers: Registers) -> CompletedCheckpoint:
    """The newest completed checkpoint of the one job at a path.

    Raises:
        NotExistError: There is no job, no checkpoint, or more than one job.
        CorruptFileError: The newest one is damaged.
    """
    jobs = list(job_directories(path, registers))
    if len(jobs) != 1:
        ids = ", ".join(str(directory.job_id) for directory, _ in jobs) or "none"
        raise NotExistError(f"{path!r} holds not one job but: {ids}. Give the directory of a job or of a checkpoint.")
    found = newest(*jobs[0])
    if found is None:
        raise NotExistError(f"The job in {path!r} has no completed checkpoint yet.")
    return found


def _directory(path: str) -> JobDirectory:
    name = base_name(path)
    if _JOB.fullmatch(name):
        return JobDirectory(file_system_for(path), parent(path), JobID.from_hex(name))
    # A directory of one job with execution.checkpointing.create-subdir off; its id is in its documents only.
    directory = JobDirectory(file_system_for(path), path, JobID.from_name(path), create_subdir=False)
    stored = job_id_in(directory)
    return directory if stored is None else JobDirectory(directory.fs, path, stored, create_subdir=False)


def _with_stored_id(directory: JobDirectory, state: RegisterState) -> JobDirectory:
    """The id of a job whose directory it does not name is in its documents."""
    if directory.path != directory.root:
        return directory
    try:
        found = newest(directory, state)
    except HoldfastError:
        return directory  # whoever lists its checkpoints says what is wrong with it
    if found is None:
        return directory
    return JobDirectory(directory.fs, directory.path, JobID.from_hex(found.get_job_id()), create_subdir=False)
