"""Where the event time of elements comes from, and how far behind the newest element event time is, as in Flink."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from holdfast.errors import ConfigurationError

MIN_WATERMARK = -(2**63)
"""Before the first one: nothing is known of event time."""
MAX_WATERMARK = 2**63 - 1
"""At the end of a bounded input: nothing comes any more."""

NO_TIMESTAMP = -(2**63)
"""What an assigner is given as the timestamp of an element that has none."""


class TimestampAssigner(ABC):
    """Tells the event time of an element."""

    @abstractmethod
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        """The event time of `value` in milliseconds since 1970.

        Args:
            value: The element.
            record_timestamp: The timestamp that it has already; the smallest 64-bit number if it has none.
        """


class ColumnTimestampAssigner(TimestampAssigner):
    """Takes the event time of rows from one of their columns, without making a Python object of any row.

    Args:
        column: Its name; whole numbers of milliseconds since 1970, or a timestamp.
    """

    def __init__(self, column: str) -> None:
        self.column = column

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        """The number in the column."""
        found: int = value[self.column]
        return found


@dataclass(frozen=True)
class Watermark:
    """Nothing comes any more that is as old as this, or older.

    Attributes:
        timestamp: Milliseconds since 1970.
    """

    timestamp: int


class WatermarkOutput:
    """Takes what a `WatermarkGenerator` has to say of the elements of one task in one epoch."""

    def __init__(self) -> None:
        self._greatest: int | None = None
        self._is_idle = False

    def emit_watermark(self, watermark: Watermark | int) -> None:
        """Let the watermark of the task be at least this one.

        Raises:
            TypeError: It is no `Watermark`, and no whole number of milliseconds of 64 bits.
        """
        timestamp = watermark.timestamp if isinstance(watermark, Watermark) else watermark
        if type(timestamp) is not int or not MIN_WATERMARK <= timestamp <= MAX_WATERMARK:
            raise TypeError(
                f"emit_watermark() takes a Watermark, milliseconds since 1970 as an int of 64 bits, not {watermark!r}"
            )
        self._is_idle = False
        # The end of time is said by the end of the input, not by a generator.
        timestamp = min(timestamp, MAX_WATERMARK - 1)
        if timestamp > MIN_WATERMARK and (self._greatest is None or timestamp > self._greatest):
            self._greatest = timestamp

    def mark_idle(self) -> None:
        """Let nobody wait for this task in this epoch, until it emits a watermark again."""
        self._is_idle = True

    def mark_active(self) -> None:
        """Take `mark_idle` back."""
        self._is_idle = False

    @property
    def reached(self) -> int | None:
        """The greatest watermark that was emitted; None if there is none, or the task is idle."""
        return None if self._is_idle else self._greatest


class WatermarkGenerator(ABC):
    """Says how far event time is, from the elements of a task.

    There is one for each subtask, which lives as long as the attempt of the job. Tasks run again, and elsewhere; what
    it holds is pickled at the end of an epoch, and the next one begins with what an accepted epoch has left. A context
    that it was made with, if it keeps it, is always that of the epoch. The watermark is handed on at the end of the
    epoch, the least one of all tasks that have emitted one, and never goes back.
    """

    @abstractmethod
    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        """Looks at an element; it may emit a watermark.

        Args:
            event: The element.
            event_timestamp: Its timestamp; the smallest 64-bit number if it has none.
            output: Takes watermarks.
        """

    @abstractmethod
    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Called when a task has seen its elements of the epoch; it may emit a watermark."""


@dataclass(frozen=True)
class WatermarkGeneratorContext:
    """What a generator may know; one that keeps it sees what is true in the epoch that runs.

    Attributes:
        subtask: The task that it is for, from 0.
        current_watermark: The watermark at the end of the epoch before; the smallest 64-bit number if there is none.
        processing_time: Of the epoch, in milliseconds since 1970; stands still within it.
    """

    subtask: int
    current_watermark: int
    processing_time: int


@dataclass(frozen=True)
class WatermarkAlignment:
    """How far event time in a source may be ahead of others; see `WatermarkStrategy.with_watermark_alignment`.

    Attributes:
        group: The sources that are compared have the same one.
        drift: By how many milliseconds the source may be ahead of the least one of the group.
        interval: For how many milliseconds of processing time holds what was said last of the least one.
    """

    group: str
    drift: int
    interval: int


AssignerLike = TimestampAssigner | Callable[[Any, int], int]


