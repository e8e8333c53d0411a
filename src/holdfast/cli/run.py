"""`holdfast run` and `holdfast info`: run a program, or show what it would run."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from holdfast.checkpoint.options import CLAIM_MODE, IGNORE_UNCLAIMED_STATE, RECOVERY_PATH
from holdfast.cli.locate import submitted_job
from holdfast.cli.output import echo, errors_to_exit_codes, examples, print_json, print_table
from holdfast.cli.program import (
    OF_RUN,
    as_main_program,
    log_to_stderr,
    options_of,
    plan_program,
    reject_flags,
    run_script,
)
from holdfast.datastream.environment.launch import Program, program_overrides
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.default_log import LOG_LEVEL
from holdfast.runtime.job.options import DEFAULT_PARALLELISM, START_FRESH
from holdfast.runtime.master.job_description import StepDescription, describe_job
from holdfast.storage.file_system import absolute

STEPS = ("uid", "kind", "does", "parallelism", "reads", "type")
STATES = ("uid", "state", "kind", "type", "queryable as")


@click.command(
    context_settings={"ignore_unknown_options": False},
    epilog=examples(
        "holdfast run job.py",
        "holdfast run job.py -D execution.checkpointing.dir=/data/checkpoints -- --day 2026-11-29",
        "holdfast run job.py -s /data/savepoints/savepoint-3f2a1c-9d",
    ),
)
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option("-D", "properties", multiple=True, metavar="KEY=VALUE", help="Set an option; it overrides the program's.")
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
    help="Drop state of operators that the job does not have.",
)
@click.option(
    "--claim-mode",
    "--claimMode",
    metavar="MODE",
    help="Owner of the snapshot of -s: NO_CLAIM (default), you; CLAIM, the job, which then deletes it.",
)
@click.option("--fresh", is_flag=True, help="Start without state, even if the job has checkpoints.")
@click.option("-v", "--verbose", is_flag=True, help="Log at DEBUG, with the stack traces of Spark.")
@reject_flags(OF_RUN)
def run(
    script: Path,
    args: tuple[str, ...],
    properties: tuple[str, ...],
    parallelism: int | None,
    path: str | None,
    allow_non_restored_state: bool,
    claim_mode: str | None,
    fresh: bool,
    verbose: bool,
) -> None:
    """Run SCRIPT, a Python program, as a job.

    ARGS after -- are the program's own.

    Exit codes: 0 the job ended; 1 it failed; 2 wrong usage, or a program that cannot run; 3 fenced: another process
    took over the job; 4 the restore was refused; 130 Ctrl-C stopped the job.
    """
    if fresh and path is not None:
        raise click.UsageError("--fresh starts without state, -s PATH from a given one: choose one of them.")
    if claim_mode is not None and path is None:
        raise click.UsageError("--claim-mode is about the snapshot of -s PATH, which is missing.")
    with errors_to_exit_codes():
        if verbose:
            os.environ[LOG_LEVEL] = "DEBUG"
        log_to_stderr()
        options = _options(properties, path, allow_non_restored_state, claim_mode, fresh)
        if parallelism is not None:
            options.set(DEFAULT_PARALLELISM, parallelism)
        with program_overrides(options), as_main_program(script, args):
            run_script(script)


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


@click.command(epilog=examples("holdfast info job.py", "holdfast info job.py --json -- --day 2026-11-29"))
@click.argument("script", metavar="SCRIPT|JOB")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option("-D", "properties", multiple=True, metavar="KEY=VALUE", help="Set an option; it overrides the program's.")
@click.option("--json", "as_json", is_flag=True, help="Print one object a line, one for each step.")
def info(script: str, args: tuple[str, ...], properties: tuple[str, ...], as_json: bool) -> None:
    """Show the steps of SCRIPT, or a submitted JOB.

    The program runs up to its first execute(): it can start Spark and read schemas, but reads no rows. Functions are
    opened, to show their state. ARGS after -- are the program's own.

    JOB is the id or name of a submitted job. Its details come from the job manager that -D names.
    """
    with errors_to_exit_codes():
        if not Path(script).is_file():
            if script.endswith(".py") or (submitted := submitted_job(script, properties)) is None:
                raise click.UsageError(f"There is no program {script!r}, and no submitted job with this id or name.")
            _show_submitted(submitted.get(), as_json)
            return
        log_to_stderr()
        options = options_of(properties)
        options.validate()
        with program_overrides(options), as_main_program(Path(script), args):
            program = plan_program(Path(script))
        steps = describe_job(program.graph, program.configuration, _parallelism(program))
        if as_json:
            print_json(asdict(step) for step in steps)
            return
        click.echo(f"job {program.name!r}")
        print_table(STEPS, map(_cells, steps))
        states = [
            (step.uid, state.name, state.kind, state.type, state.queryable or "")
            for step in steps
            for state in step.state
        ]
        if states:
            click.echo()
            print_table(STATES, states)
        for step in steps:
            if step.problem is not None:
                click.echo(f"the state of {step.uid!r} is not known, its function could not be opened: {step.problem}")


def _show_submitted(details: dict[str, Any], as_json: bool) -> None:
    """Print what a job manager, or the process of the job, knows of it."""
    if as_json:
        print_json([details])
        return
    for field in ("jid", "name", "state", "processes", "taken-over", "restarts", "last-failure", "left-to-clean-up"):
        if details.get(field) is not None:
            echo(f"{field}: {details[field]}")
    for vertex in details.get("vertices", ()):
        subtasks = _subtasks(vertex["parallelism"], vertex["maxParallelism"])
        click.echo(f"  {vertex['id']}: {vertex['name']}, {subtasks}")


def _parallelism(program: Program) -> int:
    """Return that of operators that set none: Spark's default, if the program has a session, else 1."""
    wanted = program.configuration.get(DEFAULT_PARALLELISM)
    if wanted is not None:
        return wanted
    return 1 if program.session is None else int(program.session.sparkContext.defaultParallelism)


def _cells(step: StepDescription) -> list[str]:
    subtasks = "" if step.parallelism is None else _subtasks(step.parallelism, step.max_parallelism)
    return [step.uid, step.kind, step.does, subtasks, ", ".join(step.inputs), step.type]


def _subtasks(parallelism: int, most: int | None) -> str:
    """Return the number of subtasks, and the maximum if the step has key groups."""
    return f"{parallelism} of {most}" if most else str(parallelism)
