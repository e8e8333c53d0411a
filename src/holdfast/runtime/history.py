"""What has happened to a job in this process: when it entered each status, and what made its attempts fail."""

from __future__ import annotations

import threading
import traceback
from collections import deque
from dataclasses import dataclass

from holdfast.kernel.clock import Clock
from holdfast.runtime.status import JobStatus


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


class JobHistory:
    """Safe to use from several threads.

    Args:
        clock: Time.
        failures: How many failures are remembered.
    """

    def __init__(self, clock: Clock, failures: int = 16) -> None:
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
            str(error),
            "".join(traceback.format_exception(error)),
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
    def failure_count(self) -> int:
        """How many attempts have failed, those that are forgotten included."""
        return self._count

    @property
    def has_forgotten(self) -> bool:
        """Whether there were more failures than are remembered."""
        return self._count > len(self._failures)
