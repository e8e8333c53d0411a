"""One subtask of an operator that aggregates windows by columns, for one epoch.

Rows are aggregated batch by batch into the panes of the epoch. When the input has ended, windows that end with the
epoch are put together from these and from what state has of earlier epochs; state and timers get only what is still
open then. So a row costs what an aggregate of columns costs, and a pane of a key that stays open one access to state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.runtime.operator import OperatorSubtask, Stamps, user_error
from holdfast.runtime.operator.vectorised_groups import Groups
from holdfast.runtime.window.time_window_assigner import without_timestamp
from holdfast.runtime.window.window import TimeWindow, TimeWindowSerializer
from holdfast.runtime.window_operator.pane_operator import END, START, Numbers, PaneOperator
from holdfast.runtime.window_operator.window_task import WINDOW_TIMERS
from holdfast.state.timer.timer_service import InternalTimer
from holdfast.types.conversion.arrow import batch_to_elements

_MOST_PARTS: Final = 64
_ROWS_OF_AN_EPOCH: Final = 2**36
"""By the number of the epoch and of the row in it rows are numbered as they come."""


class _Part:
    """Accumulators of panes: slot of the key, number of the pane, all columns."""

    def __init__(self, slots: Numbers, panes: Numbers, columns: list[pa.Array]) -> None:
        self.slots, self.panes, self.columns = slots, panes, columns

    def __len__(self) -> int:
        return len(self.slots)


class PaneSubtask(OperatorSubtask):
    """Aggregates the rows of one epoch; see `OperatorSubtask` for the arguments."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        assert self.backend is not None
        self._operator: PaneOperator = self.function
        self._panes = self._operator.panes
        self._parts: list[_Part] = []
        self._rows = 0
        self._late_stamps: list[int | None] = []
        serializer, nowhere = TimeWindowSerializer(), TimeWindow(0, 0)
        self._timers = self.backend.get_internal_timer_service(WINDOW_TIMERS, serializer)
        self._states = [
            (self.backend.get_partitioned_state(nowhere, serializer, descriptor), descriptor.type_info)
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
            ConfigurationError: A row has no event time, and the windows end by it.
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
        arrival = np.arange(len(slots)) + (self.info.epoch * _ROWS_OF_AN_EPOCH + self._rows)
        self._rows += len(slots)
        groups = Groups(_codes(slots, panes))
        first = groups.first_rows
        columns = self._guarded("aggregating a batch", lambda: self._operator.accumulate(batch, groups, arrival))
        self._parts.append(_Part(slots[first], panes[first], columns))
        if len(self._parts) >= _MOST_PARTS:
            self._parts = [self._together(self._parts)]

    def close(self, watermark: int, now: int) -> tuple[pa.RecordBatch, list[int | None]]:
        """The input has ended: return the results of the windows that end, and the time of each.

        Raises:
            UserFunctionError: An aggregate raised.
        """
        assert self.backend is not None
        limit = watermark if self._operator.is_event_time else now
        parts, self._parts = self._parts, []
        part = self._together(parts) if parts else None
        slots, windows = self._fired(limit)
        found: tuple[pa.RecordBatch, list[int | None]] = self._guarded(
            "evaluating windows", lambda: self._evaluate(part, slots, windows, limit)
        )
        if part is not None:
            self._guarded("merging panes", lambda: self._keep(part, limit))
        self._clear(slots, windows)
        self.backend.release()
        return found

    def take_side_stamps(self) -> dict[str, Stamps]:
        """Return and forget the timestamps of late rows."""
        taken, self._late_stamps = self._late_stamps, []
        tag = self._operator.late_data_tag
        return {tag.tag_id: taken} if tag is not None and taken else {}

    def _times(self, count: int, stamps: Stamps | None) -> Numbers:
        if not self._operator.is_event_time:
            return np.full(count, self.info.processing_time, np.int64)
        if stamps is None or None in stamps:
            raise without_timestamp(f"operator {self.info.uid!r}")
        return np.array(stamps, np.int64)

    def _put_aside(self, batch: pa.RecordBatch, times: Numbers, late: npt.NDArray[np.bool_]) -> None:
        tag, rows = self._operator.late_data_tag, np.flatnonzero(late)
        if tag is None or not len(rows):
            return
        for element in batch_to_elements(batch.take(pa.array(rows)), self._operator.input_type):
            self.context.output(tag, element)
        self._late_stamps += times[rows].tolist()

    def _fired(self, limit: int) -> tuple[list[Any], list[int]]:
        """Return slot and number of the windows with something in state that are due."""
        backend, slots, windows = self.backend, [], []
        assert backend is not None

        def fire(timer: InternalTimer) -> None:
            slots.append(backend.slot)
            windows.append(self._panes.number(timer.namespace))

        if self._operator.is_event_time:
            self._timers.advance_watermark(limit, fire)
        else:
            self._timers.fire_processing(limit, fire)
        return slots, windows

    def _evaluate(
        self, part: _Part | None, slots: list[Any], windows: list[int], limit: int
    ) -> tuple[pa.RecordBatch, list[int | None]]:
        """Put windows together from state and from the panes of the epoch."""
        of_state = self._panes.of_slide
        pairs = [
            (slot, window, values)
            for slot, window in zip(slots, windows, strict=True)
            for pane in range(window * of_state, window * of_state + self._panes.of_window)
            if (values := self._stored(slot, pane)) is not None
        ]
        owners = np.array([slot for slot, _, _ in pairs], np.int64)
        numbers = np.array([window for _, window, _ in pairs], np.int64)
        columns = self._as_columns([values for _, _, values in pairs])
        if part is not None:
            rows, of_rows = self._due(part, limit)
            owners = np.concatenate([owners, part.slots[rows]])
            numbers = np.concatenate([numbers, of_rows])
            columns = [
                pa.concat_arrays([stored, fresh.take(pa.array(rows))])
                for stored, fresh in zip(columns, part.columns, strict=True)
            ]
        if not len(owners):
            return pa.RecordBatch.from_pylist([], schema=self._operator.output_type.arrow_schema), []
        groups = Groups(_codes(owners, numbers))
        columns = self._operator.merge(columns, groups)
        owners, numbers = owners[groups.first_rows], numbers[groups.first_rows]
        order = np.argsort(numbers, kind="stable")
        results = self._operator.results([column.take(pa.array(order)) for column in columns])
        return self._as_batch(owners[order], numbers[order], results)

    def _due(self, part: _Part, limit: int) -> tuple[Numbers, Numbers]:
        """Return rows of a part, and for each a window that has its pane and is due."""
        last = self._panes.last_window(part.panes)
        rows, windows = [], []
        for back in range(self._panes.windows_of_pane):
            window = last - back
            ends = self._panes.ends(window)
            due = self._panes.has(window, part.panes) & (ends <= limit)
            if self._operator.is_event_time:
                due &= ends > self.info.watermark
            rows.append(np.flatnonzero(due))
            windows.append(window[due])
        return np.concatenate(rows), np.concatenate(windows)

    def _as_batch(
        self, owners: Numbers, numbers: Numbers, results: list[pa.Array]
    ) -> tuple[pa.RecordBatch, list[int | None]]:
        backend, schema = self.backend, self._operator.output_type.arrow_schema
        assert backend is not None
        keys = []
        for slot in owners.tolist():
            backend.slot = slot
            keys.append(backend.get_current_key())
        types = self._operator.keys
        parts = list(zip(*keys, strict=True)) if len(types) > 1 else [keys]
        columns = [kind.to_array(list(part)) for kind, part in zip(types.values(), parts, strict=False)]
        ends = self._panes.ends(numbers)
        columns += [pa.array(ends + 1 - self._panes.size), pa.array(ends + 1)]
        columns += [result.cast(schema.field(len(columns) + at).type) for at, result in enumerate(results)]
        assert schema.names[len(types) : len(types) + 2] == [START, END]
        return pa.RecordBatch.from_arrays(columns, schema=schema), ends.tolist()

    def _keep(self, part: _Part, limit: int) -> None:
        """Write the panes that have a window that is not over into state, and set timers for these windows."""
        backend = self.backend
        assert backend is not None
        last = self._panes.last_window(part.panes)
        rows = np.flatnonzero(self._panes.ends(last) > limit)
        places = list(zip(part.slots[rows].tolist(), part.panes[rows].tolist(), strict=True))
        stored = [self._stored(slot, pane) for slot, pane in places]
        before = [at for at, values in enumerate(stored) if values is not None]
        columns = [column.take(pa.array(rows)) for column in part.columns]
        if before:
            known = self._as_columns([values for values in stored if values is not None])
            both = [pa.concat_arrays([old, new]) for old, new in zip(known, columns, strict=True)]
            columns = self._operator.merge(both, Groups(np.array([*before, *range(len(places))], np.int64)))
        for (state, kind), column in zip(self._states, columns, strict=True):
            self._write(state, places, kind.to_list(column))
        for (slot, pane), values in zip(places, stored, strict=True):
            if values is None:
                backend.slot = slot
                self._set_timers(pane, limit)

    def _write(self, state: Any, places: list[tuple[int, int]], values: list[Any]) -> None:
        """Write one state of panes; those of one pane stand together, so that its name is made once."""
        backend = self.backend
        assert backend is not None
        current = None
        for at in sorted(range(len(places)), key=lambda at: places[at][1]):
            backend.slot, pane = places[at]
            if pane != current:
                state.set_current_namespace(self._panes.pane(pane))
                current = pane
            state.update(values[at])

    def _set_timers(self, pane: int, limit: int) -> None:
        last = pane // self._panes.of_slide
        for number in range(last, last - self._panes.windows_of_pane, -1):
            window = self._panes.window(number)
            if number * self._panes.of_slide + self._panes.of_window <= pane or window.max_timestamp() <= limit:
                return
            if self._operator.is_event_time:
                self._timers.register_event_time_timer(window, window.max_timestamp())
            else:
                self._timers.register_processing_time_timer(window, window.max_timestamp())

    def _clear(self, slots: list[Any], windows: list[int]) -> None:
        """Remove the panes of which windows that are over were the last."""
        assert self.backend is not None
        count = min(self._panes.of_slide, self._panes.of_window)
        for slot, window in zip(slots, windows, strict=True):
            self.backend.slot = slot
            for pane in range(window * self._panes.of_slide, window * self._panes.of_slide + count):
                namespace = self._panes.pane(pane)
                for state, _ in self._states:
                    state.set_current_namespace(namespace)
                    state.clear()

    def _stored(self, slot: Any, pane: int) -> list[Any] | None:
        """Return the accumulators of a pane in state, None if it has none."""
        assert self.backend is not None
        self.backend.slot = slot
        namespace = self._panes.pane(pane)
        values: list[Any] = []
        for state, _ in self._states:
            state.set_current_namespace(namespace)
            value = state.value()
            if not values and value is None:
                return None
            values.append(value)
        return values

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
