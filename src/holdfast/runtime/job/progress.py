"""What users see of a running job: one record an epoch, one live line on a terminal, one log line elsewhere."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TextIO

import humanfriendly

from holdfast.kernel.secret import get_logger

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
