"""`holdfast savepoint DIR [TARGET]` and `holdfast stop DIR`: savepoints of a running job."""

from __future__ import annotations

import click

from holdfast.cli.exit_code import errors_to_exit_codes
from holdfast.cli.running_job import running_job
from holdfast.cli.table import print_json
from holdfast.rest.client import RestClient

_directory = click.argument("directory", metavar="DIR")
_job = click.option("--job", metavar="ID|NAME", help="The job, if several run in DIR.")
_timeout = click.option("--timeout", type=float, default=600.0, show_default=True, help="Seconds to wait.")
_json = click.option("--json", "as_json", is_flag=True, help="Print one object.")


@click.command()
@_directory
@click.argument("target", required=False)
@_job
@_timeout
@_json
def savepoint(directory: str, target: str | None, job: str | None, timeout: float, as_json: bool) -> None:
    """Takes a savepoint of the running job in DIR, in directory TARGET, and prints its path. The job goes on.

    DIR is the directory of a job, or the one set as execution.checkpointing.dir. TARGET may be left out if the job has
    execution.checkpointing.savepoint-dir set.
    """
    with errors_to_exit_codes():
        client = running_job(directory, job)
        body = {} if target is None else {"target-directory": target}
        _finish(client, client.post("savepoints", body), timeout, as_json)


@click.command()
@_directory
@click.option("-p", "--savepoint-path", "target", metavar="TARGET", help="Directory of the savepoint.")
@click.option("-d", "--drain", is_flag=True, help="Fire all event-time timers first; the job can then not go on.")
@_job
@_timeout
@_json
def stop(directory: str, target: str | None, drain: bool, job: str | None, timeout: float, as_json: bool) -> None:
    """Stops the running job in DIR with a savepoint, and prints its path. If the savepoint fails, the job goes on.

    The job ends SUSPENDED: run again, it goes on from its newest checkpoint, or from the savepoint with -s.
    """
    with errors_to_exit_codes():
        client = running_job(directory, job)
        body = {"drain": drain} | ({} if target is None else {"targetDirectory": target})
        _finish(client, client.post("stop", body), timeout, as_json)


def _finish(client: RestClient, answer: dict[str, str], timeout: float, as_json: bool) -> None:
    path = client.result_of("savepoints", answer["request-id"], timeout)["location"]
    if as_json:
        print_json([{"job_id": client.job_id, "path": path}])
    else:
        click.echo(path)
