"""The command `holdfast`; one verb a file."""

from __future__ import annotations

import click

from holdfast import __version__
from holdfast.cli.snapshot.checkpoints import checkpoints
from holdfast.cli.snapshot.diff import diff
from holdfast.cli.snapshot.inspect import inspect
from holdfast.cli.snapshot.replay import replay
from holdfast.cli.snapshot.state import state
from holdfast.cli.verb.control import cancel, rescale
from holdfast.cli.verb.info import info
from holdfast.cli.verb.jobmanager import jobmanager
from holdfast.cli.verb.list import list_jobs
from holdfast.cli.verb.query import query
from holdfast.cli.verb.run import run
from holdfast.cli.verb.savepoint import checkpoint, savepoint, stop
from holdfast.cli.verb.state_server import state_server
from holdfast.cli.verb.submit import logs, submit


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="holdfast")
def main() -> None:
    """Runs PySpark jobs with Flink's state, and looks at their checkpoints."""


for command in (
    *(run, info, list_jobs, checkpoints, inspect, diff),
    *(savepoint, checkpoint, stop, cancel, rescale),
    *(query, state_server, state, replay),
    *(jobmanager, submit, logs),
):
    main.add_command(command)

__all__ = ["main"]
