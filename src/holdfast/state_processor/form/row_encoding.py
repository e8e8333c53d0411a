"""Columns of a table as the rows of states, column by column: keys with their hashes, values as files have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ConfigurationError, NullKeyError, StateError
from holdfast.state.declaration.descriptor import StateKind
from holdfast.state.layout.column_layout import MAP_KEY, NAMESPACE, OP, STAMP, VALUE, Op
from holdfast.state.run.probe import KEY
from holdfast.state.run.run_file import HASH
from holdfast.state.timer.stored_timers import TIMESTAMP
from holdfast.state.timer.timer_queue import MIN_TIME
from holdfast.state_processor.form.state_form import StateForm, fitted, fitted_array, is_any_list
from holdfast.types.key.abstract_key_codec import KeyCodec
from holdfast.types.key.column_keys import keys_of_columns

_ROW: Final = "_row"


@dataclass(frozen=True)
class StateColumns:
    """Which columns of a table hold a state.

    Attributes:
        form: The state.
        value: Column of the values; of a list state a column of lists, or of elements, one a row; of a map state with
            `map_key` the value of an entry, without it a column of maps. For timers the time.
        map_key: Column of the keys of map entries.
        namespace: Column of namespaces, as their serializer writes them.
        stamp: Column of the times of last use, in milliseconds; without it, all were used when the savepoint is made.
    """

    form: StateForm
    value: str
    map_key: str | None = None
    namespace: str | None = None
    stamp: str | None = None

    def names(self) -> Iterable[str]:
        """Return the columns."""
        return (name for name in (self.value, self.map_key, self.namespace, self.stamp) if name is not None)


def column_of(table: pa.Table, name: str) -> pa.Array:
    """Return a column in one piece.

    Raises:
        ConfigurationError: The table has no such column.
    """
    if name not in table.column_names:
        raise ConfigurationError(f"There is no column {name!r}; there are {table.column_names!r}.")
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def key_rows(codec: KeyCodec, table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the columns `hash` and `key` for the rows of a table.

    Raises:
        NullKeyError: A key is null.
        OutputTypeError: A key does not fit the declared type.
        ConfigurationError: A column does not exist.
    """
    try:
        keys, hashes = keys_of_columns(codec, [column_of(table, name) for name in columns])
    except NullKeyError as error:
        raise NullKeyError(
            None,
            f"The key {list(columns)!r} of row {error.row} is null. A state belongs to a key: leave such rows out.",
            row=error.row,
        ) from None
    return pa.table({HASH: hashes, KEY: keys})


def state_rows(columns: StateColumns, keys: pa.Table, table: pa.Table, now: int) -> pa.Table:
    """Return the rows of one state, in the order of the table.

    Args:
        columns: Which columns it is in.
        keys: What `key_rows` returned for the table.
        table: The table.
        now: Time of the last use where no column says it, in milliseconds.

    Raises:
        StateError: A value is null where there is none.
        OutputTypeError: A value does not fit the declared type.
        ConfigurationError: A column does not exist, or does not suit the kind of state.
    """
    form = columns.form
    if form.is_timers:
        return _timer_rows(columns, keys, table)
    value = column_of(table, columns.value)
    rows = {HASH: keys.column(HASH), KEY: keys.column(KEY)}
    if form.has_namespace:
        rows[NAMESPACE] = _namespaces(columns, table)
    if form.kind is StateKind.LIST:
        return _list_rows(columns, rows, value, table, now)
    if form.kind is StateKind.MAP and columns.map_key is None:
        return _exploded(columns, rows, value, table, now)
    if form.kind is StateKind.MAP:
        assert form.map_key is not None and columns.map_key is not None
        rows[MAP_KEY] = _map_keys(form, column_of(table, columns.map_key))
    else:
        _refuse_nulls(value, form, columns.value)
    assert form.value is not None
    rows[VALUE] = fitted(value, form.value, form.name)
    if form.has_stamps:
        rows[STAMP] = _stamps(columns, table, now)
    return _with_put(rows)


def _with_put(rows: Mapping[str, Any]) -> pa.Table:
    table = pa.table(rows)
    return table.append_column(OP, pa.array(np.full(table.num_rows, Op.PUT, np.int8)))


def _refuse_nulls(value: pa.Array, form: StateForm, column: str) -> None:
    if value.null_count:
        row = value.is_null().index(pa.scalar(True)).as_py()
        raise StateError(
            f"Column {column!r} is null in row {row}, but state {form.name!r} has a value or does not exist: leave "
            "such rows out."
        )


def _namespaces(columns: StateColumns, table: pa.Table) -> pa.Array:
    if columns.namespace is None:
        raise ConfigurationError(
            f"State {columns.form.name!r} has namespaces (it belongs to windows): say which column has them, as bytes."
        )
    column = fitted_array(column_of(table, columns.namespace), pa.binary())
    _refuse_nulls(column, columns.form, columns.namespace)
    return column


def _map_keys(form: StateForm, column: pa.Array) -> pa.Array:
    assert form.map_key is not None
    try:
        keys, _ = keys_of_columns(form.map_key, [column])
    except NullKeyError as error:
        raise NullKeyError(None, f"A map key of state {form.name!r} is null, in row {error.row}.") from None
    return keys


