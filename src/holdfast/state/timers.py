"""The timers of one time domain of one service, in memory and in runs.

In runs timers are sorted by key group and time, and a row puts or deletes a timer. Runs are read only for timers that
are due, or to find the earliest one; then all timers below some time are loaded at once. Registering and deleting read
nothing. So the cost of an epoch depends on the timers that it sets, deletes and fires, not on the number of waiting
timers.

Timers are in layers; the newest layer that contains a timer decides whether it exists:

- timers that were registered and deleted one by one since the last columns,
- columns of the epoch: timers that were registered and deleted as arrays, and single ones from before them; in real
  time they come in many small parts, of which some are merged now and then,
- columns that were loaded from runs,
- the rest of the runs.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import count
from typing import Any, Final, NamedTuple
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import CorruptFileError, StateMigrationError
from holdfast.kernel.key_group import KeyGroupRange, key_group_of, key_groups_of
from holdfast.state.batch import ranks
from holdfast.state.layout import NAMESPACE, OP, Op
from holdfast.state.probe import KEY
from holdfast.state.run_file import HASH, RunReader, Segment, SegmentData
from holdfast.types.key_codec import KeyCodec

Rows = npt.NDArray[np.int64]
Times = npt.NDArray[np.int64]
Names = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Ops = npt.NDArray[np.int8]

_ODD: Final = np.uint64(0x9E3779B97F4A7C15)
_OTHER_ODD: Final = np.uint64(0xC2B2AE3D27D4EB4F)
TIMESTAMP: Final = "timestamp"
_PUT: Final = Op.PUT
MIN_TIME: Final = -(2**63)
MAX_TIME: Final = 2**63 - 1
_FIRST_LOAD: Final = 64
_LEAST_OF_A_GROUP: Final = 8
_FIRST_LOOK: Final = 1024
"""Rows of sorted timers that are looked at before all are."""
_LOAD_GROWTH: Final = 8
_MOST_PARTS: Final = 32
"""Columns of an epoch before some are merged. An epoch of a job by epochs has few; in real time each round adds one."""
_NAMES_BETWEEN_CHECKS: Final = 1024
_DELETE: Final = Op.DELETE


class Timer(NamedTuple):
    """One timer. Timers are equal if time, key and namespace are.

    Attributes:
        timestamp: Its time.
        key: Its key, in the form of the key codec.
        namespace: Its encoded namespace; empty for timers without.
    """

    timestamp: int
    key: Any
    namespace: bytes = b""


class NamespaceTable:
    """Numbers of the encoded namespaces of a queue."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._names: list[bytes] = []

    def __len__(self) -> int:
        return len(self._names)

    def number(self, name: bytes) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._names)
            self._names.append(name)
        return number

    def numbers(self, column: pa.Array) -> Names:
        """Return the number of each namespace of a column of bytes, which may be a dictionary."""
        encoded = column if isinstance(column, pa.DictionaryArray) else column.dictionary_encode()
        of_distinct = np.array([self.number(name) for name in encoded.dictionary.to_pylist()], np.int64)
        numbers: Names = of_distinct[encoded.indices.to_numpy()]
        return numbers

    def column(self, numbers: Names) -> pa.DictionaryArray:
        """Return the namespaces of some numbers as a dictionary array."""
        distinct, places = np.unique(numbers, return_inverse=True)
        names = pa.array(self.names(distinct), pa.binary())
        return pa.DictionaryArray.from_arrays(pa.array(places.astype(np.int32)), names)

    def names(self, numbers: Names) -> list[bytes]:
        return [self._names[number] for number in numbers.tolist()]