@dataclass(frozen=True)
class WatermarkStrategy:
    """How the watermark of a stream follows from the timestamps of its elements. Make one with the `for_` methods.

    Attributes:
        out_of_orderness: By how many milliseconds an element may be older than one that came before; None if there is
            never a watermark.
        assigner: Tells the timestamps; None leaves them as they are.
        idleness: After how many milliseconds without elements others do not wait for the stream; None for never.
        is_per_partition: Whether event time follows the partition of the source that lags behind most.
        supplier: Makes the generators of a strategy of one's own.
        alignment: How far the source may be ahead of others; None if it waits for nobody.
    """

    out_of_orderness: int | None
    assigner: AssignerLike | None = None
    idleness: int | None = None
    is_per_partition: bool = False
    supplier: Callable[[WatermarkGeneratorContext], WatermarkGenerator] | None = None
    alignment: WatermarkAlignment | None = None

    @staticmethod
    def for_monotonous_timestamps() -> WatermarkStrategy:
        """For streams in which no element of a later epoch is older than one of an epoch before."""
        return WatermarkStrategy(0)

    @staticmethod
    def for_bounded_out_of_orderness(max_out_of_orderness: timedelta) -> WatermarkStrategy:
        """For streams whose elements are late by at most so much; the watermark is that far behind the newest one."""
        return WatermarkStrategy(_milliseconds(max_out_of_orderness, "the out-of-orderness", 0))

    @staticmethod
    def no_watermarks() -> WatermarkStrategy:
        """For streams whose event time does not advance before their end."""
        return WatermarkStrategy(None)

    @staticmethod
    def for_generator(supplier: Callable[[WatermarkGeneratorContext], WatermarkGenerator]) -> WatermarkStrategy:
        """For streams whose watermarks a `WatermarkGenerator` of one's own says.

        Args:
            supplier: Makes a generator for each subtask.

        Raises:
            ConfigurationError: It cannot be called.
        """
        if isinstance(supplier, WatermarkGenerator) or not callable(supplier):
            raise ConfigurationError(
                "for_generator() takes a function that makes a WatermarkGenerator, since each task has one of its own: "
                f"lambda context: MyGenerator(), not {supplier!r}."
            )
        # A watermark is what was emitted, and not one less than the greatest timestamp.
        return WatermarkStrategy(-1, is_per_partition=True, supplier=supplier)

    def with_watermark_alignment(
        self, watermark_group: str, max_allowed_watermark_drift: timedelta, update_interval: timedelta | None = None
    ) -> WatermarkStrategy:
        """The same for a source that waits for others, for `from_source` with a `KafkaSource`.

        After each epoch the watermarks of the sources of a group are compared. One that is more than the drift ahead of
        the least one reads nothing in the next epoch. For the least one only those count that have left something
        unread in the epoch, so nobody waits for a source that has nothing to read.

        Args:
            watermark_group: Sources of one job that name the same group wait for each other.
            max_allowed_watermark_drift: How far the source may be ahead; what it reads in one epoch comes on top.
            update_interval: For how long the source goes by the least watermark that it was told last, in processing
                time; one second if it is None, as in Flink. Whoever waits longer than needed does so for this long.

        Raises:
            ConfigurationError: The group has no name, a length is none, or the strategy has no watermarks.
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
        """The same with a `TimestampAssigner`, or a function of an element and the timestamp that it has."""
        if isinstance(timestamp_assigner, type) or not (
            isinstance(timestamp_assigner, TimestampAssigner) or callable(timestamp_assigner)
        ):
            raise ConfigurationError(
                "with_timestamp_assigner() takes a TimestampAssigner, or a function (value, timestamp) -> "
                f"milliseconds, not {timestamp_assigner!r}."
            )
        return replace(self, assigner=timestamp_assigner)

    def with_timestamp_column(self, column: str) -> WatermarkStrategy:
        """The same for rows whose event time stands in a column; no Python object is made of any row.

        Args:
            column: Its name; whole numbers of milliseconds since 1970, or a timestamp.
        """
        if not isinstance(column, str):
            raise ConfigurationError(f"with_timestamp_column() takes the name of a column, not {column!r}.")
        return self.with_timestamp_assigner(ColumnTimestampAssigner(column))

    def with_idleness(self, idle_timeout: timedelta) -> WatermarkStrategy:
        """The same for a stream that may pause: the others of a union go on without it after so long."""
        return replace(self, idleness=_milliseconds(idle_timeout, "the idle timeout", 1))

    def per_partition(self) -> WatermarkStrategy:
        """The same where each partition of a source is ordered by itself, as those of a Kafka topic are.

        Event time then follows the partition that lags behind most of those that have something new in an epoch, so an
        element is late only if it is behind others of its own partition. For streams that come from a source without a
        `key_by` between; one task reads one partition there. `from_source` does this for a `KafkaSource` by itself.
        """
        return replace(self, is_per_partition=True)

    @property
    def extract(self) -> Callable[[Any, int], int] | None:
        """The assigner as a function."""
        assigner = self.assigner
        return assigner.extract_timestamp if isinstance(assigner, TimestampAssigner) else assigner


def _milliseconds(length: timedelta, what: str, least: int) -> int:
    if not isinstance(length, timedelta):
        raise ConfigurationError(f"{what} is a Duration, for instance Duration.of_seconds(5), not {length!r}.")
    milliseconds = length // timedelta(milliseconds=1)
    if milliseconds < least:
        raise ConfigurationError(f"{what} must be at least {least} ms, not {milliseconds} ms.")
    return milliseconds
