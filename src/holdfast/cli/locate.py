"""Find registers, jobs, checkpoints and running processes by what a user typed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import click

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint, read_by_path, read_newest
from holdfast.dispatcher.job_manager_client import JobManagerClient
from holdfast.errors import ConfigurationError, HoldfastError, NotExistError
from holdfast.ha.job_register import MARKER_NAME, file_register_of, has_external_register, job_id_in
from holdfast.ha.options import ha_type
from holdfast.ha.services import HighAvailabilityServices, create_high_availability_services
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.failure_text import unknown_job
from holdfast.kernel.ids import JobID
from holdfast.kernel.secret import redacted_message
from holdfast.rest.client import RestClient, RestError
from holdfast.storage.file_system import FileSystem, base_name, join, parent
from holdfast.storage.job_directory import METADATA_NAME, REGISTER, JobDirectory
from holdfast.storage.object_store import use_s3_options
from holdfast.storage.register import FencedRegister, RegisterState
from holdfast.storage.scheme import file_system_for

_JOB_ID: Final = re.compile("[0-9a-f]{32}")

# Finding the registers of jobs, in their directories or where `-D high-availability.*` says.


def where_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `-D` to a command that reads registers."""
    return click.option(
        "-D",
        "properties",
        multiple=True,
        metavar="KEY=VALUE",
        help="Options for an object store (s3.*), or for registers that are not in the directory "
        "(high-availability.*).",
    )(command)


class Registers:
    """The registers of jobs; connects to the coordination store when a job needs it.

    Args:
        properties: Options as `key=value`.

    Raises:
        ConfigurationError: One has another form, or an unknown key.
    """

    def __init__(self, properties: Iterable[str] = ()) -> None:
        self._configuration = Configuration.from_properties(properties)
        self._configuration.validate()
        use_s3_options(self._configuration)
        self._services: HighAvailabilityServices | None = None

    def of(self, directory: JobDirectory) -> FencedRegister:
        """Return the register of a job.

        Raises:
            ConfigurationError: It is in a coordination store that the options do not name.
            StorageError: The store does not answer.
        """
        if not has_external_register(directory) or ha_type(self._configuration) == "none":
            return file_register_of(directory)
        if self._services is None:
            self._services = create_high_availability_services(self._configuration, ThreadPoolExecutor(1))
        register = self._services.get_checkpoint_recovery_factory().get_register(directory.job_id)
        if register is None:
            raise ConfigurationError(f"The cluster of these options has no register of the job in {directory.path!r}.")
        return register

    def close(self) -> None:
        if self._services is not None:
            self._services.close()