class TimerRows:
    """Rows of timers, as columns.

    Attributes:
        hashes: The hash of each key.
        times: The time of each timer.
        keys: The keys in storage form.
        names: The number of each namespace in the `NamespaceTable`.
        ops: Whether each timer is put or deleted.
    """

    def __init__(self, hashes: Hashes, times: Times, keys: pa.Array, names: Names, ops: Ops) -> None:
        self.hashes, self.times, self.keys, self.names, self.ops = hashes, times, keys, names, ops
        self._is_sorted = False  # by time

    @classmethod
    def together(cls, parts: Sequence[TimerRows]) -> TimerRows:
        if len(parts) == 1:
            return parts[0]
        hashes, times, names, ops = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("hashes", "times", "names", "ops")
        )
        return cls(hashes, times, pa.concat_arrays([part.keys for part in parts]), names, ops)

    def __len__(self) -> int:
        return len(self.times)

    def take(self, rows: Rows) -> TimerRows:
        keys = self.keys.take(pa.array(rows))
        return TimerRows(self.hashes[rows], self.times[rows], keys, self.names[rows], self.ops[rows])

    @cached_property
    def least(self) -> int:
        """The earliest time."""
        return int(self.times[0] if self._is_sorted else self.times.min())

    @cached_property
    def least_put(self) -> int | None:
        """The earliest time of a timer that is put, None if there is none."""
        if self._is_sorted:
            for end in (_FIRST_LOOK, len(self)):
                puts = np.flatnonzero(self.ops[:end] == _PUT)
                if len(puts):
                    return int(self.times[puts[0]])
            return None
        put = self.times[self.ops == _PUT]
        return int(put.min()) if len(put) else None

    def split(self, through: int) -> tuple[TimerRows | None, TimerRows | None]:
        """Return the rows up to a time, and those behind it; None for none."""
        if self.least > through:
            return None, self
        if not self._is_sorted and (self.times <= through).all():
            return self, None
        # Once sorted it is only sliced, however often some of its timers are due. The order of equal times stays.
        rows = self if self._is_sorted else self._sorted()
        at = int(np.searchsorted(rows.times, through, "right"))
        if at == len(rows):
            return rows, None
        return rows._slice(0, at), rows._slice(at, len(rows))

    def _sorted(self) -> TimerRows:
        rows = self.take(np.argsort(self.times, kind="stable"))
        rows._is_sorted = True
        return rows

    def _slice(self, begin: int, end: int) -> TimerRows:
        part = slice(begin, end)
        keys = self.keys.slice(begin, end - begin)
        rows = TimerRows(self.hashes[part], self.times[part], keys, self.names[part], self.ops[part])
        rows._is_sorted = True
        return rows

    def where(self, mask: npt.NDArray[np.bool_]) -> TimerRows:
        return self if mask.all() else self.take(np.flatnonzero(mask))

    def rows_of(self, hash64: int) -> Rows:
        """Return the rows of the keys with a hash."""
        order, hashes = self._by_hash
        begin, end = (np.searchsorted(hashes, np.uint64(hash64), side) for side in ("left", "right"))
        return order[begin:end]

    def newest(self, codec: KeyCodec) -> Rows:
        """Return the last row of each timer, in order."""
        codes = self.hashes + self.times.view(np.uint64) * _ODD + self.names.view(np.uint64) * _OTHER_ODD
        encoded = pa.array(codes).dictionary_encode()
        numbers, every = encoded.indices.to_numpy(), np.arange(len(codes))
        last = np.empty(len(encoded.dictionary), np.int64)
        last[numbers] = every  # of equal numbers the last assignment wins
        again = np.flatnonzero(last[numbers] != every)
        if self._are_same(again, last[numbers[again]]):
            return np.sort(last)
        timers = zip(self.times.tolist(), self.names.tolist(), codec.from_storage(self.keys), strict=True)
        found = {timer: row for row, timer in enumerate(timers)}
        return np.sort(np.fromiter(found.values(), np.int64, len(found)))

    def _are_same(self, rows: Rows, others: Rows) -> bool:
        """Return whether rows have the same timers as others; False if that needs a comparison of key objects."""
        for column in (self.times, self.names, self.hashes):
            if (column[rows] != column[others]).any():
                return False
        same = pc.equal(self.keys.take(pa.array(rows)), self.keys.take(pa.array(others)))
        return bool(pc.all(same, min_count=0).as_py())

    @cached_property
    def _by_hash(self) -> tuple[Rows, Hashes]:
        order = np.argsort(self.hashes, kind="stable")
        return order, self.hashes[order]


