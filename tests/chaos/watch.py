"""Auditors that go on looking while everything else happens."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

_PAUSE: Final = 0.2


class Watch:
    """Lets auditors look again and again, each in a thread of its own, as those would who know nothing of each other.

    Args:
        looks: What each of them does.
    """

    def __init__(self, *looks: Callable[[], object]) -> None:
        self._is_over = threading.Event()
        self._threads = ThreadPoolExecutor(len(looks), "watch")
        self._running: list[Future[Any]] = [self._threads.submit(self._watch, look) for look in looks]

    def require_well(self) -> None:
        """Raise what one of them has found wrong."""
        for running in self._running:
            if running.done():
                running.result()

    def close(self) -> None:
        """End them."""
        self._is_over.set()
        self._threads.shutdown()

    def _watch(self, look: Callable[[], object]) -> None:
        while not self._is_over.wait(_PAUSE):
            look()
