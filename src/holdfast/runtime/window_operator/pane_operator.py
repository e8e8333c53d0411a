"""The operator of windows of one size, or of sessions, that aggregates by columns; `PaneSubtask` runs it in a task.

Windows that overlap share *panes*: the time between any two of their starts and ends. A row is aggregated once, into
its pane; the result of a window is merged from its panes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import ConfigurationError, HoldfastError, StateMigrationError
from holdfast.runtime.function.metric import LATE_DROPPED
from holdfast.runtime.function.user_function import Function, OutputTag
from holdfast.runtime.graph.stream_graph import KeySpec
from holdfast.runtime.operator import OperatorSubtask, user_error
from holdfast.runtime.operator.batch_function import Groups
from holdfast.runtime.window.window import TimeWindow, TimeWindowSerializer
from holdfast.runtime.window.window_assigner import (
    FIXED_WINDOWS,
    EventTimeSessionWindows,
    WindowAssigner,
    event_times_of,
    unfit_event_time,
    without_timestamp,
)
from holdfast.runtime.window_operator.batch_aggregate import BatchAggregateFunction, CountAggregate
from holdfast.runtime.window_operator.window_operator import WINDOW_TIMERS
from holdfast.state.descriptor import ValueStateDescriptor
from holdfast.types.arrow import Timestamps, batch_to_elements, no_timestamps, timestamp_column
from holdfast.types.changelog_type import ChangelogTypeInformation
from holdfast.types.composite import RowTypeInformation
from holdfast.types.type_information import TypeInformation
from holdfast.types.type_parser import parse_type

Numbers = npt.NDArray[np.int64]
START, END = "window_start", "window_end"
_LEAST: Final = -(2**63)
_GREATEST: Final = 2**63 - 1
MOST_PARTS: Final = 64
_ROWS_OF_AN_EPOCH: Final = 2**36
"""Rows are numbered by epoch and row, in order of arrival."""
_ROW = -1
"""A session that is no late row."""


@dataclass(frozen=True)
class Panes:
    """The panes and windows of a size and slide; both are numbered in order of time.

    Attributes:
        size: Size of a window in milliseconds.
        slide: Milliseconds from the start of a window to that of the next.
        offset: Start of window 0 and of pane 0.
    """

    size: int
    slide: int
    offset: int

    @cached_property
    def length(self) -> int:
        """Milliseconds of a pane."""
        return math.gcd(self.size, self.slide)

    @cached_property
    def of_window(self) -> int:
        """Number of panes of a window."""
        return self.size // self.length

    @cached_property
    def of_slide(self) -> int:
        """Number of panes between the starts of two windows."""
        return self.slide // self.length

    @cached_property
    def windows_of_pane(self) -> int:
        """Greatest number of windows that have a pane."""
        return -(-self.of_window // self.of_slide)

    def pane_of(self, times: Numbers) -> Numbers:
        """Return the pane of each time."""
        return (times - self.offset) // self.length

    def last_window(self, panes: Numbers) -> Numbers:
        """Return the last window that starts with or before each pane; it may have ended."""
        return panes // self.of_slide

    def has(self, windows: Numbers, panes: Numbers) -> npt.NDArray[np.bool_]:
        """Return whether each window, which starts with or before a pane, contains it."""
        return windows * self.of_slide + self.of_window > panes

    def ends(self, windows: Numbers) -> Numbers:
        """Return the last millisecond of each window."""
        return windows * self.slide + (self.offset + self.size - 1)

    def next_window(self, panes: Numbers, limit: int) -> Numbers:
        """Return the first window that has each pane and ends after a time, in milliseconds.

        It is after the last window of the pane if all have ended.
        """
        first = (panes - self.of_window) // self.of_slide + 1
        after = (limit - self.offset - self.size + 1) // self.slide + 1
        return np.maximum(first, min(max(after, _LEAST), _GREATEST))

    def pane_number(self, pane: TimeWindow) -> int:
        return (pane.start - self.offset) // self.length

    def pane(self, number: int) -> TimeWindow:
        start = number * self.length + self.offset
        return TimeWindow(start, start + self.length)


class PaneOperator(Function):
    """Aggregates of the rows of each key and window.

    Args:
        panes: The windows.
        is_event_time: Whether they end by event time.
        aggregates: The aggregates by the names of their columns.
        input_type: Type of the rows.
        keys: Names and types of the columns of the key; none for a stream without keys.
        is_sessions: Whether the size is the gap that ends a session.
        late_data_tag: Side output of late rows; None drops them.

    Raises:
        ConfigurationError: An aggregate does not fit, or two columns have one name.

    Attributes:
        output_type: The columns of the key, `window_start`, `window_end`, and those of the aggregates.
    """

    def __init__(
        self,
        panes: Panes,
        aggregates: Mapping[str, BatchAggregateFunction],
        input_type: RowTypeInformation,
        keys: Mapping[str, TypeInformation],
        *,
        is_event_time: bool,
        is_sessions: bool = False,
        late_data_tag: OutputTag | None = None,
    ) -> None:
        self.panes = panes
        self.is_sessions = is_sessions
        self.is_event_time = is_event_time
        self.input_type = input_type
        self.keys = dict(keys)
        self.late_data_tag = late_data_tag
        self._aggregates = [CountAggregate(), *aggregates.values()]
        self._types = [list(one.accumulator_types(input_type)) for one in self._aggregates]
        names = [*keys, START, END, *aggregates]
        if len(set(names)) < len(names):
            raise ConfigurationError(
                f"The output columns of windows need different names, not {names!r}: rename the aggregates, or the "
                "columns of the key before key_by()."
            )
        times = [parse_type("bigint")] * 2
        results = [one.result_type(input_type) for one in aggregates.values()]
        self.output_type = RowTypeInformation(names, [*keys.values(), *times, *results])

    @property
    def program_functions(self) -> tuple[Any, ...]:
        """Functions of the program that it calls."""
        return tuple(self._aggregates)

    @property
    def window_format(self) -> dict[str, Any]:
        """The format of open windows in a checkpoint: all that decides what a pane is, and when it expires."""
        time = "event" if self.is_event_time else "processing"
        if self.is_sessions:  # those that are open have their own ends, so the gap may be another
            return {"form": "columns", "windows": "sessions", "time": time}
        return {"form": "columns", "windows": "fixed", "time": time, **asdict(self.panes)}

    @property
    def descriptors(self) -> list[ValueStateDescriptor[object]]:
        """The states of a pane: the number of its rows, by which an empty pane is known, and the accumulators."""
        given = self.output_type.names[len(self.keys) + 2 :]
        # An aggregate of the program named "rows" may share this state only if it counts rows, too.
        is_taken = "rows" in given and type(self._aggregates[1 + given.index("rows")]) is not CountAggregate
        names = ["" if is_taken else "rows", *given]
        return [
            ValueStateDescriptor(f"pane-{name}-{part}", of_part)
            for name, types in zip(names, self._types, strict=True)
            for part, of_part in enumerate(types)
        ]

    def accumulate(self, batch: pa.RecordBatch, groups: Groups, arrival: Numbers) -> list[pa.Array]:
        """Return the accumulators of a batch, all columns of all aggregates."""
        made = [one.accumulate(batch, groups, arrival) for one in self._aggregates]
        return [column for columns in made for column in columns]

    def merge(self, columns: Sequence[pa.Array], groups: Groups) -> list[pa.Array]:
        """Return one accumulator for each group."""
        made = [one.merge(part, groups) for one, part in zip(self._aggregates, self._parts(columns), strict=True)]
        return [column for columns_ in made for column in columns_]

    def results(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the results of accumulators, without the number of rows."""
        parts = self._parts(columns)
        return [one.result(part) for one, part in zip(self._aggregates[1:], parts[1:], strict=True)]

    def _parts(self, columns: Sequence[pa.Array]) -> list[Sequence[pa.Array]]:
        parts, start = [], 0
        for types in self._types:
            parts.append(columns[start : start + len(types)])
            start += len(types)
        return parts


