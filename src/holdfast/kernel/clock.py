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
