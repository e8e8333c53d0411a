"""Metrics of functions, as in PyFlink: `runtime_context.get_metrics_group()` in `open`.

Each copy of a function has metrics of its own, which begin at 0. A task reports their values with its barrier, and the
driver adds them up when the epoch is accepted. So failed attempts do not count.
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

logger = get_logger(__name__)
TASK_METRICS: Final = "holdfast.metrics"
"""The key of a deep copy's memo under which metrics find those of their task."""
MAX_METRICS: Final = 200
"""Metrics of one operator at most: each is in the report of each task."""
_OTHER: Final = re.compile("[^A-Za-z0-9_]")
LATE_DROPPED: Final = "numLateRecordsDropped"
"""Counter of window operators; Flink's name."""
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
"""Names of metrics that Holdfast counts itself."""


class Metric(ABC):
    """A metric of one task.

    Args:
        name: Its name, prefixed with those of its groups.
    """

    kind = ""

    def __init__(self, name: str) -> None:
        self.name = name

    def __deepcopy__(self, memo: dict[Any, Any]) -> Metric:
        metrics = memo.get(TASK_METRICS)
        return self if metrics is None else metrics.get_or_create(type(self), self.name)

    @abstractmethod
    def value(self) -> list[float]:
        """Return the values that the task reports."""


class Counter(Metric):
    """A counter; its values are added up over all tasks and epochs.

    >>> counter = Counter("words")
    >>> counter.inc()
    >>> counter.inc(2)
    >>> counter.dec()
    >>> counter.get_count()
    2
    """

    kind = "counter"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._count = 0

    def inc(self, n: int = 1) -> None:
        """Add `n` to the count."""
        self._count += n

    def dec(self, n: int = 1) -> None:
        """Subtract `n` from the count."""
        self._count -= n

    def get_count(self) -> int:
        """Return the count of this task in this epoch."""
        return self._count

    def value(self) -> list[float]:
        return [self._count]


class Meter(Metric):
    """A counter of events; the reader of the metrics computes the rate, for instance with Prometheus' ``rate()``.

    >>> meter = Meter("requests")
    >>> meter.mark_event(3)
    >>> meter.get_count()
    3
    """

    kind = "meter"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._count = 0

    def mark_event(self, value: int = 1) -> None:
        """Count `value` events."""
        self._count += value

    def get_count(self) -> int:
        """Return the number of events of this task in this epoch."""
        return self._count

    def value(self) -> list[float]:
        return [self._count]


