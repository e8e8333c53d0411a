"""Notices that nothing arrives on a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Silence:
    """Looks at times whether anything has arrived; belongs to an event loop.

    Looks are counted and not seconds, so that a pause of this process is not taken for one of the other.

    Args:
        on_silence: Called once, when there was nothing for too long; then `watch` may be called again.

    Attributes:
        is_broken: To be set whenever something arrives.
    """

    def __init__(self, on_silence: Callable[[], None]) -> None:
        self._on_silence = on_silence
        self.is_broken = True
        self._looks = 0
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, interval: float, most: int) -> None:
        """Look from now on.

        Args:
            interval: Seconds between two looks.
            most: So many looks one after the other may find nothing.
        """
        self.stop()
        self._looks = 0 if self.is_broken else self._looks + 1
        self.is_broken = False
        if self._looks > most:
            self._looks = 0
            self._on_silence()
        else:
            self._timer = asyncio.get_running_loop().call_later(interval, self.watch, interval, most)

    def stop(self) -> None:
        """Look no more: a timer that is left would hold the connection."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
