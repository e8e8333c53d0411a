"""Output and exit codes of all verbs."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

import click
import humanfriendly

from holdfast.errors import (
    ConfigurationError,
    FencedError,
    HoldfastError,
    JobExecutionError,
    RestoreError,
    UserFunctionError,
)
from holdfast.kernel.secret import get_logger, redacted_message, without_credentials
from holdfast.types.serialization import nonfinite_to_text

ENDED: Final = 0
FAILED: Final = 1
USAGE: Final = 2
FENCED: Final = 3
REFUSED_RESTORE: Final = 4
INTERRUPTED: Final = 130
"""The exit code that a shell gives a program ended by SIGINT."""

_CODES: Final[tuple[tuple[type[BaseException], int], ...]] = (
    (FencedError, FENCED),
    (RestoreError, REFUSED_RESTORE),
    (ConfigurationError, USAGE),
    (HoldfastError, FAILED),
)

logger = get_logger(__name__)


def exit_code_of(error: BaseException) -> int:
    """Return the exit code for an error; a failed job has that of the error that made it fail."""
    if isinstance(error, JobExecutionError) and error.__cause__ is not None:
        return max(FAILED, exit_code_of(error.__cause__))
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return FAILED


@contextmanager
def errors_to_exit_codes() -> Iterator[None]:
    """Exit with the code of an error of Holdfast, or of Ctrl-C, that leaves the block; other errors pass."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if interrupt.args:
            sys.stderr.write(f"{interrupt}\n")
        sys.exit(INTERRUPTED)
    except HoldfastError as error:
        _exit(error)


def _exit(error: HoldfastError) -> NoReturn:
    sys.stderr.write(f"{type(error).__name__}: {redacted_message(error)}\n")
    cause = error.__cause__
    if isinstance(cause, UserFunctionError) and not cause.is_logged:
        sys.stderr.write(f"{without_credentials(cause.details)}\n")
    for note in getattr(error, "__notes__", ()):
        sys.stderr.write(f"  {without_credentials(note)}\n")
    logger.debug("traceback of the error:\n%s", without_credentials("".join(traceback.format_exception(error))))
    sys.stderr.flush()
    sys.exit(exit_code_of(error))


def echo(line: str, *, err: bool = False) -> None:
    """Print a line, or write it to standard error; a surrogate, in a name or a message, is printed as its escape."""
    click.echo(line.encode(errors="backslashreplace").decode(), err=err)


def examples(*commands: str) -> str:
    """Return the end of a verb's help page."""
    return "\b\nExamples:\n" + "\n".join(f"  {command}" for command in commands)


def print_json(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print one JSON object a line."""
    for row in rows:
        echo(json_text(row))


def json_text(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Return JSON that every reader accepts: NaN and the infinities become texts, as Spark writes them.

    Args:
        value: The value to write.
        default: Converts a value that JSON does not have, as in `json.dumps`.
    """
    try:
        return json.dumps(value, ensure_ascii=False, default=default, allow_nan=False)
    except ValueError:
        return json.dumps(nonfinite_to_text(value, json.dumps), ensure_ascii=False, default=default)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print columns of equal width, numbers to the right."""
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
    return "-" if count is None else humanfriendly.format_size(count, binary=True)


def moment(milliseconds: int | None) -> str:
    """Return a time as text, in UTC."""
    if milliseconds is None:
        return "-"
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")[:-6] + "Z"


def _in_one_line(cell: str) -> str:
    """Escape what would break the table, in names and messages of jobs."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in cell)


def _is_number(cell: str) -> bool:
    return not cell or cell[0].isdigit() or cell == "-"
