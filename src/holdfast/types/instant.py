"""PyFlink's `Instant`: what a program may emit where the type is a timestamp."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta


@dataclass(frozen=True)
class Instant:
    """A point in time, as PyFlink has it, which may be emitted where the type is `Types.INSTANT()`.

    Elements that come in are datetimes, as `to_datetime` makes them.

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