def create_pane_operator(
    assigner: WindowAssigner[Any, Any],
    aggregates: Mapping[str, Any],
    element_type: TypeInformation,
    key: KeySpec | None,
    late_data_tag: OutputTag | None,
) -> PaneOperator:
    """Create the operator of `aggregate_batches`.

    Args:
        assigner: The window assigner.
        aggregates: The aggregates by name.
        element_type: Type of the stream.
        key: The key of the stream; None if it is not keyed.
        late_data_tag: Side output of late rows.

    Raises:
        ConfigurationError: The windows, aggregates or elements are not supported; the message names an alternative.
    """
    where = "aggregate_batches()"
    wrong = [one for one in aggregates.values() if not isinstance(one, BatchAggregateFunction)]
    if wrong or not aggregates:
        raise ConfigurationError(
            f"{where} takes aggregates by the names of their columns, for instance n=CountAggregate(), not "
            f"{wrong[0] if wrong else 'none'!r}."
        )
    is_sessions = type(assigner) is EventTimeSessionWindows
    if type(assigner) not in FIXED_WINDOWS and not is_sessions:
        raise ConfigurationError(
            f"{where} supports windows of one size and sessions of event time with one gap, not {assigner!r}: use "
            "aggregate(), which works by element."
        )
    if not isinstance(element_type, RowTypeInformation):
        raise ConfigurationError(
            f"{where} works on columns, and the elements are {element_type.ddl!r}: declare output_type='name type, "
            "...' at the operator before."
        )
    if isinstance(element_type, ChangelogTypeInformation):
        raise ConfigurationError(f"{where} cannot subtract the retractions of a changelog: use aggregate().")
    keys: dict[str, TypeInformation] = {}
    if key is not None and key.columns:
        types = dict(zip(element_type.names, element_type.types, strict=True))
        keys = {name: types[name] for name in key.columns}
    elif key is not None:
        if key.key_type is None:
            raise ConfigurationError(
                f"{where} emits the key as a column, and its type is not known: key by columns, or pass key_type to "
                "key_by()."
            )
        keys = {"key": key.key_type}
    fixed = (assigner.gap, assigner.gap, 0) if isinstance(assigner, EventTimeSessionWindows) else _fixed(assigner)
    return PaneOperator(
        Panes(*fixed),
        aggregates,
        element_type,
        keys,
        is_event_time=assigner.is_event_time(),
        is_sessions=is_sessions,
        late_data_tag=late_data_tag,
    )


