"""Watermark strategies: where event time comes from, and how far the watermark is behind it, as in Flink."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from holdfast.errors import ConfigurationError

MIN_WATERMARK = -(2**63)
"""Before the first watermark."""
MAX_WATERMARK = 2**63 - 1
"""At the end of a bounded input."""

NO_TIMESTAMP = -(2**63)
"""What an assigner receives for an element without a timestamp."""


class TimestampAssigner(ABC):
    """Extracts the event time of elements.

    >>> class FromField(TimestampAssigner):
    ...     def extract_timestamp(self, value, record_timestamp):
    ...         return value.at
    >>> FromField().extract_timestamp(Row(word="kelp", at=1_000), -1)
    1000
    """

    @abstractmethod
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        """Return the event time of an element, in milliseconds since 1970.

        Args:
            value: The element.
            record_timestamp: Its present timestamp; -2**63 if it has none.
        """


class ColumnTimestampAssigner(TimestampAssigner):
    """Reads the event time of rows from a column, without making a Python object of each row.

    >>> ColumnTimestampAssigner("at").extract_timestamp(Row(word="kelp", at=1_000), -1)
    1000

    Args:
        column: Name of the column; whole numbers of milliseconds since 1970, or timestamps.
    """

    def __init__(self, column: str) -> None:
        self.column = column

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        found: int = value[self.column]
        return found


@dataclass(frozen=True)
class Watermark:
    """Declares that no element with this timestamp or an older one follows.

    >>> Watermark(1_000)
    Watermark(timestamp=1000)

    Attributes:
        timestamp: Milliseconds since 1970.
    """

    timestamp: int


class WatermarkOutput:
    """Receives the watermarks of a `WatermarkGenerator`, for one task and one epoch.

    >>> output = WatermarkOutput()
    >>> output.emit_watermark(Watermark(1_000))
    >>> output.emit_watermark(Watermark(500))
    >>> output.reached
    1000

    Attributes:
        is_idle: Whether the task is idle; None if the generator has not called this output.
    """

    def __init__(self) -> None:
        self._greatest: int | None = None
        self.is_idle: bool | None = None

    def emit_watermark(self, watermark: Watermark | int) -> None:
        """Raise the watermark of the task to this one; a lower one is ignored. The task is active again.

        Raises:
            TypeError: The argument is neither a `Watermark` nor a whole number of milliseconds of 64 bits.
        """
        timestamp = watermark.timestamp if isinstance(watermark, Watermark) else watermark
        if type(timestamp) is not int or not MIN_WATERMARK <= timestamp <= MAX_WATERMARK:
            raise TypeError(
                f"emit_watermark() takes a Watermark, milliseconds since 1970 as an int of 64 bits, not {watermark!r}"
            )
        self.is_idle = False
        # Only the end of the input ends event time, not a generator.
        timestamp = min(timestamp, MAX_WATERMARK - 1)
        if timestamp > MIN_WATERMARK and (self._greatest is None or timestamp > self._greatest):
            self._greatest = timestamp

    def mark_idle(self) -> None:
        """Mark the task as idle for this epoch, so that others do not wait for it, until it emits a watermark.

        In real time it stays idle behind a barrier, too.
        """
        self.is_idle = True

    def mark_active(self) -> None:
        """Take `mark_idle` back."""
        self.is_idle = False

    @property
    def reached(self) -> int | None:
        """The greatest watermark emitted; None if there is none, or the task is idle."""
        return None if self.is_idle else self._greatest


class WatermarkGenerator(ABC):
    """Generates watermarks from the elements of a task.

    Each subtask has one, for as long as the attempt of the job. It is pickled at the end of each epoch, and the next
    epoch starts with the generator of the last accepted one, possibly in another process. If it keeps the context that
    it was made with, that context is always the current epoch's. The watermark of an epoch is the least one of all
    tasks that emitted one; it takes effect at the end of the epoch and never decreases. In real time it takes effect at
    once, and waits for every task that is not idle, as in Flink.

    >>> class AtMarkers(WatermarkGenerator):
    ...     def on_event(self, event, event_timestamp, output):
    ...         if event == "end of hour":
    ...             output.emit_watermark(Watermark(event_timestamp))
    ...
    ...     def on_periodic_emit(self, output):
    ...         pass
    >>> strategy = WatermarkStrategy.for_generator(lambda context: AtMarkers())
    """

    @abstractmethod
    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        """Process an element; may emit a watermark.

        Args:
            event: The element.
            event_timestamp: Its timestamp; -2**63 if it has none.
            output: Receives watermarks.
        """

    @abstractmethod
    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Called once in each epoch, after the task's elements; may emit a watermark.

        A real-time task calls it after each batch of elements, and twice a second or more without any.

        Args:
            output: Receives watermarks.
        """


