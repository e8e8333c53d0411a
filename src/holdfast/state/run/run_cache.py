"""The runs that a process has mapped and checked, so that it does both once."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

R = TypeVar("R")
"""A run, as its reader holds it."""

_MOST_RUNS: Final = 4096
_MOST_BYTES: Final = 32 * 1024 * 1024
_LOOKED_AT: Final = 4

Identity = tuple[str, int, int]
"""Digest of the footer, size and time of change of a file: what tells that it is still the same."""


class RunCache(Generic[R]):
    """Runs by path, the most recently used last; those used longest ago are forgotten.

    A mapped run costs no memory of its own. What was unpacked of a compressed one does, so it is bounded as well; a run
    that is forgotten lives for as long as somebody uses it.

    A file that is deleted keeps its place on the disk for as long as it is mapped. Nobody tells a process what the
    leader deletes, so with every new run it looks whether the files of a few known ones are still there, in turn. So
    of all known runs at most about a third are gone, however long the process lives.

    Args:
        most_runs: How many are kept.
        most_bytes: How many unpacked bytes are kept.
        is_gone: Tells whether the file of a run was deleted. It is asked in the middle of a task.
    """

    def __init__(
        self,
        most_runs: int = _MOST_RUNS,
        most_bytes: int = _MOST_BYTES,
        is_gone: Callable[[R], bool] = lambda _: False,
    ) -> None:
        self._most_runs, self._most_bytes = most_runs, most_bytes
        self._is_gone = is_gone
        self._turn: deque[str] = deque()
        self._lock = threading.Lock()
        self._runs: OrderedDict[str, tuple[Identity, R]] = OrderedDict()
        self._unpacked: dict[str, int] = {}

    def get(self, path: str, identity: Identity) -> R | None:
        """Return a run if it is known and its file has not changed."""
        with self._lock:
            known = self._runs.get(path)
            if known is None or known[0] != identity:
                return None
            self._runs.move_to_end(path)
            return known[1]

    def put(self, path: str, identity: Identity, run: R) -> None:
        """Remember a run, and let go of some whose files were deleted."""
        with self._lock:
            if path not in self._runs:
                self._turn.append(path)
            self._runs[path] = identity, run
            self._runs.move_to_end(path)
            self._unpacked.pop(path, None)
            self._shrink()
            looked_at = self._next_ones(path)
        gone = [known for known, one in looked_at if self._is_gone(one)]
        with self._lock:
            for known, one in looked_at:
                if known in gone and self._runs.get(known, (None, None))[1] is one:
                    self._drop(known)
                elif known in self._runs:
                    self._turn.append(known)

    def _next_ones(self, new: str) -> list[tuple[str, R]]:
        """Take the runs whose turn it is to be looked at; those that were forgotten meanwhile have none."""
        found: list[tuple[str, R]] = []
        for _ in range(len(self._turn)):
            if len(found) == _LOOKED_AT:
                break
            path = self._turn.popleft()
            if path == new:
                self._turn.append(path)
            elif path in self._runs:
                found.append((path, self._runs[path][1]))
        return found

    def unpacked(self, path: str, size: int) -> None:
        """Count bytes that were unpacked of a run, if it is known."""
        with self._lock:
            if path in self._runs:
                self._unpacked[path] = self._unpacked.get(path, 0) + size
                self._shrink()

    def drop(self, path: str) -> None:
        """Forget a run."""
        with self._lock:
            self._drop(path)

    def clear(self) -> None:
        """Forget all runs."""
        with self._lock:
            self._runs.clear()
            self._unpacked.clear()
            self._turn.clear()

    def _shrink(self) -> None:
        while len(self._runs) > self._most_runs:
            self._drop(next(iter(self._runs)))
        too_much = sum(self._unpacked.values()) - self._most_bytes
        for path in [path for path in self._runs if path in self._unpacked] if too_much > 0 else []:
            too_much -= self._unpacked[path]
            self._drop(path)
            if too_much <= 0:
                break

    def _drop(self, path: str) -> None:
        self._runs.pop(path, None)
        self._unpacked.pop(path, None)
