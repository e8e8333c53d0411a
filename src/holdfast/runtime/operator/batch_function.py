"""Functions of whole Arrow batches of a keyed stream, which read and write state as columns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from decimal import Context, localcontext
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import ConfigurationError, HoldfastError, OutputTypeError, StateError
from holdfast.kernel.key_group import key_groups_of
from holdfast.runtime.function.user_function import RichFunction, RuntimeContext, TimeDomain
from holdfast.runtime.operator.operator_instance import user_error
from holdfast.runtime.operator.subtask import OperatorSubtask
from holdfast.state.backend import AbstractKeyedStateBackend
from holdfast.state.descriptor import ValueStateDescriptor
from holdfast.state.hashmap.handles import CellHandle
from holdfast.state.hashmap.slots import Slots, pick
from holdfast.state.timer_service import DueTimers, warn_of_waiting
from holdfast.state.timers import MAX_TIME
from holdfast.types.arrow import (
    Timestamps,
    concat_timestamps,
    element_schema,
    elements_to_batch,
    no_timestamps,
    timestamp_column,
    to_event_times,
)
from holdfast.types.key_codec import lazy_keys
from holdfast.types.opaque import OpaqueTypeInformation
from holdfast.types.type_information import TypeInformation

Keys: TypeAlias = "pa.Array | pa.ChunkedArray | pa.RecordBatch | Sequence[pa.Array] | None"

Rows: TypeAlias = "npt.NDArray[np.int64]"
Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_LONG: Final = 64
Emitted = tuple[pa.RecordBatch, Timestamps]


class ColumnState:
    """Value state of many keys at once.

    Keys are a column of the batch, a record batch or list of the key columns if the stream is keyed by several, or None
    for the key of each row of the batch.

    >>> import pyarrow.compute as pc
    >>> def count(batch, state):
    ...     state.put(batch["word"], pc.add(state.get(batch["word"]).fill_null(0), 1))
    ...     return batch.append_column("seen", state.get(batch["word"]))
    >>> rows = env.from_collection([("kelp",), ("cod",)], "word string")
    >>> seen = ValueStateDescriptor("seen", "bigint")
    >>> counts = rows.key_by("word").process_batches(count, "word string, seen bigint", state=seen)
    >>> sorted((row.word, row.seen) for row in counts.execute_and_collect())
    [('cod', 1), ('kelp', 1)]
    """

    def __init__(self, context: BatchContext, handle: Any) -> None:
        self._context = context
        self._handle = handle
        # Values with a time to live are read and written one by one, because their handle knows which have expired.
        self._has_cells = isinstance(handle, CellHandle) and not handle.descriptor.ttl_config.is_enabled()
        self._type: TypeInformation = handle.descriptor.type_info
        if isinstance(self._type, OpaqueTypeInformation):
            raise ConfigurationError(
                f"State {handle.descriptor.name!r} has no declared type, so it cannot be read as a column: declare one "
                "in its descriptor."
            )

    def get(self, keys: Keys = None) -> pa.Array:
        """Return the value of each key, null where there is none.

        Args:
            keys: The keys; None for those of the rows of the batch.

        Returns:
            An Arrow array of the declared type, as long as the keys.

        Raises:
            StateError: A key belongs to another subtask.
        """
        return self._get(self._context.slots_of(keys))

    def get_at(self, rows: Rows) -> pa.Array:
        """Return the values of the keys of some rows of the batch, given by row number."""
        return self._get(self._context.slots_at(rows))

    def _get(self, slots: Sequence[Any]) -> pa.Array:
        if self._has_cells:
            column = self._handle.column
            return column.layout.value.to_array(pick(column.values, slots))
        backend, value, found = self._context.backend, self._handle.value, []
        for slot in slots:
            backend.slot = slot
            found.append(value())
        return self._type.to_array(found)

    def put(self, keys: Keys, values: Any) -> None:
        """Set the value of each key; null clears it, and of equal keys the last one counts.

        Args:
            keys: The keys; None for those of the rows of the batch.
            values: An Arrow or numpy array, or a sequence, of as many values.

        Raises:
            StateError: The numbers of values and keys differ, or a key belongs to another subtask.
            OutputTypeError: A value does not fit the declared type.
        """
        self._put(self._context.slots_of(keys), values)

    def put_at(self, rows: Rows, values: Any) -> None:
        """Set the values of the keys of some rows of the batch, given by row number; see `put`."""
        self._put(self._context.slots_at(rows), values)

    def _put(self, slots: Sequence[Any], values: Any) -> None:
        array = self._column(values)
        if len(array) != len(slots):
            raise StateError(
                f"State {self._handle.descriptor.name!r}: {len(array)} values were given for {len(slots)} keys."
            )
        if self._has_cells:
            column = self._handle.column
            stored = column.values
            for slot, value in zip(slots, column.layout.value.to_stored(array), strict=True):
                stored[slot] = value
            np.frombuffer(column.dirty, np.uint8)[slots] = 1
            return
        backend, update = self._context.backend, self._handle.update
        for slot, value in zip(slots, self._type.to_list(array), strict=True):
            backend.slot = slot
            update(value)

    def clear(self, keys: Keys = None) -> None:
        """Delete the value of each key; see `get`."""
        slots = self._context.slots_of(keys)
        self._put(slots, pa.nulls(len(slots), self._type.arrow_type))

    def _column(self, values: Any) -> pa.Array:
        wanted = self._type.arrow_type
        try:
            if isinstance(values, pa.ChunkedArray):
                values = values.combine_chunks()
            if isinstance(values, pa.Array):
                return values if values.type == wanted else values.cast(wanted)
            return pa.array(values, wanted)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            name = self._handle.descriptor.name
            message = f"State {name!r}: the values cannot be written: {error}"
            raise OutputTypeError(self._context.uid, message, declared=str(self._type)) from error


class BatchContext:
    """The context of a function of batches: state as columns, times and timers; one object a task.

    >>> class Times(BatchFunction):
    ...     def process_batch(self, batch, ctx):
    ...         return batch.append_column("at", ctx.timestamps)
    >>> clock = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: 7)
    >>> rows = env.from_collection([("kelp",)], "word string").assign_timestamps_and_watermarks(clock)
    >>> times = rows.key_by("word").process_batches(Times(), "word string, at bigint")
    >>> list(times.execute_and_collect())
    [Row(word='kelp', at=7)]

    Attributes:
        uid: The operator.
        backend: Its keyed state.
        watermark: The watermark, in milliseconds since 1970.
        processing_time: The processing time of the epoch, or in real time the current one, in milliseconds since 1970.
        timestamps: Event time of each row of the batch, null for a row without one; in `on_timers` the time of each
            timer. None without event time.
    """

    def __init__(self, uid: str, backend: AbstractKeyedStateBackend, watermark: int, processing_time: int) -> None:
        self.uid = uid
        self.backend = backend
        self.watermark = watermark
        self.processing_time = processing_time
        self.timestamps: Timestamps | None = None
        self._domain: TimeDomain | None = None
        self._dict_keys: Sequence[Any] = ()
        self._slots: Sequence[Any] = ()
        self._due: npt.NDArray[np.int64] = np.empty(0, np.int64)
        # Timers by slot and time, registered in `on_timers` for a time that is due. Registered now, they would fire in
        # another call at once, for ever.
        self._waiting: dict[TimeDomain, set[tuple[int, int]]] = {domain: set() for domain in TimeDomain}
        # Timers registered at the final watermark that fire once; see `FiringRule`.
        self._once: set[tuple[int, int]] = set()
        self._emitted: Timestamps | None = None

    def begin(self, dict_keys: Sequence[Any], hashes: Any, timestamps: Timestamps | None) -> None:
        """Begin a batch whose rows have these keys and times."""
        self.backend.release()
        self._dict_keys = dict_keys
        self._slots = self.backend.prepare(dict_keys, hashes)
        self.timestamps, self._domain = timestamps, None  # a real-time task has fired timers before it

    def begin_timers(self, slots: Rows, times: Rows, domain: TimeDomain) -> None:
        """Begin timers of these keys."""
        self._dict_keys, self._slots, self._due = (), Slots(slots), times
        self.timestamps, self._domain = timestamp_column(times), domain

    def end_timers(self) -> None:
        """Register the timers that wait for the next epoch."""
        timers = self.backend.timers
        for domain, register in (
            (TimeDomain.EVENT_TIME, timers.register_event_time_timers),
            (TimeDomain.PROCESSING_TIME, timers.register_processing_time_timers),
        ):
            if self._waiting[domain]:
                slots, times = np.array(sorted(self._waiting[domain]), np.int64).T
                register(slots, times)
        if waiting := self._waiting[TimeDomain.EVENT_TIME]:
            warn_of_waiting(self.uid, [time for _, time in waiting])
        self._waiting = {domain: set() for domain in TimeDomain}

    def take_emitted(self, count: int) -> Timestamps:
        """Return and forget the timestamps of the output.

        Raises:
            OutputTypeError: Their number is not the number of rows.
        """
        taken, self._emitted = self._emitted, None
        if taken is None:
            return no_timestamps(count)
        if len(taken) != count:
            raise OutputTypeError(self.uid, f"It returned {count} rows and {len(taken)} timestamps.")
        return taken

    def current_watermark(self) -> int:
        """Return the event-time watermark; the smallest 64-bit number before there is one."""
        return self.watermark

    def current_processing_time(self) -> int:
        """Return the processing time in milliseconds since 1970: of the epoch, or in real time the current one."""
        return self.processing_time

    def time_domain(self) -> TimeDomain | None:
        """Return the clock of the timers of `on_timers`, None in `process_batch`."""
        return self._domain

    def keep_timestamps(self, rows: Any = None) -> None:
        """Give the output of this call the timestamps of rows of the batch.

        Args:
            rows: For each output row the number of its row in the batch, or a mask; None if they are the same rows.
        """
        if self.timestamps is None or self._domain is TimeDomain.PROCESSING_TIME:
            return
        self._emitted = self.timestamps if rows is None else self.timestamps.take(pa.array(_row_numbers(rows)))

    def give_timestamps(self, timestamps: Any) -> None:
        """Give the output of this call these timestamps.

        Args:
            timestamps: Milliseconds since 1970 for each output row, null for none, or Arrow or numpy timestamps, which
                are rounded down.
        """
        if isinstance(timestamps, np.ndarray):
            timestamps = pa.array(timestamps)
        if isinstance(timestamps, pa.ChunkedArray):
            timestamps = timestamps.combine_chunks()
        is_array = isinstance(timestamps, pa.Array)
        self._emitted = to_event_times(timestamps) if is_array else timestamp_column(timestamps)

    def register_event_time_timers(self, times: Any, rows: Any = None) -> None:
        """Register a timer for the key of each row, which fires when the watermark reaches its time.

        A second registration of the same time has no effect.

        Args:
            times: Milliseconds since 1970, as an Arrow or numpy array or a sequence, or one time for all.
            rows: Row numbers, or a mask; None for all rows of the batch.

        Raises:
            StateError: The times are no numbers, or not as many as the rows.
        """
        self.backend.timers.register_event_time_timers(*self._new_timers(times, rows, TimeDomain.EVENT_TIME))

    def register_processing_time_timers(self, times: Any, rows: Any = None) -> None:
        """Register timers that fire when the processing time reaches them; see `register_event_time_timers`."""
        self.backend.timers.register_processing_time_timers(*self._new_timers(times, rows, TimeDomain.PROCESSING_TIME))

    def delete_event_time_timers(self, times: Any, rows: Any = None) -> None:
        """Delete timers; no effect where there is none. See `register_event_time_timers`."""
        slots, numbers = self._timers(times, rows)
        self.backend.timers.delete_event_time_timers(slots, numbers)
        self._stop_waiting(TimeDomain.EVENT_TIME, slots, numbers)

    def delete_processing_time_timers(self, times: Any, rows: Any = None) -> None:
        """Delete timers; no effect where there is none. See `register_event_time_timers`."""
        slots, numbers = self._timers(times, rows)
        self.backend.timers.delete_processing_time_timers(slots, numbers)
        self._stop_waiting(TimeDomain.PROCESSING_TIME, slots, numbers)

    def _stop_waiting(self, domain: TimeDomain, slots: Rows, times: Any) -> None:
        if self._waiting[domain]:
            self._waiting[domain].difference_update(zip(slots.tolist(), times.tolist(), strict=True))

    def _new_timers(self, times: Any, rows: Any, domain: TimeDomain) -> tuple[Rows, Any]:
        """Return the timers to register now, without those that exist still, and those of the next epoch."""
        slots, times = self._timers(times, rows)
        if self._domain is not domain or times.dtype.kind != "i" or len(times) != len(slots):
            return slots, times
        own = self._due if rows is None else self._due[_row_numbers(rows)]
        later = np.flatnonzero((times > own) & (times <= self._due[-1]))
        is_set_now = np.ones(len(times), np.bool_)
        if len(later):
            due = set(zip(self._slots, self._due.tolist(), strict=True))
            is_set_now[[at for at in later.tolist() if (int(slots[at]), int(times[at])) in due]] = False
        if domain is TimeDomain.PROCESSING_TIME:
            waits = times <= own
        elif self.watermark == MAX_TIME:
            waits = self._wait_at_end(slots, own, times)
        else:
            waits = np.zeros(len(times), np.bool_)
        waits &= is_set_now
        is_set_now &= ~waits
        self._waiting[domain].update(zip(slots[waits].tolist(), times[waits].tolist(), strict=True))
        return slots[is_set_now], times[is_set_now]

    def _wait_at_end(self, slots: Rows, own: Any, times: Any) -> npt.NDArray[np.bool_]:
        """Return the new timers that wait because event time has ended; see `FiringRule`."""
        fire_once = self._once
        waits = np.array([at in fire_once for at in zip(slots.tolist(), own.tolist(), strict=True)], np.bool_)
        once = ~waits & ~((own < times) & (times <= self.backend.latest_event_time))
        fire_once.update(zip(slots[once].tolist(), times[once].tolist(), strict=True))
        return waits

    def _timers(self, times: Any, rows: Any) -> tuple[Rows, Any]:
        slots = np.asarray(self._slots, np.int64)
        if rows is not None:
            slots = slots[_row_numbers(rows)]
        given = np.asarray(times.as_py() if isinstance(times, pa.Scalar) else times)
        return slots, given if given.ndim else np.full(len(slots), given)

    @property
    def slots(self) -> Sequence[Any]:
        """One value for the key of each row of the batch, equal for rows of the same key."""
        return self._slots

    def columns(self, state: Any) -> ColumnState:
        """Return value state as columns.

        Args:
            state: A state handle of `open`.

        Raises:
            ConfigurationError: It is no value state, or has no declared type.
        """
        if not isinstance(getattr(state, "descriptor", None), ValueStateDescriptor):
            raise ConfigurationError(f"Only value state can be read as columns, not {state!r}.")
        return ColumnState(self, state)

    def slots_at(self, rows: Rows) -> Sequence[Any]:
        """Return the slots of some rows of the batch."""
        slots = self._slots
        return Slots(slots.array[rows]) if isinstance(slots, Slots) else pick(slots, rows.tolist())

    def slots_of(self, keys: Keys) -> Sequence[Any]:
        """Return the slots of some keys.

        Raises:
            StateError: A key belongs to another subtask.
        """
        if keys is None:
            return self._slots
        codec = self.backend.key_codec
        dict_keys = lazy_keys(codec, _key_columns(keys))
        if dict_keys == self._dict_keys:
            return self._slots
        hashes = codec.hashes(dict_keys)
        groups = key_groups_of(hashes, self.backend.number_of_key_groups)
        own = self.backend.key_group_range
        foreign = np.flatnonzero((groups < own.start) | (groups > own.end))
        if len(foreign):
            key = codec.user_key(dict_keys[int(foreign[0])])
            raise StateError(
                f"Operator {self.uid!r}: the state of key {key!r} belongs to another subtask; use keys of the batch."
            )
        return self.backend.prepare(dict_keys, hashes)


class BatchFunction(RichFunction):
    """A function of whole Arrow batches of a keyed stream; get value state in `open`.

    >>> import pyarrow as pa
    >>> class Total(BatchFunction):
    ...     def open(self, runtime_context):
    ...         self.total = runtime_context.get_state(ValueStateDescriptor("total", "bigint"))
    ...
    ...     def process_batch(self, batch, ctx):
    ...         sums = pa.Table.from_batches([batch]).group_by("word").aggregate([("n", "sum")])
    ...         state = ctx.columns(self.total)
    ...         before = state.get(sums["word"]).fill_null(0)
    ...         state.put(sums["word"], pa.compute.add(before, sums["n_sum"].combine_chunks()))
    ...         return pa.table({"word": sums["word"], "total": state.get(sums["word"])})
    >>> rows = env.from_collection([("kelp", 3), ("cod", 1), ("kelp", 4)], "word string, n bigint")
    >>> totals = rows.key_by("word").process_batches(Total(), "word string, total bigint")
    >>> sorted((row.word, row.total) for row in totals.execute_and_collect())
    [('cod', 1), ('kelp', 7)]
    """

    @abstractmethod
    def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
        """Process a batch.

        Args:
            batch: Its columns are the fields of the stream's elements.
            ctx: State as columns, times and timers.

        Returns:
            A record batch or table of the declared output type, several of them, or None. Its rows have no timestamps
            unless `ctx.keep_timestamps` or `ctx.give_timestamps` is called.
        """

    def on_timers(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
        """Process the timers that are due at the end of an epoch, in order of time; event time before processing time.

        Timers that are registered here and are due at once fire in another call; in processing time, one that is not
        later than that of its row fires in the next epoch. A timer of the batch that is deleted here has fired already.

        Args:
            batch: The keys: the columns of the key, or one named `key` where a function makes it.
            ctx: State as columns, and the times of the timers in `timestamps`.

        Returns:
            As `process_batch`.
        """
        return None


def has_timers(function: BatchFunction) -> bool:
    return type(function).on_timers is not BatchFunction.on_timers


class PlainBatchFunction(BatchFunction):
    """A plain function ``(batch, state)`` with the value states that it uses.

    Args:
        function: Gets the batch, and one `ColumnState` or a dict of them by name.
        descriptors: The states.
        single: Whether it gets the only state itself, and no dict.
    """

    def __init__(
        self, function: Callable[[pa.RecordBatch, Any], Any], descriptors: Sequence[Any], single: bool
    ) -> None:
        self._function = function
        self._descriptors = list(descriptors)
        self._single = single

    def open(self, runtime_context: RuntimeContext) -> None:
        self._states = {one.name: runtime_context.get_state(one) for one in self._descriptors}

    def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
        columns: Mapping[str, ColumnState] = {name: ctx.columns(state) for name, state in self._states.items()}
        return self._function(batch, next(iter(columns.values())) if self._single else columns)


def _row_numbers(rows: Any) -> Rows:
    numbers = np.asarray(rows)
    return np.flatnonzero(numbers) if numbers.dtype == np.bool_ else numbers.astype(np.int64)


def _key_columns(keys: Any) -> list[pa.Array]:
    if isinstance(keys, pa.ChunkedArray):
        return [keys.combine_chunks()]
    if isinstance(keys, pa.StructArray):
        return keys.flatten()  # type: ignore[no-any-return]
    if isinstance(keys, pa.Array):
        return [keys]
    return list(keys.columns) if isinstance(keys, pa.RecordBatch) else list(keys)


_ALL_DIGITS: Final = Context(prec=100)


class Groups:
    """The rows of a batch by key, in their order.

    Args:
        marks: One value for each row, equal for rows of the same key.

    Attributes:
        order: The row numbers, key by key.
        group: For each of these the number of its key.
        starts: Where each key begins among them.
        ends: The last position of each key among them.
    """

    def __init__(self, marks: Sequence[Any] | Positions) -> None:
        if isinstance(marks, np.ndarray):
            numbers = marks
        elif isinstance(marks, Slots):
            numbers = marks.array
        else:
            is_number = len(marks) > 0 and isinstance(marks[0], int)
            numbers = np.fromiter(marks, np.int64, len(marks)) if is_number else _numbered(marks)
        # Several times faster than a stable argsort; slots and rows fit into 63 bits together.
        bits = max(1, len(numbers).bit_length())
        both = np.sort((numbers << bits) | np.arange(len(numbers)))
        self.order: Positions = both & ((1 << bits) - 1)
        ordered = both >> bits
        is_first = np.ones(len(ordered), bool)
        is_first[1:] = ordered[1:] != ordered[:-1]
        self.starts: Positions = np.flatnonzero(is_first)
        self.group: Positions = np.cumsum(is_first) - 1
        self.ends: Positions = np.append(self.starts[1:], len(ordered))[: len(self.starts)] - 1

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def first_rows(self) -> Positions:
        """The first row of each key."""
        return self.order[self.starts]

    @property
    def position(self) -> Positions:
        """For each row, key by key, the number of rows of its key before it."""
        return np.arange(len(self.order)) - self.starts[self.group]

    def in_rows(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Reorder values from key by key to the order of the rows."""
        result = np.empty_like(values)
        result[self.order] = values
        return result

    def last(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the last value of each key."""
        return values[self.ends]


def accumulate_groups(
    operation: np.ufunc, groups: Groups, values: npt.NDArray[Any], before: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """Apply an operation along the rows of each key, one after the other as a loop would.

    Args:
        operation: A function of the result so far and the next value.
        groups: The keys.
        values: The value of each row, key by key.
        before: The value of each key before its first row.

    Returns:
        The result with each row, key by key.
    """
    result = np.empty(len(values), before.dtype)
    sizes = groups.ends - groups.starts + 1
    long = np.flatnonzero(sizes > _LONG)
    for number in long.tolist():
        start, end = int(groups.starts[number]), int(groups.ends[number]) + 1
        joined = np.concatenate([before[number : number + 1], values[start:end].astype(before.dtype, copy=False)])
        result[start:end] = operation.accumulate(joined)[1:]
    reached = before.copy()
    short = np.flatnonzero(sizes <= _LONG)
    step = 0
    while len(short):
        rows = groups.starts[short] + step
        reached[short] = operation(reached[short], values[rows])
        result[rows] = reached[short]
        step += 1
        short = short[sizes[short] > step]
    return result


def exact_decimals() -> AbstractContextManager[Context]:
    """Return a context in which sums of decimals keep all digits; the default of Python rounds them to 28."""
    return localcontext(_ALL_DIGITS)


def latest_marked(groups: Groups, marked: Mask) -> Positions:
    """Return for each row, key by key, the newest marked row of its key up to it; -1 if there is none."""
    at = np.where(marked, np.arange(len(marked)), -1)
    newest = np.maximum.accumulate(at) if len(at) else at
    return np.where(newest >= groups.starts[groups.group], newest, -1)


def _numbered(marks: Sequence[Any]) -> Positions:
    """Number objects: rows of one key have the very same object."""
    numbers: dict[int, int] = {}
    return np.fromiter((numbers.setdefault(id(mark), len(numbers)) for mark in marks), np.int64, len(marks))


def to_single_batch(result: Any, output_type: TypeInformation, uid: str) -> pa.RecordBatch:
    """Convert the result of a function to one batch of the declared type; columns are matched by name.

    Raises:
        OutputTypeError: A column does not exist or has another type.
    """
    schema = element_schema(output_type)
    if isinstance(result, pa.RecordBatch) and result.schema.equals(schema, check_metadata=True):
        return result
    tables = [_conformed(part, schema, output_type, uid) for part in _parts(result)]
    if not tables:
        return pa.RecordBatch.from_pylist([], schema=schema)
    columns = pa.concat_tables(tables).combine_chunks()
    arrays = [pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _parts(result: Any) -> Iterable[Any]:
    if result is None:
        return ()
    return (result,) if isinstance(result, pa.RecordBatch | pa.Table) else result


def _conformed(part: Any, schema: pa.Schema, output_type: TypeInformation, uid: str) -> pa.Table:
    if not isinstance(part, pa.RecordBatch | pa.Table):
        raise OutputTypeError(
            uid, f"It returned {type(part).__name__!r}, not record batches or tables.", declared=str(output_type)
        )
    table = pa.Table.from_batches([part]) if isinstance(part, pa.RecordBatch) else part
    missing = [name for name in schema.names if name not in table.schema.names]
    if missing or table.num_columns != len(schema):
        raise OutputTypeError(
            uid, f"It returned the columns {table.schema.names!r}, not {schema.names!r}.", declared=str(output_type)
        )
    try:
        return table.select(schema.names).cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise OutputTypeError(
            uid, f"It returned a column of another type: {error}", declared=str(output_type)
        ) from error


class BatchSubtask(OperatorSubtask):
    """One subtask of a function of batches in one epoch; see `OperatorSubtask` for the arguments."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        assert self.backend is not None
        self._context = BatchContext(self.info.uid, self.backend, self.info.watermark, self.info.processing_time)

    def process_batch(
        self, batch: pa.RecordBatch, dict_keys: Sequence[Any], hashes: Any, timestamps: Timestamps | None = None
    ) -> Emitted:
        """Process a batch, and return the output with its timestamps.

        Raises:
            UserFunctionError: The function raised.
            OutputTypeError: It returned other columns than declared, or other timestamps than rows.
        """

        def process() -> Any:
            self._context.begin(dict_keys, hashes, timestamps)
            return self._call(batch, self._context)

        return self._guarded("processing a batch", process)

    def set_times(self, processing_time: int, watermark: int) -> None:
        super().set_times(processing_time, watermark)
        self._context.processing_time, self._context.watermark = processing_time, watermark

    def close(self, watermark: int, now: int) -> Emitted:
        """Fire the timers that are due at the end of the input, and return the output with its timestamps.

        Raises:
            UserFunctionError: The function raised.
            OutputTypeError: It returned other columns than declared, or other timestamps than rows.
        """
        assert self.backend is not None
        timers, self._context.watermark = self.backend.timers, watermark
        emitted = [
            *self._fired(TimeDomain.EVENT_TIME, lambda: timers.take_due_event_time(watermark)),
            *self._fired(TimeDomain.PROCESSING_TIME, lambda: timers.take_due_processing_time(now)),
        ]
        self._context.end_timers()
        self.backend.release()
        if not emitted:
            emitted = [self._guarded("firing timers", lambda: None)]
        batches, timestamps = zip(*emitted, strict=True)
        return pa.concat_batches(batches) if len(batches) > 1 else batches[0], concat_timestamps(timestamps)

    def _fired(self, domain: TimeDomain, take: Callable[[], DueTimers]) -> Iterator[Emitted]:
        while len((due := take()).times):
            self._context.begin_timers(due.slots, due.times, domain)
            # Functions without `on_timers` may register timers too: they are removed when due, or would be due for
            # ever.
            if has_timers(self.function):
                yield self._guarded("firing timers", partial(self._fire_timers, due))

    def _fire_timers(self, due: DueTimers) -> Any:
        return self.function.on_timers(self._keys(due), self._context)

    def _keys(self, due: DueTimers) -> pa.RecordBatch:
        """Return the keys of timers in the columns of the key."""
        assert self.backend is not None
        stored, _ = self.backend.keys_of(due.slots)
        columns, codec = self._spec.key_columns, self.backend.key_codec
        assert columns is not None
        schema = element_schema(columns)
        if len(schema) == 1 and stored.type.equals(schema.field(0).type):
            return pa.RecordBatch.from_arrays([stored], schema=schema)
        keys = [codec.user_key(key) for key in codec.from_storage(stored)]
        rows = keys if len(schema) > 1 else [(key,) for key in keys]
        return elements_to_batch(rows, columns, self.info.uid)

    def _guarded(self, doing: str, call: Callable[[], Any]) -> Emitted:
        try:
            batch = to_single_batch(call(), self._spec.output_type, self.info.uid)
            return batch, self._context.take_emitted(batch.num_rows)
        except HoldfastError:
            raise
        except Exception as error:
            raise user_error(error, self.info.uid, None, self.info.epoch, doing) from error
