"""`holdfast submit SCRIPT` hands a program to the job manager that leads, `holdfast logs JOB` shows what it writes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import click

from holdfast.cli.exit_code import errors_to_exit_codes
from holdfast.cli.flink_flags import OF_SUBMIT, refusing
from holdfast.cli.registers import where_option
from holdfast.cli.script import options_of
from holdfast.cli.table import print_json
from holdfast.dispatcher.service.job_manager_client import JobManagerClient
from holdfast.kernel.ids import JobID
from holdfast.kernel.secret import shown_error
from holdfast.rest.client import RestError
from holdfast.runtime.job.options import DEFAULT_PARALLELISM

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
                click.echo(f"... {shown_error(error)}", err=True)
                client, part = _found_again(options, job)


def _found_again(options: Any, job: str) -> tuple[JobManagerClient, dict[str, Any]]:
    """The leader after this one, and its log from the beginning."""
    client = JobManagerClient.find(options)
    part = client.job(job).get("log")
    click.echo(f"... the job goes on with the job manager on {part['host']}", err=True)
    return client, part
