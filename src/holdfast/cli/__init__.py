"""The command `holdfast`."""

from __future__ import annotations

import click

from holdfast import __version__
from holdfast.cli.checkpoints import checkpoints, diff, inspect
from holdfast.cli.job_manager import jobmanager, list_jobs, logs, submit
from holdfast.cli.query import query
from holdfast.cli.replay import replay
from holdfast.cli.run import info, run
from holdfast.cli.running_job import cancel, checkpoint, rescale, savepoint, stop
from holdfast.cli.state import state
from holdfast.cli.state_server import state_server


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="holdfast")
def main() -> None:
    """Run PySpark jobs with Flink's state, and look at their checkpoints."""


for command in (
    *(run, info, list_jobs, checkpoints, inspect, diff),
    *(savepoint, checkpoint, stop, cancel, rescale),
    *(query, state_server, state, replay),
    *(jobmanager, submit, logs),
):
    main.add_command(command)

__all__ = ["main"]
