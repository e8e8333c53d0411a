"""The command `holdfast`."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

from holdfast import __version__

_COMMANDS: Final = {
    "cancel": ("running_job", "cancel", "End a running job for good."),
    "checkpoint": ("running_job", "checkpoint", "Take a checkpoint of a running job now."),
    "checkpoints": ("checkpoints", "checkpoints", "List the completed checkpoints in DIR."),
    "demo": ("demo", "demo", "Kill a job in the middle, and lose nothing."),
    "diff": ("checkpoints", "diff", "Show what differs between two checkpoints."),
    "doctor": ("doctor", "doctor", "Check what jobs need on this machine."),
    "info": ("run", "info", "Show the steps of SCRIPT, or a submitted JOB."),
    "inspect": ("checkpoints", "inspect", "Show the states of a checkpoint or savepoint."),
    "jobmanager": ("job_manager", "jobmanager", "Run submitted jobs until SIGTERM."),
    "list": ("job_manager", "list_jobs", "List the running jobs in DIR, or submitted ones."),
    "logs": ("job_manager", "logs", "Print the output of a submitted job."),
    "new": ("new", "new", "Make a project: a program and its test."),
    "query": ("query", "query", "Print the state of keys of a running job."),
    "replay": ("replay", "replay", "Run the epochs after CHECKPOINT once more."),
    "rescale": ("running_job", "rescale", "Change the parallelism of a running job."),
    "run": ("run", "run", "Run SCRIPT, a Python program, as a job."),
    "savepoint": ("running_job", "savepoint", "Take a savepoint of a running job."),
    "state": ("state", "state", "Read and change the state of snapshots."),
    "state-server": ("state_server", "state_server", "Answer queries of the jobs in DIR."),
    "stop": ("running_job", "stop", "Stop a running job with a savepoint."),
    "submit": ("job_manager", "submit", "Submit SCRIPT to the job manager."),
    "ui": ("ui", "ui", "Open the web page of a running job."),
}
"""The module of each command, its name there, and its summary, so that the list of commands imports none of them."""

_EXAMPLES: Final = (
    "\b\nExamples:\n"
    "  holdfast demo\n"
    "  holdfast new my_project\n"
    "  holdfast run job.py -D execution.checkpointing.dir=/data/checkpoints"
)


class _Commands(click.Group):
    """The commands; the module of each is imported when it is used, and not for the list of all."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"{__name__}.{module}"), attribute)
        return command

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][2]) for name in self.list_commands(ctx)])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EXAMPLES)
@click.version_option(__version__, prog_name="holdfast")
def main() -> None:
    """Run PySpark jobs with Flink's state, and look at their checkpoints.

    `holdfast COMMAND --help` shows the options of a command, with examples.
    """


__all__ = ["main"]
