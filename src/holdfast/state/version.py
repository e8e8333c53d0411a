"""State versions, which are ordered lists of runs: how a subtask reads them, and the cache of decoded state.

A task takes its state out of the cache of its worker process, so no two tasks share it, and only a task that succeeded
puts it back. Cached state is identified by the exact list of its runs, never by an epoch; `catch_up` is the difference
between a cached version and a newer one. The cache may be lost at any time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol

from holdfast.errors import StateMigrationError
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.state.layout import StateLayout
from holdfast.state.probe import SegmentSlice
from holdfast.state.run_file import Lineage, RunHandle, RunReader, SegmentData, open_run
from holdfast.state.timer_service import TIMER_PREFIX
from holdfast.storage.file_system import FileSystem
from holdfast.types.key_codec import KeyCodec


@dataclass(frozen=True)
class VersionStep:
    """A point between the runs of a version.

    Attributes:
        end: Number of older runs.
        lineage: Lineage of these runs.
        start: Number of runs before the last of them, or before those that one compaction wrote together with it.
    """

    end: int
    lineage: Lineage
    start: int


@dataclass(frozen=True)
class StateVersion:
    """The state of an operator, or of a range of its key groups, at the end of an epoch.

    Attributes:
        runs: Oldest first; newer runs take precedence.
    """

    runs: tuple[RunHandle, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", tuple(self.runs))

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The ids of the runs in order, which identify the version."""
        return tuple(run.path for run in self.runs)

    @cached_property
    def steps(self) -> tuple[VersionStep, ...]:
        """Lineage of the version up to each run, oldest first; the first step is empty.

        Runs that one compaction wrote for different key groups have the same lineage; they are one step.
        """
        steps = [VersionStep(0, Lineage(), 0)]
        last = None
        for position, run in enumerate(self.runs, start=1):
            if run.compacted is not None and run.compacted == last:
                before = steps.pop()
                steps.append(VersionStep(position, before.lineage, before.start))
            else:
                steps.append(VersionStep(position, steps[-1].lineage + run.lineage, position - 1))
            last = run.compacted
        return tuple(steps)

    @property
    def lineage(self) -> Lineage:
        return self.steps[-1].lineage

    def for_range(self, key_groups: KeyGroupRange) -> StateVersion:
        """Return the version without runs that do not overlap a range of key groups."""
        return StateVersion(tuple(run for run in self.runs if run.range.intersection(key_groups)))

    def least_timer(self, domain: str) -> int | None:
        """Return a lower bound of the time of all timers, None if there are none.

        It is the earliest timer that runs report for their range. After a change of parallelism that timer may be gone.

        Args:
            domain: "event" or "processing".
        """
        newer: list[KeyGroupRange] = []
        least: list[int] = []
        for run in reversed(self.runs):
            if any(other.start <= run.range.start and run.range.end <= other.end for other in newer):
                continue
            newer.append(run.range)
            time = run.least_timers.get(domain)
            if time is not None:
                least.append(time)
        return min(least, default=None)

    def plus(self, run: RunHandle | Iterable[RunHandle] | None) -> StateVersion:
        """Return the version with one or several newer runs; None changes nothing."""
        if run is None:
            return self
        return StateVersion((*self.runs, *((run,) if isinstance(run, RunHandle) else run)))


@dataclass(frozen=True)
class CatchUp:
    """The part of a version that a cache has not loaded.

    Attributes:
        after: Number of the oldest runs that the cache has completely.
        is_within: Whether the next run, or the runs that one compaction wrote together, contain both loaded and new
            changes: their keys must be loaded again from all runs.
        is_own_lost: Whether the run that the cache's own task wrote may not be part of the version, because its epoch
            failed: its keys must be loaded again as well.
    """

    after: int
    is_within: bool = False
    is_own_lost: bool = False


def catch_up(version: StateVersion, content: Lineage, before_own: Lineage | None) -> CatchUp | None:
    """Compare the content of a cache with a version.

    Args:
        version: The version to reach.
        content: Lineage of the cached content.
        before_own: Lineage before the run that the cache's own task wrote; None if that run is in a version, or
            unknown.

    Returns:
        None if the cache may have changes that the version does not have.
    """
    found = _find_step(version, content)
    if found is not None or before_own is None:
        return found
    found = _find_step(version, before_own)
    return None if found is None else CatchUp(found.after, found.is_within, True)


def _find_step(version: StateVersion, content: Lineage) -> CatchUp | None:
    for step in reversed(version.steps):
        if step.lineage.identity == content.identity:
            return CatchUp(step.end)
    # Oldest first: later steps contain the same leaves as well, but only the first is where the cached content ends.
    for step in version.steps:
        if content.identity in step.lineage.positions:
            return CatchUp(step.start, is_within=True)
    return None


_ENTRY_BYTES: Final = 200


class Cacheable(Protocol):
    """An object that can be cached."""

    def estimated_bytes(self) -> int: ...


