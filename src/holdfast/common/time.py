"""Lengths of time under their PyFlink names; they are `datetime.timedelta`, taken wherever a length of time is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta


class TimeSpan(timedelta):
    """A length of time."""

    def to_milliseconds(self) -> int:
        """The length in whole milliseconds."""
        return self // timedelta(milliseconds=1)

    to_millis = to_milliseconds


class Time:
    """Makes lengths of time: `Time.seconds(10)`; `Time(5)` is one of five milliseconds."""

    def __new__(cls, milliseconds: int) -> TimeSpan:  # type: ignore[misc]
        """So many milliseconds."""
        return TimeSpan(milliseconds=milliseconds)

    @staticmethod
    def milliseconds(milliseconds: int) -> TimeSpan:
        """So many milliseconds."""
        return TimeSpan(milliseconds=milliseconds)

    @staticmethod
    def seconds(seconds: int) -> TimeSpan:
        """So many seconds."""
        return TimeSpan(seconds=seconds)

    @staticmethod
    def minutes(minutes: int) -> TimeSpan:
        """So many minutes."""
        return TimeSpan(minutes=minutes)

    @staticmethod
    def hours(hours: int) -> TimeSpan:
        """So many hours."""
        return TimeSpan(hours=hours)

    @staticmethod
    def days(days: int) -> TimeSpan:
        """So many days of 24 hours."""
        return TimeSpan(days=days)


class Duration:
    """Makes lengths of time: `Duration.of_seconds(10)`."""

    of_seconds = Time.seconds
    of_minutes = Time.minutes
    of_hours = Time.hours
    of_days = Time.days

    @staticmethod
    def of_millis(millis: int) -> TimeSpan:
        """So many milliseconds."""
        return TimeSpan(milliseconds=millis)

    @staticmethod
    def of_nanos(nanos: int) -> TimeSpan:
        """So many nanoseconds, less what is below a microsecond."""
        return TimeSpan(microseconds=nanos // 1000)


@dataclass(frozen=True)
class Instant:
    """A point in time, as PyFlink has it. Elements of `Types.INSTANT` are datetimes here; `to_datetime` makes one.

    Attributes:
        seconds: Since 1970-01-01 UTC.
        nanos: Nanoseconds after that.
    """

    seconds: int
    nanos: int

    @staticmethod
    def of_epoch_milli(epoch_milli: int) -> Instant:
        """The point of so many milliseconds since 1970."""
        return Instant(epoch_milli // 1000, epoch_milli % 1000 * 1_000_000)

    def to_epoch_milli(self) -> int:
        """Milliseconds since 1970."""
        return self.seconds * 1000 + self.nanos // 1_000_000

    def to_datetime(self) -> datetime:
        """The same as a datetime in UTC, to the microsecond."""
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds, microseconds=self.nanos // 1000)

    def __repr__(self) -> str:
        return f"Instant<{self.seconds}, {self.nanos}>"
