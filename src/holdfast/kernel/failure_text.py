"""What a user reads of a failure: one line with the root cause, the lines of the program, and what to do."""

from __future__ import annotations

import difflib
import linecache
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, Final

from holdfast.errors import HoldfastError, UserFunctionError
from holdfast.kernel.default_log import log_level
from holdfast.kernel.secret import without_credentials

NO_TEXT: Final = "the exception has no text"

_LONGEST: Final = 500
_TRACEBACK: Final = "Traceback (most recent call last):"
_TASK: Final = re.compile(r"[Mm]ost recent failure: Lost task .*?\(executor [^)]*\): (.+)")
_LOST_TASK: Final = re.compile(r"(?:ost recent failure|reason): (?:Lost task [^:]*: )?(.+)")
_CALL: Final = re.compile(r"(?:[\w.]*Py4J\w*: )?An error occurred while calling [^\n]*\n(?::\s*)?")
"""What Py4J writes before the exception of Java; its number is another one each time."""
_CONDITION: Final = re.compile(r"[\w.]+: (\[[A-Z][A-Z0-9_.]+\] .*?)\.?(?:\s+SQLSTATE: \w+)?$", re.MULTILINE)
"""Spark's error condition with its message, which names for example the file that cannot be read."""
_SHOWN: Final = 10
_PACKAGE: Final = str(Path(__file__).resolve().parents[1])
_LONGEST_REPR: Final = 200
_LONGEST_LINE: Final = 300
_LONGEST_MESSAGE: Final = 600
_LONGEST_TRACEBACK: Final = 20
_FIRST_LINES: Final = 5
_JAVA_FRAME: Final = re.compile(r"\s+at \S+\(.*\)$|\s+\.\.\. \d+ more$")
_FRAME: Final = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+), in ')


def first_line(text: str) -> str:
    """Return the first non-empty line of a text, cut to 500 characters."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= _LONGEST else line[:_LONGEST] + "..."


def summary(text: str) -> str:
    """Return the first line of an error message, with the root cause if the message goes on with a stack trace."""
    call = _CALL.search(text)
    before = text if call is None else text[: call.start()]
    line = first_line(before).removesuffix(":") if before.strip() else ""
    if call is None and _TRACEBACK not in text and "Caused by: " not in text:
        return line
    cause = first_line(innermost_cause(text))
    condition = None if call is None else _CONDITION.search(text, call.end())
    if condition is not None and condition[1] not in cause:
        cause = f"{first_line(condition[1])}: {cause}"
    return line if cause in line else f"{line}: {cause}" if line else cause


def innermost_cause(text: str) -> str:
    """Return the innermost cause in a text that may hold stack traces, in one line."""
    if _TRACEBACK in text:
        after = text[text.rindex(_TRACEBACK) + len(_TRACEBACK) :]
        found = _raised(after)
        if found and not _CALL.search(after):
            return found
    call = _CALL.search(text)
    if "Caused by: " in text:
        text = text[text.rindex("Caused by: ") + len("Caused by: ") :]
    elif (task := _TASK.search(text) or _LOST_TASK.search(text)) is not None:
        text = task.group(1)
    elif call is not None:
        text = text[call.end() :]
    return next((line.strip() for line in text.splitlines() if line.strip()), NO_TEXT)


def _raised(after: str) -> str | None:
    """Return the last line of a Python traceback: the first one that is not indented."""
    return next((line.strip() for line in after.splitlines() if line.strip() and not line[0].isspace()), None)


def unknown_job(typed: str, jobs: Iterable[tuple[str, str]], where: str = "") -> str:
    """Return the text of the error.

    Args:
        typed: The id or name that was typed.
        jobs: Ids and names of the jobs there are; a name may be empty.
        where: Where the job was looked for, such as " in '/data'".
    """
    known = list(jobs)
    text = f"There is no job {short_repr(typed)}{where}. "
    if not known:
        return f"{text}There are no jobs."
    names = [each for job in known for each in job if each]
    near = difflib.get_close_matches(typed, names, n=1, cutoff=0.6)
    if near:
        text += f"Did you mean {near[0]!r}? "
    shown = [f"{job_id} ({name})" if name else job_id for job_id, name in known[:_SHOWN]]
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    return f"{text}Jobs: {', '.join(shown)}{more}."


def is_of_holdfast(code: CodeType) -> bool:
    """Return whether code is of this package."""
    return code.co_filename.startswith(_PACKAGE)


def ends_in_holdfast(error: BaseException) -> bool:
    """Return whether this package raised an error itself, and not a function that it called."""
    return [is_of_holdfast(frame.f_code) for frame, _ in traceback.walk_tb(error.__traceback__)][-1:] == [True]


def short_repr(value: Any) -> str:
    """Return the repr of a value in one line, shortened. Never raises."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - the repr is user code
        text = f"<{type(value).__qualname__}, whose repr raises {type(error).__name__}>"
    return _shortened(text, _LONGEST_REPR)


