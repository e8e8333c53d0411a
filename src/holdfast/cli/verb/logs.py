"""`holdfast logs JOB`: what the processes of a submitted job have written."""

from __future__ import annotations

import time
from typing import Any, Final

import click

from holdfast.cli.exit_code import errors_to_exit_codes
from holdfast.cli.registers import where_option
from holdfast.cli.script import options_of
from holdfast.dispatcher.service.job_manager_client import JobManagerClient
from holdfast.rest.client import RestError

_LOOK_SECONDS: Final = 0.5
_TAIL: Final = 64 * 1024


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
                click.echo(f"... {error}", err=True)
                client, part = _found_again(options, job)


def _found_again(options: Any, job: str) -> tuple[JobManagerClient, dict[str, Any]]:
    """The leader after this one, and its log from the beginning."""
    client = JobManagerClient.find(options)
    part = client.job(job).get("log")
    click.echo(f"... the job goes on with the job manager on {part['host']}", err=True)
    return client, part
