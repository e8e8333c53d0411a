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
    """

    out_of_orderness: int | None
    assigner: AssignerLike | None = None
    idleness: int | None = None
    is_per_partition: bool = False

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