def job_directories(path: str, registers: Registers) -> Iterator[tuple[JobDirectory, RegisterState]]:
    """Yield the jobs at a path, with their registers: the path is a job's directory, or one that holds several.

    Of several jobs, those whose registers cannot be found are left out, with a line on standard error.

    Raises:
        NotExistError: The path does not exist, or has no jobs.
        ConfigurationError: The register of the only job is in a coordination store that was not named.
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
            click.echo(redacted_message(error), err=True)
            continue
        yield _with_stored_id(directory, state), state


def directories_at(path: str) -> list[JobDirectory]:
    """Return the directories of the jobs at a path, wherever their registers are.

    Raises:
        NotExistError: The path does not exist.
    """
    fs = file_system_for(path)
    path = path.rstrip("/") or "/"
    if not fs.exists(path):
        if fs.exists(parent(path)) and (beside := [(name, "") for name in _jobs_in(fs, parent(path))]):
            raise NotExistError(unknown_job(base_name(path), beside, f" in {parent(path)!r}"))
        raise NotExistError(
            f"There is no directory {path!r}; give the one that is set as execution.checkpointing.dir, or the id of a "
            "submitted job, which `holdfast list` prints."
        )
    is_job = fs.exists(join(path, REGISTER)) or fs.exists(join(path, MARKER_NAME))
    if is_job or _JOB_ID.fullmatch(base_name(path)):
        return [_directory(path)]
    return [_directory(join(path, name)) for name in _jobs_in(fs, path)]


def _jobs_in(fs: FileSystem, path: str) -> list[str]:
    return [status.name for status in fs.list(path) if status.is_directory and _JOB_ID.fullmatch(status.name)]


def checkpoint_at(path: str, properties: tuple[str, ...]) -> CompletedCheckpoint:
    """Return the checkpoint or savepoint at a path, or the newest completed one of the job there.

    Args:
        path: The argument of the user.
        properties: Options that name the place of registers.

    Raises:
        NotExistError: There is none.
        CorruptFileError: It is damaged.
    """
    with closing(Registers(properties)) as registers:  # which has read how to reach an object store
        if base_name(path) == METADATA_NAME or file_system_for(path).exists(join(path, METADATA_NAME)):
            return read_by_path(path)
        return newest_checkpoint(path, registers)


def newest_checkpoint(path: str, registers: Registers) -> CompletedCheckpoint:
    """Return the newest completed checkpoint of the only job at a path.

    Raises:
        NotExistError: There is no job, no checkpoint, or more than one job.
    """
    jobs = list(job_directories(path, registers))
    if len(jobs) != 1:
        ids = ", ".join(str(directory.job_id) for directory, _ in jobs) or "none"
        raise NotExistError(f"{path!r} has the jobs: {ids}. Give the directory of one job, or of a checkpoint.")
    found = read_newest(*jobs[0])
    if found is None:
        raise NotExistError(f"The job in {path!r} has no completed checkpoint yet.")
    return found


def _directory(path: str) -> JobDirectory:
    name = base_name(path)
    if _JOB_ID.fullmatch(name):
        return JobDirectory(file_system_for(path), parent(path), JobID.from_hex(name))
    # A directory of one job with execution.checkpointing.create-subdir off; its id is in its documents only.
    directory = JobDirectory(file_system_for(path), path, JobID.from_name(path), create_subdir=False)
    stored = job_id_in(directory)
    return directory if stored is None else JobDirectory(directory.fs, path, stored, create_subdir=False)


def _with_stored_id(directory: JobDirectory, state: RegisterState) -> JobDirectory:
    """Return the directory with the id in its documents, where its name is not the id."""
    if directory.path != directory.root:
        return directory
    try:
        found = read_newest(directory, state)
    except HoldfastError:
        return directory  # whoever lists its checkpoints says what is wrong with it
    if found is None:
        return directory
    return JobDirectory(directory.fs, directory.path, JobID.from_hex(found.get_job_id()), create_subdir=False)


def job_manager(properties: Iterable[str]) -> JobManagerClient:
    """Return a client of the leading job manager of a cluster.

    Raises:
        RestError: There is none.
        ConfigurationError: An option does not fit.
    """
    configuration = Configuration.from_properties(properties)
    configuration.validate()
    return JobManagerClient.find(configuration)


def submitted_job(text: str, properties: Iterable[str]) -> RestClient | None:
    """Return a client of the submitted job with an id or name, or None for a path.

    Raises:
        NotExistError: A job manager answers, and has no job of this name, or several.
        RestError: The text is an id, and no job manager answers.
        ConfigurationError: An option does not fit.
    """
    if "/" in text or Path(text).exists():
        return None
    if _JOB_ID.fullmatch(text):
        return job_manager(properties).job(text)
    try:
        manager = job_manager(properties)
    except RestError:
        return None
    return manager.job(id_of_submitted(text, manager))


def id_of_submitted(text: str, manager: JobManagerClient) -> str:
    """Return the id of the job with an id or name; of several with a name, that of the only one that runs.

    Raises:
        NotExistError: There is none, or more than one.
    """
    if _JOB_ID.fullmatch(text):
        return text
    jobs = manager.get("/jobs/overview")["jobs"]
    named = [job for job in jobs if job["name"] == text]
    found = [job["jid"] for job in named if job["end-time"] < 0] or [job["jid"] for job in named]
    at = f"in the job manager at {manager.address.url}"
    if not found:
        raise NotExistError(unknown_job(text, [(job["jid"], job["name"]) for job in jobs], f" {at}"))
    if len(found) > 1:
        raise NotExistError(f"There are several jobs {text!r:.200} {at}. Give the id of one: {', '.join(found)}.")
    return str(found[0])


def running_job(path: str, job: str | None, properties: Iterable[str] = ()) -> RestClient:
    """Return a client of the only running job at a path, or of a job of a job manager.

    Args:
        path: The directory of a job, or one that holds several; or the id or name of a submitted job.
        job: The id of one of several, or its name.
        properties: Options for an object store, and for the cluster of the job manager.

    Raises:
        NotExistError: There is no such directory or job, or more than one runs.
        RestError: No job runs there, or not on this host.
        ConfigurationError: An option does not fit.
    """
    Registers(properties)  # reads how to reach an object store
    if (submitted := submitted_job(path, properties)) is not None:
        return submitted
    directories = directories_at(path)
    if not directories:
        raise NotExistError(
            f"There is no job in {path!r}; give the directory of a job, or the one set as execution.checkpointing.dir."
        )
    if len(directories) == 1 and job is None:
        return RestClient.find(directories[0])
    clients = [client for directory in directories if (client := _client(directory)) is not None]
    chosen = [client for client in clients if job is None or job in (client.job_id, client.get()["name"])]
    if len(chosen) == 1:
        return chosen[0]
    known = [(client.job_id, str(client.get()["name"])) for client in clients]
    if job is None:
        shown = ", ".join(f"{job_id} ({name})" for job_id, name in known)
        if chosen:
            raise NotExistError(f"Several jobs run in {path!r}: {shown}. Choose one with --job.")
        raise RestError(f"No job runs in {path!r} on this host.")
    raise RestError(unknown_job(job, known, f" that runs in {path!r} on this host"))


def _client(directory: JobDirectory) -> RestClient | None:
    try:
        return RestClient.find(directory)
    except RestError:
        return None
