"""`holdfast submit`, `logs`, `jobmanager` and `list`: jobs of a job manager."""

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

from holdfast.checkpoint.completed_checkpoint import read_newest
from holdfast.cli.locate import Registers, id_of_submitted, job_directories, job_manager, where_option
from holdfast.cli.output import errors_to_exit_codes, examples, print_json, print_table
from holdfast.cli.program import OF_LIST, OF_SUBMIT, log_to_stderr, options_of, reject_flags
from holdfast.dispatcher.job_manager import JobManager
from holdfast.dispatcher.job_manager_client import JobManagerClient
from holdfast.errors import HoldfastError
from holdfast.kernel.failure_text import first_line
from holdfast.kernel.secret import redacted_message
from holdfast.rest.client import RestClient, RestError
from holdfast.runtime.job.options import DEFAULT_PARALLELISM
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
"""Options that a job manager takes from its own configuration."""
_OF_THE_JOB_MANAGER: Final = ("jobmanager.", "jobstore.", "job-result-store.", "cleanup-strategy.")
"""Those of them that do not even say how the job manager is reached."""
COLUMNS = ("job", "name", "status", "checkpoint", "where")
_ANSWER_SECONDS: Final = 5.0
SUBMITTED = ("job", "name", "status", "last failure")


@click.command(
    epilog=examples(
        "holdfast submit job.py -D high-availability.type=filesystem -D high-availability.storageDir=/data/ha"
    )
)
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "-D",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set an option; it overrides the program's. high-availability.* and kubernetes.* name the cluster.",
)
@click.option(
    "--files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File that the job manager puts next to SCRIPT. Modules (.py, .zip, .egg, .whl) are also sent to the workers.",
)
@click.option("-p", "--parallelism", type=int, metavar="N", help="Set parallelism.default.")
@click.option(
    "--job-id", metavar="ID", help="Id of the job, 32 hex digits; derived from pipeline.name by default, else new."
)
@click.option("--json", "as_json", is_flag=True, help="Print one object.")
@reject_flags(OF_SUBMIT)
def submit(
    script: Path,
    args: tuple[str, ...],
    properties: tuple[str, ...],
    files: tuple[Path, ...],
    parallelism: int | None,
    job_id: str | None,
    as_json: bool,
) -> None:
    """Submit SCRIPT to the job manager.

    SCRIPT is a Python program that executes one job. ARGS after -- are the program's own. The job's id is printed.

    The command returns when the cluster has stored the job, before the job runs. Paths in ARGS are paths on the host of
    the job manager. You can submit a job that has ended again, under its id: it continues from its newest checkpoint.
    """
    with errors_to_exit_codes():
        options = options_of(properties)
        if parallelism is not None:
            options.set(DEFAULT_PARALLELISM, parallelism)
        options.validate()
        not_used = sorted(key for key in options.to_texts() if key.startswith(_OF_THE_JOB_MANAGER))
        if not_used:
            click.echo(f"Ignored, because a job manager has its own: {', '.join(not_used)}.", err=True)
        own = {key: text for key, text in options.to_texts().items() if not key.startswith(_OF_THE_CLUSTER)}
        answer = JobManagerClient.find(options).submit(script, args, own, files, job_id)
        if as_json:
            print_json([{"job_id": answer["jobid"], "name": answer["name"]}])
        else:
            click.echo(answer["jobid"])


@click.command(epilog=examples("holdfast logs 3f2a1c0b9d8e7f6a5b4c3d2e1f0a9b8c --follow"))
@click.argument("job", metavar="JOB")
@click.option("-f", "--follow", is_flag=True, help="Follow the log until the job has ended, also under another leader.")
@click.option("-a", "--all", "everything", is_flag=True, help="Print all of the log, not only its end.")
@where_option
def logs(job: str, follow: bool, everything: bool, properties: tuple[str, ...]) -> None:
    """Print the output of a submitted job.

    JOB is the id or name of a submitted job. The log has the standard output and error of the job's processes. It is on
    the host of the leading job manager, and begins when that job manager took the job over.
    """
    with errors_to_exit_codes():
        options = options_of(properties)
        options.validate()
        client = JobManagerClient.find(options)
        job = id_of_submitted(job, client)
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
                client, part = _next_leader(options, job)


