"""What the exit codes of every verb mean, and how an error becomes one."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

from holdfast.errors import ConfigurationError, FencedError, HoldfastError, JobExecutionError, RestoreError
from holdfast.kernel.secret import get_logger, shown_error, without_credentials

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
    sys.stderr.write(f"{type(error).__name__}: {shown_error(error)}\n")
    for note in getattr(error, "__notes__", ()):
        sys.stderr.write(f"  {without_credentials(note)}\n")
    logger.debug("the error came from\n%s", without_credentials("".join(traceback.format_exception(error))))
    sys.stderr.flush()
    sys.exit(exit_code_of(error))