def one_line(error: BaseException) -> str:
    """Return class and message of an error in one line, shortened. Never raises."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the text is user code
        text = ""
    message = summary(text)
    name = type(error).__name__
    return _shortened(f"{name}: {message}" if message else name, _LONGEST_MESSAGE)


def _shortened(text: str, longest: int) -> str:
    text = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text[: longest + 1])
    return text if len(text) <= longest else f"{text[:longest]}..."


def user_traceback(error: BaseException) -> str:
    """Return the traceback of an error without frames of Java, and of this package before those of the user.

    It has at most 20 lines: of a longer one, the lines in the middle are left out.
    """
    described = traceback.TracebackException.from_exception(error)
    _drop_own_frames(described)
    lines = [line for line in "".join(described.format()).splitlines() if not _JAVA_FRAME.match(line)]
    lines = [_shortened(line, _LONGEST_LINE) for line in lines]
    if len(lines) > _LONGEST_TRACEBACK:
        last = _LONGEST_TRACEBACK - _FIRST_LINES - 1
        lines = [*lines[:_FIRST_LINES], f"  ... {len(lines) - _FIRST_LINES - last} lines ...", *lines[-last:]]
    return "\n".join(lines)


def _drop_own_frames(error: traceback.TracebackException | None) -> None:
    while error is not None:
        first = next((at for at, one in enumerate(error.stack) if not one.filename.startswith(_PACKAGE)), None)
        error.stack[:] = [] if first is None else error.stack[first:]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def with_source_lines(text: str) -> str:
    """Return a traceback with the source lines that are missing in it, from files and notebook cells of this process.

    A process that has got a function by value may not have its file.
    """
    return "\n".join(_with_source_lines(text.splitlines()))


def _with_source_lines(lines: list[str]) -> Iterator[str]:
    for line, following in zip_longest(lines, lines[1:], fillvalue=""):
        yield line
        frame = _FRAME.match(line)
        if frame is not None and not following.startswith("    "):
            source = linecache.getline(frame["file"], int(frame["line"])).strip()
            if source:
                yield f"    {source}"


def install_error_display() -> None:
    """Print errors of this package in short, unless the program has a hook of its own."""
    if log_level() == "DEBUG":
        return
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print_error
    HoldfastError._render_traceback_ = error_lines  # type: ignore[attr-defined]  # IPython calls it


def error_lines(error: HoldfastError) -> list[str]:
    """Return the lines to print for an error."""
    frames = [
        (frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if not is_of_holdfast(frame.f_code)
    ]
    lines = traceback.StackSummary.extract(iter(frames)).format()
    kind = type(error)
    parts = [
        "Traceback (most recent call last):\n" if lines else "",
        *lines,
        f"{kind.__module__}.{kind.__qualname__}: {error}\n",
        *(f"{note}\n" for note in getattr(error, "__notes__", ())),
    ]
    cause = error.__cause__
    if isinstance(cause, UserFunctionError) and not cause.is_logged:
        parts.append(f"{cause.details}\n")
    return without_credentials("".join(parts)).splitlines()


def _print_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, KeyboardInterrupt) and error.args:  # how the job ended; Python raises it without a text
        sys.stderr.write(f"{error}\n")
        return
    if not isinstance(error, HoldfastError):
        sys.__excepthook__(kind, error, trace)
        return
    sys.stderr.write("\n".join(error_lines(error)) + "\n")
