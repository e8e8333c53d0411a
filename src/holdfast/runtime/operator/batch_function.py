"""Functions that get a whole Arrow batch of a keyed stream, and read and write state as columns."""

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
from holdfast.state.timer_service import DueTimers
from holdfast.types.arrow import (
    Timestamps,
    concat_timestamps,
    element_schema,
    elements_to_batch,
    no_timestamps,
    timestamp_column,
)
from holdfast.types.key_columns import lazy_keys
from holdfast.types.opaque import OpaqueTypeInformation
from holdfast.types.type_information import TypeInformation

Keys: TypeAlias = "pa.Array | pa.ChunkedArray | pa.RecordBatch | Sequence[pa.Array] | None"

Rows: TypeAlias = "npt.NDArray[np.int64]"


class ColumnState:
    """Value state of many keys at once.

    Keys are given as a column of the batch, as a record batch or list of the key columns if the stream is keyed by
    several, or not at all: then it is about the key of each row of the batch.
    """

    def __init__(self, context: BatchContext, handle: Any) -> None:
        self._context = context
        self._handle = handle
        self._type: TypeInformation = handle.descriptor.type_info
        if isinstance(self._type, OpaqueTypeInformation):
            raise ConfigurationError(
                f"State {handle.descriptor.name!r} has no declared type, so it cannot be read as a column: declare one "
                "in its descriptor."
            )

    def get(self, keys: Keys = None) -> pa.Array:
        """Return the value of each key, null where there is none.

        Raises:
            StateError: A key belongs to another subtask.
        """
        return self._get(self._context.slots_of(keys))

    def get_at(self, rows: Rows) -> pa.Array:
        """Return the value of the key of each of some rows of the batch."""
        return self._get(self._context.slots_at(rows))

    def _get(self, slots: Sequence[Any]) -> pa.Array:
        if isinstance(self._handle, CellHandle):
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
            keys: The keys.
            values: An Arrow or numpy array, or a sequence, of as many values.

        Raises:
            StateError: There are more or fewer values than keys, or a key belongs to another subtask.
            OutputTypeError: A value does not fit the declared type.
        """
        self._put(self._context.slots_of(keys), values)

    def put_at(self, rows: Rows, values: Any) -> None:
        """Set the value of the key of each of some rows of the batch; see `put`."""
        self._put(self._context.slots_at(rows), values)

    def _put(self, slots: Sequence[Any], values: Any) -> None:
        array = self._column(values)
        if len(array) != len(slots):
            raise StateError(
                f"State {self._handle.descriptor.name!r}: {len(array)} values were given for {len(slots)} keys."
            )
        if isinstance(self._handle, CellHandle):
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
        """Remove the value of each key."""
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
    """What a function knows beside its batch, and its timers; one object a task.

    Attributes:
        uid: Of the operator.
        backend: Its keyed state.
        watermark: Event time has advanced to this, in milliseconds.
        processing_time: Of the epoch, in milliseconds.
        timestamps: Of each row of the batch, null for one that has none; in `on_timers` when each timer was due. None
            where event time plays no part.
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
        # Timers by slot and time, set in `on_timers` for a time that has come: one call after the other would set them.
        self._waiting: set[tuple[int, int]] = set()
        self._emitted: Timestamps | None = None

    def begin(self, dict_keys: Sequence[Any], hashes: Any, timestamps: Timestamps | None) -> None:
        """Go on to a batch whose rows have these keys and times."""
        self.backend.release()
        self._dict_keys = dict_keys
        self._slots = self.backend.prepare(dict_keys, hashes)
        self.timestamps = timestamps

    def begin_timers(self, slots: Rows, times: Rows, domain: TimeDomain) -> None:
        """Go on to timers of these keys."""
        self._dict_keys, self._slots, self._due = (), Slots(slots), times
        self.timestamps, self._domain = timestamp_column(times), domain

    def end_timers(self) -> None:
        """No more timers fire in this epoch: set those that wait for the next one."""
        if self._waiting:
            slots, times = np.array(sorted(self._waiting), np.int64).T
            self._waiting.clear()
            self.backend.timers.register_processing_time_timers(slots, times)

    def take_emitted(self, count: int) -> Timestamps:
        """Return and forget the timestamps of what was returned.

        Raises:
            OutputTypeError: As many were not given.
        """
        taken, self._emitted = self._emitted, None
        if taken is None:
            return no_timestamps(count)
        if len(taken) != count:
            raise OutputTypeError(self.uid, f"It returned {count} rows, and gave {len(taken)} timestamps.")
        return taken

    def current_watermark(self) -> int:
        """Return what event time has advanced to; the smallest 64-bit number if it has not begun."""
        return self.watermark

    def current_processing_time(self) -> int:
        """Return the processing time of the epoch."""
        return self.processing_time

    def time_domain(self) -> TimeDomain | None:
        """Return which clock the timers follow that `on_timers` got."""
        return self._domain

    def keep_timestamps(self, rows: Any = None) -> None:
        """Let what this call returns have the timestamps of rows of the batch.

        Args:
            rows: Of which row each row is that is returned; None if they are those of the batch.
        """
        if self.timestamps is None or self._domain is TimeDomain.PROCESSING_TIME:
            return
        self._emitted = self.timestamps if rows is None else self.timestamps.take(pa.array(_row_numbers(rows)))

    def give_timestamps(self, timestamps: Any) -> None:
        """Let what this call returns have these timestamps, in milliseconds since 1970; null is none."""
        self._emitted = timestamp_column(timestamps)

    def register_event_time_timers(self, times: Any, rows: Any = None) -> None:
        """Set a timer of the key of each row, which is due when the watermark reaches its time; again is no change.

        Args:
            times: In milliseconds, as an Arrow or numpy array or a sequence, or one time for all.
            rows: Of which rows, by number, or a mask; None for those of the batch.

        Raises:
            StateError: They are no times, or not as many as there are rows.
        """
        self.backend.timers.register_event_time_timers(*self._new_timers(times, rows, TimeDomain.EVENT_TIME))

    def register_processing_time_timers(self, times: Any, rows: Any = None) -> None:
        """Set timers that are due when the processing time reaches them; see `register_event_time_timers`."""
        self.backend.timers.register_processing_time_timers(*self._new_timers(times, rows, TimeDomain.PROCESSING_TIME))

    def delete_event_time_timers(self, times: Any, rows: Any = None) -> None:
        """Remove timers; no such timer is no error. See `register_event_time_timers`."""
        self.backend.timers.delete_event_time_timers(*self._timers(times, rows))

    def delete_processing_time_timers(self, times: Any, rows: Any = None) -> None:
        """Remove timers; no such timer is no error. See `register_event_time_timers`."""
        slots, numbers = self._timers(times, rows)
        self.backend.timers.delete_processing_time_timers(slots, numbers)
        if self._waiting:
            self._waiting.difference_update(zip(slots.tolist(), numbers.tolist(), strict=True))

    def _new_timers(self, times: Any, rows: Any, domain: TimeDomain) -> tuple[Rows, Any]:
        """Timers to set now: without those of the batch that, element by element, would be set still, and who waits."""
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
            again = times <= own
            is_set_now &= ~again
            self._waiting.update(zip(slots[again].tolist(), times[again].tolist(), strict=True))
        return slots[is_set_now], times[is_set_now]

    def _timers(self, times: Any, rows: Any) -> tuple[Rows, Any]:
        slots = np.asarray(self._slots, np.int64)
        if rows is not None:
            slots = slots[_row_numbers(rows)]
        given = np.asarray(times.as_py() if isinstance(times, pa.Scalar) else times)
        return slots, given if given.ndim else np.full(len(slots), given)

    @property
    def slots(self) -> Sequence[Any]:
        """What stands for the key of each row of the batch: rows of one key have equal ones."""
        return self._slots

    def columns(self, state: Any) -> ColumnState:
        """Return value state, as `open` asked for it, as columns.

        Raises:
            ConfigurationError: It is another kind of state, has no declared type, or expires.
        """
        descriptor = getattr(state, "descriptor", None)
        if not isinstance(descriptor, ValueStateDescriptor) or descriptor.ttl_config.is_enabled():
            raise ConfigurationError(f"Only value state without a time to live can be read as columns, not {state!r}.")
        return ColumnState(self, state)

    def slots_at(self, rows: Rows) -> Sequence[Any]:
        """Return what stands for the key of each of some rows of the batch."""
        slots = self._slots
        return Slots(slots.array[rows]) if isinstance(slots, Slots) else pick(slots, rows.tolist())

    def slots_of(self, keys: Keys) -> Sequence[Any]:
        """Return what stands for each of some keys.

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
                f"Operator {self.uid!r}: the state of key {key!r} belongs to another subtask; ask for keys of "
                "the batch."
            )
        return self.backend.prepare(dict_keys, hashes)


class BatchFunction(RichFunction):
    """A function of whole batches of a keyed stream; ask for value state in `open`.

    ::

        class Count(BatchFunction):
            def open(self, runtime_context):
                self.seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.LONG()))

            def process_batch(self, batch, ctx):
                state = ctx.columns(self.seen)
                ...
    """

    @abstractmethod
    def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
        """Process a batch.

        Args:
            batch: Its columns are the fields of the stream's elements.
            ctx: State as columns, and the time.

        Returns:
            A record batch or table of the declared output type, several of them, or None. Its rows have no timestamps
            unless `ctx.keep_timestamps` says which.
        """

    def on_timers(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
        """Process the timers that are due at the end of an epoch, in order of time.

        Timers that are set here and are due at once come in another call; in processing time one that is not later than
        that of its row comes in the next epoch. One of the batch that is deleted here has come all the same. Event time
        comes before processing time.

        Args:
            batch: The keys: the columns of the key, or one named `key` where it is made by a function.
            ctx: State as columns, and in `timestamps` when each timer was due.

        Returns:
            As `process_batch`.
        """
        return None


def has_timers(function: BatchFunction) -> bool:
    """Whether a function says what becomes of its timers."""
    return type(function).on_timers is not BatchFunction.on_timers


class PlainBatchFunction(BatchFunction):
    """A plain function ``(batch, state)`` together with the value states that it uses.

    Args:
        function: Gets the batch, and one `ColumnState` or a dict of them by name.
        descriptors: Of the states.
        single: Whether it gets the only state itself.
    """

    def __init__(
        self, function: Callable[[pa.RecordBatch, Any], Any], descriptors: Sequence[Any], single: bool
    ) -> None:
        self._function = function
        self._descriptors = list(descriptors)
        self._single = single

    def open(self, runtime_context: RuntimeContext) -> None:
        """Ask for the states."""
        self._states = {one.name: runtime_context.get_state(one) for one in self._descriptors}

    def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
        """Call the function."""
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


# The rows of a batch by key, and what runs along the rows of each key, without a loop over rows.

Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_LONG: Final = 64
_ALL_DIGITS: Final = Context(prec=100)


class Groups:
    """The rows of a batch, those of one key together in their order.

    Args:
        marks: Of each row what is equal for rows of one key.

    Attributes:
        order: The rows, key by key.
        group: Of each of these the number of its key.
        starts: Where each key begins among them.
    """

    def __init__(self, marks: Sequence[Any] | Positions) -> None:
        if isinstance(marks, np.ndarray):
            numbers = marks
        elif isinstance(marks, Slots):
            numbers = marks.array
        else:
            is_number = len(marks) > 0 and isinstance(marks[0], int)
            numbers = np.fromiter(marks, np.int64, len(marks)) if is_number else _numbered(marks)
        # Several times faster than a stable argsort; slots and rows are far below the limits.
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
        """Of each row, key by key, how many rows of its key are before it."""
        return np.arange(len(self.order)) - self.starts[self.group]

    def in_rows(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Bring what stands key by key into the order of the rows."""
        result = np.empty_like(values)
        result[self.order] = values
        return result

    def last(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the last of what stands key by key, for each key."""
        return values[self.ends]


def accumulate_groups(
    operation: np.ufunc, groups: Groups, values: npt.NDArray[Any], before: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """Apply an operation along the rows of each key, one after the other as a loop would.

    Args:
        operation: Of two arguments: what came out so far, and the next value.
        groups: The keys.
        values: Of each row, key by key.
        before: What there is of each key before its first row.

    Returns:
        What came out with each row, key by key.
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
    """Inside, sums of decimals keep all their digits; Python's own default rounds them to 28."""
    return localcontext(_ALL_DIGITS)


def latest_marked(groups: Groups, marked: Mask) -> Positions:
    """Return for each row, key by key, the newest marked one of its key up to it; -1 if there is none."""
    at = np.where(marked, np.arange(len(marked)), -1)
    newest = np.maximum.accumulate(at) if len(at) else at
    return np.where(newest >= groups.starts[groups.group], newest, -1)


def _numbered(marks: Sequence[Any]) -> Positions:
    """Number objects: rows of one key have the very same object."""
    numbers: dict[int, int] = {}
    return np.fromiter((numbers.setdefault(id(mark), len(numbers)) for mark in marks), np.int64, len(marks))


# What a function of batches has returned, as one batch of the declared type.


def to_single_batch(result: Any, output_type: TypeInformation, uid: str) -> pa.RecordBatch:
    """Return what a function has returned as one batch of the declared type; columns are taken by name.

    Raises:
        OutputTypeError: A column is missing or has another type.
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


# One subtask of an operator whose function gets whole batches, for one epoch.

Emitted = tuple[pa.RecordBatch, Timestamps]


class BatchSubtask(OperatorSubtask):
    """Passes the batches of one epoch to a function; see `OperatorSubtask` for the arguments."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        assert self.backend is not None
        self._context = BatchContext(self.info.uid, self.backend, self.info.watermark, self.info.processing_time)

    def process_batch(
        self, batch: pa.RecordBatch, dict_keys: Sequence[Any], hashes: Any, timestamps: Timestamps | None = None
    ) -> Emitted:
        """Process a batch as columns, and return what came out as columns, with its timestamps.

        Raises:
            UserFunctionError: The function raised.
            OutputTypeError: It returned other columns than declared, or other timestamps than rows.
        """

        def process() -> Any:
            self._context.begin(dict_keys, hashes, timestamps)
            return self._call(batch, self._context)

        return self._guarded("processing a batch", process)

    def close(self, watermark: int, now: int) -> Emitted:
        """The input has ended: pass on the timers that are due, and return what came out.

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
            # Others may set timers too; they go when they are due, and would be due for ever otherwise.
            if has_timers(self.function):
                yield self._guarded("firing timers", partial(self._passed_on, due))

    def _passed_on(self, due: DueTimers) -> Any:
        return self.function.on_timers(self._keys(due), self._context)

    def _keys(self, due: DueTimers) -> pa.RecordBatch:
        """Return the keys of timers as the columns that they were made of."""
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