class StateCache:
    """Objects by name within a memory budget; the least recently used are evicted first. Thread-safe."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, tuple[Cacheable, int]] = OrderedDict()
        self._total = 0
        self._lock = threading.Lock()

    def take(self, name: Hashable) -> Cacheable | None:
        """Remove and return an object, None if there is none."""
        with self._lock:
            found = self._kept.pop(name, None)
            if found is None:
                return None
            self._total -= found[1]
            return found[0]

    def put(self, name: Hashable, content: Cacheable, budget: int) -> bool:
        """Cache an object, if it fits.

        Args:
            name: Name of the object; an earlier object of this name is removed.
            content: The object.
            budget: Limit in bytes of all objects of this process.

        Returns:
            False if the object exceeds the budget and is not cached.
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
        """Exchange the content with another cache, to simulate another process in tests."""
        self._kept, other._kept = other._kept, self._kept
        self._total, other._total = other._total, self._total

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._total = 0

    def __len__(self) -> int:
        return len(self._kept)


STATE_CACHE: Final = StateCache()
"""The cache of this process."""


class VersionReader:
    """The mapped runs of a version.

    Args:
        version: The version.
        fs: File system of the runs.
        root: The job directory.
        key_groups: The key groups of the subtask.

    Raises:
        CorruptFileError, FormatVersionError, NotExistError: A run is damaged, too new, or missing.
    """

    def __init__(self, version: StateVersion, fs: FileSystem, root: str, key_groups: KeyGroupRange) -> None:
        self.version = version
        self.fs = fs
        self.root = root
        self.runs: list[RunReader] = [open_run(fs, root, run) for run in version.runs]
        self._key_groups = key_groups

    def check_keys(self, operator: str, codec: KeyCodec, max_parallelism: int) -> None:
        """Compare the key type and max parallelism of the runs with those of a program.

        Raises:
            StateMigrationError: They differ.
        """
        for run in self.runs:
            if (run.meta.key, run.meta.max_parallelism) != (codec.to_json(), max_parallelism):
                raise StateMigrationError(
                    f"The state of operator {operator!r} was written for keys {run.meta.key!r} in "
                    f"{run.meta.max_parallelism} key groups (by {run.path!r}), the program has keys "
                    f"{codec.to_json()!r} in {max_parallelism}. Neither can be changed: give the operator another uid."
                )

    def evolve_layout(self, layout: StateLayout, now: int) -> StateLayout:
        """Return the layout of a state after its earlier declarations in the runs.

        Args:
            layout: Layout of the program's declaration.
            now: Processing time.

        Raises:
            StateMigrationError: Kind, map keys or namespaces differ, or the value type is not compatible.
        """
        segments = [(run.segment(layout.name), run.path) for run in self.runs]
        return layout.evolve_from([(found.entry.schema, path) for found, path in segments if found is not None], now)

    def slices(self, name: str, after: int = 0) -> Sequence[SegmentSlice]:
        """Return the rows of a state in the range, newest run first.

        Args:
            name: Name of the state.
            after: Number of the oldest runs to skip.
        """
        found = []
        for run in reversed(self.runs[after:]):
            for segment in run.newest_first(name):
                rows = segment.range(self._key_groups)
                if rows.stop > rows.start:
                    found.append(SegmentSlice(segment, rows))
        return found

    def slices_by_state(self, names: Sequence[str], after: int = 0) -> Mapping[str, Sequence[SegmentSlice]]:
        return {name: self.slices(name, after) for name in names}

    def has_timers(self) -> bool:
        return any(name.startswith(TIMER_PREFIX) for run in self.runs for name in run.segment_names())

    def add(self, run: RunHandle) -> None:
        """Add a run, which this subtask has just written."""
        self.version = self.version.plus(run)
        self.runs.append(open_run(self.fs, self.root, run))


class StateRemovals:
    """The states that a subtask deletes in one epoch because the program no longer declares them.

    If nothing is left of a state, the worker caches this fact, because finding it out requires reading the delete rows.

    Args:
        cache: Cache of the worker.
        owner: Name of the subtask in the cache.
        tombstones: Returns rows that delete the given rows, newest first; None if nothing is left of them.
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

    def remove(self, name: str, reader: VersionReader) -> None:
        """Delete a state of a version."""
        is_gone = self._cache.take((*self._owner, name)) == _RemovedState(_paths(name, reader))
        self._segments[name] = None if is_gone else self._tombstones(reader.slices(name))

    def segments(self) -> dict[str, SegmentData]:
        """Return the segments to write."""
        return {name: data for name, data in self._segments.items() if data is not None}

    def written(self) -> None:
        """Record that the segments are written: each is written once."""
        self._segments = dict.fromkeys(self._segments)

    def remember(self, reader: VersionReader | None, budget: int) -> None:
        """Cache that nothing is left of the removed states."""
        if reader is None:
            return
        for name in self._segments:
            self._cache.put((*self._owner, name), _RemovedState(_paths(name, reader)), budget)


@dataclass(frozen=True)
class _RemovedState:
    """Paths of the runs with rows of a state that has been deleted completely."""

    paths: frozenset[str]

    def estimated_bytes(self) -> int:
        return _ENTRY_BYTES * (1 + len(self.paths))


def _paths(name: str, reader: VersionReader) -> frozenset[str]:
    return frozenset(run.path for run in reader.runs if run.segment(name) is not None)