def times_of(column: pa.Array, name: str) -> pa.Array:
    """Return a column of times in milliseconds.

    Raises:
        StateError: One is null.
        OutputTypeError: They are no times.
    """
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    times = fitted_array(column, pa.int64())
    if times.null_count:
        raise StateError(f"Column {name!r} of times is null in row {times.is_null().index(pa.scalar(True)).as_py()}.")
    return times


def _stamps(columns: StateColumns, table: pa.Table, now: int) -> pa.Array:
    if columns.stamp is None:
        return pa.array(np.full(table.num_rows, now, np.int64))
    column = column_of(table, columns.stamp)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    stamps = fitted_array(column, pa.int64())
    _refuse_nulls(stamps, columns.form, columns.stamp)
    return stamps


def _list_rows(columns: StateColumns, rows: dict[str, Any], value: pa.Array, table: pa.Table, now: int) -> pa.Table:
    """Rows of lists; those of one key, and so single elements, are put together when they are sorted."""
    form = columns.form
    assert form.value is not None
    _refuse_nulls(value, form, columns.value)
    if _depth(value.type) <= _depth(form.value_type):
        single = pa.array(np.arange(len(value) + 1, dtype=np.int32))
        rows[VALUE] = pa.ListArray.from_arrays(single, fitted(value, form.value, form.name))
        if form.has_stamps:
            rows[STAMP] = pa.ListArray.from_arrays(single, _stamps(columns, table, now))
        return _with_put(rows)
    lists = value if pa.types.is_list(value.type) else value.cast(pa.list_(value.type.value_type))
    lengths = lists.value_lengths()
    elements = lists.flatten()
    _refuse_nulls(elements, form, columns.value)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths.to_numpy())]).astype(np.int32))
    rows[VALUE] = pa.ListArray.from_arrays(offsets, fitted(elements, form.value, form.name))
    if form.has_stamps:
        rows[STAMP] = _list_stamps(columns, table, offsets, len(elements), now)
    return _with_put(rows).filter(pc.greater(lengths, 0))  # a list without elements does not exist


def _depth(kind: pa.DataType) -> int:
    """How many lists are inside each other."""
    return 1 + _depth(kind.value_type) if is_any_list(kind) else 0


def _list_stamps(columns: StateColumns, table: pa.Table, offsets: pa.Array, count: int, now: int) -> pa.Array:
    given = None if columns.stamp is None else column_of(table, columns.stamp)
    if given is not None and pa.types.is_list(given.type):
        stamps = fitted_array(given.flatten(), pa.int64())
        if len(stamps) != count or stamps.null_count:
            raise StateError(
                f"Column {columns.stamp!r} has {len(stamps)} times for {count} elements of state {columns.form.name!r}."
            )
    else:
        lengths = np.diff(offsets.to_numpy())
        stamps = pa.array(np.repeat(_stamps(columns, table, now).to_numpy(), lengths))
    return pa.ListArray.from_arrays(offsets, stamps)


def _exploded(columns: StateColumns, rows: dict[str, Any], value: pa.Array, table: pa.Table, now: int) -> pa.Table:
    """Rows of entries from a column of maps."""
    form = columns.form
    assert form.map_key is not None and form.value is not None
    if not pa.types.is_map(value.type):
        raise ConfigurationError(
            f"State {form.name!r} is a map: give a column of map keys with map_key=, or a column of maps; "
            f"{columns.value!r} is {value.type}."
        )
    _refuse_nulls(value, form, columns.value)
    offsets = value.offsets.to_numpy()
    start, end = (int(offsets[0]), int(offsets[-1])) if len(value) else (0, 0)
    owners = pa.array(np.repeat(np.arange(len(value)), np.diff(offsets))) if len(value) else pa.array([], pa.int64())
    if form.has_stamps:
        rows[STAMP] = _stamps(columns, table, now)
    repeated = pa.table(rows).take(owners)
    entries = {name: repeated.column(name) for name in repeated.column_names if name != STAMP}
    entries[MAP_KEY] = _map_keys(form, value.keys.slice(start, end - start))
    entries[VALUE] = fitted(value.items.slice(start, end - start), form.value, form.name)
    if form.has_stamps:
        entries[STAMP] = repeated.column(STAMP)
    return _with_put(entries)


def _timer_rows(columns: StateColumns, keys: pa.Table, table: pa.Table) -> pa.Table:
    time = column_of(table, columns.value)
    if pa.types.is_timestamp(time.type):
        time = time.cast(pa.timestamp("ms", time.type.tz), safe=False).cast(pa.int64())
    times = fitted_array(time, pa.int64())
    _refuse_nulls(times, columns.form, columns.value)
    if len(times) and pc.min(times).as_py() == MIN_TIME:
        raise StateError(f"A timer of {columns.form.name!r} has the least time there is, {MIN_TIME}, and cannot.")
    names = pa.array(np.full(table.num_rows, b"", object), pa.binary())
    if columns.namespace is not None:
        names = fitted_array(column_of(table, columns.namespace), pa.binary()).fill_null(b"")
    rows = {HASH: keys.column(HASH), TIMESTAMP: times, KEY: keys.column(KEY), NAMESPACE: names}
    return _with_put(rows)
