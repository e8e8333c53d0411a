"""What the exit codes of every verb mean, and how an error becomes one."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NoReturn

import click
import humanfriendly

from holdfast.errors import ConfigurationError, FencedError, HoldfastError, JobExecutionError, RestoreError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.default_log import FORMAT, log_level
from holdfast.kernel.secret import get_logger, redacted_message, without_credentials
from holdfast.types.serialization import nonfinite_to_text

ENDED: Final = 0
FAILED: Final = 1
USAGE: Final = 2
FENCED: Final = 3
REFUSED_RESTORE: Final = 4
INTERRUPTED: Final = 130
"""As a shell has it of a program that SIGINT has ended."""

_CODES: Final[tuple[tuple[type[BaseException], int], ...]] = (
    (FencedError, FENCED),
    (RestoreError, REFUSED_RESTORE),
    (ConfigurationError, USAGE),
    (HoldfastError, FAILED),
)

logger = get_logger(__name__)


def exit_code_of(error: BaseException) -> int:
    """The exit code for an error; a failed job is judged by what made it fail."""
    if isinstance(error, JobExecutionError) and error.__cause__ is not None:
        return max(FAILED, exit_code_of(error.__cause__))
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return FAILED


@contextmanager
def errors_to_exit_codes() -> Iterator[None]:
    """Ends the process with the right exit code when an error of Holdfast or Ctrl-C leaves the block; others pass."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except HoldfastError as error:
        _leave(error)


def _leave(error: HoldfastError) -> NoReturn:
    sys.stderr.write(f"{type(error).__name__}: {redacted_message(error)}\n")
    for note in getattr(error, "__notes__", ()):
        sys.stderr.write(f"  {without_credentials(note)}\n")
    logger.debug("the error came from\n%s", without_credentials("".join(traceback.format_exception(error))))
    sys.stderr.flush()
    sys.exit(exit_code_of(error))


# Flags of Flink's command line that have no meaning here: each is refused with what to write instead.

_OF_THE_CLUSTER: Final = {
    "-m --jobmanager": "name the cluster of a job manager with -D high-availability.type=... and what belongs to it.",
    "-t --target": "name Spark's master with -D spark.master=..., and a cluster with -D high-availability.type=....",
}
_OF_A_PROGRAM: Final = {
    **_OF_THE_CLUSTER,
    "-py --python": "write the program as it is: SCRIPT -- ARGS.",
    "-pym --pyModule": "write the file of the module: SCRIPT -- ARGS.",
    "-pyfs --pyFiles": "name the modules with -D python.files=a.py,b.zip.",
    "-pyarch --pyArchives": "name the archives with -D spark.archives=env.tar.gz#env.",
    "-pyreq --pyRequirements": "call env.set_python_requirements() in the program.",
    "-pyexec --pyExecutable": "name the Python of the workers with -D spark.pyspark.python=PATH.",
    "-j --jarfile": "jars are for Spark's sources and sinks: -D spark.jars=PATH.",
    "-C --classpath": "jars are for Spark's sources and sinks: -D spark.jars=PATH.",
    "-c --class": "a program is a script of Python: SCRIPT -- ARGS.",
}
OF_SUBMIT: Final = {
    **_OF_A_PROGRAM,
    "-s --fromSavepoint": "name the savepoint with -D execution.state-recovery.path=PATH.",
    "-n --allowNonRestoredState": "drop that state with -D execution.state-recovery.ignore-unclaimed-state=true.",
    "-rm --claimMode --restoreMode": "name the mode with -D execution.state-recovery.claim-mode=MODE.",
    "-d --detached": "that is what it does: the command returns when the job is kept by the cluster.",
}
OF_RUN: Final = {
    **_OF_A_PROGRAM,
    "-d --detached": "the job runs in this process; hand it to a job manager with holdfast submit SCRIPT.",
}
OF_CANCEL: Final = {
    **_OF_THE_CLUSTER,
    "-s --withSavepoint": "stop the job with a savepoint: holdfast stop DIR -p TARGET.",
}
OF_LIST: Final = {
    **_OF_THE_CLUSTER,
    "-s --scheduled": "a job runs as soon as its process does; -a shows those that do not run.",
}
OF_CHECKPOINT: Final = {
    **_OF_THE_CLUSTER,
    "-full --full": "a checkpoint shares files with those before it; take a savepoint: holdfast savepoint DIR TARGET.",
}


