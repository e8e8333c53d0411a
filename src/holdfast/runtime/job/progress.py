"""Progress of a job: reports of epochs, and the history of its status and failures."""

from __future__ import annotations

import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TextIO

import humanfriendly

from holdfast.errors import ConfigurationError
from holdfast.kernel.clock import Clock
from holdfast.kernel.failure_text import summary
from holdfast.kernel.secret import get_logger, without_credentials
from holdfast.runtime.job.control import JobStatus
from holdfast.runtime.job.options import EXCEPTION_HISTORY

logger = get_logger("holdfast.progress")


@dataclass(frozen=True)
class EpochProgress:
    """Report of one epoch.

    Attributes:
        epoch: Its number.
        checkpoint_id: The checkpoint that it completed; None if none was due.
        rows: Elements read from sources.
        duration_ms: Time from planning until the next epoch may begin.
        checkpoint_ms: Time from the last acknowledgement to the end of the pointer write.
        commit_ms: Time waiting for sinks: for commits of earlier checkpoints, or its own.
        state_bytes: Size of all run files of the state version.
        position: Source positions as short text.
        started: Start time, in milliseconds since 1970.
        task_ms: Time from starting the tasks to the last acknowledgement.
        function_ms: Part of it that the busiest task of each stage has worked; the rest is the engine's.
        saving_ms: Part of that for saving state.
        watermark: Least watermark of all operators, in milliseconds since 1970; None if there is none yet.
        sinks: For each sink its uid, its last committed epoch (None before the first), the milliseconds of that commit,
            and the number of accepted epochs that it has not committed.
        real_time: Of a real-time job the longest alignment and snapshot of a task at the barrier, in milliseconds, and
            for each operator where the time of its least idle subtask went in the last second, in milliseconds; None
            in a job by epochs.
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
    real_time: dict[str, Any] | None = None

    @property
    def rows_per_second(self) -> float:
        return 1000 * self.rows / self.duration_ms if self.duration_ms else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the report as in `JobClient.last_progress`."""
        return {**asdict(self), "sinks": list(self.sinks), "rows_per_second": round(self.rows_per_second, 1)}

    def line(self) -> str:
        """Return the report as one line of text."""
        checkpoint = "-" if self.checkpoint_id is None else str(self.checkpoint_id)
        return (
            f"epoch {self.epoch}: {self.rows:,} rows, {self.rows_per_second:,.0f} rows/s, state "
            f"{humanfriendly.format_size(self.state_bytes, binary=True)}, "
            f"checkpoint {checkpoint} in {self.checkpoint_ms:.0f} ms, {self.position}{self._busiest()}"
        )

    def _busiest(self) -> str:
        """Return the operator that is busy most, as text; empty in a job by epochs."""
        operators = self.real_time["operators"] if self.real_time else []
        if not operators:
            return ""
        busiest = max(operators, key=lambda one: one["busy"])
        return f", {busiest['id']} is busy {busiest['busy'] / 10:.0f}% of the time"


class ProgressReporter:
    """Keeps the recent reports, and shows them: a live line on a terminal, a log line elsewhere.

    Args:
        name: Name of the job.
        stream: Stream of the live line, if it is a terminal; None for standard error.
        keep: Number of reports that are kept.
    """

    def __init__(self, name: str, stream: TextIO | None = None, keep: int = 600) -> None:
        self._name = name
        self._stream = stream if stream is not None else sys.stderr
        self._live = bool(getattr(self._stream, "isatty", lambda: False)())
        self._recent: deque[EpochProgress] = deque(maxlen=keep)
        self._listeners: list[Callable[[EpochProgress], None]] = []

    def listen(self, listener: Callable[[EpochProgress], None]) -> None:
        """Call `listener` with each further report, in the thread that runs the epoch."""
        self._listeners.append(listener)

    def report(self, progress: EpochProgress) -> None:
        self._recent.append(progress)
        if self._live:
            self._write(f"\r\x1b[K{self._name}: {progress.line()}")
        if not self._live:
            logger.info("%s: %s", self._name, progress.line())
        for listener in self._listeners:
            listener(progress)

    def close(self) -> None:
        """End the live line."""
        if self._live and self._recent:
            self._write("\n")

    def _write(self, text: str) -> None:
        """Write to the terminal; stop if it was closed, because a background job may outlive it."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # it was closed
            self._live = False

    @property
    def recent(self) -> list[EpochProgress]:
        """The recent reports, oldest first."""
        return list(self._recent)


@dataclass(frozen=True)
class Failure:
    """Failure that ended an attempt.

    Attributes:
        timestamp: Time in milliseconds since 1970.
        name: Class of the error.
        message: Its message.
        stack_trace: Its stack trace.
        uid: The operator, if the error names one.
    """

    timestamp: int
    name: str
    message: str
    stack_trace: str
    uid: str | None

    @property
    def in_one_line(self) -> str:
        """Name and message, with the root cause in place of stack traces."""
        return f"{self.name}: {summary(self.message)}"


class JobHistory:
    """Status and failures of a job in this process. Safe to use from several threads.

    Args:
        clock: Time.
        failures: Number of failures that are kept.

    Raises:
        ConfigurationError: The number is negative.
    """

    def __init__(self, clock: Clock, failures: int = 16) -> None:
        if failures < 0:
            raise ConfigurationError(f"{EXCEPTION_HISTORY.key} must be 0 or more, not {failures!r}.")
        self._clock = clock
        self._lock = threading.Lock()
        self._entered: dict[JobStatus, int] = {}
        self._failures: deque[Failure] = deque(maxlen=failures)
        self._count = 0
        self.start_time = clock.now_ms()

    def enter(self, status: JobStatus) -> None:
        """Record a change of status."""
        with self._lock:
            self._entered[status] = self._clock.now_ms()

    def failed(self, error: BaseException) -> None:
        """Record the failure of an attempt."""
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
        """Time of the last change to each status, in milliseconds since 1970."""
        with self._lock:
            return dict(self._entered)

    @property
    def failures(self) -> list[Failure]:
        """The kept failures, newest first."""
        with self._lock:
            return list(reversed(self._failures))

    @property
    def last_failure(self) -> Failure | None:
        """The newest failure; None if there is none."""
        with self._lock:
            return self._failures[-1] if self._failures else None

    @property
    def failure_count(self) -> int:
        """Number of all failures, including forgotten ones."""
        return self._count

    @property
    def has_forgotten(self) -> bool:
        """Whether there were more failures than are kept."""
        return self._count > len(self._failures)
