"""`holdfast run SCRIPT`: runs a program in this process, with options that win over its own."""

from __future__ import annotations

import runpy
from pathlib import Path

import click

from holdfast.checkpoint.config.options import CLAIM_MODE, IGNORE_UNCLAIMED_STATE, RECOVERY_PATH
from holdfast.cli.exit_code import errors_to_exit_codes
from holdfast.cli.flink_flags import OF_RUN, refusing
from holdfast.cli.script import as_main_program, log_to_stderr, options_of
from holdfast.datastream.environment.launch import launching
from holdfast.kernel.configuration import Configuration
from holdfast.runtime.job.options import DEFAULT_PARALLELISM, START_FRESH
from holdfast.storage.file_system.path import absolute


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option("-D", "properties", multiple=True, metavar="KEY=VALUE", help="Set an option; it wins over the program's.")
@click.option("-p", "--parallelism", type=int, metavar="N", help="Set parallelism.default.")
@click.option(
    "-s",
    "--from-savepoint",
    "--fromSavepoint",
    "path",
    metavar="PATH",
    help="Start from this checkpoint or savepoint.",
)
@click.option(
    "-n",
    "--allow-non-restored-state",
    "--allowNonRestoredState",
    is_flag=True,
    help="Drop state of operators that the job has not.",
)
@click.option(
    "--claim-mode",
    "--claimMode",
    metavar="MODE",
    help="Who owns the snapshot of -s: NO_CLAIM, the default, you; CLAIM, the job, which deletes it then.",
)
@click.option("--fresh", is_flag=True, help="Start without state, although there are checkpoints of the job.")
@refusing(OF_RUN)
def run(
    script: Path,
    args: tuple[str, ...],
    properties: tuple[str, ...],
    parallelism: int | None,
    path: str | None,
    allow_non_restored_state: bool,
    claim_mode: str | None,
    fresh: bool,
) -> None:
    """Runs SCRIPT, a Python program that executes a job; ARGS after -- are its own.

    Exit codes: 0 the job ended, 1 it failed, 2 wrong usage or a program that cannot run, 3 fenced: another process has
    taken over, 4 the restore was refused, 130 Ctrl-C has stopped the job.
    """
    if fresh and path is not None:
        raise click.UsageError("--fresh starts without state, -s PATH from a given one: choose one of them.")
    if claim_mode is not None and path is None:
        raise click.UsageError("--claim-mode is about the snapshot of -s PATH, which is missing.")
    with errors_to_exit_codes():
        log_to_stderr()
        options = _options(properties, path, allow_non_restored_state, claim_mode, fresh)
        if parallelism is not None:
            options.set(DEFAULT_PARALLELISM, parallelism)
        with launching(options), as_main_program(script, args):
            runpy.run_path(str(script), run_name="__main__")


def _options(
    properties: tuple[str, ...], path: str | None, allow_non_restored: bool, claim_mode: str | None, fresh: bool
) -> Configuration:
    options = options_of(properties)
    if path is not None:
        options.set(RECOVERY_PATH, absolute(path))
    if allow_non_restored:
        options.set(IGNORE_UNCLAIMED_STATE, True)
    if claim_mode is not None:
        options.set(CLAIM_MODE, claim_mode.upper())
    if fresh:
        options.set(START_FRESH, True)
    options.validate()
    return options