def _fixed(assigner: Any) -> tuple[int, int, int]:
    fixed: tuple[int, int, int] | None = assigner.fixed()
    assert fixed is not None
    return fixed


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
    """One subtask in one epoch; see `OperatorSubtask` for the arguments.

    Rows are aggregated batch by batch into the panes of the epoch. At the end of the input, windows that end are merged
    from these panes and those in state; only panes that are still open are written to state, with timers. So a row
    costs what an aggregate of columns costs, and an open pane of a key one access to state.

    A pane in state has one timer, at the end of its next window. When it fires, the pane is merged into all windows
    that have ended since, and gets its next timer, or is deleted.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        assert self.backend is not None
        self._operator: PaneOperator = self.function
        self._panes = self._operator.panes
        self._event_times = event_times_of(self._panes.size, self._panes.slide, self._panes.offset)
        self._parts: list[_Part] = []
        self._rows = 0
        self._late_timestamps: list[Numbers] = []
        self._serializer, nowhere = TimeWindowSerializer(), TimeWindow(0, 0)
        self._timers = self.backend.get_internal_timer_service(WINDOW_TIMERS, self._serializer)
        self._states = [
            (self.backend.get_partitioned_state(nowhere, self._serializer, descriptor), descriptor.type_info)
            for descriptor in self._operator.descriptors
        ]

    def process_rows(
        self, batch: pa.RecordBatch, dict_keys: Sequence[Any], hashes: Any, timestamps: Timestamps | None
    ) -> None:
        """Aggregate a batch.

        Args:
            batch: The rows.
            dict_keys: Canonical key of each row.
            hashes: Hash of each key.
            timestamps: Event time of each row; None without event time.

        Raises:
            UserFunctionError: An aggregate raised.
            ConfigurationError: The windows end by event time, and a row has none, or one whose windows do not fit 64
                bits.
        """
        assert self.backend is not None
        slots = np.asarray(self.backend.prepare(dict_keys, hashes), np.int64)
        times = self._times(batch, timestamps)
        panes = self._panes.pane_of(times)
        last = self._panes.last_window(panes)
        taken = self._panes.has(last, panes)
        if self._operator.is_event_time:
            taken &= self._panes.ends(last) > self.info.watermark
        if not taken.all():
            self._emit_late(batch, times, ~taken & (times <= self.info.watermark))
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

    def close(self, watermark: int, now: int) -> tuple[pa.RecordBatch, Timestamps]:
        """Return the results of the windows that end, and the timestamp of each.

        Raises:
            UserFunctionError: An aggregate raised.
            StateMigrationError: State has windows that the program does not create any more.
        """
        assert self.backend is not None
        limit = watermark if self._operator.is_event_time else now
        parts, self._parts = self._parts, []
        part = self._together(parts) if parts else None
        fired = self._due_panes(limit)
        found: tuple[pa.RecordBatch, Timestamps] = self._guarded(
            "evaluating windows", lambda: self._evaluate(part, fired, limit)
        )
        if part is not None:
            self._guarded("merging panes", lambda: self._keep(part, limit))
        self._renew(fired, limit)
        self.backend.release()
        return found

    def take_side_timestamps(self) -> dict[str, Timestamps]:
        """Return and forget the timestamps of late rows."""
        taken, self._late_timestamps = self._late_timestamps, []
        tag = self._operator.late_data_tag
        return {tag.tag_id: timestamp_column(np.concatenate(taken))} if tag is not None and taken else {}

    def _arrival(self, count: int) -> Numbers:
        """Return increasing numbers for rows, greater than those of all rows before."""
        self._rows += count
        return np.arange(self._rows - count, self._rows) + self.info.epoch * _ROWS_OF_AN_EPOCH

    def _times(self, batch: pa.RecordBatch, timestamps: Timestamps | None) -> Numbers:
        if not self._operator.is_event_time:
            return np.full(batch.num_rows, self.info.processing_time, np.int64)
        if timestamps is None or timestamps.null_count:
            raise without_timestamp(f"operator {self.info.uid!r}")
        times: Numbers = timestamps.to_numpy()
        first, last = self._event_times
        if len(times) and not first <= times.min() <= times.max() <= last:
            row = int(np.flatnonzero((times < first) | (times > last))[0])
            element = batch_to_elements(batch.slice(row, 1), self._operator.input_type)[0]
            raise unfit_event_time(f"operator {self.info.uid!r}", int(times[row]), element)
        return times

    def _emit_late(self, batch: pa.RecordBatch, times: Numbers, late: npt.NDArray[np.bool_]) -> None:
        tag, rows = self._operator.late_data_tag, np.flatnonzero(late)
        if not len(rows):
            return
        if tag is None:
            self.metrics.count(LATE_DROPPED, len(rows))
            return
        for element in batch_to_elements(batch.take(pa.array(rows)), self._operator.input_type):
            self.context.output(tag, element)
        self._late_timestamps.append(times[rows])

    def _due_panes(self, limit: int) -> _Fired:
        """Return the panes in state that belong to an ended window."""
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

    def _evaluate(self, part: _Part | None, fired: _Fired, limit: int) -> tuple[pa.RecordBatch, Timestamps]:
        """Merge windows from state and from the panes of the epoch."""
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
            f"Operator {self.info.uid!r} has windows in state that it does not create now, such as {window!r}: their "
            "size, slide, gap or offset has changed, or they were aggregated by element before. Start the job with the "
            "former windows from an earlier checkpoint or savepoint, or give the operator another uid, which drops its "
            "open windows."
        )

    def _nothing(self) -> tuple[pa.RecordBatch, Timestamps]:
        return pa.RecordBatch.from_pylist([], schema=self._operator.output_type.arrow_schema), no_timestamps(0)

    def _windows_of(self, panes: Numbers, since: Numbers, limit: int) -> tuple[Numbers, Numbers]:
        """Return positions in `panes`, and for each a window that has the pane and has ended.

        Args:
            panes: The panes.
            since: For each pane the least end of a window that counts.
            limit: The greatest end.
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
    ) -> tuple[pa.RecordBatch, Timestamps]:
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
        return pa.RecordBatch.from_arrays(columns, schema=schema), timestamp_column(ends - 1)

    def _keep(self, part: _Part, limit: int) -> None:
        """Write panes with an open window to state, and register a timer for new ones."""
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
        """Write one state of panes; the rows of one pane are adjacent, so that its namespace is made once."""
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
        """Register the timer of panes, at the end of the next window that has them."""
        register = (
            self._timers.register_event_time_timers
            if self._operator.is_event_time
            else self._timers.register_processing_time_timers
        )
        distinct, places = np.unique(panes, return_inverse=True)
        names = [self._serializer.serialize(self._panes.pane(number)) for number in distinct.tolist()]
        namespaces = pa.DictionaryArray.from_arrays(pa.array(places), pa.array(names, pa.binary()))
        register(slots, namespaces, self._panes.ends(self._panes.next_window(panes, limit)))

    def _renew(self, fired: _Fired, limit: int) -> None:
        """Register the next timer of panes whose timer has fired, and delete panes without an open window."""
        is_open = self._panes.ends(self._panes.last_window(fired.panes)) > limit
        self._set_timers(fired.slots[is_open], fired.panes[is_open], limit)
        rows = np.flatnonzero(~is_open)
        rows = rows[np.argsort(fired.panes[rows], kind="stable")]
        for state, _ in self._states:
            self._write(state, fired.slots[rows], fired.panes[rows], [None] * len(rows))

    def _stored(self, slots: Numbers, panes: Numbers) -> list[list[Any] | None]:
        """Return the accumulators of panes in state, None for a pane without any."""
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
    """Return one number for each pair of numbers, the same for equal pairs."""
    distinct, ranks = np.unique(others, return_inverse=True)
    return slots * len(distinct) + ranks


