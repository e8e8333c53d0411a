"""The timers of one time domain of one service, in memory and in runs.

In runs they are sorted by key group and time, and a row puts or deletes a timer. Nothing is read before it is due, or
before somebody asks for the least one; then all that lie below some time are loaded at once. Registering and deleting
read nothing. So what an epoch costs depends on the timers that it sets, deletes and fires, not on how many wait.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count
from typing import Any, Final

import numpy as np
import pyarrow as pa

from holdfast.errors import StateMigrationError
from holdfast.kernel.key_group import KeyGroupRange, key_groups_of
from holdfast.state.layout.column_layout import NAMESPACE, OP, Op
from holdfast.state.run.probe import KEY
from holdfast.state.run.run_file import HASH, RunReader
from holdfast.state.run.run_writer import SegmentData
from holdfast.state.timer.stored_timers import TIMESTAMP, StoredTimers, Timer, Times
from holdfast.types.key.abstract_key_codec import KeyCodec

MIN_TIME: Final = -(2**63)
MAX_TIME: Final = 2**63 - 1
_FIRST_LOAD: Final = 64
_LEAST_OF_A_GROUP: Final = 8
_LOAD_GROWTH: Final = 8


class TimerQueue:
    """Timers by time.

    Args:
        name: Of the segment.
        codec: Of the keys.
        namespace: Serializer snapshot of the namespaces as JSON, None for timers without.
    """

    def __init__(self, name: str, codec: KeyCodec, namespace: Any = None) -> None:
        self.name = name
        self.fired_through: int | None = None
        self._codec = codec
        self._namespace = namespace
        self._order = count()
        self._max_parallelism = 1
        self._runs: Sequence[RunReader] = ()
        self._key_groups = KeyGroupRange.EMPTY
        self._reset()

    def _reset(self) -> None:
        self._stored: list[StoredTimers] | None = None
        # All timers of runs up to this time are in the heap.
        self._loaded = MIN_TIME
        self._heap: list[tuple[int, int, Timer]] = []
        self._alive: set[Timer] = set()
        # Timers that the runs have, as far as they are loaded.
        self._known: set[Timer] = set()
        self._changes: dict[Timer, Op] = {}
        # Made when it is asked for first, and kept in step from then on.
        self._by_key: dict[tuple[Any, bytes], set[int]] | None = None
        self.fired_through = None

    def open(self, runs: Sequence[RunReader], key_groups: KeyGroupRange) -> None:
        """Start from the runs of a version, newest first; what was not written is lost.

        Raises:
            StateMigrationError: The timers in them have other namespaces.
        """
        for run in runs:
            segment = run.segment(self.name)
            if segment is not None and segment.entry.schema["namespace"] != self._namespace:
                raise StateMigrationError(
                    f"Timers {self.name!r} were written with namespaces {segment.entry.schema['namespace']!r} (by "
                    f"{run.path!r}), the program declares {self._namespace!r}. Timers cannot be migrated."
                )
        self._runs, self._key_groups = runs, key_groups
        self._reset()

    def register(self, timer: Timer) -> None:
        """Add a timer; one that is there already stays one."""
        if timer in self._alive:
            return
        if timer in self._known and (self.fired_through is None or timer.timestamp > self.fired_through):
            del self._changes[timer]
        else:
            # What older runs say about times up to `fired_through` is void from this epoch on.
            self._changes[timer] = Op.PUT
        self._push(timer)

    def delete(self, timer: Timer) -> None:
        """Remove a timer; no such timer is no error."""
        self._alive.discard(timer)
        if self._by_key is not None:
            self._by_key.get((timer.key, timer.namespace), set()).discard(timer.timestamp)
        if timer.timestamp <= self._loaded and timer not in self._known:
            self._changes.pop(timer, None)
        else:
            self._changes[timer] = Op.DELETE

    def due(self, through: int) -> list[Timer]:
        """Return the timers up to a time, in order of time."""
        self._load(through)
        entries = sorted(entry for entry in self._heap if entry[0] <= through)
        return [timer for _, _, timer in entries if timer in self._alive]

    def pop(self, through: int) -> Timer | None:
        """Remove and return the least timer up to a time, None if there is none."""
        self._load(through)
        if self._first() is None or self._heap[0][0] > through:
            return None
        timer = self._heap[0][2]
        self.delete(timer)
        return timer

    def fired(self, through: int) -> None:
        """All timers up to a time were popped, and none of them comes back until it is registered again."""
        self.fired_through = through if self.fired_through is None else max(self.fired_through, through)

    def times_of(self, key: Any, namespace: bytes) -> list[int]:
        """Return the times of a key's timers, in order; looks into the key's group of each run."""
        if self._by_key is None:
            self._by_key = {}
            for timer in self._alive:
                self._by_key.setdefault((timer.key, timer.namespace), set()).add(timer.timestamp)
        times = set(self._by_key.get((key, namespace), ()))
        hash64 = int(self._codec.hashes([key])[0])
        seen: set[Timer] = set()
        for run in self._stored_runs():
            rows = run.rows_of(hash64, self._max_parallelism)
            for timer, op in run.read(rows, self._codec) if len(rows) else ():
                is_newest = timer not in seen
                seen.add(timer)
                if is_newest and op == Op.PUT and timer[1:] == (key, namespace) and timer not in self._changes:
                    times.add(timer.timestamp)
        return sorted(times)

    def least(self) -> int | None:
        """Return the time of the least timer, None if there is none."""
        wanted = _FIRST_LOAD
        while True:
            first = self._first()
            if first is not None and first <= self._loaded:
                return first
            heads = [run.heads() for run in self._stored_runs()]
            ahead = np.concatenate(heads) if heads else np.empty(0, np.int64)
            if not len(ahead) or (first is not None and first <= ahead.min()):
                return first
            self._load(self._bound(ahead, wanted))
            wanted *= _LOAD_GROWTH

    def _bound(self, ahead: Times, wanted: int) -> int:
        """Return a time up to which there are about as many timers in runs as wanted, and one at least.

        Those whose next timer is late have none before it. Of the others none has more than a few before the bound.

        Args:
            ahead: When the next timer of each key group of each run is due.
            wanted: How many timers.
        """
        latest = int(np.partition(ahead, wanted)[wanted]) if wanted < len(ahead) else MAX_TIME
        each = max(_LEAST_OF_A_GROUP, wanted // len(ahead))
        ends = np.concatenate([run.ahead(each, latest) for run in self._stored_runs()])
        if len(ends):
            return min(latest, int(ends.min()))
        return latest if wanted < len(ahead) else max(run.last() for run in self._stored_runs() if len(run))

    def __len__(self) -> int:
        self._load(MAX_TIME)
        return len(self._alive)

    def segment(self, max_parallelism: int) -> SegmentData | None:
        """Return what has changed as a segment, None if nothing has."""
        if not self._changes:
            return None
        timers = list(self._changes)
        hashes = self._codec.hashes([timer.key for timer in timers])
        groups = key_groups_of(hashes, max_parallelism).tolist()
        names = [(timer.timestamp, self._codec.canonical_bytes(timer.key), timer.namespace) for timer in timers]
        order = sorted(range(len(timers)), key=lambda at: (groups[at], *names[at]))
        timers = [timers[at] for at in order]
        table = {
            HASH: pa.array(hashes[order]),
            TIMESTAMP: pa.array([timer.timestamp for timer in timers], pa.int64()),
            KEY: self._codec.storage_array([timer.key for timer in timers]),
            NAMESPACE: pa.array([timer.namespace for timer in timers], pa.binary()),
            OP: pa.array([int(self._changes[timer]) for timer in timers], pa.int8()),
        }
        schema = {"kind": "timers", "namespace": self._namespace, "max_parallelism": max_parallelism}
        return SegmentData(pa.table(table), schema)

    def _push(self, timer: Timer) -> None:
        self._alive.add(timer)
        if self._by_key is not None:
            self._by_key.setdefault((timer.key, timer.namespace), set()).add(timer.timestamp)
        heapq.heappush(self._heap, (timer.timestamp, next(self._order), timer))

    def _first(self) -> int | None:
        while self._heap and self._heap[0][2] not in self._alive:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _load(self, through: int) -> None:
        """Bring the timers of runs up to a time into the heap; what the newest run says about a timer wins."""
        if through <= self._loaded:
            return
        seen: set[Timer] = set()
        for run in self._stored_runs():
            rows = run.take(through)
            if not len(rows):
                continue
            for timer, op in run.read(rows, self._codec):
                if timer in seen:
                    continue
                seen.add(timer)
                if op == Op.DELETE:
                    continue
                self._known.add(timer)
                change = self._changes.get(timer)
                if change is None:
                    self._push(timer)
                elif change is Op.PUT:
                    del self._changes[timer]
        self._loaded = through

    def _stored_runs(self) -> list[StoredTimers]:
        if self._stored is None:
            self._stored = []
            first = self._key_groups.start
            horizon = np.full(max(self._key_groups.size, 1), MIN_TIME, np.int64)
            for run in self._runs:
                self._max_parallelism = run.meta.max_parallelism
                for segment in run.newest_first(self.name):
                    self._stored.append(StoredTimers(segment, self._key_groups, horizon))
                fired = run.meta.fired_through.get(self.name)
                shared = run.meta.key_groups.intersection(self._key_groups)
                if fired is not None and shared:
                    part = horizon[shared.start - first : shared.end - first + 1]
                    np.maximum(part, fired, out=part)
        return self._stored
