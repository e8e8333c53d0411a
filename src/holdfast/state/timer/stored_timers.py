"""The timers of a run that nobody has asked for yet.

Rows are sorted by key group and time, and a footer says where each group begins. So what lies before some time, and
what comes next, is found by looking into each group a few times, however many timers wait.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import CorruptFileError
from holdfast.kernel.key_group import KeyGroupRange, key_group_of
from holdfast.state.layout.column_layout import NAMESPACE, OP, Op
from holdfast.state.run.probe import KEY
from holdfast.state.run.run_file import Segment
from holdfast.state.timer.timer_rows import NameTable, Rows, TimerRows, Times

TIMESTAMP: Final = "timestamp"

_in_order: Final[WeakSet[Segment]] = WeakSet()
"""Segments whose order this process has checked."""


class StoredTimers:
    """Rows of a run that were not taken yet.

    Args:
        segment: One part of a segment of timers.
        key_groups: Of the subtask.
        horizon: For each of them the time up to which newer runs say that all timers have fired.

    Raises:
        CorruptFileError: The rows are not in order.
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
        """Return the key groups whose next timer has a time, and whether the run puts it."""
        there = np.flatnonzero(self._next < self._ends)[self._heads == time]
        ops = self._segment.table.column(OP).to_numpy()[self._next[there]]
        return np.array(self._groups, np.int64)[there], ops == Op.PUT

    def take(self, through: int) -> Rows:
        """Return the rows up to a time, which are taken now."""
        if not len(self._heads) or self._heads.min() > through:
            return np.empty(0, np.int64)
        begins, self._next = self._next, self._above(np.int64(through))
        self._heads = self._heads_now()
        return np.concatenate([np.arange(*span) for span in zip(begins, self._next, strict=True)])

    def ahead(self, count: int, below: int) -> Times:
        """Return the time of the timer that is `count` away, for key groups whose next one is not above `below`."""
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

    def read(self, rows: Rows, names: NameTable) -> TimerRows:
        """Return timers and what the run says about each."""
        segment = self._segment
        table = segment.table.select([KEY, NAMESPACE, OP]).take(pa.array(rows))
        keys, namespaces, ops = (table.column(name).combine_chunks() for name in (KEY, NAMESPACE, OP))
        return TimerRows(segment.hash[rows], self._times[rows], keys, names.numbers(namespaces), ops.to_numpy())

    def _heads_now(self) -> Times:
        heads: Times = self._times[self._next[self._next < self._ends]]
        return heads

    def _above(self, bounds: Times | np.int64) -> Rows:
        """Return for each key group the first row that was not taken and lies above a time."""
        low, high = self._next, self._ends
        # Mostly nothing is due, as the first row of a group shows.
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
            message = f"the timers of segment {segment.entry.name!r} are not in the order of time."
            raise CorruptFileError(segment.path, segment.entry.offset, message)
        _in_order.add(segment)
    return times
