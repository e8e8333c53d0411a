"""What users see of a running job: one record an epoch, one live line on a terminal, one log line elsewhere."""

from __future__ import annotations

import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, TextIO

import humanfriendly

from holdfast.errors import ConfigurationError
from holdfast.kernel.clock import Clock
from holdfast.kernel.secret import get_logger, without_credentials
from holdfast.runtime.job.control import JobStatus
from holdfast.runtime.job.options import EXCEPTION_HISTORY

logger = get_logger("holdfast.progress")


@dataclass(frozen=True)
class EpochProgress:
    """One epoch.

    Attributes:
        epoch: Its number.
        checkpoint_id: The checkpoint that it completed; None if none was due.
        rows: Elements read from sources.
        duration_ms: From planning until the next epoch may begin.
        checkpoint_ms: From the last acknowledgement to the end of the pointer write.
        commit_ms: How long it has waited for sinks: for commits of the checkpoints before, or its own.
        state_bytes: Size of all run files that the state version names.
        position: Where the sources stand, as short text.
        started: When it began, in milliseconds since 1970.
        task_ms: From handing its tasks to the engine to their last acknowledgement.
        function_ms: Of that, how long the busiest task of each stage has worked; the rest is the engine's.
        saving_ms: Of that, for state.
        watermark: The least watermark of all operators, in milliseconds since 1970; None if there is none yet.
        sinks: For each sink its uid, the last epoch that it has committed, None before the first, how many
            milliseconds that took, and how many accepted epochs it has not committed yet.
    """

    epoch: int
    checkpoint_id: int | None
    rows: int
    duration_ms: float
    checkpoint_ms: float
    commit_ms: float
    state_bytes: int
    position: str
    started: int = 0
    task_ms: float = 0.0
    function_ms: float = 0.0
    saving_ms: float = 0.0
    watermark: int | None = None
    sinks: tuple[dict[str, Any], ...] = ()

    @property
    def rows_per_second(self) -> float:
        """Rows divided by the whole time of the epoch."""
        return 1000 * self.rows / self.duration_ms if self.duration_ms else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The record as `JobClient.last_progress` gives it."""
        return {**asdict(self), "sinks": list(self.sinks), "rows_per_second": round(self.rows_per_second, 1)}

    def line(self) -> str:
        """The record as one line of text."""
        checkpoint = "-" if self.checkpoint_id is None else str(self.checkpoint_id)
        return (
            f"epoch {self.epoch}: {self.rows:,} rows, {self.rows_per_second:,.0f} rows/s, state "
            f"{humanfriendly.format_size(self.state_bytes, binary=True)}, "
            f"checkpoint {checkpoint} in {self.checkpoint_ms:.0f} ms, {self.position}"
        )


class ProgressReporter:
    """Keeps the recent records and shows them.

    Args:
        name: Name of the job.
        stream: Where a live line goes if it is a terminal; None means standard error.
        keep: How many records are kept.
    """

    def __init__(self, name: str, stream: TextIO | None = None, keep: int = 600) -> None:
        self._name = name
        self._stream = stream if stream is not None else sys.stderr
        self._live = bool(getattr(self._stream, "isatty", lambda: False)())
        self._recent: deque[EpochProgress] = deque(maxlen=keep)
        self._listeners: list[Callable[[EpochProgress], None]] = []

    def listen(self, listener: Callable[[EpochProgress], None]) -> None:
        """Calls `listener` with every further record, in the thread that runs the epoch."""
        self._listeners.append(listener)

    def report(self, progress: EpochProgress) -> None:
        """Takes one record."""
        self._recent.append(progress)
        if self._live:
            self._write(f"\r\x1b[K{self._name}: {progress.line()}")
        if not self._live:
            logger.info("%s: %s", self._name, progress.line())
        for listener in self._listeners:
            listener(progress)

    def close(self) -> None:
        """Ends the live line."""
        if self._live and self._recent:
            self._write("\n")

    def _write(self, text: str) -> None:
        """Writes to the terminal while there is one: a job that runs on in the background outlives it."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # it was closed, there or here
            self._live = False

    @property
    def recent(self) -> list[EpochProgress]:
        """The recent records, oldest first."""
        return list(self._recent)


# What has happened to a job in this process: when it entered each status, and what made its attempts fail.

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
