"""Metrics that functions count themselves, as PyFlink has them: `runtime_context.get_metrics_group()` in `open`.

A metric belongs to one task: the copy of the function that the task runs on has metrics of its own, which begin at 0.
What they hold when the task has read its input travels to the driver with the task's report, and is added up there once
the epoch is accepted. So nothing is counted of an attempt that fails.
"""

from __future__ import annotations

import math
import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

from holdfast.errors import ConfigurationError
from holdfast.kernel.secret import get_logger

_log = get_logger(__name__)
TASK_METRICS: Final = "holdfast.metrics"
"""The key of a deep copy's memo under which metrics find those of the task that they are re-bound to."""
MAX_METRICS: Final = 200
"""Of one operator: each of them is in the report of each task."""
_OTHER: Final = re.compile("[^A-Za-z0-9_]")
LATE_DROPPED: Final = "numLateRecordsDropped"
"""A counter of operators of windows, under Flink's name."""
RESERVED_NAMES: Final = frozenset(
    {
        LATE_DROPPED,
        "numRecordsIn",
        "numRecordsOut",
        "numBytesIn",
        "currentOutputWatermark",
        "currentEmitEventTimeLag",
        "pendingRecords",
    }
)
"""What Holdfast counts itself."""


class Metric(ABC):
    """One metric of one task.

    Args:
        name: Its name, with those of its groups before it.
    """

    kind = ""

    def __init__(self, name: str) -> None:
        self.name = name

    def __deepcopy__(self, memo: dict[Any, Any]) -> Metric:
        metrics = memo.get(TASK_METRICS)
        return self if metrics is None else metrics.own(type(self), self.name)

    @abstractmethod
    def value(self) -> list[float]:
        """Return what the task reports."""


class Counter(Metric):
    """Counts up and down."""

    kind = "counter"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._count = 0

    def inc(self, n: int = 1) -> None:
        """Add to the count."""
        self._count += n

    def dec(self, n: int = 1) -> None:
        """Take from the count."""
        self._count -= n

    def get_count(self) -> int:
        """What this task has counted in this epoch so far."""
        return self._count

    def value(self) -> list[float]:
        return [self._count]


class Meter(Metric):
    """Counts events; their rate is for whoever reads the metrics, Prometheus' ``rate()`` for instance."""

    kind = "meter"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._count = 0

    def mark_event(self, value: int = 1) -> None:
        """Count some events."""
        self._count += value

    def get_count(self) -> int:
        """The events of this task in this epoch so far."""
        return self._count

    def value(self) -> list[float]:
        return [self._count]


class Distribution(Metric):
    """Reports how many values there were, their sum, the least and the greatest."""

    kind = "distribution"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._count, self._sum, self._least, self._greatest = 0, 0, math.inf, -math.inf

    def update(self, value: int) -> None:
        """Take note of a value."""
        self._count += 1
        self._sum += value
        self._least, self._greatest = min(self._least, value), max(self._greatest, value)

    def value(self) -> list[float]:
        return [self._count, self._sum, self._least, self._greatest] if self._count else [0, 0, 0, 0]


class TaskMetrics:
    """The metrics of one operator in one task."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}
        self.gauges: dict[str, Callable[[], float]] = {}

    def count(self, name: str, n: int = 1) -> None:
        """Count what functions cannot count, by one of the names that are taken."""
        counter = self._metrics.setdefault(name, Counter(name))
        assert isinstance(counter, Counter)
        counter.inc(n)

    def own(self, kind: type[Metric], name: str) -> Metric:
        """The task's metric of a name, made if there is none.

        Raises:
            ConfigurationError: There is one of another kind, or there are too many.
        """
        known = self._metrics.get(name)
        if known is None or name in RESERVED_NAMES:
            self._admit(name)
            known = self._metrics[name] = kind(name)
        if type(known) is not kind:
            raise ConfigurationError(f"there is a {known.kind} {name!r} already, so there can be no {kind.kind}")
        return known

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Have a number read at the end of each task.

        Raises:
            ConfigurationError: There is another metric of this name, or there are too many.
        """
        if name not in self.gauges:
            self._admit(name)
        self.gauges[name] = read

    def report(self) -> dict[str, list[Any]]:
        """Return what the task has counted: by name the kind and the numbers.

        A gauge that cannot be read is left out, and the log says why.
        """
        told: dict[str, list[Any]] = {
            name: [metric.kind, *map(_plain, metric.value())] for name, metric in self._metrics.items()
        }
        for name, read in self.gauges.items():
            try:
                number = float(read())
            except Exception as error:
                _log.warning("gauge %r cannot be read: %r", name, error)
                continue
            if math.isfinite(number):
                told[name] = ["gauge", number]
        return told

    def _admit(self, name: str) -> None:
        if name in RESERVED_NAMES or name in self._metrics or name in self.gauges:
            raise ConfigurationError(f"there is a metric {name!r} already: choose another name")
        if len(self._metrics.keys() - RESERVED_NAMES) + len(self.gauges) >= MAX_METRICS:
            raise ConfigurationError(
                f"an operator has at most {MAX_METRICS} metrics, and {name!r} is one more: count what belongs "
                "together in one"
            )


