"""Lengths of time under their PyFlink names; they are `datetime.timedelta`, taken wherever a length of time is."""

from __future__ import annotations

from datetime import timedelta

from holdfast.types.atomic import Instant

__all__ = ["Duration", "Instant", "Time", "TimeSpan"]


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

    to_milliseconds = TimeSpan.to_milliseconds

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
