"""What has happened to a job in this process: when it entered each status, and what made its attempts fail."""

from __future__ import annotations

import threading
import traceback
from collections import deque
from dataclasses import dataclass
from typing import Final

from holdfast.errors import ConfigurationError
from holdfast.kernel.clock import Clock
from holdfast.kernel.secret import without_credentials
from holdfast.runtime.job.rest_options import EXCEPTION_HISTORY
from holdfast.runtime.job.status import JobStatus

_LONGEST: Final = 500


@dataclass(frozen=True)
class Failure:
    """What ended an attempt.

    Attributes:
        timestamp: When, in milliseconds since 1970.
        name: Class of the error.
        message: What it says.
        stack_trace: Where it came from.
        uid: The operator, if the error names one.
    """

    timestamp: int
    name: str
    message: str
    stack_trace: str
    uid: str | None

    @property
    def in_one_line(self) -> str:
        """Name and message, without the stack traces that may follow it."""
        return f"{self.name}: {first_line(self.message)}"


def first_line(text: str) -> str:
    """The first line of a message that says something, and of it what fits on a screen."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= _LONGEST else line[:_LONGEST] + "..."


class JobHistory:
    """Safe to use from several threads.

    Args:
        clock: Time.
        failures: How many failures are remembered.

    Raises:
        ConfigurationError: A negative number of them.
    """

    def __init__(self, clock: Clock, failures: int = 16) -> None:
        if failures < 0:
            raise ConfigurationError(f"{EXCEPTION_HISTORY.key} is 0 or more, not {failures!r}.")
        self._clock = clock
        self._lock = threading.Lock()
        self._entered: dict[JobStatus, int] = {}
        self._failures: deque[Failure] = deque(maxlen=failures)
        self._count = 0
        self.start_time = clock.now_ms()

    def enter(self, status: JobStatus) -> None:
        """The job has another status."""
        with self._lock:
            self._entered[status] = self._clock.now_ms()

    def failed(self, error: BaseException) -> None:
        """An attempt has failed."""
        failure = Failure(
            self._clock.now_ms(),
            type(error).__name__,
            without_credentials(str(error)),
            without_credentials("".join(traceback.format_exception(error))),
            getattr(error, "uid", None),
        )
        with self._lock:
            self._count += 1
            self._failures.append(failure)

    @property
    def entered(self) -> dict[JobStatus, int]:
        """When the job entered each status last, in milliseconds since 1970."""
        with self._lock:
            return dict(self._entered)

    @property
    def failures(self) -> list[Failure]:
        """What made attempts fail, newest first."""
        with self._lock:
            return list(reversed(self._failures))

    @property
    def last_failure(self) -> Failure | None:
        """What made the newest attempt that failed fail, None if none has."""
        with self._lock:
            return self._failures[-1] if self._failures else None

    @property
    def failure_count(self) -> int:
        """How many attempts have failed, those that are forgotten included."""
        return self._count

    @property
    def has_forgotten(self) -> bool:
        """Whether there were more failures than are remembered."""
        return self._count > len(self._failures)
