"""Short display of a Holdfast error that ends a program: the lines of the program, and what to do.

The frames of this package and the errors behind an error are printed with HOLDFAST_LOG_LEVEL=DEBUG only.
"""

from __future__ import annotations

import sys
import traceback
from types import TracebackType

from holdfast.errors import HoldfastError, UserFunctionError
from holdfast.kernel.default_log import log_level
from holdfast.kernel.secret import without_credentials
from holdfast.kernel.user_traceback import is_of_holdfast


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
