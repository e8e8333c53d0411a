"""One subtask of an operator that aggregates windows by columns, for one epoch.

Rows are aggregated batch by batch into the panes of the epoch. When the input has ended, windows that end with the
epoch are put together from these and from what state has of earlier epochs; state and timers get only what is still
open then. So a row costs what an aggregate of columns costs, and a pane of a key that stays open one access to state.

A pane in state has one timer, at the end of its next window. When that fires, the pane has its part in all windows that
have ended since, and gets its next timer, or goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import HoldfastError, StateMigrationError
from holdfast.runtime.function.metric import LATE_DROPPED
from holdfast.runtime.operator import OperatorSubtask, user_error
from holdfast.runtime.operator.vectorised.groups import Groups
from holdfast.runtime.window.time_window_assigner import without_end, without_timestamp
from holdfast.runtime.window.window import TimeWindow, TimeWindowSerializer
from holdfast.runtime.window_operator.pane_operator import END, START, Numbers, PaneOperator
from holdfast.runtime.window_operator.window_task import WINDOW_TIMERS
from holdfast.types.conversion.arrow import batch_to_elements
from holdfast.types.conversion.stamps import Stamps, no_stamps, stamps_of

MOST_PARTS: Final = 64
_LEAST: Final = -(2**63)
_GREATEST: Final = 2**63 - 1
_ROWS_OF_AN_EPOCH: Final = 2**36
"""By the number of the epoch and of the row in it rows are numbered as they come."""


class _Part:
    """Accumulators of panes: slot of the key, number of the pane, all columns."""

    def __init__(self, slots: Numbers, panes: Numbers, columns: list[pa.Array]) -> None:
        self.slots, self.panes, self.columns = slots, panes, columns

    def __len__(self) -> int:
        return len(self.slots)


class _Fired(NamedTuple):
    """Panes whose timer has fired: slot of the key, number of the pane, and the time of the timer."""

    slots: Numbers
    panes: Numbers
    times: Numbers


class PaneSubtask(OperatorSubtask):
    """Aggregates the rows of one epoch; see `OperatorSubtask` for the arguments."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        assert self.backend is not None
        self._operator: PaneOperator = self.function
        self._panes = self._operator.panes
        self._parts: list[_Part] = []
        self._rows = 0
        self._late_stamps: list[Numbers] = []
        self._serializer, nowhere = TimeWindowSerializer(), TimeWindow(0, 0)
        self._timers = self.backend.get_internal_timer_service(WINDOW_TIMERS, self._serializer)
        self._states = [
            (self.backend.get_partitioned_state(nowhere, self._serializer, descriptor), descriptor.type_info)
            for descriptor in self._operator.descriptors
        ]

    def process_rows(self, batch: pa.RecordBatch, dict_keys: Sequence[Any], hashes: Any, stamps: Stamps | None) -> None:
        """Aggregate a batch.

        Args:
            batch: Its rows.
            dict_keys: Canonical key of each.
            hashes: The hash of each key.
            stamps: Event time of each; None where it plays no part.

        Raises:
            UserFunctionError: An aggregate raised.
            ConfigurationError: A row has no event time, or the end of it, and the windows end by it.
        """
        assert self.backend is not None
        slots = np.asarray(self.backend.prepare(dict_keys, hashes), np.int64)
        times = self._times(batch.num_rows, stamps)
        panes = self._panes.pane_of(times)
        last = self._panes.last_window(panes)
        taken = self._panes.has(last, panes)
        if self._operator.is_event_time:
            taken &= self._panes.ends(last) > self.info.watermark
        if not taken.all():
            self._put_aside(batch, times, ~taken & (times <= self.info.watermark))
            rows = np.flatnonzero(taken)
            batch, slots, panes = batch.take(pa.array(rows)), slots[rows], panes[rows]
        if not len(slots):
            return
        arrival = self._arrival(len(slots))
        groups = Groups(_codes(slots, panes))
        first = groups.first_rows
        columns = self._guarded("aggregating a batch", lambda: self._operator.accumulate(batch, groups, arrival))
        self._parts.append(_Part(slots[first], panes[first], columns))
        if len(self._parts) >= MOST_PARTS:
            self._parts = [self._together(self._parts)]

    def close(self, watermark: int, now: int) -> tuple[pa.RecordBatch, Stamps]:
        """The input has ended: return the results of the windows that end, and the time of each.

        Raises:
            UserFunctionError: An aggregate raised.
            StateMigrationError: State has windows that the program does not make any more.
        """
        assert self.backend is not None
        limit = watermark if self._operator.is_event_time else now
        parts, self._parts = self._parts, []
        part = self._together(parts) if parts else None
        fired = self._fired(limit)
        found: tuple[pa.RecordBatch, Stamps] = self._guarded(
            "evaluating windows", lambda: self._evaluate(part, fired, limit)
        )
        if part is not None:
            self._guarded("merging panes", lambda: self._keep(part, limit))
        self._go_on(fired, limit)
        self.backend.release()
        return found

    def take_side_stamps(self) -> dict[str, Stamps]:
        """Return and forget the timestamps of late rows."""
        taken, self._late_stamps = self._late_stamps, []
        tag = self._operator.late_data_tag
        return {tag.tag_id: stamps_of(np.concatenate(taken))} if tag is not None and taken else {}

    def _arrival(self, count: int) -> Numbers:
        """Return numbers for so many rows, greater than those of all before."""
        self._rows += count
        return np.arange(self._rows - count, self._rows) + self.info.epoch * _ROWS_OF_AN_EPOCH

    def _times(self, count: int, stamps: Stamps | None) -> Numbers:
        if not self._operator.is_event_time:
            return np.full(count, self.info.processing_time, np.int64)
        if stamps is None or stamps.null_count:
            raise without_timestamp(f"operator {self.info.uid!r}")
        times: Numbers = stamps.to_numpy()
        if (times == _GREATEST).any():
            raise without_end(f"operator {self.info.uid!r}")
        return times

    def _put_aside(self, batch: pa.RecordBatch, times: Numbers, late: npt.NDArray[np.bool_]) -> None:
        tag, rows = self._operator.late_data_tag, np.flatnonzero(late)
        if not len(rows):
            return
        if tag is None:
            self.metrics.count(LATE_DROPPED, len(rows))
            return
        for element in batch_to_elements(batch.take(pa.array(rows)), self._operator.input_type):
            self.context.output(tag, element)
        self._late_stamps.append(times[rows])

    def _fired(self, limit: int) -> _Fired:
        """Return the panes in state of which a window has ended."""
        timers = self._timers
        due = (
            timers.take_due_event_time(limit)
            if self._operator.is_event_time
            else timers.take_due_processing_time(limit)
        )
        assert due.namespaces is not None
        numbers = []
        for pane in map(self._serializer.deserialize, due.namespaces.dictionary.to_pylist()):
            numbers.append(self._panes.pane_number(pane))
            if self._panes.pane(numbers[-1]) != pane:
                raise self._of_other_windows(pane)
        return _Fired(due.slots, np.array(numbers, np.int64)[due.namespaces.indices.to_numpy()], due.times)

    def _evaluate(self, part: _Part | None, fired: _Fired, limit: int) -> tuple[pa.RecordBatch, Stamps]:
        """Put windows together from state and from the panes of the epoch."""
        stored = self._stored(fired.slots, fired.panes)
        if None in stored:
            raise self._of_other_windows(self._panes.pane(int(fired.panes[stored.index(None)])))
        columns = self._as_columns([values for values in stored if values is not None])
        rows, numbers = self._windows_of(fired.panes, fired.times, limit)
        owners = fired.slots[rows]
        columns = [column.take(pa.array(rows)) for column in columns]
        if part is not None:
            rows, of_rows = self._due(part, limit)
            owners = np.concatenate([owners, part.slots[rows]])
            numbers = np.concatenate([numbers, of_rows])
            columns = [
                pa.concat_arrays([old, fresh.take(pa.array(rows))])
                for old, fresh in zip(columns, part.columns, strict=True)
            ]
        if not len(owners):
            return self._nothing()
        groups = Groups(_codes(owners, numbers))
        columns = self._operator.merge(columns, groups)
        owners, numbers = owners[groups.first_rows], numbers[groups.first_rows]
        order = np.argsort(numbers, kind="stable")
        results = self._operator.results([column.take(pa.array(order)) for column in columns])
        ends = self._panes.ends(numbers[order]) + 1
        return self._as_batch(owners[order], ends - self._panes.size, ends, results)

    def _of_other_windows(self, window: TimeWindow) -> StateMigrationError:
        return StateMigrationError(
            f"Operator {self.info.uid!r} has windows in state that it does not make now, such as {window!r}: their "
            "size, slide, gap or offset has changed, or they went by element before. Start the job with the windows "
            "that it had, from a checkpoint or savepoint of then, or give the operator another uid, which leaves its "
            "open windows behind."
        )

    def _nothing(self) -> tuple[pa.RecordBatch, Stamps]:
        return pa.RecordBatch.from_pylist([], schema=self._operator.output_type.arrow_schema), no_stamps(0)

    def _windows_of(self, panes: Numbers, since: Numbers, limit: int) -> tuple[Numbers, Numbers]:
        """Return positions among some panes, and for each a window that has the pane and ends by now.

        Args:
            panes: The panes.
            since: For each the least end of a window that counts.
            limit: The greatest.
        """
        last = self._panes.last_window(panes)
        rows, windows = [], []
        for back in range(self._panes.windows_of_pane):
            window = last - back
            ends = self._panes.ends(window)
            due = self._panes.has(window, panes) & (ends <= limit) & (ends >= since)
            rows.append(np.flatnonzero(due))
            windows.append(window[due])
        return np.concatenate(rows), np.concatenate(windows)

    def _due(self, part: _Part, limit: int) -> tuple[Numbers, Numbers]:
        """Return rows of a part, and for each a window that has its pane and is due."""
        since = min(self.info.watermark + 1, _GREATEST) if self._operator.is_event_time else _LEAST
        return self._windows_of(part.panes, np.full(len(part), since, np.int64), limit)

    def _as_batch(
        self, owners: Numbers, starts: Numbers, ends: Numbers, results: list[pa.Array]
    ) -> tuple[pa.RecordBatch, Stamps]:
        backend, schema = self.backend, self._operator.output_type.arrow_schema
        assert backend is not None
        distinct, places = np.unique(owners, return_inverse=True)
        keys = []
        for slot in distinct.tolist():
            backend.slot = slot
            keys.append(backend.get_current_key())
        types = self._operator.keys
        parts = list(zip(*keys, strict=True)) if len(types) > 1 else [keys]
        taken = pa.array(places)
        columns = [kind.to_array(list(part)).take(taken) for kind, part in zip(types.values(), parts, strict=False)]
        columns += [pa.array(starts), pa.array(ends)]
        columns += [result.cast(schema.field(len(columns) + at).type) for at, result in enumerate(results)]
        assert schema.names[len(types) : len(types) + 2] == [START, END]
        return pa.RecordBatch.from_arrays(columns, schema=schema), stamps_of(ends - 1)

    def _keep(self, part: _Part, limit: int) -> None:
        """Write the panes that have a window that is not over into state, and set a timer for those that are new."""
        rows = np.flatnonzero(self._panes.ends(self._panes.last_window(part.panes)) > limit)
        rows = rows[np.argsort(part.panes[rows], kind="stable")]
        slots, panes = part.slots[rows], part.panes[rows]
        stored = self._stored(slots, panes)
        before = [at for at, values in enumerate(stored) if values is not None]
        columns = [column.take(pa.array(rows)) for column in part.columns]
        if before:
            known = self._as_columns([values for values in stored if values is not None])
            both = [pa.concat_arrays([old, new]) for old, new in zip(known, columns, strict=True)]
            columns = self._operator.merge(both, Groups(np.array([*before, *range(len(rows))], np.int64)))
        for (state, kind), column in zip(self._states, columns, strict=True):
            self._write(state, slots, panes, kind.to_list(column))
        new = np.array([at for at, values in enumerate(stored) if values is None], np.int64)
        self._set_timers(slots[new], panes[new], limit)

    def _write(self, state: Any, slots: Numbers, panes: Numbers, values: list[Any]) -> None:
        """Write one state of panes; those of one pane stand together, so that its name is made once."""
        backend = self.backend
        assert backend is not None
        current = None
        for slot, pane, value in zip(slots.tolist(), panes.tolist(), values, strict=True):
            backend.slot = slot
            if pane != current:
                state.set_current_namespace(self._panes.pane(pane))
                current = pane
            state.update(value)

    def _set_timers(self, slots: Numbers, panes: Numbers, limit: int) -> None:
        """Set the timer of panes: at the end of the next window that has them."""
        register = (
            self._timers.register_event_time_timers
            if self._operator.is_event_time
            else self._timers.register_processing_time_timers
        )
        distinct, places = np.unique(panes, return_inverse=True)
        names = [self._serializer.serialize(self._panes.pane(number)) for number in distinct.tolist()]
        namespaces = pa.DictionaryArray.from_arrays(pa.array(places), pa.array(names, pa.binary()))
        register(slots, namespaces, self._panes.ends(self._panes.next_window(panes, limit)))

    def _go_on(self, fired: _Fired, limit: int) -> None:
        """Set the next timer of panes whose timer has fired, and remove those that have no window any more."""
        is_open = self._panes.ends(self._panes.last_window(fired.panes)) > limit
        self._set_timers(fired.slots[is_open], fired.panes[is_open], limit)
        rows = np.flatnonzero(~is_open)
        rows = rows[np.argsort(fired.panes[rows], kind="stable")]
        for state, _ in self._states:
            self._write(state, fired.slots[rows], fired.panes[rows], [None] * len(rows))

    def _stored(self, slots: Numbers, panes: Numbers) -> list[list[Any] | None]:
        """Return the accumulators of panes in state, None for each that has none."""
        backend = self.backend
        assert backend is not None
        found: list[list[Any] | None] = [None] * len(slots)
        rows = np.argsort(panes, kind="stable").tolist()
        of_rows, of_slots = panes.tolist(), slots.tolist()
        (counted, _), others = self._states[0], self._states[1:]
        current = None
        for row in rows:
            pane = of_rows[row]
            if pane != current:
                current, namespace = pane, self._panes.pane(pane)
                for state, _ in self._states:
                    state.set_current_namespace(namespace)
            backend.slot = of_slots[row]
            count = counted.value()
            if count is not None:
                found[row] = [count, *(state.value() for state, _ in others)]
        return found

    def _as_columns(self, stored: list[list[Any]]) -> list[pa.Array]:
        return [kind.to_array([values[at] for values in stored]) for at, (_, kind) in enumerate(self._states)]

    def _together(self, parts: list[_Part]) -> _Part:
        """Merge the accumulators of equal panes."""
        if len(parts) == 1:
            return parts[0]
        slots = np.concatenate([part.slots for part in parts])
        panes = np.concatenate([part.panes for part in parts])
        columns = [pa.concat_arrays(column) for column in zip(*(part.columns for part in parts), strict=True)]
        groups = Groups(_codes(slots, panes))
        merged = self._guarded("merging panes", lambda: self._operator.merge(columns, groups))
        return _Part(slots[groups.first_rows], panes[groups.first_rows], merged)

    def _guarded(self, doing: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except HoldfastError:
            raise
        except Exception as error:
            raise user_error(error, self.info.uid, None, self.info.epoch, doing) from error


def _codes(slots: Numbers, others: Numbers) -> Numbers:
    """Return for each pair of numbers one that is the same for the same pair."""
    distinct, ranks = np.unique(others, return_inverse=True)
    return slots * len(distinct) + ranks
