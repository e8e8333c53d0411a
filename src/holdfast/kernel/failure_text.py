"""Texts of failures in one line: the message, and the root cause behind the stack traces of Java and Python in it."""

from __future__ import annotations

import re
from typing import Final

NO_TEXT: Final = "the exception has no text"

_LONGEST: Final = 500
_TRACEBACK: Final = "Traceback (most recent call last):"
_TASK: Final = re.compile(r"[Mm]ost recent failure: Lost task .*?\(executor [^)]*\): (.+)")
_LOST_TASK: Final = re.compile(r"(?:ost recent failure|reason): (?:Lost task [^:]*: )?(.+)")
_CALL: Final = re.compile(r"(?:[\w.]*Py4J\w*: )?An error occurred while calling [^\n]*\n(?::\s*)?")
"""What Py4J writes before the exception of Java; its number is another one each time."""
_CONDITION: Final = re.compile(r"[\w.]+: (\[[A-Z][A-Z0-9_.]+\] .*?)\.?(?:\s+SQLSTATE: \w+)?$", re.MULTILINE)
"""Spark's error condition with its message, which names for example the file that cannot be read."""


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