class MetricGroup:
    """Makes metrics whose names begin with that of the group."""

    def __init__(self, metrics: TaskMetrics, names: tuple[str, ...] = ()) -> None:
        self._metrics = metrics
        self._names = names

    def __deepcopy__(self, memo: dict[Any, Any]) -> Self:
        metrics = memo.get(TASK_METRICS, self._metrics)
        return type(self)(metrics, self._names)

    def add_group(self, name: str, extra: str | None = None) -> MetricGroup:
        """A group in this one; with `extra` one for a value of something: `add_group("color", "red")`."""
        return MetricGroup(self._metrics, (*self._names, name) if extra is None else (*self._names, name, extra))

    def counter(self, name: str) -> Counter:
        """The counter of a name.

        Raises:
            ConfigurationError: The name is taken by another kind, or there are too many.
        """
        found = self._metrics.own(Counter, self._full(name))
        assert isinstance(found, Counter)
        return found

    def meter(self, name: str, time_span_in_seconds: int = 60) -> Meter:
        """The meter of a name; the time span is accepted and ignored, because whoever reads it chooses one.

        Raises:
            ConfigurationError: The name is taken by another kind, or there are too many.
        """
        found = self._metrics.own(Meter, self._full(name))
        assert isinstance(found, Meter)
        return found

    def distribution(self, name: str) -> Distribution:
        """The distribution of a name.

        Raises:
            ConfigurationError: The name is taken by another kind, or there are too many.
        """
        found = self._metrics.own(Distribution, self._full(name))
        assert isinstance(found, Distribution)
        return found

    def gauge(self, name: str, obj: Callable[[], float]) -> None:
        """Have a number read when a task has read its input; those of all tasks are added up.

        Raises:
            ConfigurationError: The name is taken, or there are too many.
        """
        self._metrics.gauge(self._full(name), obj)

    def _full(self, name: str) -> str:
        full = "_".join(_OTHER.sub("_", part) for part in (*self._names, name))
        if not full.strip("_"):
            raise ConfigurationError(f"{name!r} cannot be the name of a metric: it has no letter or digit")
        return full


def _plain(number: Any) -> float:
    """A number as Python has it; functions of batches count with those of numpy."""
    try:
        return int(operator.index(number))
    except TypeError:
        return float(number)


def add_task_metrics(
    sums: Mapping[str, list[Any]], told: Mapping[str, list[Any]], epoch: dict[str, float]
) -> dict[str, list[Any]]:
    """Add what a task has told to what is known.

    Args:
        sums: What is known.
        told: What one task has told.
        epoch: The gauges of the epoch so far, which do not add up over epochs; changed.
    """
    new = dict(sums)
    for name, (kind, *numbers) in told.items():
        known = new.get(name)
        if kind == "gauge":
            epoch[name] = epoch.get(name, 0.0) + numbers[0]
            new[name] = [kind, epoch[name]]
        elif known is None or known[0] != kind or (kind == "distribution" and not known[1]):
            new[name] = [kind, *numbers]
        elif kind == "distribution":
            if numbers[0]:
                new[name] = [
                    kind,
                    known[1] + numbers[0],
                    known[2] + numbers[1],
                    min(known[3], numbers[2]),
                    max(known[4], numbers[3]),
                ]
        else:
            new[name] = [kind, known[1] + numbers[0]]
    return new