@dataclass
class WatermarkGeneratorContext:
    """The surroundings of a generator. One that keeps its context sees the values of the current epoch.

    Attributes:
        subtask: Index of the task, from 0.
        current_watermark: The watermark at the end of the epoch before; -2**63 if there is none. In real time, the
            watermark that the elements before have left.
        processing_time: Processing time of the epoch in milliseconds since 1970. In real time, the current one.
    """

    subtask: int
    current_watermark: int
    processing_time: int


@dataclass(frozen=True)
class WatermarkAlignment:
    """How far a source may be ahead of others; see `WatermarkStrategy.with_watermark_alignment`.

    Attributes:
        group: Sources with the same group are compared.
        drift: How far the source may be ahead of the group's least watermark, in milliseconds.
        interval: How long the source uses the least watermark it received last, in milliseconds of processing time.
    """

    group: str
    drift: int
    interval: int


AssignerLike = TimestampAssigner | Callable[[Any, int], int]


@dataclass(frozen=True)
class WatermarkStrategy:
    """How the watermark of a stream follows from the timestamps of its elements. Create one with a `for_` method.

    >>> strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(10)).with_timestamp_column("at")
    >>> strategy.out_of_orderness
    10000

    Attributes:
        out_of_orderness: By how many milliseconds an element may be older than an earlier one; None if there are no
            watermarks.
        assigner: Extracts timestamps; None keeps those that elements have.
        idleness: After how many milliseconds without elements others do not wait for the stream; None for never.
        is_per_partition: Whether event time follows the slowest partition of the source.
        supplier: Makes the generators of a custom strategy.
        alignment: How far the source may be ahead of others; None if it never waits.
    """

    out_of_orderness: int | None
    assigner: AssignerLike | None = None
    idleness: int | None = None
    is_per_partition: bool = False
    supplier: Callable[[WatermarkGeneratorContext], WatermarkGenerator] | None = None
    alignment: WatermarkAlignment | None = None

    @staticmethod
    def for_monotonous_timestamps() -> WatermarkStrategy:
        """Return a strategy for streams in which no epoch has an element older than one of an earlier epoch."""
        return WatermarkStrategy(0)

    @staticmethod
    def for_bounded_out_of_orderness(max_out_of_orderness: timedelta) -> WatermarkStrategy:
        """Return a strategy whose watermark is behind the newest element by a fixed time.

        Args:
            max_out_of_orderness: How late elements may be at most.

        Raises:
            ConfigurationError: It is not a length of time, or is negative.
        """
        return WatermarkStrategy(_milliseconds(max_out_of_orderness, "the out-of-orderness", 0))

    @staticmethod
    def no_watermarks() -> WatermarkStrategy:
        """Return a strategy for streams whose event time does not advance before their end."""
        return WatermarkStrategy(None)

    @staticmethod
    def for_generator(supplier: Callable[[WatermarkGeneratorContext], WatermarkGenerator]) -> WatermarkStrategy:
        """Return a strategy whose watermarks come from a custom `WatermarkGenerator`.

        Args:
            supplier: Makes the generator of a subtask.

        Raises:
            ConfigurationError: The supplier is not callable.
        """
        if isinstance(supplier, WatermarkGenerator) or not callable(supplier):
            raise ConfigurationError(
                "for_generator() takes a function that makes a WatermarkGenerator, since each task has one of its own: "
                f"lambda context: MyGenerator(), not {supplier!r}."
            )
        # -1: the watermark is the emitted one, not one less than the greatest timestamp.
        return WatermarkStrategy(-1, is_per_partition=True, supplier=supplier)

    def with_watermark_alignment(
        self, watermark_group: str, max_allowed_watermark_drift: timedelta, update_interval: timedelta | None = None
    ) -> WatermarkStrategy:
        """Return the same strategy for a source that waits for other sources; pass it to `from_source`.

        A source that is more than the drift ahead of the least watermark of its group pauses. In a real-time job every
        source can pause, and its tasks are compared, as in Flink: those that are idle, read to their end or without a
        watermark do not count.

        In a job by epochs only a `KafkaSource` with `set_max_rows_per_epoch` can pause. Sources are compared after each
        epoch. Only those that left something unread in the epoch count, so no source waits for one that has nothing to
        read.

        Args:
            watermark_group: Sources of one job with the same group wait for each other.
            max_allowed_watermark_drift: How far the source may be ahead; the data of one epoch comes on top, in real
                time that of one poll.
            update_interval: How long the source uses the least watermark it received last, in processing time; default:
                one second, as in Flink. A source may wait longer than needed by this much. In real time the shortest
                interval of the job applies to all of its sources, and at least 10 ms.

        Raises:
            ConfigurationError: The group has no name, an argument is not a length of time, or the strategy has no
                watermarks.
        """
        if not isinstance(watermark_group, str) or not watermark_group:
            raise ConfigurationError(
                f"with_watermark_alignment() takes the name of a group of sources, not {watermark_group!r}."
            )
        if self.out_of_orderness is None:
            raise ConfigurationError(
                f"with_watermark_alignment({watermark_group!r}) compares watermarks, and this strategy never has one: "
                "begin with for_bounded_out_of_orderness() or for_monotonous_timestamps()."
            )
        drift = _milliseconds(max_allowed_watermark_drift, "the allowed watermark drift", 0)
        interval = timedelta(seconds=1) if update_interval is None else update_interval
        alignment = WatermarkAlignment(watermark_group, drift, _milliseconds(interval, "the update interval", 0))
        return replace(self, alignment=alignment)

    def with_timestamp_assigner(self, timestamp_assigner: AssignerLike) -> WatermarkStrategy:
        """Return the same strategy with a timestamp assigner.

        Args:
            timestamp_assigner: A `TimestampAssigner`, or a function of an element and its present timestamp.

        Raises:
            ConfigurationError: It is neither.
        """
        if isinstance(timestamp_assigner, type) or not (
            isinstance(timestamp_assigner, TimestampAssigner) or callable(timestamp_assigner)
        ):
            raise ConfigurationError(
                "with_timestamp_assigner() takes a TimestampAssigner, or a function (value, timestamp) -> "
                f"milliseconds, not {timestamp_assigner!r}."
            )
        return replace(self, assigner=timestamp_assigner)

    def with_timestamp_column(self, column: str) -> WatermarkStrategy:
        """Return the same strategy for rows whose event time is in a column; no Python object is made of a row.

        Args:
            column: Name of the column; whole numbers of milliseconds since 1970, or timestamps.

        Raises:
            ConfigurationError: It is not a text.
        """
        if not isinstance(column, str):
            raise ConfigurationError(f"with_timestamp_column() takes the name of a column, not {column!r}.")
        return self.with_timestamp_assigner(ColumnTimestampAssigner(column))

    def with_idleness(self, idle_timeout: timedelta) -> WatermarkStrategy:
        """Return the same strategy for a stream that may pause.

        Args:
            idle_timeout: After this time without elements, the other streams of a union do not wait for this one.

        Raises:
            ConfigurationError: It is not a length of time of at least 1 ms.
        """
        return replace(self, idleness=_milliseconds(idle_timeout, "the idle timeout", 1))

    def per_partition(self) -> WatermarkStrategy:
        """Return the same strategy for a source whose partitions are each ordered by themselves, as in a Kafka topic.

        Event time then follows the slowest of the partitions with new elements in an epoch, so an element is late only
        if it is behind others of its own partition. There must be no `key_by` between the source and the strategy: one
        task reads one partition there. `from_source` does this for a `KafkaSource` by itself.
        """
        return replace(self, is_per_partition=True)

    @property
    def extract(self) -> Callable[[Any, int], int] | None:
        """The assigner as a function; None if timestamps are kept."""
        assigner = self.assigner
        return assigner.extract_timestamp if isinstance(assigner, TimestampAssigner) else assigner


def _milliseconds(length: timedelta, what: str, least: int) -> int:
    if not isinstance(length, timedelta):
        raise ConfigurationError(f"{what} is a Duration, for instance Duration.of_seconds(5), not {length!r}.")
    milliseconds = length // timedelta(milliseconds=1)
    if milliseconds < least:
        raise ConfigurationError(f"{what} must be at least {least} ms, not {milliseconds} ms.")
    return milliseconds
