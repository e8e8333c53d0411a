"""`holdfast list [DIR]`: the jobs of a job manager, or in a directory, and which of them run."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Any, Final

import click

from holdfast.checkpoint.recovery.retained import newest
from holdfast.cli.exit_code import errors_to_exit_codes
from holdfast.cli.flink_flags import OF_LIST, refusing
from holdfast.cli.job_directories import job_directories
from holdfast.cli.registers import Registers, where_option
from holdfast.cli.running_job import job_manager
from holdfast.cli.table import print_json, print_table
from holdfast.dispatcher.service.job_manager_client import JobManagerClient
from holdfast.errors import HoldfastError
from holdfast.rest.client import RestClient, RestError
from holdfast.runtime.job.history import first_line
from holdfast.storage.job.job_directory import JobDirectory
from holdfast.storage.register.register_state import RegisterState

COLUMNS = ("job", "name", "status", "checkpoint", "where")
_ANSWER_SECONDS: Final = 5.0
SUBMITTED = ("job", "name", "status", "last failure")


@click.command("list")
@click.argument("directory", metavar="[DIR]", required=False)
@click.option("-a", "--all", "everything", is_flag=True, help="Show also the jobs that do not run.")
@click.option("--json", "as_json", is_flag=True, help="Print one object a line.")
@click.option("-r", "--running", is_flag=True, hidden=True, expose_value=False, help="What it does without -a.")
@where_option
@refusing(OF_LIST)
def list_jobs(directory: str | None, everything: bool, as_json: bool, properties: tuple[str, ...]) -> None:
    """Lists the jobs in DIR that run on this host; with -a all jobs. Without DIR, those of the job manager that leads.

    DIR is the directory of a job, or the one set as execution.checkpointing.dir. A job that no process of this host
    runs is shown with the status that its register has, SUSPENDED if it can be resumed. "(3 failed)" behind a status
    tells how many attempts have failed in a row, without a completed checkpoint between; --json says why the last did.
    """
    with errors_to_exit_codes():
        if directory is None:
            _list_submitted(job_manager(properties), everything, as_json)
            return
        with closing(Registers(properties)) as registers:
            rows = [_row(*found) for found in job_directories(directory, registers)]
        rows = [row for row in rows if everything or row["url"] is not None]
        if as_json:
            print_json(rows)
        elif rows:
            print_table(COLUMNS, map(_cells, rows))
        else:
            click.echo("No job in the directory runs on this host; with -a all are shown.", err=True)


def _list_submitted(client: JobManagerClient, everything: bool, as_json: bool) -> None:
    jobs = client.get("/jobs/overview")["jobs"]
    rows: list[dict[str, Any]] = [
        {
            "job_id": job["jid"],
            "checkpoint": None,
            "path": None,
            "url": client.address.url,
            **_said_by(client, job),
        }
        for job in jobs
        if everything or job["end-time"] < 0
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(
            SUBMITTED,
            ([row["job_id"], first_line(row["name"]), _status(row), row["last_failure"] or "-"] for row in rows),
        )


def _said_by(client: JobManagerClient, job: dict[str, Any]) -> dict[str, Any]:
    """What a job manager says of a job. Of attempts that fail in its process that alone knows."""
    if job["state"] == "RUNNING":
        with suppress(RestError):
            details = client.job(job["jid"]).get(timeout=_ANSWER_SECONDS)
            return _told(details) | {
                "restarts": job["restarts"],
                "last_failure": details["last-failure"] or job["last-failure"],
            }
    return _told(job)


def _told(details: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": details["name"],
        "status": details["state"],
        "restarts": details["restarts"],
        "tries_in_a_row": details["tries-in-a-row"],
        "last_failure": details["last-failure"],
    }


def _row(directory: JobDirectory, state: RegisterState) -> dict[str, Any]:
    row: dict[str, Any] = {
        "job_id": str(directory.job_id),
        "name": None,
        "status": state.terminal or "SUSPENDED",
        "checkpoint": None if state.newest is None else state.newest.checkpoint_id,
        "path": directory.path,
        "url": None,
        "restarts": None,
        "tries_in_a_row": None,
        "last_failure": None,
    }
    try:
        client = RestClient.find(directory)
        return row | {"url": client.address.url, **_told(client.get())}
    except RestError:
        return row | {"name": _stored_name(directory, state)}


def _stored_name(directory: JobDirectory, state: RegisterState) -> str | None:
    try:
        found = newest(directory, state)
    except HoldfastError:
        return None
    return None if found is None else found.metadata.job_name


def _cells(row: dict[str, Any]) -> list[str]:
    checkpoint = "-" if row["checkpoint"] is None else str(row["checkpoint"])
    return [row["job_id"], row["name"] or "-", _status(row), checkpoint, row["url"] or row["path"]]


def _status(row: dict[str, Any]) -> str:
    """The status, and how many attempts have failed since a checkpoint completed: one that runs may be the next."""
    tries = row["tries_in_a_row"]
    return f"{row['status']} ({tries} failed)" if tries else str(row["status"])