SESSIONS: Final = ValueStateDescriptor[Any]("sessions", parse_type("array<bigint>"))
"""Start and end of each open session of a key, one after the other."""
_KEY: Final = TimeWindow(0, 0)


class _Sessions(NamedTuple):
    """Sessions: slot of the key, start, end, all columns of the accumulators, and the late row that it is, or -1."""

    slots: Numbers
    starts: Numbers
    ends: Numbers
    columns: list[pa.Array]
    late: Numbers


class SessionSubtask(PaneSubtask):
    """One subtask of sessions in one epoch; see `OperatorSubtask` for the arguments.

    Rows of a batch that are close to each other are aggregated into sessions at once. The sessions of all batches, and
    those of their keys in state, are merged at the end of the input. State has start and end of the open sessions of a
    key, and the accumulators of each in a namespace of its own. A key with an open session has a timer that is not
    after the end of any; if it fires early, because the session was extended, it is registered anew.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        assert self.backend is not None
        self._gap = self._panes.size
        self._event_times = event_times_of(self._gap)
        self._found: list[_Sessions] = []
        self._late_batches: list[pa.RecordBatch] = []
        self._late_times: list[Numbers] = []
        self._open: Any = self.backend.get_partitioned_state(_KEY, self._serializer, SESSIONS)

    def process_rows(
        self, batch: pa.RecordBatch, dict_keys: Sequence[Any], hashes: Any, timestamps: Timestamps | None
    ) -> None:
        assert self.backend is not None
        slots = np.asarray(self.backend.prepare(dict_keys, hashes), np.int64)
        times = self._times(batch, timestamps)
        arrival = self._arrival(batch.num_rows)
        # Late rows count only if they belong to an open session, which is known at the end of the input.
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
            self._add(batch, slots, times, arrival, session_numbers(slots, times, times + self._gap), None)
        if len(self._found) >= MOST_PARTS and not self._late_batches:
            self._found = [self._merged(self._found)[0]]

    def close(self, watermark: int, now: int) -> tuple[pa.RecordBatch, Timestamps]:
        """Return the results of the sessions that end, and the timestamp of each; see `PaneSubtask.close`."""
        assert self.backend is not None
        found = self._guarded("evaluating sessions", lambda: self._evaluate_sessions(watermark))
        self.backend.release()
        result: tuple[pa.RecordBatch, Timestamps] = found
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

    def _evaluate_sessions(self, watermark: int) -> tuple[pa.RecordBatch, Timestamps]:
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
        self._emit_late_rows(parts, numbers[sum(map(len, before)) // 2 :], is_late)
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
        """Merge sessions that touch; return them, and for each input session the number of its merged one."""
        slots, starts, ends = (np.concatenate([part[at] for part in parts]) for at in range(3))
        columns = [pa.concat_arrays(column) for column in zip(*(part.columns for part in parts), strict=True)]
        if not len(slots):
            return _Sessions(slots, starts, ends, columns, np.zeros(0, np.int64)), np.zeros(0, np.int64)
        numbers = session_numbers(slots, starts, ends)
        groups = Groups(numbers)
        merged = self._guarded("merging sessions", lambda: self._operator.merge(columns, groups))
        first = np.minimum.reduceat(starts[groups.order], groups.starts)
        last = np.maximum.reduceat(ends[groups.order], groups.starts)
        late = np.full(len(groups), _ROW, np.int64)
        return _Sessions(slots[groups.first_rows], first, last, merged, late), numbers

    def _emit_late_rows(self, parts: Sequence[_Sessions], numbers: Numbers, is_late: Any) -> None:
        """Emit rows as late whose session had ended before the epoch."""
        batches, self._late_batches = self._late_batches, []
        times, self._late_times = self._late_times, []
        if not batches:
            return
        rows = np.concatenate([part.late for part in parts])
        gone = np.zeros(sum(map(len, times)), bool)
        gone[rows[rows != _ROW]] = is_late[numbers[rows != _ROW]]
        whole = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        self._emit_late(whole, np.concatenate(times), gone)

    def _write_open(
        self, touched: Numbers, before: list[list[int]], fired: set[int], sessions: _Sessions, is_open: Any
    ) -> None:
        """Write open sessions, delete the others, and register timers where there is none in time."""
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


def session_numbers(slots: Numbers, starts: Numbers, ends: Numbers) -> Numbers:
    """Return a number for each session, equal for sessions of a key that touch, directly or through others."""
    order = np.lexsort((starts, slots))
    keys = slots[order]
    # Ranks instead of times, so that those of different keys can be shifted apart without an overflow.
    times, ranks = np.unique(np.concatenate([starts[order], ends[order]]), return_inverse=True)
    offsets = np.cumsum(np.append(False, keys[1:] != keys[:-1])) * len(times)
    begins, reaches = ranks[: len(keys)] + offsets, np.maximum.accumulate(ranks[len(keys) :] + offsets)
    is_first = np.ones(len(keys), bool)
    is_first[1:] = begins[1:] > reaches[:-1]
    numbers = np.empty(len(keys), np.int64)
    numbers[order] = np.cumsum(is_first) - 1
    return numbers