def refusing(instead: Mapping[str, str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds flags to a command that are a wrong usage; `instead` says by their names what to write."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for names, text in instead.items():
            command = click.option(
                *names.split(), is_flag=True, hidden=True, is_eager=True, expose_value=False, callback=_refusal(text)
            )(command)
        return command

    return decorate


def _refusal(text: str) -> Callable[[click.Context, click.Parameter, bool], None]:
    def refuse(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            raise click.UsageError(f"{' or '.join(param.opts)} is Flink's, and has no meaning here: {text}", ctx)

    return refuse


# What verbs print: one JSON object a line, or a table for people.


def echo(line: str) -> None:
    """Print a line. Half a character, of a name or a message, has no encoding; as an escape of JSON it has."""
    click.echo(line.encode(errors="backslashreplace").decode())


def print_json(rows: Iterable[Mapping[str, Any]]) -> None:
    """One object a line on standard output."""
    for row in rows:
        echo(json_text(row))


def json_text(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """JSON that every reader of it takes: NaN and the infinities, which it has not, are texts, as Spark writes them.

    Args:
        value: What is written.
        default: What stands for a value that JSON has not, as in `json.dumps`.
    """
    try:
        return json.dumps(value, ensure_ascii=False, default=default, allow_nan=False)
    except ValueError:
        return json.dumps(nonfinite_to_text(value, json.dumps), ensure_ascii=False, default=default)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns of equal width, numbers to the right."""
    lines = [list(columns), *([_in_one_line(cell) for cell in row] for row in rows)]
    widths = [max(len(line[position]) for line in lines) for position in range(len(columns))]
    numeric = [all(_is_number(line[position]) for line in lines[1:]) for position in range(len(columns))]
    for line in lines:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        echo("  ".join(cells).rstrip())


def size(count: int | None) -> str:
    """A number of bytes for people."""
    return "-" if count is None else humanfriendly.format_size(count, binary=True)


def moment(milliseconds: int | None) -> str:
    """A time for people, in UTC."""
    if milliseconds is None:
        return "-"
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")[:-6] + "Z"


def _in_one_line(cell: str) -> str:
    """What jobs are called, and say, without what would break the table."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in cell)


def _is_number(cell: str) -> bool:
    return not cell or cell[0].isdigit() or cell == "-"


# Running a program as `python SCRIPT ARGS` would, with options from the command line.


def options_of(properties: Sequence[str]) -> Configuration:
    """The options that were given as `key=value`, not validated yet.

    Raises:
        ConfigurationError: One has another form, or a key that is not known.
    """
    # The environment knows the options of all packages; without it a mistyped key would be found only at execute().
    import holdfast.datastream.environment.stream_execution_environment  # noqa: F401

    return Configuration.from_properties(properties)


@contextmanager
def as_main_program(script: Path, args: Sequence[str]) -> Iterator[None]:
    """The script sees the arguments and the import path that `python SCRIPT ARGS` would give it."""
    argv, import_path = sys.argv, sys.path[:]
    sys.argv = [str(script), *args]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, import_path


def log_to_stderr() -> None:
    """Lets the package log to standard error at the level of HOLDFAST_LOG_LEVEL.

    Raises:
        ConfigurationError: There is no such level.
    """
    level = log_level()
    logging.basicConfig(level=logging.WARNING, format=FORMAT)
    logging.getLogger("holdfast").setLevel(level)
