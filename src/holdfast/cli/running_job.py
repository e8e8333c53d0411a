"""Finding the process that runs a job, by a path that somebody typed."""

from __future__ import annotations

from holdfast.cli.job_directories import directories_at
from holdfast.errors import NotExistError
from holdfast.rest.client import RestClient, RestError
from holdfast.storage.job.job_directory import JobDirectory


def running_job(path: str, job: str | None) -> RestClient:
    """Return a client of the one running job at a path.

    Args:
        path: The directory of a job, or one that holds several.
        job: The id of one of several, or its name.

    Raises:
        NotExistError: There is no such directory or job, or more than one runs.
        RestError: No job runs there, or not on this host.
    """
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
