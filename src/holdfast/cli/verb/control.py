"""`holdfast cancel JOB` and `holdfast rescale JOB N`: control of a running job."""

from __future__ import annotations

import click

from holdfast.cli.exit_code import errors_to_exit_codes
from holdfast.cli.flink_flags import OF_CANCEL, refusing
from holdfast.cli.registers import where_option
from holdfast.cli.running_job import running_job
from holdfast.rest.client import RestError

_job = click.option("--job", metavar="ID|NAME", help="The job, if several run in DIR.")


@click.command()
@click.argument("directory", metavar="DIR")
@_job
@where_option
@refusing(OF_CANCEL)
def cancel(directory: str, job: str | None, properties: tuple[str, ...]) -> None:
    """Ends the running job in DIR for good, after the current epoch. DIR may be the id of a submitted job.

    What becomes of its checkpoints says execution.checkpointing.externalized-checkpoint-retention; they are kept unless
    that is set.
    """
    with errors_to_exit_codes():
        client = running_job(directory, job, properties)
        client.cancel()
        click.echo(f"job {client.job_id} ends after the current epoch")


@click.command()
@click.argument("directory", metavar="DIR")
@click.argument("parallelism", metavar="N|UID=N...", nargs=-1, required=True)
@_job
@where_option
def rescale(directory: str, parallelism: tuple[str, ...], job: str | None, properties: tuple[str, ...]) -> None:
    """Changes the parallelism of the running job in DIR: of all operators with state, or of some by uid.

    DIR may be the id of a submitted job.
    It is in force when the command returns, from the next epoch on, without a restart.
    """
    wanted = dict(_parsed(text) for text in parallelism)
    with errors_to_exit_codes():
        client = running_job(directory, job, properties)
        everywhere = wanted.pop("", None)
        if everywhere is not None:
            wanted = dict.fromkeys(client.parallelism(), everywhere) | wanted
            if not wanted:
                raise RestError(
                    f"The job {client.job_id} has no operator with state, or has not begun: nothing to rescale."
                )
        client.rescale(wanted)
        for uid, number in client.parallelism().items():
            click.echo(f"{uid}  {number}")


def _parsed(text: str) -> tuple[str, int]:
    uid, _, number = text.rpartition("=")
    if not number.isdecimal() or int(number) < 1:
        raise click.UsageError(f"Write a parallelism as 4, or as UID=4; {text!r} is neither.")
    return uid, int(number)
