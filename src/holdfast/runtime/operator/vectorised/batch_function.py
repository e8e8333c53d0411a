"""Functions that get a whole Arrow batch of a keyed stream, and read and write state as columns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import ConfigurationError, OutputTypeError, StateError
from holdfast.kernel.key_group import key_groups_of
from holdfast.runtime.function.user_function import RichFunction, RuntimeContext, TimeDomain
from holdfast.state.backend import AbstractKeyedStateBackend
from holdfast.state.declaration.descriptor import ValueStateDescriptor
from holdfast.state.hashmap.handle import CellHandle
from holdfast.state.hashmap.placement import Slots, pick
from holdfast.types.conversion.stamps import Stamps, no_stamps, stamps_of
from holdfast.types.information.type_information import OpaqueTypeInformation, TypeInformation
from holdfast.types.key.column_keys import arrived_keys

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
        self.timestamps: Stamps | None = None
        self._domain: TimeDomain | None = None
        self._dict_keys: Sequence[Any] = ()
        self._slots: Sequence[Any] = ()
        self._due: npt.NDArray[np.int64] = np.empty(0, np.int64)
        # Timers by slot and time, set in `on_timers` for a time that has come: one call after the other would set them.
        self._waiting: set[tuple[int, int]] = set()
        self._emitted: Stamps | None = None

    def begin(self, dict_keys: Sequence[Any], hashes: Any, timestamps: Stamps | None) -> None:
        """Go on to a batch whose rows have these keys and times."""
        self.backend.release()
        self._dict_keys = dict_keys
        self._slots = self.backend.prepare(dict_keys, hashes)
        self.timestamps = timestamps

    def begin_timers(self, slots: Rows, times: Rows, domain: TimeDomain) -> None:
        """Go on to timers of these keys."""
        self._dict_keys, self._slots, self._due = (), Slots(slots), times
        self.timestamps, self._domain = stamps_of(times), domain

    def end_timers(self) -> None:
        """No more timers fire in this epoch: set those that wait for the next one."""
        if self._waiting:
            slots, times = np.array(sorted(self._waiting), np.int64).T
            self._waiting.clear()
            self.backend.timers.register_processing_time_timers(slots, times)

    def take_emitted(self, count: int) -> Stamps:
        """Return and forget the timestamps of what was returned.

        Raises:
            OutputTypeError: As many were not given.
        """
        taken, self._emitted = self._emitted, None
        if taken is None:
            return no_stamps(count)
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
        self._emitted = stamps_of(timestamps)

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
        dict_keys = arrived_keys(codec, _key_columns(keys))
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
