"""One subtask of an operator that aggregates sessions by columns, for one epoch.

Rows of a batch that are close to each other are aggregated into sessions at once; the sessions of the batches are
merged when the input has ended, together with what state has of their keys. State has the sessions of a key that are
open, by their starts and ends, and the accumulators of each in a namespace of its own. A key with an open session has a
timer that is not after the end of any; if it fires early, because the session went on, it is set anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.runtime.operator.vectorised.groups import Groups
from holdfast.runtime.window.window import TimeWindow
from holdfast.runtime.window_operator.pane_operator import Numbers
from holdfast.runtime.window_operator.pane_subtask import MOST_PARTS, PaneSubtask
from holdfast.state.declaration.descriptor import ValueStateDescriptor
from holdfast.types.conversion.ddl import parse_type
from holdfast.types.conversion.stamps import Stamps

SESSIONS: Final = ValueStateDescriptor[Any]("sessions", parse_type("array<bigint>"))
"""Start and end of each open session of a key, one after the other."""
_KEY: Final = TimeWindow(0, 0)
_ROW = -1
"""No late row."""


class _Sessions(NamedTuple):
    """Sessions: slot of the key, start, end, all columns of the accumulators, and the late row that it is, or -1."""

    slots: Numbers
    starts: Numbers
    ends: Numbers
    columns: list[pa.Array]
    late: Numbers


class SessionSubtask(PaneSubtask):
    """Aggregates the rows of one epoch; see `OperatorSubtask` for the arguments."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        assert self.backend is not None
        self._gap = self._panes.size
        self._found: list[_Sessions] = []
        self._late_batches: list[pa.RecordBatch] = []
        self._late_times: list[Numbers] = []
        self._open: Any = self.backend.get_partitioned_state(_KEY, self._serializer, SESSIONS)

    def process_rows(self, batch: pa.RecordBatch, dict_keys: Sequence[Any], hashes: Any, stamps: Stamps | None) -> None:
        """Aggregate a batch; see `PaneSubtask.process_rows`."""
        assert self.backend is not None
        slots = np.asarray(self.backend.prepare(dict_keys, hashes), np.int64)
        times = self._times(batch.num_rows, stamps)
        arrival = self._arrival(batch.num_rows)
        # These count only if they belong to a session that goes on; which they do is known at the end.
        is_late = times + (self._gap - 1) <= self.info.watermark
        if is_late.any():
            late, rest = np.flatnonzero(is_late), np.flatnonzero(~is_late)
            known = sum(len(one) for one in self._late_times)
            self._late_batches.append(batch.take(pa.array(late)))
            self._late_times.append(times[late])
            numbers = np.arange(known, known + len(late))
            own = np.arange(len(late))
            self._add(self._late_batches[-1], slots[late], times[late], arrival[late], own, numbers)
            batch, slots, times, arrival = batch.take(pa.array(rest)), slots[rest], times[rest], arrival[rest]
        if len(slots):
            self._add(batch, slots, times, arrival, joined(slots, times, times + self._gap), None)
        if len(self._found) >= MOST_PARTS and not self._late_batches:
            self._found = [self._merged(self._found)[0]]

    def close(self, watermark: int, now: int) -> tuple[pa.RecordBatch, Stamps]:
        """The input has ended: return the results of the sessions that end, and the time of each.

        Raises:
            UserFunctionError: An aggregate raised.
            StateMigrationError: State has windows that the program does not make any more.
        """
        assert self.backend is not None
        found = self._guarded("evaluating sessions", lambda: self._evaluate_sessions(watermark))
        self.backend.release()
        result: tuple[pa.RecordBatch, Stamps] = found
        return result

    def _add(
        self, batch: pa.RecordBatch, slots: Numbers, times: Numbers, arrival: Numbers, numbers: Numbers, late: Any
    ) -> None:
        groups = Groups(numbers)
        columns = self._guarded("aggregating a batch", lambda: self._operator.accumulate(batch, groups, arrival))
        ordered = times[groups.order]
        self._found.append(
            _Sessions(
                slots[groups.first_rows],
                np.minimum.reduceat(ordered, groups.starts),
                np.maximum.reduceat(ordered, groups.starts) + self._gap,
                columns,
                np.full(len(groups), _ROW, np.int64) if late is None else late,
            )
        )

    def _evaluate_sessions(self, watermark: int) -> tuple[pa.RecordBatch, Stamps]:
        timers = self._timers.take_due_event_time(watermark)
        assert timers.namespaces is not None
        for window in map(self._serializer.deserialize, timers.namespaces.dictionary.to_pylist()):
            if window != _KEY:
                raise self._of_other_windows(window)
        fired = timers.slots
        parts, self._found = self._found, []
        touched = np.unique(np.concatenate([fired, *(part.slots for part in parts)]))
        before = self._before(touched)
        sessions, numbers = self._merged([self._read(touched, before), *parts])
        is_over = sessions.ends - 1 <= watermark
        is_late = sessions.ends - 1 <= self.info.watermark
        self._put_late_aside(parts, numbers[sum(map(len, before)) // 2 :], is_late)
        self._write_open(touched, before, set(fired.tolist()), sessions, ~is_over)
        due = np.flatnonzero(is_over & ~is_late)
        if not len(due):
            return self._nothing()
        due = due[np.argsort(sessions.ends[due], kind="stable")]
        results = self._operator.results([column.take(pa.array(due)) for column in sessions.columns])
        return self._as_batch(sessions.slots[due], sessions.starts[due], sessions.ends[due], results)

    def _before(self, slots: Numbers) -> list[list[int]]:
        """Return starts and ends of the open sessions of keys in state."""
        backend = self.backend
        assert backend is not None
        self._open.set_current_namespace(_KEY)
        found = []
        for slot in slots.tolist():
            backend.slot = slot
            found.append(self._open.value() or [])
        return found

    def _read(self, slots: Numbers, before: list[list[int]]) -> _Sessions:
        """Return the sessions in state."""
        backend = self.backend
        assert backend is not None
        owners, bounds, values = [], [], []
        for slot, open_ in zip(slots.tolist(), before, strict=True):
            backend.slot = slot
            for at in range(0, len(open_), 2):
                window = TimeWindow(open_[at], open_[at + 1])
                owners.append(slot)
                bounds.append(window)
                of_session = []
                for state, _ in self._states:
                    state.set_current_namespace(window)
                    of_session.append(state.value())
                values.append(of_session)
        starts = np.array([window.start for window in bounds], np.int64)
        ends = np.array([window.end for window in bounds], np.int64)
        late = np.full(len(owners), _ROW, np.int64)
        return _Sessions(np.array(owners, np.int64), starts, ends, self._as_columns(values), late)

    def _merged(self, parts: Sequence[_Sessions]) -> tuple[_Sessions, Numbers]:
        """Merge sessions that meet; return them, and for each of before the number of its session now."""
        slots, starts, ends = (np.concatenate([part[at] for part in parts]) for at in range(3))
        columns = [pa.concat_arrays(column) for column in zip(*(part.columns for part in parts), strict=True)]
        if not len(slots):
            return _Sessions(slots, starts, ends, columns, np.zeros(0, np.int64)), np.zeros(0, np.int64)
        numbers = joined(slots, starts, ends)
        groups = Groups(numbers)
        merged = self._guarded("merging sessions", lambda: self._operator.merge(columns, groups))
        first = np.minimum.reduceat(starts[groups.order], groups.starts)
        last = np.maximum.reduceat(ends[groups.order], groups.starts)
        late = np.full(len(groups), _ROW, np.int64)
        return _Sessions(slots[groups.first_rows], first, last, merged, late), numbers

    def _put_late_aside(self, parts: Sequence[_Sessions], numbers: Numbers, is_late: Any) -> None:
        """Send rows aside whose session was over before the epoch."""
        batches, self._late_batches = self._late_batches, []
        times, self._late_times = self._late_times, []
        if not batches:
            return
        rows = np.concatenate([part.late for part in parts])
        gone = np.zeros(sum(map(len, times)), bool)
        gone[rows[rows != _ROW]] = is_late[numbers[rows != _ROW]]
        whole = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        self._put_aside(whole, np.concatenate(times), gone)

    def _write_open(
        self, touched: Numbers, before: list[list[int]], fired: set[int], sessions: _Sessions, is_open: Any
    ) -> None:
        """Write the sessions that go on, remove those that do not, and set timers where there is none in time."""
        backend = self.backend
        assert backend is not None
        rows = np.flatnonzero(is_open)
        after: dict[int, list[int]] = {}
        for slot, start, end in zip(*(part[rows].tolist() for part in sessions[:3]), strict=True):
            after.setdefault(slot, []).extend((start, end))
        self._open.set_current_namespace(_KEY)
        without_timer, times = [], []
        for slot, old in zip(touched.tolist(), before, strict=True):
            backend.slot = slot
            new = after.get(slot, [])
            kept = {tuple(new[at : at + 2]) for at in range(0, len(new), 2)}
            for at in range(0, len(old), 2):
                if (old[at], old[at + 1]) not in kept:
                    for state, _ in self._states:
                        state.set_current_namespace(TimeWindow(old[at], old[at + 1]))
                        state.clear()
            if new != old:
                self._open.update(new or None)
            if new and (slot in fired or not old or min(new[1::2]) < min(old[1::2])):
                without_timer.append(slot)
                times.append(min(new[1::2]) - 1)
        name = pa.array([self._serializer.serialize(_KEY)], pa.binary())
        names = pa.DictionaryArray.from_arrays(np.zeros(len(times), np.int32), name)
        self._timers.register_event_time_timers(np.array(without_timer, np.int64), names, np.array(times, np.int64))
        for (state, kind), column in zip(self._states, sessions.columns, strict=True):
            values = kind.to_list(column.take(pa.array(rows)))
            for slot, start, end, value in zip(*(part[rows].tolist() for part in sessions[:3]), values, strict=True):
                backend.slot = slot
                state.set_current_namespace(TimeWindow(start, end))
                state.update(value)


def joined(slots: Numbers, starts: Numbers, ends: Numbers) -> Numbers:
    """Return for each session a number that is the same for those of one key that meet, directly or through others."""
    order = np.lexsort((starts, slots))
    keys = slots[order]
    # Ranks of times, so that those of different keys can lie one behind the other without becoming too large.
    times, ranks = np.unique(np.concatenate([starts[order], ends[order]]), return_inverse=True)
    offsets = np.cumsum(np.append(False, keys[1:] != keys[:-1])) * len(times)
    begins, reaches = ranks[: len(keys)] + offsets, np.maximum.accumulate(ranks[len(keys) :] + offsets)
    is_first = np.ones(len(keys), bool)
    is_first[1:] = begins[1:] > reaches[:-1]
    numbers = np.empty(len(keys), np.int64)
    numbers[order] = np.cumsum(is_first) - 1
    return numbers
