"""Tracebacks of user functions without the frames of this package, and values as short text."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from types import CodeType
from typing import Any, Final

from holdfast.kernel.failure_text import summary

_PACKAGE: Final = str(Path(__file__).resolve().parents[1])
_LONGEST_REPR: Final = 200
_LONGEST_LINE: Final = 300
_LONGEST_MESSAGE: Final = 600
_LONGEST_TRACEBACK: Final = 20
_FIRST_LINES: Final = 5
_JAVA_FRAME: Final = re.compile(r"\s+at \S+\(.*\)$|\s+\.\.\. \d+ more$")
_FRAME: Final = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+), in ')


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
