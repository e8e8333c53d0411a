"""Metrics of real-time tasks. Each task sends its own to the driver once a second, also between barriers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

INTERVAL_SECONDS: Final = 1.0
QUANTILES: Final = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
"""The quantiles of a latency; those of Flink's reporters."""


@dataclass(frozen=True)
class TaskTime:
    """The times of a task, in milliseconds a second; their sum is 1000.

    Attributes:
        busy: Time in which it works.
        back_pressured: Time in which it waits, because a consumer takes no more.
        idle: Time in which it waits for input.
    """

    busy: int
    back_pressured: int
    idle: int


@dataclass(frozen=True)
class OperatorRates:
    """The rates of one subtask of an operator, or of a source in one task, in the last second.

    Attributes:
        records_in: Elements read, a second.
        records_out: Elements emitted, a second.
        watermark: Watermark of its input, in milliseconds since 1970; None if there is none yet.
        pending: Unread records of a source, if it counts them.
    """

    records_in: float = 0.0
    records_out: float = 0.0
    watermark: int | None = None
    pending: int | None = None


@dataclass(frozen=True)
class Latency:
    """The latency of markers of one source, from the source to a task.

    Attributes:
        count: Markers since the task began.
        quantiles: The `QUANTILES` of the last ones, in milliseconds.
    """

    count: int
    quantiles: tuple[float, ...]

    @classmethod
    def of(cls, count: int, recent: Sequence[float]) -> Latency:
        """Return the latency of markers.

        Args:
            count: Number of all markers.
            recent: Milliseconds of the last ones; there is at least one.
        """
        ordered = sorted(recent)
        return cls(count, tuple(ordered[min(int(q * len(ordered)), len(ordered) - 1)] for q in QUANTILES))


@dataclass(frozen=True)
class RealTimeMetrics:
    """The metrics of one real-time task in the last second.

    Attributes:
        time: Its busy, back-pressured and idle time.
        operators: Its operators, and the sources that it reads, by uid.
        latencies: Latency of markers, by uid of their source.
        messages_out: Messages sent to the next stage, a second.
    """

    time: TaskTime
    operators: Mapping[str, OperatorRates] = field(default_factory=dict)
    latencies: Mapping[str, Latency] = field(default_factory=dict)
    messages_out: float = 0.0

    def of_busy_task(self) -> RealTimeMetrics:
        """Return the metrics of a task that has been in one call since these: it reads and emits nothing."""
        still = {uid: replace(one, records_in=0.0, records_out=0.0) for uid, one in self.operators.items()}
        return replace(self, time=TaskTime(1000, 0, 0), operators=still, messages_out=0.0)

    def to_json(self) -> dict[str, Any]:
        time = self.time
        return {
            "time": [time.busy, time.back_pressured, time.idle],
            "operators": {
                uid: [one.records_in, one.records_out, one.watermark, one.pending]
                for uid, one in self.operators.items()
            },
            "latencies": {uid: [one.count, list(one.quantiles)] for uid, one in self.latencies.items()},
            "messages_out": self.messages_out,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RealTimeMetrics:
        """Return metrics from the result of `to_json`.

        Raises:
            Any of `PARSE_ERRORS`: The document has no metrics.
        """
        return cls(
            TaskTime(*map(int, value["time"])),
            {uid: OperatorRates(*numbers) for uid, numbers in value["operators"].items()},
            {uid: Latency(int(count), tuple(map(float, ms))) for uid, (count, ms) in value["latencies"].items()},
            float(value["messages_out"]),
        )


RealTimeMetricsByTask = Mapping[tuple[int, int], RealTimeMetrics]
"""Metrics of tasks by stage and partition."""


@dataclass(frozen=True)
class SubtaskMetrics:
    """The metrics of one subtask of an operator.

    Attributes:
        subtask: Its index.
        time: The times of its task.
        rates: Its rates.
        messages_out: Messages that its task sends, a second.
    """

    subtask: int
    time: TaskTime
    rates: OperatorRates
    messages_out: float


def by_operator(tasks: RealTimeMetricsByTask) -> dict[str, list[SubtaskMetrics]]:
    """Return the subtasks of operators and sources, by uid and in the order of their indexes."""
    found: dict[str, list[SubtaskMetrics]] = {}
    for (_, partition), task in sorted(tasks.items()):
        for uid, rates in task.operators.items():
            found.setdefault(uid, []).append(SubtaskMetrics(partition, task.time, rates, task.messages_out))
    return found


def least_idle(subtasks: Sequence[SubtaskMetrics]) -> TaskTime:
    """Return the time of the subtask that is idle least: a bottleneck shows, however many others wait."""
    return min((one.time for one in subtasks), key=lambda time: time.idle)


def slowest_watermark(subtasks: Sequence[SubtaskMetrics]) -> int | None:
    """Return the least watermark of all subtasks; None if that of one is not known, or in a job by epochs."""
    known = [one.rates.watermark for one in subtasks if one.rates.watermark is not None]
    return min(known, default=None) if len(known) == len(subtasks) else None
