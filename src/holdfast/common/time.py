"""Lengths of time under their path in PyFlink. They are `datetime.timedelta`, which is accepted everywhere as well."""

from __future__ import annotations

from datetime import timedelta

from holdfast.types.type_information import Instant

__all__ = ["Duration", "Instant", "Time", "TimeSpan"]


class TimeSpan(timedelta):
    """A length of time.

    >>> Time.seconds(10).to_milliseconds()
    10000
    """

    def to_milliseconds(self) -> int:
        """Return the length in whole milliseconds."""
        return self // timedelta(milliseconds=1)

    to_millis = to_milliseconds


class Time:
    """Lengths of time: `Time.seconds(10)`; `Time(5)` is five milliseconds.

    >>> Time.minutes(1) + Time.seconds(30) == Duration.of_seconds(90)
    True
    """

    def __new__(cls, milliseconds: int) -> TimeSpan:  # type: ignore[misc]
        return TimeSpan(milliseconds=milliseconds)

    to_milliseconds = TimeSpan.to_milliseconds

    @staticmethod
    def milliseconds(milliseconds: int) -> TimeSpan:
        """Return a length of time in milliseconds."""
        return TimeSpan(milliseconds=milliseconds)

    @staticmethod
    def seconds(seconds: int) -> TimeSpan:
        """Return a length of time in seconds."""
        return TimeSpan(seconds=seconds)

    @staticmethod
    def minutes(minutes: int) -> TimeSpan:
        """Return a length of time in minutes."""
        return TimeSpan(minutes=minutes)

    @staticmethod
    def hours(hours: int) -> TimeSpan:
        """Return a length of time in hours."""
        return TimeSpan(hours=hours)

    @staticmethod
    def days(days: int) -> TimeSpan:
        """Return a length of time in days of 24 hours."""
        return TimeSpan(days=days)


class Duration:
    """Lengths of time: `Duration.of_seconds(10)`.

    >>> Duration.of_minutes(1).to_milliseconds()
    60000
    """

    of_seconds = Time.seconds
    of_minutes = Time.minutes
    of_hours = Time.hours
    of_days = Time.days

    @staticmethod
    def of_millis(millis: int) -> TimeSpan:
        """Return a length of time in milliseconds."""
        return TimeSpan(milliseconds=millis)

    @staticmethod
    def of_nanos(nanos: int) -> TimeSpan:
        """Return a length of time in nanoseconds, rounded down to microseconds."""
        return TimeSpan(microseconds=nanos // 1000)
