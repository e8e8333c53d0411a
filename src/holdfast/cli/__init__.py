"""The command `holdfast`; one verb a file."""

from __future__ import annotations

import click

from holdfast import __version__
from holdfast.cli.checkpoints import checkpoints
from holdfast.cli.control import cancel, rescale
from holdfast.cli.diff import diff
from holdfast.cli.info import info
from holdfast.cli.inspect import inspect
from holdfast.cli.list import list_jobs
from holdfast.cli.query import query
from holdfast.cli.run import run
from holdfast.cli.savepoint import savepoint, stop
from holdfast.cli.state_server import state_server


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="holdfast")
def main() -> None:
    """Runs PySpark jobs with Flink's state, and looks at their checkpoints."""


for command in (
    *(run, info, list_jobs, checkpoints, inspect, diff),
    *(savepoint, stop, cancel, rescale),
    *(query, state_server),
):
    main.add_command(command)

__all__ = ["main"]