class Distribution(Metric):
    """A distribution of integers: number, sum, minimum and maximum.

    >>> sizes = Distribution("bytes")
    >>> for size in (5, 7):
    ...     sizes.update(size)
    >>> sizes.value()
    [2, 12, 5, 7]
    """

    kind = "distribution"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._count, self._sum, self._least, self._greatest = 0, 0, math.inf, -math.inf

    def update(self, value: int) -> None:
        """Add a value."""
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
        """Increment one of the counters with a reserved name."""
        counter = self._metrics.setdefault(name, Counter(name))
        assert isinstance(counter, Counter)
        counter.inc(n)

    def get_or_create(self, kind: type[Metric], name: str) -> Metric:
        """Return the metric of a name, and create it if there is none.

        Raises:
            ConfigurationError: The name belongs to a metric of another kind, or there are too many metrics.
        """
        known = self._metrics.get(name)
        if known is None or name in RESERVED_NAMES:
            self._admit(name)
            known = self._metrics[name] = kind(name)
        if type(known) is not kind:
            raise ConfigurationError(
                f"Metric {name!r} is already a {known.kind}, and not a {kind.kind}: choose another name."
            )
        return known

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Register a function that is read at the end of each task.

        Raises:
            ConfigurationError: The name belongs to another metric, or there are too many metrics.
        """
        if name not in self.gauges:
            self._admit(name)
        self.gauges[name] = read

    def report(self) -> dict[str, list[Any]]:
        """Return kind and values of all metrics, by name. A gauge that raises is left out and logged."""
        reported: dict[str, list[Any]] = {
            name: [metric.kind, *map(_plain, metric.value())] for name, metric in self._metrics.items()
        }
        for name, read in self.gauges.items():
            try:
                number = float(read())
            except Exception as error:  # noqa: BLE001 - a gauge is user code; the task goes on
                logger.warning("gauge %r cannot be read: %r", name, error)
                continue
            if math.isfinite(number):
                reported[name] = ["gauge", number]
        return reported

    def _admit(self, name: str) -> None:
        if name in RESERVED_NAMES or name in self._metrics or name in self.gauges:
            raise ConfigurationError(f"There is already a metric {name!r}: choose another name.")
        if len(self._metrics.keys() - RESERVED_NAMES) + len(self.gauges) >= MAX_METRICS:
            raise ConfigurationError(
                f"Metric {name!r} is one too many: an operator has at most {MAX_METRICS}. Combine metrics."
            )


class MetricGroup:
    """A group of metrics; their names begin with that of the group.

    >>> from holdfast.testing import OperatorHarness
    >>> from holdfast.datastream.functions import RichMapFunction
    >>> class Lengths(RichMapFunction):
    ...     def open(self, runtime_context):
    ...         self.long = runtime_context.get_metrics_group().add_group("words").counter("long")
    ...
    ...     def map(self, value):
    ...         self.long.inc(len(value) > 3)
    ...         return len(value)
    >>> harness = OperatorHarness(Lengths())
    >>> harness.process_element("kelp")
    [4]
    >>> harness.close()
    """

    def __init__(self, metrics: TaskMetrics, names: tuple[str, ...] = ()) -> None:
        self._metrics = metrics
        self._names = names

    def __deepcopy__(self, memo: dict[Any, Any]) -> Self:
        metrics = memo.get(TASK_METRICS, self._metrics)
        return type(self)(metrics, self._names)

    def add_group(self, name: str, extra: str | None = None) -> MetricGroup:
        """Return a group inside of this one.

        Args:
            name: Name of the group.
            extra: A second part of the name, for instance a value: `add_group("color", "red")`.
        """
        return MetricGroup(self._metrics, (*self._names, name) if extra is None else (*self._names, name, extra))

    def counter(self, name: str) -> Counter:
        """Return the counter of a name, and create it if there is none.

        Raises:
            ConfigurationError: The name belongs to another kind of metric, or there are too many metrics.
        """
        found = self._metrics.get_or_create(Counter, self._full(name))
        assert isinstance(found, Counter)
        return found

    def meter(self, name: str, time_span_in_seconds: int = 60) -> Meter:
        """Return the meter of a name, and create it if there is none.

        Args:
            name: Name of the meter.
            time_span_in_seconds: Accepted and ignored: the reader of the metrics chooses a time span.

        Raises:
            ConfigurationError: The name belongs to another kind of metric, or there are too many metrics.
        """
        found = self._metrics.get_or_create(Meter, self._full(name))
        assert isinstance(found, Meter)
        return found

    def distribution(self, name: str) -> Distribution:
        """Return the distribution of a name, and create it if there is none.

        Raises:
            ConfigurationError: The name belongs to another kind of metric, or there are too many metrics.
        """
        found = self._metrics.get_or_create(Distribution, self._full(name))
        assert isinstance(found, Distribution)
        return found

    def gauge(self, name: str, obj: Callable[[], float]) -> None:
        """Register a function that is read when a task has read its input; the values of all tasks are added up.

        Args:
            name: Name of the gauge.
            obj: Returns a number.

        Raises:
            ConfigurationError: The name belongs to another metric, or there are too many metrics.
        """
        self._metrics.gauge(self._full(name), obj)

    def _full(self, name: str) -> str:
        full = "_".join(_OTHER.sub("_", part) for part in (*self._names, name))
        if not full.strip("_"):
            raise ConfigurationError(f"{name!r} cannot be the name of a metric: it has no letter or digit.")
        return full


def _plain(number: Any) -> float:
    """Convert a number, which may be one of numpy."""
    try:
        return int(operator.index(number))
    except TypeError:
        return float(number)


def add_task_metrics(
    sums: Mapping[str, list[Any]], reported: Mapping[str, list[Any]], epoch: dict[str, float]
) -> dict[str, list[Any]]:
    """Return the sums after the report of one task.

    Args:
        sums: The sums so far.
        reported: The report of the task.
        epoch: The gauges of the epoch so far, which are not summed over epochs; changed.
    """
    new = dict(sums)
    for name, (kind, *numbers) in reported.items():
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
