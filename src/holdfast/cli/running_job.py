"""`holdfast savepoint`, `stop`, `checkpoint`, `cancel` and `rescale`: requests to a running job."""

from __future__ import annotations

import click

from holdfast.checkpoint.claim import dispose_savepoint
from holdfast.cli.locate import Registers, running_job, where_option
from holdfast.cli.output import errors_to_exit_codes, examples, print_json
from holdfast.cli.program import OF_CANCEL, OF_CHECKPOINT, reject_flags
from holdfast.rest.client import RestClient, RestError
from holdfast.storage.file_system import absolute

_directory = click.argument("directory", metavar="DIR")
_job = click.option("--job", metavar="ID|NAME", help="The job, if several run in DIR.")
_timeout = click.option("--timeout", type=float, default=600.0, show_default=True, help="Seconds to wait.")
_format = click.option(
    "--type",
    "-type",
    "format_type",
    type=click.Choice(["canonical", "native"], case_sensitive=False),
    default="canonical",
    show_default=True,
    help="Format that the savepoint records; the files are the same.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print one object.")


@click.command(
    epilog=examples(
        "holdfast savepoint /data/checkpoints /data/savepoints",
        "holdfast savepoint --dispose /data/savepoints/savepoint-3f2a1c-9d",
    )
)
@click.argument("directory", metavar="DIR", required=False)
@click.argument("target", required=False)
@click.option("-d", "--dispose", "disposed", metavar="PATH", help="Delete the savepoint at PATH instead.")
@_format
@_job
@_timeout
@_json
@where_option
def savepoint(
    directory: str | None,
    target: str | None,
    disposed: str | None,
    format_type: str,
    job: str | None,
    timeout: float,
    as_json: bool,
    properties: tuple[str, ...],
) -> None:
    """Take a savepoint of a running job.

    The command prints the path of the savepoint, and the job continues. DIR is the directory of a job, the one set as
    execution.checkpointing.dir, or the id or name of a submitted job. The savepoint is written below TARGET, by default
    below the job's execution.checkpointing.savepoint-dir.

    --dispose PATH deletes a savepoint, and needs no job. It deletes only files of the savepoint, its document first. If
    the command was interrupted, run it again.
    """
    if (directory is None) == (disposed is None):
        raise click.UsageError("Name the job's DIR to take a savepoint, or --dispose PATH to delete one.")
    with errors_to_exit_codes():
        Registers(properties)  # reads how to reach an object store
        if disposed is not None:
            click.echo(f"{dispose_savepoint(absolute(disposed))} is deleted")
            return
        assert directory is not None
        client = running_job(directory, job, properties)
        body = {"formatType": format_type.upper()} | _named("target-directory", target)
        _finish(client, client.post("savepoints", body), timeout, as_json)


@click.command(epilog=examples("holdfast stop /data/checkpoints -p /data/savepoints"))
@_directory
@click.option(
    "-p", "--savepoint-path", "--savepointPath", "target", metavar="TARGET", help="Directory of the savepoint."
)
@click.option("-d", "--drain", is_flag=True, help="Fire all event-time timers first, if you will not resume the job.")
@_format
@_job
@_timeout
@_json
@where_option
def stop(
    directory: str,
    target: str | None,
    drain: bool,
    format_type: str,
    job: str | None,
    timeout: float,
    as_json: bool,
    properties: tuple[str, ...],
) -> None:
    """Stop a running job with a savepoint.

    The command prints the path of the savepoint. If the savepoint fails, the job continues. DIR is the directory of a
    job, or the id or name of a submitted job. The job ends SUSPENDED. Run it again, and it continues from its newest
    checkpoint, or from the savepoint with -s: both have the same state.
    """
    with errors_to_exit_codes():
        client = running_job(directory, job, properties)
        body = {"drain": drain, "formatType": format_type.upper()} | _named("targetDirectory", target)
        _finish(client, client.post("stop", body), timeout, as_json)


@click.command(epilog=examples("holdfast checkpoint /data/checkpoints --job flights"))
@_directory
@_job
@_timeout
@_json
@where_option
@reject_flags(OF_CHECKPOINT)
def checkpoint(directory: str, job: str | None, timeout: float, as_json: bool, properties: tuple[str, ...]) -> None:
    """Take a checkpoint of a running job now.

    The command prints the id of the checkpoint, and the job continues. DIR is the directory of a job, or the id of a
    submitted job. A job takes checkpoints by itself. Use this command for a job with a long
    execution.checkpointing.interval, whose output becomes visible with its checkpoints.
    """
    with errors_to_exit_codes():
        client = running_job(directory, job, properties)
        trigger_id = client.post("checkpoints", {})["request-id"]
        checkpoint_id = client.wait_for_result("checkpoints", trigger_id, timeout)["checkpointId"]
        if as_json:
            print_json([{"job_id": client.job_id, "checkpoint_id": checkpoint_id}])
        else:
            click.echo(checkpoint_id)


def _named(field: str, target: str | None) -> dict[str, str]:
    """Return the directory as an absolute path: the job's process may have been started elsewhere."""
    return {} if target is None else {field: absolute(target)}


def _finish(client: RestClient, answer: dict[str, str], timeout: float, as_json: bool) -> None:
    path = client.wait_for_result("savepoints", answer["request-id"], timeout)["location"]
    if as_json:
        print_json([{"job_id": client.job_id, "path": path}])
    else:
        click.echo(path)


@click.command(epilog=examples("holdfast cancel /data/checkpoints --job flights"))
@click.argument("directory", metavar="DIR")
@_job
@where_option
@reject_flags(OF_CANCEL)
def cancel(directory: str, job: str | None, properties: tuple[str, ...]) -> None:
    """End a running job for good.

    The job ends after the current epoch. DIR is the directory of a job, or the id or name of a submitted job. Its
    checkpoints are kept, unless execution.checkpointing.externalized-checkpoint-retention is set to another value.
    """
    with errors_to_exit_codes():
        client = running_job(directory, job, properties)
        client.cancel()
        click.echo(f"job {client.job_id} ends after the current epoch")


@click.command(
    epilog=examples("holdfast rescale /data/checkpoints 8", "holdfast rescale /data/checkpoints aircraft=16 routes=4")
)
@click.argument("directory", metavar="DIR")
@click.argument("parallelism", metavar="N|UID=N...", nargs=-1, required=True)
@_job
@where_option
def rescale(directory: str, parallelism: tuple[str, ...], job: str | None, properties: tuple[str, ...]) -> None:
    """Change the parallelism of a running job.

    N is the new parallelism of all operators with state, UID=N that of one operator. DIR is the directory of a job, or
    the id or name of a submitted job. When the command returns, the change applies from the next epoch on. The job does
    not restart. A real-time job fails if it has too few slots for the new parallelism: add cores first.

    The command prints the new parallelism of each operator with state. If the parallelism is above the max parallelism
    of the state, it fails, and nothing changes.
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
