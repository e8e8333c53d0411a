"""States that a program gives up: they are deleted once, and a worker remembers that they are gone."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.state.backend.cache import StateCache
from holdfast.state.backend.version_reader import VersionReader
from holdfast.state.run.probe import Stretch
from holdfast.state.run.run_writer import SegmentData

_ENTRY_BYTES: Final = 200


class Removals:
    """The states that one subtask gives up, in one epoch.

    Where nothing is left of a state, a worker remembers so, because to find it out means to read the rows that delete.

    Args:
        cache: What the worker keeps.
        owner: The subtask, as a name in the cache.
        tombstones: Makes rows that delete what stretches of a state, newest first, have of it; None if nothing.
    """

    def __init__(
        self,
        cache: StateCache,
        owner: tuple[Hashable, ...],
        tombstones: Callable[[Sequence[Stretch]], SegmentData | None],
    ) -> None:
        self._cache = cache
        self._owner = owner
        self._tombstones = tombstones
        self._segments: dict[str, SegmentData | None] = {}

    def begin(self, name: str, reader: VersionReader) -> None:
        """Delete what a version has of a state."""
        is_gone = self._cache.take((*self._owner, name)) == _Gone(_paths(name, reader))
        self._segments[name] = None if is_gone else self._tombstones(reader.stretches(name))

    def take(self) -> dict[str, SegmentData]:
        """Return what is to be written; it counts as written then."""
        segments = {name: data for name, data in self._segments.items() if data is not None}
        self._segments = dict.fromkeys(self._segments)
        return segments

    def remember(self, reader: VersionReader | None, budget: int) -> None:
        """Nothing is left in a version, so a later task does not have to look again."""
        if reader is None:
            return
        for name in self._segments:
            self._cache.put((*self._owner, name), _Gone(_paths(name, reader)), budget)


@dataclass(frozen=True)
class _Gone:
    """Names the runs that have rows of a state of which nothing is left."""

    paths: frozenset[str]

    def estimated_bytes(self) -> int:
        """Return about how much memory it takes."""
        return _ENTRY_BYTES * (1 + len(self.paths))


def _paths(name: str, reader: VersionReader) -> frozenset[str]:
    return frozenset(run.path for run in reader.runs if run.segment(name) is not None)
