"""What a worker process keeps of its subtasks' state between epochs.

A store is taken out while a task uses it, so no two tasks share one, and it is put back only by a task that succeeded.
It is identified by the exact list of runs whose content it has, never by an epoch. Everything here may be lost at any
time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from holdfast.errors import StateMigrationError
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.state.layout import StateLayout
from holdfast.state.probe import SegmentSlice
from holdfast.state.run_file import RunHandle, RunReader, open_run
from holdfast.state.run_writer import SegmentData
from holdfast.state.timer_service import TIMER_PREFIX
from holdfast.state.version import StateVersion
from holdfast.storage.file_system import FileSystem
from holdfast.types.key_codec import KeyCodec


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


# A state version whose runs are mapped, as the subtask that owns a range of key groups sees it.


class VersionReader:
    """The runs of a version, mapped.

    Args:
        version: The version.
        fs: Where the runs are.
        root: The job's directory.
        key_groups: The range of the subtask.

    Raises:
        CorruptFileError, FormatVersionError, NotExistError: A run is damaged, too new, or gone.
    """

    def __init__(self, version: StateVersion, fs: FileSystem, root: str, key_groups: KeyGroupRange) -> None:
        self.version = version
        self.fs = fs
        self.root = root
        self.runs: list[RunReader] = [open_run(fs, root, run) for run in version.runs]
        self._key_groups = key_groups

    def check_keys(self, operator: str, codec: KeyCodec, max_parallelism: int) -> None:
        """Compare the keys that the runs were written for with those of a program.

        Raises:
            StateMigrationError: Key type or max parallelism differ.
        """
        for run in self.runs:
            if (run.meta.key, run.meta.max_parallelism) != (codec.to_json(), max_parallelism):
                raise StateMigrationError(
                    f"The state of operator {operator!r} was written for keys {run.meta.key!r} in "
                    f"{run.meta.max_parallelism} key groups (by {run.path!r}), the program has keys "
                    f"{codec.to_json()!r} in {max_parallelism}. Neither can change; start it under another uid."
                )

    def continue_state(self, layout: StateLayout, now: int) -> StateLayout:
        """Return the layout of a state as a program declares it, as it goes on from what the runs have.

        Args:
            layout: What the program declares.
            now: Processing time.

        Raises:
            StateMigrationError: Kind, map keys or namespaces differ, or the value type cannot take over.
        """
        segments = [(run.segment(layout.name), run.path) for run in self.runs]
        return layout.after([(found.entry.schema, path) for found, path in segments if found is not None], now)

    def stretches(self, name: str, after: int = 0) -> Sequence[SegmentSlice]:
        """Return the rows of a state in the range, newest run first.

        Args:
            name: Of the state.
            after: How many of the oldest runs to leave out.
        """
        found = []
        for run in reversed(self.runs[after:]):
            for segment in run.newest_first(name):
                rows = segment.range(self._key_groups)
                if rows.stop > rows.start:
                    found.append(SegmentSlice(segment, rows))
        return found

    def stretches_by_state(self, names: Sequence[str], after: int = 0) -> Mapping[str, Sequence[SegmentSlice]]:
        """Return the rows of several states, see `stretches`."""
        return {name: self.stretches(name, after) for name in names}

    def has_timers(self) -> bool:
        """Whether any run has timers."""
        return any(name.startswith(TIMER_PREFIX) for run in self.runs for name in run.segment_names())

    def add(self, run: RunHandle) -> None:
        """Go on to the version with one run more, which this subtask has just written."""
        self.version = self.version.plus(run)
        self.runs.append(open_run(self.fs, self.root, run))


# States that a program gives up: they are deleted once, and a worker remembers that they are gone.

_ENTRY_BYTES: Final = 200


class StateRemovals:
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
        tombstones: Callable[[Sequence[SegmentSlice]], SegmentData | None],
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
