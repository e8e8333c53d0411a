"""Finding who runs a job, by what somebody typed: a path, or the id of a job that a job manager runs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from holdfast.cli.job_directories import directories_at
from holdfast.cli.registers import Registers
from holdfast.dispatcher.service.job_manager_client import JobManagerClient
from holdfast.errors import NotExistError
from holdfast.kernel.configuration import Configuration
from holdfast.rest.client import RestClient, RestError
from holdfast.storage.job.job_directory import JobDirectory

_JOB: Final = re.compile("[0-9a-f]{32}")


def is_submitted_job(text: str) -> bool:
    """Whether somebody means a job of a job manager, and not a directory."""
    return _JOB.fullmatch(text) is not None and not Path(text).exists()


def job_manager(properties: Iterable[str]) -> JobManagerClient:
    """Return a client of the job manager that leads the cluster of some options.

    Raises:
        RestError: There is none.
        ConfigurationError: An option does not fit.
    """
    configuration = Configuration.from_properties(properties)
    configuration.validate()
    return JobManagerClient.find(configuration)


def running_job(path: str, job: str | None, properties: Iterable[str] = ()) -> RestClient:
    """Return a client of the one running job at a path, or of a job of a job manager.

    Args:
        path: The directory of a job, or one that holds several; or the id of a job that was submitted.
        job: The id of one of several, or its name.
        properties: Options that say how to reach an object store, and which cluster the job manager belongs to.

    Raises:
        NotExistError: There is no such directory or job, or more than one runs.
        RestError: No job runs there, or not on this host.
        ConfigurationError: An option does not fit.
    """
    Registers(properties)  # reads how to reach an object store
    if is_submitted_job(path):
        return job_manager(properties).job(path)
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
    known = ", ".join(f"{client.job_id} ({client.get()['name']})" for client in clients) or "none"
    if job is None and chosen:
        raise NotExistError(f"Several jobs run in {path!r}: {known}. Choose one with --job.")
    raise RestError(f"No job {job or ''!r} runs in {path!r} on this host. Running: {known}.")


def _client(directory: JobDirectory) -> RestClient | None:
    try:
        return RestClient.find(directory)
    except RestError:
        return None
