"""Clocks: the time of the machine, and one that tests move by hand."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from typing import Final


class Clock(ABC):
    """The source of time. It is injected wherever time is needed, so that tests and simulations need not sleep."""

    @abstractmethod
    def now_ms(self) -> int:
        """Return the wall-clock time in milliseconds since 1970-01-01 UTC; it may jump."""

    @abstractmethod
    def monotonic(self) -> float:
        """Return seconds since some moment; the value never decreases."""

    @abstractmethod
    def sleep(self, seconds: float, wake: threading.Event | None = None) -> bool:
        """Block for a time, or until the event is set.

        Returns:
            Whether the event was set, now or before.
        """


class SystemClock(Clock):
    """The clock of this machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float, wake: threading.Event | None = None) -> bool:
        if wake is not None:
            return wake.wait(max(0.0, seconds))
        time.sleep(max(0.0, seconds))
        return False


class ForwardTime:
    """Milliseconds since 1970 that neither go back nor stand still: the wall clock's, unless it is behind.

    The wall clock may be set back, and that of the host where a job goes on may be behind. Then time goes on from where
    it was by monotonic time, a little slower, until the wall clock has caught up. Safe to use from several threads.

    Args:
        clock: The clock to follow.
        start_ms: The least time.
    """

    _PACE: Final = 0.9
    """Of time while the wall clock is behind: after a step of an hour they meet ten hours later."""

    def __init__(self, clock: Clock, start_ms: int = 0) -> None:
        self._clock = clock
        self._known = (start_ms, clock.monotonic())  # one object, so that threads see both or none

    def now_ms(self) -> int:
        """Return the time."""
        (known, at), wall, moment = self._known, self._clock.now_ms(), self._clock.monotonic()
        time_ms = known + int(1000 * self._PACE * (moment - at))
        if wall < time_ms:
            return time_ms
        self._known = (wall, moment)
        return wall

    def ahead_ms(self) -> int:
        """Return by how much the wall clock is behind; 0 if it is not."""
        return self.now_ms() - self._clock.now_ms()


class StepDetector:
    """Detects that the wall clock was set back, by comparing it with monotonic time.

    Args:
        clock: The clock to watch.
        tolerance_ms: Smaller steps do not count.
    """

    def __init__(self, clock: Clock, tolerance_ms: int = 5000) -> None:
        self._clock = clock
        self._tolerance = tolerance_ms
        self._least = self._offsets()[0]

    def step_back_ms(self) -> int:
        """Return by how much the wall clock was set back since the last call; 0 if it was not."""
        before, (self._least, most) = self._least, self._offsets()
        return before - most if before - most > self._tolerance else 0

    def _offsets(self) -> tuple[int, int]:
        """Return the least and the greatest possible difference of both clocks: the process may pause in between."""
        began = self._clock.monotonic()
        wall = self._clock.now_ms()
        return wall - round(1000 * self._clock.monotonic()), wall - round(1000 * began)


class ManualClock(Clock):
    """A clock that moves only when `advance` or `set` is called; for tests and simulations.

    Threads that sleep on it wake when the clock passes the end of their sleep. Safe to use from several threads. A
    sleeper with an event notices the event within 5 ms of real time.
    """

    _POLL_SECONDS: Final = 0.005

    def __init__(self, start_ms: int = 0) -> None:
        self._now_ms = start_ms
        self._elapsed_ms = 0
        self._moved = threading.Condition()
        self._sleepers = 0

    @property
    def sleepers(self) -> int:
        """Number of threads that sleep on this clock now."""
        with self._moved:
            return self._sleepers

    def now_ms(self) -> int:
        with self._moved:
            return self._now_ms

    def monotonic(self) -> float:
        """Return the seconds by which the clock was advanced; setting the clock back does not decrease them."""
        with self._moved:
            return self._elapsed_ms / 1000

    def advance(self, ms: int) -> None:
        """Move the clock forward and wake the sleepers whose time has come.

        Raises:
            ValueError: The step is negative; use `set` to move the wall clock back.
        """
        if ms < 0:
            raise ValueError(f"A clock advances by 0 ms or more, not by {ms!r}; use set() to move the wall clock back.")
        with self._moved:
            self._now_ms += ms
            self._elapsed_ms += ms
            self._moved.notify_all()

    def set(self, now_ms: int) -> None:
        """Set the wall-clock time, possibly back; monotonic time advances only if the wall clock does."""
        with self._moved:
            self._elapsed_ms += max(0, now_ms - self._now_ms)
            self._now_ms = now_ms
            self._moved.notify_all()

    def sleep(self, seconds: float, wake: threading.Event | None = None) -> bool:
        with self._moved:
            deadline = self._elapsed_ms + round(seconds * 1000)
            self._sleepers += 1
            try:
                while self._elapsed_ms < deadline and not (wake is not None and wake.is_set()):
                    self._moved.wait(None if wake is None else self._POLL_SECONDS)
            finally:
                self._sleepers -= 1
        return wake is not None and wake.is_set()
