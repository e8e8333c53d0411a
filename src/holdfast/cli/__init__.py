"""The command `holdfast`; one verb a file."""

from __future__ import annotations

import click

from holdfast import __version__
from holdfast.cli.checkpoints import checkpoints
from holdfast.cli.inspect import inspect
from holdfast.cli.query import query
from holdfast.cli.run import run
from holdfast.cli.state_server import state_server


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="holdfast")
def main() -> None:
    """Runs PySpark jobs with Flink's state, and looks at their checkpoints."""


main.add_command(run)
main.add_command(checkpoints)
main.add_command(inspect)
main.add_command(query)
main.add_command(state_server)

__all__ = ["main"]
