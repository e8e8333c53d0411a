"""For how long the elements of a real-time task wait to be processed, and to be sent, with others."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_LONGEST: Final = 0.02
_LOOK_SECONDS: Final = 0.1
_BUSY: Final = 0.2
_FREE: Final = 0.1
_SCHEDULER: Final = Path("/proc/thread-self/schedstat")


class FlushInterval:
    """Becomes longer while the thread waits for a core, and shorter again.

    A message costs about a millisecond of a core, whatever is in it. On a host without free cores elements wait longer
    for a core than for other elements, so fewer messages make all of them faster.

    Args:
        least: Seconds on a host with free cores.
        now: Seconds of the monotonic clock.

    Attributes:
        seconds: The interval.
    """

    def __init__(self, least: float, now: float) -> None:
        self.seconds = self._least = least
        self._looked_at, self._waited = now, waited_for_a_core()

    def adapt(self, now: float) -> None:
        """Look at the time that this thread has waited for a core, ten times a second.

        Args:
            now: Seconds of the monotonic clock.
        """
        passed = now - self._looked_at
        if passed < _LOOK_SECONDS:
            return
        waited = waited_for_a_core()
        share = (waited - self._waited) / passed
        self._looked_at, self._waited = now, waited
        if share > _BUSY:
            self.seconds = max(self._least, min(self.seconds * 1.25, _LONGEST))
        elif share < _FREE:
            self.seconds = max(self._least, self.seconds * 0.9)


def waited_for_a_core() -> float:
    """Return the seconds for which this thread was ready to run and had no core; 0 where the system does not say."""
    try:
        return int(_SCHEDULER.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
