"""The thread that wakes a coordinator nobody drives: for periodic checkpoints and for those that take too long."""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.kernel.clock import Clock


class CoordinatorTimer:
    """Calls back when the next deadline has come.

    Args:
        clock: Time.
        next_deadline: Returns the next deadline in milliseconds of monotonic time, None for none.
        poll: Does what is due.
    """

    def __init__(self, clock: Clock, next_deadline: Callable[[], int | None], poll: Callable[[], None]) -> None:
        self._clock = clock
        self._next_deadline = next_deadline
        self._poll = poll
        self._wake = threading.Event()
        self._is_closed = False
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def notify(self) -> None:
        """The next deadline may have changed; starts the thread if there is one to wait for."""
        with self._starting:
            if self._thread is None and not self._is_closed and self._next_deadline() is not None:
                self._thread = threading.Thread(target=self._run, name="holdfast-checkpoint-timer", daemon=True)
                self._thread.start()
        self._wake.set()

    def close(self) -> None:
        """End the thread; does not wait for it."""
        self._is_closed = True
        self._wake.set()

    def _run(self) -> None:
        while not self._is_closed:
            self._wake.clear()
            deadline = self._next_deadline()
            if deadline is None:
                self._wake.wait()
            elif (left := deadline / 1000 - self._clock.monotonic()) > 0:
                self._clock.sleep(left, self._wake)
            elif not self._is_closed:
                # Only when something is due: polling notifies, and would wake this thread for ever.
                self._poll()
