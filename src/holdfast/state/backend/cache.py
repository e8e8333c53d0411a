"""What a worker process keeps of its subtasks' state between epochs.

A store is taken out while a task uses it, so no two tasks share one, and it is put back only by a task that succeeded.
It is identified by the exact list of runs whose content it has, never by an epoch. Everything here may be lost at any
time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Protocol


class Cacheable(Protocol):
    """What can be kept."""

    def estimated_bytes(self) -> int:
        """Return about how much memory it takes."""


class StateCache:
    """Keeps things by name within a budget, the least recently used go first. Thread-safe."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, tuple[Cacheable, int]] = OrderedDict()
        self._total = 0
        self._lock = threading.Lock()

    def take(self, name: Hashable) -> Cacheable | None:
        """Return what is kept under a name, and keep it no longer."""
        with self._lock:
            found = self._kept.pop(name, None)
            if found is None:
                return None
            self._total -= found[1]
            return found[0]

    def put(self, name: Hashable, content: Cacheable, budget: int) -> bool:
        """Keep something under a name, if it fits.

        Args:
            name: Whatever is kept under it already goes.
            content: What to keep.
            budget: Bytes that all that is kept in this process may take.

        Returns:
            False if it is larger than the whole budget; it is not kept then.
        """
        size = content.estimated_bytes()
        with self._lock:
            before = self._kept.pop(name, None)
            self._total -= before[1] if before is not None else 0
            if size > budget:
                return False
            self._kept[name] = (content, size)
            self._total += size
            while self._total > budget:
                _, (_, gone) = self._kept.popitem(last=False)
                self._total -= gone
            return True

    def swap(self, other: StateCache) -> None:
        """Exchange what is kept with another cache, as if this process were another one; for tests."""
        self._kept, other._kept = other._kept, self._kept
        self._total, other._total = other._total, self._total

    def clear(self) -> None:
        """Keep nothing."""
        with self._lock:
            self._kept.clear()
            self._total = 0

    def __len__(self) -> int:
        return len(self._kept)


STATE_CACHE: Final = StateCache()
"""The cache of this process."""
