"""The timers of one time domain of one service, in memory and in runs.

In runs they are sorted by key group and time, and a row puts or deletes a timer. Nothing is read before it is due, or
before somebody asks for the least one; then all that lie below some time are loaded at once. Registering and deleting
read nothing. So what an epoch costs depends on the timers that it sets, deletes and fires, not on how many wait.

What is said about a timer lies in layers, of which the newest one that says anything counts:

- what was registered and deleted by element since columns came last,
- columns of the epoch: what was registered and deleted as arrays, and what came by element before them,
- columns that were loaded from runs,
- the rest of the runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pyarrow as pa

from holdfast.errors import StateMigrationError
from holdfast.kernel.key_group import KeyGroupRange, key_groups_of
from holdfast.state.layout.column_layout import NAMESPACE, OP, Op
from holdfast.state.run.order import ranks
from holdfast.state.run.probe import KEY
from holdfast.state.run.run_file import HASH, RunReader
from holdfast.state.run.run_writer import SegmentData
from holdfast.state.timer.firing import Firing
from holdfast.state.timer.stored_timers import TIMESTAMP, StoredTimers
from holdfast.state.timer.timer_rows import Hashes, Names, NameTable, Timer, TimerRows, Times
from holdfast.types.key.abstract_key_codec import KeyCodec

MIN_TIME: Final = -(2**63)
MAX_TIME: Final = 2**63 - 1
_FIRST_LOAD: Final = 64
_LEAST_OF_A_GROUP: Final = 8
_LOAD_GROWTH: Final = 8
_PUT: Final = Op.PUT
_DELETE: Final = Op.DELETE


class TimerQueue:
    """Timers by time.

    Args:
        name: Of the segment.
        codec: Of the keys.
        namespace: Serializer snapshot of the namespaces as JSON, None for timers without.
    """

    def __init__(self, name: str, codec: KeyCodec, namespace: Any = None) -> None:
        self.name = name
        self._codec = codec
        self._namespace = namespace
        self._max_parallelism = 1
        self._runs: Sequence[RunReader] = ()
        self._key_groups = KeyGroupRange.EMPTY
        self._reset()

    def _reset(self) -> None:
        self.fired_through: int | None = None
        self._names = NameTable()
        self._changes: dict[Timer, Op] = {}
        # Made when it is asked for first, and kept in step from then on.
        self._by_key: dict[tuple[Any, bytes], set[Timer]] | None = None
        self._columns: list[TimerRows] = []
        # The one of them that has one row about a timer.
        self._unique: TimerRows | None = None
        self._is_settled = True
        # What runs say about times up to `_loaded`; timers that they delete are not in it.
        self._from_runs: list[TimerRows] = []
        self._loaded = MIN_TIME
        self._stored: list[StoredTimers] | None = None
        self._has_fired_stored = False
        # Of what was taken out of `_from_runs` because columns say something newer.
        self._least_replaced = MAX_TIME + 1
        # While timers fire by element.
        self._firing: Firing | None = None

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

    # By element.

    def register(self, timer: Timer) -> None:
        """Add a timer; one that is there already stays one."""
        self._changes[timer] = _PUT
        if self._firing is not None:
            self._firing.add(timer)
        if self._by_key is not None:
            self._by_key.setdefault(timer[1:], set()).add(timer)

    def delete(self, timer: Timer) -> None:
        """Remove a timer; no such timer is no error."""
        self._changes[timer] = _DELETE
        if self._by_key is not None:
            self._by_key.setdefault(timer[1:], set()).add(timer)

    @contextmanager
    def firing(self, due: TimerRows, through: int, *, goes_back: bool) -> Iterator[Firing]:
        """Let timers fire by element, inside the block.

        Args:
            due: What `take_due` has returned.
            through: The time.
            goes_back: See `Firing`.
        """
        self._by_key = None
        times = due.times.tolist()
        firing = Firing(times, lambda: self.timers_of(due), through, self._changes, goes_back=goes_back)
        self._firing = firing
        try:
            yield firing
        finally:
            firing.tell()
            self._firing = None

    def times_of(self, key: Any, namespace: bytes) -> list[int]:
        """Return the times of a key's timers, in order; looks into the key's group of each run."""
        if self._firing is not None:
            self._firing.tell()
        if self._by_key is None:
            self._by_key = {}
            for timer in self._changes:
                self._by_key.setdefault(timer[1:], set()).add(timer)
        said = {timer: self._changes.get(timer) for timer in self._by_key.get((key, namespace), ())}
        found: dict[Timer, Op | int] = {timer: op for timer, op in said.items() if op is not None}
        for rows in self._about(int(self._codec.hashes([key])[0])):
            for timer, op in zip(self.timers_of(rows), rows.ops.tolist(), strict=True):
                if timer[1:] == (key, namespace):
                    found.setdefault(timer, op)
        return sorted(timer.timestamp for timer, op in found.items() if op == _PUT)

    def _about(self, hash64: int) -> Iterator[TimerRows]:
        """Return what columns and runs say about the keys with a hash, newest first."""
        for part in (*self._columns[::-1], *self._from_runs):
            rows = part.rows_of(hash64)
            if len(rows):
                yield part.take(rows)
        for run in self._stored_runs():
            rows = run.rows_of(hash64, self._max_parallelism)
            if len(rows):
                yield run.read(rows, self._names)

    # As arrays.

    def add(self, keys: pa.Array, hashes: Hashes, namespaces: pa.Array | None, times: Times, op: Op) -> None:
        """Register or delete timers.

        Args:
            keys: As files have them.
            hashes: The hash of each.
            namespaces: Encoded, perhaps as a dictionary; None for timers without.
            times: When they are due.
            op: Whether to put or to delete them.
        """
        names = self._names.numbers(namespaces) if namespaces is not None else self._no_names(len(times))
        rows = TimerRows(hashes, times, keys, names, np.full(len(times), op, np.int8))
        if self._firing is not None:
            for timer in self.timers_of(rows):
                (self.register if op is _PUT else self.delete)(timer)
        elif len(rows):
            self._freeze()
            self._append(rows)

    def take_due(self, through: int) -> TimerRows:
        """Remove and return the timers up to a time, in order of time; none of them comes back by itself."""
        self._freeze()
        self._load(through)
        self.fired_through = through if self.fired_through is None else max(self.fired_through, through)
        stored, self._from_runs = _split(self._from_runs, through)
        columns, self._columns = _split(self._columns, through)
        self._has_fired_stored |= bool(stored) or self._least_replaced <= through
        parts = [*stored, *columns]
        if not parts:
            return self._no_rows()
        rows = TimerRows.together(parts)
        due = rows.newest(self._codec) if columns else np.arange(len(rows))
        due = due[rows.ops[due] == _PUT]
        return rows.take(due[np.argsort(rows.times[due], kind="stable")])

    def timers_of(self, rows: TimerRows) -> list[Timer]:
        """Return the timers of some rows."""
        return list(map(Timer, rows.times.tolist(), self._codec.from_storage(rows.keys), self.names_of(rows)))

    def names_of(self, rows: TimerRows) -> list[bytes]:
        """Return the encoded namespace of each of some rows."""
        return self._names.names(rows.names)

    def namespaces_of(self, rows: TimerRows) -> pa.DictionaryArray:
        """Return the same as a column."""
        return self._names.column(rows.names)

    # All of them.

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
            if self._is_set_at(int(ahead.min())):
                return int(ahead.min())
            self._load(self._bound(ahead, wanted))
            wanted *= _LOAD_GROWTH

    def _is_set_at(self, time: int) -> bool:
        """Whether the first rows of key groups show that there is a timer at the least time of all runs.

        That is so where the newest run that has the time in a key group puts it: then nothing newer deletes it.
        """
        if any(((rows.times == time) & (rows.ops == _DELETE)).any() for rows in self._columns):
            return False
        seen: set[int] = set()
        for run in self._stored_runs():
            groups, is_put = run.heads_at(time)
            if not seen.issuperset(groups[is_put].tolist()):
                return True
            seen.update(groups.tolist())
        return False

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

    def _first(self) -> int | None:
        self._settle()
        waiting = [timer.timestamp for timer, op in self._changes.items() if op is _PUT]  # some that fire now
        for rows in (*self._columns, *self._from_runs):
            times = rows.times[rows.ops == _PUT]
            waiting += [int(times.min())] if len(times) else []
        return min(waiting, default=None)

    def __len__(self) -> int:
        self._load(MAX_TIME)
        self._settle()
        waiting = sum(op is _PUT for op in self._changes.values())
        return waiting + sum(int((rows.ops == _PUT).sum()) for rows in (*self._columns, *self._from_runs))

    def segment(self, max_parallelism: int) -> SegmentData | None:
        """Return what has changed as a segment, None if nothing has.

        It is empty if timers of runs have fired: then a run has to say through when, and nothing else.
        """
        self._settle()
        rows = self._columns[0] if self._columns else self._no_rows()
        if self.fired_through is not None:
            # What older runs say about such times is void from this epoch on.
            rows = rows.where((rows.ops == _PUT) | (rows.times > self.fired_through))
        if not len(rows) and not self._has_fired_stored:
            return None
        names = pa.chunked_array([pa.array(self._names.names(rows.names), pa.binary())])
        groups = key_groups_of(rows.hashes, max_parallelism)
        order = np.lexsort((ranks(names), ranks(pa.chunked_array([rows.keys])), rows.times, groups))
        table = {
            HASH: pa.array(rows.hashes),
            TIMESTAMP: pa.array(rows.times),
            KEY: rows.keys,
            NAMESPACE: names,
            OP: pa.array(rows.ops),
        }
        schema = {"kind": "timers", "namespace": self._namespace, "max_parallelism": max_parallelism}
        return SegmentData(pa.table(table).take(pa.array(order)), schema)

    # Layers.

    def _append(self, rows: TimerRows) -> None:
        self._columns.append(rows)
        self._is_settled = False

    def _freeze(self) -> None:
        """Make columns of what came by element, but for what fires now."""
        changes, fires_through = self._changes, MIN_TIME if self._firing is None else self._firing.through
        timers = [timer for timer in changes if timer[0] > fires_through]
        if not timers:
            return
        keys = [timer[1] for timer in timers]
        self._append(
            TimerRows(
                self._codec.hashes(keys),
                np.array([timer[0] for timer in timers], np.int64),
                self._codec.storage_array(keys),
                np.array([self._names.number(timer[2]) for timer in timers], np.int64),
                np.array([changes[timer] for timer in timers], np.int8),
            )
        )
        left = {timer: op for timer, op in changes.items() if timer[0] <= fires_through}
        changes.clear()
        changes.update(left)

    def _load(self, through: int) -> None:
        """Load the timers of runs up to a time; what the newest run says about a timer counts."""
        if through <= self._loaded:
            return
        self._loaded = through
        taken = [(run, run.take(through)) for run in reversed(self._stored_runs())]
        parts = [run.read(rows, self._names) for run, rows in taken if len(rows)]
        if parts:
            rows = TimerRows.together(parts)
            newest = rows.newest(self._codec) if len(parts) > 1 else np.arange(len(rows))
            self._from_runs.append(rows.take(newest[rows.ops[newest] == _PUT]))
            self._is_settled = False

    def _settle(self) -> None:
        """Bring columns into one part, with one row about a timer, and drop what they replace of runs."""
        if self._firing is not None:
            self._firing.tell()
        self._freeze()
        if self._is_settled:
            return
        self._is_settled = True
        if self._columns and self._columns != [self._unique]:
            rows = TimerRows.together(self._columns)
            self._unique = rows.take(rows.newest(self._codec))
            self._columns = [self._unique]
        if self._columns and self._from_runs:
            stored = TimerRows.together(self._from_runs)
            rows = TimerRows.together([stored, self._columns[0].where(self._columns[0].times <= self._loaded)])
            newest = rows.newest(self._codec)
            kept = newest[newest < len(stored)]
            self._least_replaced = min([self._least_replaced, *np.delete(stored.times, kept).tolist()])
            self._from_runs = [stored.take(kept)]

    def _no_rows(self) -> TimerRows:
        none = np.empty(0, np.int64)
        keys = pa.array([], self._codec.storage_type)
        return TimerRows(none.view(np.uint64), none, keys, none, none.astype(np.int8))

    def _no_names(self, count: int) -> Names:
        return np.full(count, self._names.number(b""), np.int64)

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


def _split(parts: Sequence[TimerRows], through: int) -> tuple[list[TimerRows], list[TimerRows]]:
    """Return the rows up to a time, and the others."""
    due = [part.where(part.times <= through) for part in parts]
    kept = [part.where(part.times > through) for part in parts]
    return [part for part in due if len(part)], [part for part in kept if len(part)]


def least_of(times: Iterable[int | None]) -> int | None:
    """Return the least of the times of several queues or services, None if none has a timer."""
    return min((time for time in times if time is not None), default=None)
