"""`holdfast submit SCRIPT` hands a program to the job manager that leads, `holdfast logs JOB` shows what it writes."""

from __future__ import annotations

import signal
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

import click

from holdfast.checkpoint.recovery import newest
from holdfast.cli.common import (
    OF_LIST,
    OF_SUBMIT,
    errors_to_exit_codes,
    log_to_stderr,
    options_of,
    print_json,
    print_table,
    refusing,
)
from holdfast.cli.find_job import Registers, job_directories, job_manager, where_option
from holdfast.dispatcher.job_manager import JobManager
from holdfast.dispatcher.job_manager_client import JobManagerClient
from holdfast.errors import HoldfastError
from holdfast.kernel.ids import JobID
from holdfast.kernel.secret import redacted_message
from holdfast.rest.client import RestClient, RestError
from holdfast.runtime.job.options import DEFAULT_PARALLELISM
from holdfast.runtime.job.progress import first_line
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.register import RegisterState

_LOOK_SECONDS: Final = 0.5
_TAIL: Final = 64 * 1024
_OF_THE_CLUSTER: Final = (
    "high-availability.",
    "kubernetes.",
    "s3.",
    "process.",
    "rest.",
    "jobmanager.",
    "jobstore.",
    "job-result-store.",
    "cleanup-strategy.",
)
"""Of these a job manager looks at its own."""
_OF_THE_JOB_MANAGER: Final = ("jobmanager.", "jobstore.", "job-result-store.", "cleanup-strategy.")
"""Of those, what says nothing of how it is reached either."""


@click.command()
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "-D",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set an option; it wins over the program's. Those of high-availability.* and kubernetes.* say which cluster.",
)
@click.option(
    "--files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file that lies beside SCRIPT where it runs; modules (.py, .zip, .egg, .whl) are sent to the workers, too.",
)
@click.option("-p", "--parallelism", type=int, metavar="N", help="Set parallelism.default.")
@click.option("--job-id", metavar="ID", help="32 hexadecimal digits; by default that of pipeline.name, else a new one.")
@click.option("--json", "as_json", is_flag=True, help="Print one object.")
@refusing(OF_SUBMIT)
def submit(
    script: Path,
    args: tuple[str, ...],
    properties: tuple[str, ...],
    files: tuple[Path, ...],
    parallelism: int | None,
    job_id: str | None,
    as_json: bool,
) -> None:
    """Submits SCRIPT, a Python program that executes one job, and prints the job's id; ARGS after -- are its own.

    The command returns when the job is kept by the cluster, before it runs. Paths in ARGS mean what they mean where the
    job manager runs. A job that has ended may be submitted again under its id, and goes on from its newest checkpoint.
    """
    with errors_to_exit_codes():
        options = options_of(properties)
        if parallelism is not None:
            options.set(DEFAULT_PARALLELISM, parallelism)
        options.validate()
        not_used = sorted(key for key in options.to_texts() if key.startswith(_OF_THE_JOB_MANAGER))
        if not_used:
            click.echo(f"Not used, because a job manager has its own: {', '.join(not_used)}.", err=True)
        own = {key: text for key, text in options.to_texts().items() if not key.startswith(_OF_THE_CLUSTER)}
        answer = JobManagerClient.find(options).submit(script, args, own, files, job_id)
        if as_json:
            print_json([{"job_id": answer["jobid"], "name": answer["name"]}])
        else:
            click.echo(answer["jobid"])


@click.command()
@click.argument("job", metavar="JOB")
@click.option(
    "-f", "--follow", is_flag=True, help="Go on until the job has ended, also when another leader takes it over."
)
@click.option("-a", "--all", "everything", is_flag=True, help="From its beginning, not only its end.")
@where_option
def logs(job: str, follow: bool, everything: bool, properties: tuple[str, ...]) -> None:
    """Prints what the processes of JOB, the id of a submitted job, have written to standard output and error.

    The log is on the host of the job manager that leads, and begins there when it took the job over.
    """
    with errors_to_exit_codes():
        options = options_of(properties)
        options.validate()
        JobID.from_hex(job)
        client = JobManagerClient.find(options)
        part = client.job(job).get("log" if everything else f"log?tail={_TAIL}")
        while True:
            click.echo(part["text"], nl=False)
            if part["ended"] or not (follow or part["text"]):
                return
            if not part["text"]:
                time.sleep(_LOOK_SECONDS)
            try:
                part = client.job(job).get(f"log?offset={part['next']}")
            except RestError as error:
                if not follow or error.status == 404:
                    raise
                click.echo(f"... {redacted_message(error)}", err=True)
                client, part = _found_again(options, job)


def _found_again(options: Any, job: str) -> tuple[JobManagerClient, dict[str, Any]]:
    """The leader after this one, and its log from the beginning."""
    client = JobManagerClient.find(options)
    part = client.job(job).get("log")
    click.echo(f"... the job goes on with the job manager on {part['host']}", err=True)
    return client, part


# `holdfast jobmanager`: runs the jobs that are submitted, each in a process of its own.


@click.command()
@click.option("-D", "properties", multiple=True, metavar="KEY=VALUE", help="Set an option; jobs have it as a default.")
def jobmanager(properties: tuple[str, ...]) -> None:
    """Runs the jobs that are submitted with `holdfast submit`, each in a process of its own, until it gets SIGTERM.

    With high-availability.type filesystem, zookeeper or kubernetes several may run: one leads, and when it dies another
    one goes on with all jobs from their newest checkpoints. Without, the jobs that run end with this process; each goes
    on when it is submitted again under its id.
    """
    with errors_to_exit_codes():
        log_to_stderr()
        options = options_of(properties)
        options.validate()
        manager = JobManager(options, [sys.executable, "-m", "holdfast.cli.submitted"])

        def stop(number: int, frame: FrameType | None) -> None:
            # In a thread: what a signal interrupts may hold the lock that this needs, another signal included.
            threading.Thread(target=manager.stop).start()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        manager.run()


# `holdfast list [DIR]`: the jobs of a job manager, or in a directory, and which of them run.

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