def _next_leader(options: Any, job: str) -> tuple[JobManagerClient, dict[str, Any]]:
    """Return the next leader, and its log from the beginning."""
    client = JobManagerClient.find(options)
    part = client.job(job).get("log")
    click.echo(f"... the job continues with the job manager on {part['host']}", err=True)
    return client, part


@click.command(
    epilog=examples("holdfast jobmanager -D high-availability.type=filesystem -D high-availability.storageDir=/data/ha")
)
@click.option("-D", "properties", multiple=True, metavar="KEY=VALUE", help="Set an option; it is the default of jobs.")
def jobmanager(properties: tuple[str, ...]) -> None:
    """Run submitted jobs until SIGTERM.

    Each job runs in a process of its own. With high-availability.type filesystem, zookeeper or kubernetes, several job
    managers can run. One leads. If it dies, another one continues all jobs from their newest checkpoints. Without high
    availability, running jobs end with this process. Submit them again under their ids, and they continue.
    """
    with errors_to_exit_codes():
        log_to_stderr()
        options = options_of(properties)
        options.validate()
        manager = JobManager(options, [sys.executable, "-m", "holdfast.cli.job_process"])

        def stop(number: int, frame: FrameType | None) -> None:
            # In a thread: what a signal interrupts may hold the lock that this needs, another signal included.
            threading.Thread(target=manager.stop).start()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        manager.run()


@click.command(
    "list",
    epilog=examples(
        "holdfast list /data/checkpoints --all",
        "holdfast list -D high-availability.type=filesystem -D high-availability.storageDir=/data/ha",
    ),
)
@click.argument("directory", metavar="[DIR]", required=False)
@click.option("-a", "--all", "everything", is_flag=True, help="Also show jobs that do not run.")
@click.option("--json", "as_json", is_flag=True, help="Print one object a line.")
@click.option("-r", "--running", is_flag=True, hidden=True, expose_value=False, help="Accepted: the default.")
@where_option
@reject_flags(OF_LIST)
def list_jobs(directory: str | None, everything: bool, as_json: bool, properties: tuple[str, ...]) -> None:
    """List the running jobs in DIR, or submitted ones.

    DIR is the directory of a job, or the one set as execution.checkpointing.dir. Without DIR, the jobs of the leading
    job manager are listed.

    If no process on this host runs a job, -a shows the status in its register. SUSPENDED then means that the job was
    stopped, has failed, or runs on another host: the file in its directory rest/ has the host.

    "(3 failed)" behind a status is the number of attempts that failed in a row, without a completed checkpoint in
    between. --json shows the last failure.
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
            click.echo("No job in the directory runs on this host. Show all jobs with -a.", err=True)


def _list_submitted(client: JobManagerClient, everything: bool, as_json: bool) -> None:
    jobs = client.get("/jobs/overview")["jobs"]
    rows: list[dict[str, Any]] = [
        {
            "job_id": job["jid"],
            "checkpoint": None,
            "path": None,
            "url": client.address.url,
            **_details_of(client, job),
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


def _details_of(client: JobManagerClient, job: dict[str, Any]) -> dict[str, Any]:
    """Return what a job manager knows of a job; of failed attempts in the job's process only the job knows."""
    if job["state"] == "RUNNING":
        with suppress(RestError):
            details = client.job(job["jid"]).get(timeout=_ANSWER_SECONDS)
            return _row_of_details(details) | {"last_failure": details["last-failure"] or job["last-failure"]}
    return _row_of_details(job)


def _row_of_details(details: dict[str, Any]) -> dict[str, Any]:
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
        return row | {"url": client.address.url, **_row_of_details(client.get())}
    except RestError:
        return row | {"name": _stored_name(directory, state)}


def _stored_name(directory: JobDirectory, state: RegisterState) -> str | None:
    try:
        found = read_newest(directory, state)
    except HoldfastError:
        return None
    return None if found is None else found.metadata.job_name


def _cells(row: dict[str, Any]) -> list[str]:
    checkpoint = "-" if row["checkpoint"] is None else str(row["checkpoint"])
    return [row["job_id"], row["name"] or "-", _status(row), checkpoint, row["url"] or row["path"]]


def _status(row: dict[str, Any]) -> str:
    """Return the status, with the number of attempts that failed since a checkpoint completed."""
    tries = row["tries_in_a_row"]
    return f"{row['status']} ({tries} failed)" if tries else str(row["status"])
