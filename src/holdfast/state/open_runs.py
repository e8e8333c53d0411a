"""The runs that a process has mapped and checked, so that it does both once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from holdfast.state.run import RunReader

_MOST_RUNS: Final = 4096
_MOST_BYTES: Final = 32 * 1024 * 1024

Identity = tuple[str, int, int]
"""Digest of the footer, size and time of change of a file: what tells that it is still the same."""


class OpenRuns:
    """Runs by path, the most recently used last; those used longest ago are forgotten.

    A mapped run costs no memory of its own. What was unpacked of a compressed one does, so it is bounded as well; a run
    that is forgotten lives for as long as somebody uses it.
    """

    def __init__(self, most_runs: int = _MOST_RUNS, most_bytes: int = _MOST_BYTES) -> None:
        self._most_runs, self._most_bytes = most_runs, most_bytes
        self._lock = threading.Lock()
        self._runs: OrderedDict[str, tuple[Identity, RunReader]] = OrderedDict()
        self._unpacked: dict[str, int] = {}

    def get(self, path: str, identity: Identity) -> RunReader | None:
        """Return a run if it is known and its file has not changed."""
        with self._lock:
            known = self._runs.get(path)
            if known is None or known[0] != identity:
                return None
            self._runs.move_to_end(path)
            return known[1]

    def put(self, path: str, identity: Identity, run: RunReader) -> None:
        """Remember a run."""
        with self._lock:
            self._runs[path] = identity, run
            self._runs.move_to_end(path)
            self._unpacked.pop(path, None)
            self._shrink()

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
