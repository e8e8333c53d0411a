"""Times of a real-time task: for how long elements wait for others, and what is measured of them."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from holdfast.kernel.watermark import MAX_WATERMARK, MIN_WATERMARK
from holdfast.runtime.exchange.real_time_metrics import (
    INTERVAL_SECONDS,
    Latency,
    OperatorRates,
    RealTimeMetrics,
    TaskTime,
)
from holdfast.runtime.task.steps import StepExecutor

_NO_TIME: Final = (MIN_WATERMARK, MAX_WATERMARK)
_LONGEST: Final = 0.02
_LOOK_SECONDS: Final = 0.1
_BUSY: Final = 0.2
_FREE: Final = 0.1
_SCHEDULER: Final = Path("/proc/thread-self/schedstat")


class TaskMeter:
    """Measures one task. Called once a message or less, never for a row.

    Time in which the task waits is idle or back-pressured, all other time is busy.

    Args:
        recent: Number of markers of which latencies are kept, by source.
        clock: Seconds of a monotonic clock.
    """

    def __init__(self, recent: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._recent = recent
        self._since = clock()
        self._idle = self._back_pressured = 0.0
        self._sent = 0
        self._executors: dict[str, StepExecutor] = {}
        self._in: Counter[str] = Counter()
        self._out: Counter[str] = Counter()
        self._reported: dict[str, tuple[int, int]] = {}
        self._latencies: dict[str, tuple[int, deque[float]]] = {}

    def add_wait(self, seconds: float, *, is_back_pressured: bool) -> None:
        """Count a time in which the task did nothing."""
        if is_back_pressured:
            self._back_pressured += seconds
        else:
            self._idle += seconds

    def poll(self, call: Callable[[], Any]) -> Any:
        """Return what a source has read; the time is idle if that is nothing."""
        began = self._clock()
        found = call()
        if found is None:
            self._idle += self._clock() - began
        return found

    def follow(self, executors: Iterable[StepExecutor]) -> None:
        """Count the elements of these executors from now on, added to those of the ones before."""
        self._executors = {executor.step.uid: executor for executor in executors}

    def leave(self) -> None:
        """Keep the counts of the executors that were followed, and forget the executors."""
        for uid, executor in self._executors.items():
            self._in[uid] += executor.records_in
            self._out[uid] += executor.records_out
        self._executors = {}

    def count_read(self, uid: str, rows: int) -> None:
        """Count elements that a source has read."""
        self._out[uid] += rows

    def add_latency(self, uid: str, milliseconds: float) -> None:
        """Count a marker of a source."""
        count, recent = self._latencies.get(uid) or (0, deque(maxlen=self._recent))
        recent.append(milliseconds)
        self._latencies[uid] = count + 1, recent

    @property
    def is_due(self) -> bool:
        """Whether the last report is a second old."""
        return self._clock() - self._since >= INTERVAL_SECONDS

    def report(self, watermarks: Mapping[str, int], pending: Mapping[str, int | None], sent: int) -> RealTimeMetrics:
        """Return the metrics since the last report.

        Args:
            watermarks: Watermark of the input of each step, by uid.
            pending: The sources that the task reads, by uid, and their unread records; None for one that counts none.
            sent: Number of messages that the task has sent since it began.
        """
        now = self._clock()
        seconds = now - self._since
        operators = {}
        for uid in (*pending, *self._executors):
            executor, watermark = self._executors.get(uid), watermarks.get(uid)
            read, emitted = self._in[uid], self._out[uid]
            if executor is not None:
                read, emitted = read + executor.records_in, emitted + executor.records_out
            before = self._reported.get(uid, (0, 0))
            self._reported[uid] = read, emitted
            operators[uid] = OperatorRates(
                round((read - before[0]) / seconds, 1),
                round((emitted - before[1]) / seconds, 1),
                None if watermark in _NO_TIME else watermark,
                pending.get(uid),
            )
        metrics = RealTimeMetrics(
            task_time(seconds, self._idle, self._back_pressured),
            operators,
            {uid: Latency.of(count, recent) for uid, (count, recent) in self._latencies.items()},
            round((sent - self._sent) / seconds, 1),
        )
        self._sent = sent
        self._since, self._idle, self._back_pressured = now, 0.0, 0.0
        return metrics


def task_time(seconds: float, idle: float, back_pressured: float) -> TaskTime:
    """Return the parts of a time in milliseconds a second."""
    waiting = min(1000, round(1000 * back_pressured / seconds))
    without_input = min(1000 - waiting, round(1000 * idle / seconds))
    return TaskTime(1000 - waiting - without_input, waiting, without_input)


class FlushInterval:
    """Becomes longer while the thread waits for a core, and shorter again.

    A message costs about a millisecond of a core, whatever is in it. On a host without free cores elements wait longer
    for a core than for other elements, so fewer messages make all of them faster.

    Args:
        least: Seconds on a host with free cores.
        now: Seconds of the monotonic clock.

    Attributes:
        seconds: The interval.
    """

    def __init__(self, least: float, now: float) -> None:
        self.seconds = self._least = least
        self._looked_at, self._waited = now, waited_for_a_core()

    def adapt(self, now: float) -> None:
        """Look at the time that this thread has waited for a core, ten times a second.

        Args:
            now: Seconds of the monotonic clock.
        """
        passed = now - self._looked_at
        if passed < _LOOK_SECONDS:
            return
        waited = waited_for_a_core()
        share = (waited - self._waited) / passed
        self._looked_at, self._waited = now, waited
        if share > _BUSY:
            self.seconds = max(self._least, min(self.seconds * 1.25, _LONGEST))
        elif share < _FREE:
            self.seconds = max(self._least, self.seconds * 0.9)


def waited_for_a_core() -> float:
    """Return the seconds for which this thread was ready to run and had no core; 0 where the system does not say."""
    try:
        return int(_SCHEDULER.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