_in_order: Final[WeakSet[Segment]] = WeakSet()
"""Segments whose order has been checked in this process."""


class StoredTimers:
    """Rows of a run that were not taken yet.

    Rows are sorted by key group and time, and the footer has the first row of each group. So a binary search per group
    finds the timers up to a time, however many timers there are.

    Args:
        segment: One part of a segment of timers.
        key_groups: The key groups of the subtask.
        horizon: For each key group the time up to which all timers have fired according to newer runs.

    Raises:
        CorruptFileError: The rows are not sorted.
    """

    def __init__(self, segment: Segment, key_groups: KeyGroupRange, horizon: Times) -> None:
        entry = segment.entry
        part = slice(bisect_left(entry.key_groups, key_groups.start), bisect_right(entry.key_groups, key_groups.end))
        self._segment = segment
        self._times = _times_of(segment)
        self._groups = entry.key_groups[part]
        bounds = np.array([*entry.first_rows[part], segment.range(key_groups).stop], np.int64)
        self._next, self._ends = bounds[:-1], bounds[1:]
        self._next = self._above(horizon[np.array(self._groups, np.int64) - key_groups.start])
        self._heads = self._heads_now()

    def __len__(self) -> int:
        return int((self._ends - self._next).sum())

    def heads(self) -> Times:
        """Return the time of the next timer of each key group that has one."""
        return self._heads

    def heads_at(self, time: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the key groups whose next timer has the given time, and whether the run puts it."""
        there = np.flatnonzero(self._next < self._ends)[self._heads == time]
        ops = self._segment.table.column(OP).to_numpy()[self._next[there]]
        return np.array(self._groups, np.int64)[there], ops == Op.PUT

    def take(self, through: int) -> Rows:
        """Take the rows up to a time."""
        if not len(self._heads) or self._heads.min() > through:
            return np.empty(0, np.int64)
        begins, self._next = self._next, self._above(np.int64(through))
        self._heads = self._heads_now()
        return np.concatenate([np.arange(*span) for span in zip(begins, self._next, strict=True)])

    def ahead(self, count: int, below: int) -> Times:
        """Return the time of the `count`-th next timer of the key groups whose next timer is not above `below`."""
        there = self._next + (count - 1)
        there = there[there < self._ends]
        heads = self._times[there - (count - 1)]
        found: Times = self._times[there[heads <= below]]
        return found

    def last(self) -> int:
        """Return the greatest time that was not taken."""
        return int(self._times[self._ends[self._next < self._ends] - 1].max())

    def rows_of(self, hash64: int, max_parallelism: int) -> Rows:
        """Return the rows of the keys with a hash."""
        group = key_group_of(hash64, max_parallelism)
        at = bisect_left(self._groups, group)
        if at == len(self._groups) or self._groups[at] != group:
            return np.empty(0, np.int64)
        begin, end = self._next[at], self._ends[at]
        rows: Rows = np.flatnonzero(self._segment.hash[begin:end] == np.uint64(hash64)) + begin
        return rows

    def read(self, rows: Rows, names: NamespaceTable) -> TimerRows:
        segment = self._segment
        table = segment.table.select([KEY, NAMESPACE, OP]).take(pa.array(rows))
        keys, namespaces, ops = (table.column(name).combine_chunks() for name in (KEY, NAMESPACE, OP))
        return TimerRows(segment.hash[rows], self._times[rows], keys, names.numbers(namespaces), ops.to_numpy())

    def _heads_now(self) -> Times:
        heads: Times = self._times[self._next[self._next < self._ends]]
        return heads

    def _above(self, bounds: Times | np.int64) -> Rows:
        """Return for each key group the first row that was not taken and is above a time."""
        low, high = self._next, self._ends
        # In most epochs nothing is due, which the first row of a group shows without a search.
        heads = self._times[np.where(low < high, low, 0)]
        high = np.where((low < high) & (heads > bounds), low, high)
        while (unknown := low < high).any():
            middle = (low + high) // 2
            is_above = self._times[np.where(unknown, middle, 0)] > bounds
            high = np.where(unknown & is_above, middle, high)
            low = np.where(unknown & ~is_above, middle + 1, low)
        return low


def _times_of(segment: Segment) -> Times:
    times: Times = segment.table.column(TIMESTAMP).to_numpy()
    if segment not in _in_order:
        begins = np.zeros(len(times) + 1, np.bool_)
        begins[list(segment.entry.first_rows)] = True
        if ((times[1:] < times[:-1]) & ~begins[1:-1]).any():
            message = f"the timers of segment {segment.entry.name!r} are not sorted by time."
            raise CorruptFileError(segment.path, segment.entry.offset, message)
        _in_order.add(segment)
    return times


class FiringRule(NamedTuple):
    """Decides whether a timer fires that is due, and was set while timers fire.

    Attributes:
        goes_back: Whether one fires that is set for no later than the one that fires. If not, it waits: as processing
            time does not advance meanwhile, a timer that sets itself again would never end.
        latest: None unless the watermark is the final one, which has passed all timers, so that one that sets the next
            would never end. Then it is the greatest event time of the input. A timer that is set for a later time fires
            once: those that it sets wait.
    """

    goes_back: bool
    latest: int | None = None


class FiringTimers:
    """The timers of a queue that are due, and those that become due while they fire one by one.

    The timers that are due at the beginning are columns. Objects are created only if a callback lists timers, or has
    set or deleted any.

    Args:
        times: Times of the timers that are due at the beginning, in order.
        make: Returns their objects.
        through: The time up to which timers fire.
        changes: Single timers that were set and deleted. The queue owns it; empty at the beginning.
        rule: Whether a timer that is set meanwhile fires as well, or waits.

    Attributes:
        through: The time up to which timers fire.
        waiting: Timers that were set meanwhile, are due, and wait.
    """

    def __init__(
        self,
        times: list[int],
        make: Callable[[], list[Timer]],
        through: int,
        changes: dict[Timer, Op],
        rule: FiringRule,
    ) -> None:
        self.through = through
        self.waiting: set[Timer] = set()
        self._rule = rule
        self._now = through
        # At the final watermark: timers that are set, and whether one of `_once` fires, which fire once only.
        self._pending: set[Timer] = set()
        self._once: set[Timer] = set()
        self._is_once = False
        self._times = times
        self._make = make
        self._changes = changes
        self._next = 0
        self._is_materialized = False
        self._added: list[tuple[int, int, Timer]] = []
        self._order = count()

    def __iter__(self) -> Iterator[tuple[int, int | Timer]]:
        """Remove and yield the earliest timer until none is left: its time and the timer itself.

        A timer that was due at the beginning is yielded as its position. Timers that are set meanwhile fire as well,
        and timers that are deleted do not.
        """
        changes, added = self._changes, self._added
        for at, time in enumerate(self._times):
            if added:
                yield from self._take_added(time)
            self._next = at + 1
            if not changes or self._is_left(self.timers[at]):
                self._now, self._is_once = time, False
                yield time, at
        yield from self._take_added(self.through + 1)

    @cached_property
    def timers(self) -> list[Timer]:
        """The timers that were due at the beginning."""
        return self._make()

    def add(self, timer: Timer) -> None:
        """Add a timer that was set while others fire."""
        if timer[0] > self.through:
            return
        if self._rule.latest is not None:
            if self._is_once:
                if timer not in self._pending:
                    self.waiting.add(timer)
                return
            if not self._now < timer[0] <= self._end_of(timer):
                self._once.add(timer)
            self._pending.add(timer)
            self.waiting.discard(timer)
        elif not self._rule.goes_back and timer[0] <= self._now:
            self.waiting.add(timer)
            return
        heapq.heappush(self._added, (timer[0], next(self._order), timer))

    def _end_of(self, timer: Timer) -> int:
        """Return the time up to which timers of a key and namespace may set the next one at the final watermark."""
        latest = self._rule.latest
        assert latest is not None
        # A window has a timer at its end.
        return max(latest, self._ends.get(timer[1:], latest)) if timer.namespace else latest

    @cached_property
    def _ends(self) -> dict[tuple[Any, bytes], int]:
        return {timer[1:]: timer.timestamp for timer in self.timers if timer.timestamp < MAX_TIME}  # in order of time

    def materialize(self) -> None:
        """Add the remaining timers to the changes, for callers that list all timers."""
        if not self._is_materialized and self._next < len(self._times):
            self._is_materialized = True
            for timer in self.timers[self._next :]:
                self._changes.setdefault(timer, _PUT)

    def _is_left(self, timer: Timer) -> bool:
        op = self._changes.get(timer)
        if op is _PUT:
            del self._changes[timer]
        return op is _PUT or (op is None and not self._is_materialized)

    def _take_added(self, before: int) -> Iterator[tuple[int, Timer]]:
        changes, added = self._changes, self._added
        while added and added[0][0] < before:
            time, _, timer = heapq.heappop(added)
            if changes.get(timer) is _PUT and timer not in self.waiting:
                del changes[timer]
                self._pending.discard(timer)
                self._now, self._is_once = time, timer in self._once
                yield time, timer


class TimerQueue:
    """Timers of one segment, sorted by time.

    Args:
        name: Name of the segment.
        codec: Codec of the keys.
        namespace: Serializer snapshot of the namespaces as JSON, None for timers without.
    """

    def __init__(self, name: str, codec: KeyCodec, namespace: Any = None) -> None:
        self.name = name
        self._codec = codec
        self._namespace = namespace
        self._max_parallelism = 1
        none = np.empty(0, np.int64)
        keys = pa.array([], codec.storage_type)
        self._nothing = TimerRows(none.view(np.uint64), none, keys, none, none.astype(np.int8))
        self._runs: Sequence[RunReader] = ()
        self._key_groups = KeyGroupRange.EMPTY
        self._reset()

    def _reset(self) -> None:
        self.fired_through: int | None = None
        self._names = NamespaceTable()
        self._names_until_check = _NAMES_BETWEEN_CHECKS
        self._changes: dict[Timer, Op] = {}
        # Index of `_changes`, created on first use and maintained from then on.
        self._by_key: dict[tuple[Any, bytes], set[Timer]] | None = None
        self._columns: list[TimerRows] = []
        # The element of `_columns` that has at most one row per timer.
        self._unique: TimerRows | None = None
        self._is_consolidated = True
        # Timers of runs up to `_loaded`, without deleted ones.
        self._from_runs: list[TimerRows] = []
        self._loaded = MIN_TIME
        self._stored: list[StoredTimers] | None = None
        self._has_fired_stored = False
        # Earliest time of the rows of `_from_runs` that newer columns have replaced.
        self._least_replaced = MAX_TIME + 1
        # Set while timers fire one by one.
        self._firing: FiringTimers | None = None

    def open(self, runs: Sequence[RunReader], key_groups: KeyGroupRange) -> None:
        """Start from the runs of a version, newest first; changes that were not written are lost.

        Raises:
            StateMigrationError: Their timers have other namespaces.
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
        """Add a timer. Adding an existing timer is not an error."""
        self._changes[timer] = _PUT
        if self._firing is not None:
            self._firing.add(timer)
        if self._by_key is not None:
            self._by_key.setdefault(timer[1:], set()).add(timer)

    def delete(self, timer: Timer) -> None:
        """Delete a timer. Deleting a missing timer is not an error."""
        self._changes[timer] = _DELETE
        if self._by_key is not None:
            self._by_key.setdefault(timer[1:], set()).add(timer)

    @contextmanager
    def firing(self, due: TimerRows, through: int, rule: FiringRule) -> Iterator[FiringTimers]:
        """Fire timers one by one inside the block.

        Args:
            due: Result of `take_due`.
            through: The time up to which timers fire.
            rule: See `FiringTimers`.
        """
        self._by_key = None
        times = due.times.tolist()
        firing = FiringTimers(times, lambda: self.timers_of(due), through, self._changes, rule)
        self._firing = firing
        try:
            yield firing
        finally:
            firing.materialize()
            self._firing = None

    def times_of(self, key: Any, namespace: bytes) -> list[int]:
        """Return the times of a key's timers, in order. Reads the key's group of each run."""
        if self._firing is not None:
            self._firing.materialize()
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
        """Yield the rows of columns and runs with a hash, newest first."""
        for part in (*self._columns[::-1], *self._from_runs):
            rows = part.rows_of(hash64)
            if len(rows):
                yield part.take(rows)
        for run in self._stored_runs():
            rows = run.rows_of(hash64, self._max_parallelism)
            if len(rows):
                yield run.read(rows, self._names)

    def add(self, keys: pa.Array, hashes: Hashes, namespaces: pa.Array | None, times: Times, op: Op) -> None:
        """Register or delete timers as arrays.

        Args:
            keys: The keys in storage form.
            hashes: The hash of each key.
            namespaces: The encoded namespaces, also as a dictionary; None for timers without.
            times: The times.
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
        """Remove and return the timers up to a time, sorted by time."""
        self._freeze()
        self._forget_names()
        self._load(through)
        self.fired_through = through if self.fired_through is None else max(self.fired_through, through)
        stored, self._from_runs = _split(self._from_runs, through)
        columns, self._columns = _split(self._columns, through)
        self._has_fired_stored |= bool(stored) or self._least_replaced <= through
        parts = [*stored, *columns]
        if not parts:
            return self._nothing
        rows = TimerRows.together(parts)
        due = rows.newest(self._codec) if columns else np.arange(len(rows))
        due = due[rows.ops[due] == _PUT]
        return rows.take(due[np.argsort(rows.times[due], kind="stable")])

    def timers_of(self, rows: TimerRows) -> list[Timer]:
        return list(map(Timer, rows.times.tolist(), self._codec.from_storage(rows.keys), self.names_of(rows)))

    def names_of(self, rows: TimerRows) -> list[bytes]:
        """Return the encoded namespace of each row."""
        return self._names.names(rows.names)

    def namespaces_of(self, rows: TimerRows) -> pa.DictionaryArray:
        """Return the encoded namespace of each row as a column."""
        return self._names.column(rows.names)

    def bound(self) -> int | None:
        """Return a time before which no timer is due, None if there is none.

        It costs little: a timer that was deleted may still count.
        """
        self._freeze()
        times = [rows.least_put for rows in (*self._columns, *self._from_runs)]
        times += [int(heads.min()) for run in self._stored_runs() if len(heads := run.heads())]
        return earliest(times)

    def least(self) -> int | None:
        """Return the time of the earliest timer, None if there is none."""
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
        """Return whether the next rows of key groups prove that there is a timer at the minimum time of all runs.

        They do if the newest run with that time in a key group puts it: then nothing newer deletes it.
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
        """Return a time up to which runs have about the wanted number of timers, and at least one.

        Key groups whose next timer is late have none before it; of the others none has more than a few before the
        bound.

        Args:
            ahead: The time of the next timer of each key group of each run.
            wanted: Number of timers.
        """
        latest = int(np.partition(ahead, wanted)[wanted]) if wanted < len(ahead) else MAX_TIME
        each = max(_LEAST_OF_A_GROUP, wanted // len(ahead))
        ends = np.concatenate([run.ahead(each, latest) for run in self._stored_runs()])
        if len(ends):
            return min(latest, int(ends.min()))
        return latest if wanted < len(ahead) else max(run.last() for run in self._stored_runs() if len(run))

    def _first(self) -> int | None:
        self._consolidate()
        waiting = [
            timer.timestamp for timer, op in self._changes.items() if op is _PUT
        ]  # may include timers that fire now
        waiting += [rows.least_put for rows in (*self._columns, *self._from_runs) if rows.least_put is not None]
        return min(waiting, default=None)

    def __len__(self) -> int:
        self._load(MAX_TIME)
        self._consolidate()
        waiting = sum(op is _PUT for op in self._changes.values())
        return waiting + sum(int((rows.ops == _PUT).sum()) for rows in (*self._columns, *self._from_runs))

    def segment(self, max_parallelism: int) -> SegmentData | None:
        """Return the changes as a segment, None if there are none.

        It is empty if only timers of runs have fired: then the run must record the time up to which they have.
        """
        self._consolidate()
        rows = self._columns[0] if self._columns else self._nothing
        if self.fired_through is not None:
            # `fired_through` already makes older rows up to that time obsolete.
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

    def _append(self, rows: TimerRows) -> None:
        self._columns.append(rows)
        self._is_consolidated = False
        if len(self._columns) > _MOST_PARTS:
            self._merge_newest()

    def _merge_newest(self) -> None:
        """Merge the newest parts, so that there are few, and each row is merged a few times."""
        first = len(self._columns) - 1
        size = len(self._columns[first])
        while first and len(self._columns[first - 1]) <= 2 * size:
            first -= 1
            size += len(self._columns[first])
        rows = TimerRows.together(self._columns[first:])
        self._columns[first:] = [rows.take(rows.newest(self._codec))]

    def _forget_names(self) -> None:
        """Forget the namespaces that no timer has any more, each time when there are twice as many."""
        if len(self._names) < self._names_until_check:
            return
        names = NamespaceTable()
        for rows in (*self._columns, *self._from_runs):
            rows.names = names.numbers(self._names.column(rows.names))
        self._names, self._names_until_check = names, max(_NAMES_BETWEEN_CHECKS, 2 * len(names))

    def _freeze(self) -> None:
        """Convert single timers to columns, except those that fire now."""
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
        """Load the timers of runs up to a time; the newest run with a timer decides."""
        if through <= self._loaded:
            return
        self._loaded = through
        taken = [(run, run.take(through)) for run in reversed(self._stored_runs())]
        parts = [run.read(rows, self._names) for run, rows in taken if len(rows)]
        if parts:
            rows = TimerRows.together(parts)
            newest = rows.newest(self._codec) if len(parts) > 1 else np.arange(len(rows))
            self._from_runs.append(rows.take(newest[rows.ops[newest] == _PUT]))
            self._is_consolidated = False

    def _consolidate(self) -> None:
        """Merge columns into one with one row per timer, and drop rows of runs that they replace."""
        if self._firing is not None:
            self._firing.materialize()
        self._freeze()
        if self._is_consolidated:
            return
        self._is_consolidated = True
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

    def _no_names(self, count: int) -> Names:
        return np.full(count, self._names.number(b""), np.int64)

    def _stored_runs(self) -> list[StoredTimers]:
        if self._stored is None:
            self._stored = []
            horizon = np.full(max(self._key_groups.size, 1), MIN_TIME, np.int64)
            for run in self._runs:
                self._max_parallelism = run.meta.max_parallelism
                for segment in run.newest_first(self.name):
                    self._stored.append(StoredTimers(segment, self._key_groups, horizon))
                raise_horizon(run, self.name, horizon, self._key_groups)
        return self._stored


def raise_horizon(run: RunReader, name: str, horizon: Times, key_groups: KeyGroupRange) -> None:
    """Raise the time up to which timers have fired, per key group of a range, to that of a run.

    Args:
        run: The run.
        name: Name of the timer segment.
        horizon: The times, one per key group; changed in place.
        key_groups: The range.
    """
    fired = run.meta.fired_through.get(name)
    shared = run.meta.key_groups.intersection(key_groups)
    if fired is not None and shared:
        part = horizon[shared.start - key_groups.start : shared.end - key_groups.start + 1]
        np.maximum(part, fired, out=part)


def _split(parts: Sequence[TimerRows], through: int) -> tuple[list[TimerRows], list[TimerRows]]:
    both = [part.split(through) for part in parts if len(part)]
    return [due for due, _ in both if due is not None], [kept for _, kept in both if kept is not None]


def earliest(times: Iterable[int | None]) -> int | None:
    """Return the minimum of times that may be None, None if all are."""
    return min((time for time in times if time is not None), default=None)
