"""The form of a state without its program: kind, types, and conversion of table columns to the columns of files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ConfigurationError, NullKeyError, OutputTypeError, StateError
from holdfast.runtime.window.window import TimeWindowSerializer
from holdfast.state.descriptor import StateDescriptor, StateKind
from holdfast.state.layout import MAP_KEY, NAMESPACE, OP, STAMP, VALUE, Op, StateLayout, require_schema, value_codec_for
from holdfast.state.probe import KEY
from holdfast.state.run_file import HASH
from holdfast.state.timer_service import EVENT, PROCESSING, TIMER_PREFIX, USER_TIMERS
from holdfast.state.timers import MIN_TIME, TIMESTAMP
from holdfast.types.arrow import to_event_times
from holdfast.types.collection import ListTypeInformation, MapTypeInformation
from holdfast.types.composite import StructTypeInformation
from holdfast.types.key_codec import (
    AtomicKeyCodec,
    CompositeKeyCodec,
    KeyCodec,
    codec_from_json,
    describe_key_type,
    keys_of_columns,
)
from holdfast.types.opaque import OpaqueTypeInformation, SealedTypeInformation, seal_json
from holdfast.types.type_information import CharTypeInformation, TypeInformation, type_from_json

TIMERS: Final = "timers"
_FAMILIES: Final[Mapping[str, str]] = {
    **dict.fromkeys(["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"], "number"),
    **dict.fromkeys(["halffloat", "float", "double", "decimal128", "decimal256", "decimal32", "decimal64"], "number"),
    **dict.fromkeys(["string", "large_string", "string_view"], "text"),
    **dict.fromkeys(["binary", "large_binary", "binary_view", "fixed_size_binary"], "bytes"),
    **dict.fromkeys(["date32", "date64", "timestamp"], "instant"),
    **dict.fromkeys(["time32", "time64"], "time of day"),
}
_TIME_WINDOWS: Final = TimeWindowSerializer().snapshot().to_json()
_ROW: Final = "_row"


@dataclass(frozen=True)
class StateForm:
    """The form of one state.

    Attributes:
        name: Name of the state.
        kind: Kind of the state; None for timers.
        key: Codec of the operator's keys.
        value: Type of values, elements or accumulators; None for timers.
        map_key: Codec of the keys of map state.
        schema: The schema of its segments in footers.
    """

    name: str
    kind: StateKind | None
    key: KeyCodec
    value: TypeInformation | None
    map_key: KeyCodec | None
    schema: Mapping[str, Any]

    @classmethod
    def declared(cls, descriptor: StateDescriptor[Any], key: KeyCodec) -> StateForm:
        """Return the form of a state as a program declares it.

        Raises:
            ConfigurationError: It is no descriptor of a state.
        """
        if not isinstance(descriptor, StateDescriptor):
            raise ConfigurationError(
                f"A state is named by its descriptor, such as ValueStateDescriptor('visits', 'bigint'), not by "
                f"{descriptor!r}: its kind and types stand in the savepoint."
            )
        descriptor.initialize_serializer_unless_set()
        layout = StateLayout.of(descriptor, key)
        return cls(descriptor.name, descriptor.kind, key, descriptor.type_info, layout.map_key, layout.schema)

    @classmethod
    def stored(cls, name: str, schema: Mapping[str, Any], key: KeyCodec, path: str) -> StateForm:
        """Return the form of a state in a run. No class of a program is loaded: values of its classes stay bytes.

        Raises:
            CorruptFileError: The schema in the footer is not one of a state.
            StateMigrationError: This release does not know a type in it.
        """
        if name.startswith(TIMER_PREFIX):
            return cls(name, None, key, None, None, schema)
        require_schema(schema, name, path)
        map_key = None if schema["map_key"] is None else codec_from_json(schema["map_key"])
        return cls(name, StateKind(schema["kind"]), key, type_from_json(seal_json(schema["type"])), map_key, schema)

    @classmethod
    def timers(cls, domain: str, key: KeyCodec, max_parallelism: int) -> StateForm:
        """Return the form of the timers of user functions.

        Args:
            domain: "event" or "processing".
            key: Codec of the operator's keys.
            max_parallelism: Number of key groups.

        Raises:
            ConfigurationError: There is no such time domain.
        """
        if domain not in (EVENT, PROCESSING):
            raise ConfigurationError(f"Timers are of the time domain 'event' or 'processing', not {domain!r}.")
        schema = {"kind": TIMERS, "namespace": None, "max_parallelism": max_parallelism}
        return cls(f"{TIMER_PREFIX}{domain}_{USER_TIMERS}", None, key, None, None, schema)

    @property
    def is_timers(self) -> bool:
        return self.kind is None

    @property
    def has_namespace(self) -> bool:
        """Whether its rows have namespaces; timers always have the column."""
        return self.is_timers or self.schema["namespace"] is not None

    @property
    def has_time_windows(self) -> bool:
        """Whether its namespaces are time windows, whose start and end are known without the program."""
        return not self.is_timers and self.schema["namespace"] == _TIME_WINDOWS

    @property
    def has_stamps(self) -> bool:
        """Whether it has a time to live, so that values have the time of their last use."""
        return not self.is_timers and bool(self.schema["ttl"])

    @property
    def value_type(self) -> pa.DataType:
        """The Arrow type of one value, element or accumulator."""
        assert self.value is not None
        return self.value.arrow_type


def convert_column(
    column: pa.Array, wanted: TypeInformation, state: str, name: str, owners: pa.Array | None = None
) -> pa.Array:
    """Return a column of values in the form of files.

    Columns of a declared type are converted as a whole. Types that only Python can write (pickled values, those of a
    serializer, texts of a fixed length) are converted value by value.

    Args:
        column: The values, null for none.
        wanted: Their declared type.
        state: Name of the state, for errors.
        name: Name of the column, for errors.
        owners: Offsets of the lists or maps that have the values, if it is not one value a row.

    Raises:
        OutputTypeError: A value has no equal in the type; names state, column, value and row.
    """
    column = _without_dictionary(column)
    try:
        if isinstance(wanted, SealedTypeInformation) or not _is_written_by_python(wanted):
            with nullcontext() if owners is None else _rows_of_owners(owners):
                return cast_array(column, wanted.arrow_type)
        codec = value_codec_for(wanted)
        return codec.to_array([None if value is None else codec.adopt(value) for value in column.to_pylist()])
    except (pa.ArrowException, TypeError, ValueError, OutputTypeError) as error:
        raise OutputTypeError(
            None,
            f"Column {name!r} of the type {column.type} does not fit state {state!r}, which is declared as {wanted}: "
            f"{error} Cast the column, or declare the state otherwise.",
            declared=str(wanted),
        ) from error


def _is_written_by_python(wanted: TypeInformation) -> bool:
    if isinstance(wanted, OpaqueTypeInformation | CharTypeInformation):
        return True
    if isinstance(wanted, StructTypeInformation):
        return any(map(_is_written_by_python, wanted.types))
    if isinstance(wanted, ListTypeInformation):
        return _is_written_by_python(wanted.element_type)
    if isinstance(wanted, MapTypeInformation):
        return _is_written_by_python(wanted.key_type) or _is_written_by_python(wanted.value_type)
    return False


def cast_array(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return a column as another Arrow type; fields of structs are matched by name, at any depth.

    Raises:
        pyarrow.ArrowException: A value does not fit, or a field is missing or unknown.
    """
    if column.type == wanted:
        return column
    if pa.types.is_struct(wanted) and pa.types.is_struct(column.type):
        return _cast_struct(column, wanted)
    if pa.types.is_map(wanted) and pa.types.is_map(column.type):
        column = _without_hidden(column)
        start, end = _bounds(column)
        offsets = _offsets(column, start)
        with _rows_of_owners(offsets):
            keys = cast_array(column.keys.slice(start, end - start), wanted.key_type)
            items = cast_array(column.items.slice(start, end - start), wanted.item_type)
        return pa.MapArray.from_arrays(offsets, keys, items, wanted)
    if pa.types.is_list(wanted) and is_any_list(column.type):
        column = _without_hidden(
            column if pa.types.is_list(column.type) else column.cast(pa.list_(column.type.value_type))
        )
        start, end = _bounds(column)
        offsets = _offsets(column, start)
        with _rows_of_owners(offsets):
            values = cast_array(column.values.slice(start, end - start), wanted.value_type)
        return pa.ListArray.from_arrays(offsets, values, wanted)
    if pa.types.is_null(column.type):
        return column.cast(wanted)
    if _family(column.type) != _family(wanted):
        # Arrow would read numbers in texts, and take instants for numbers of a unit that nobody has said.
        raise pa.ArrowInvalid(f"{column.type} is another kind of value than {wanted}.")
    return _exact_cast(column, wanted)


class InexactValueError(pa.ArrowInvalid):  # type: ignore[misc]
    """A value has no equal in the wanted type.

    Args:
        value: The value.
        wanted: The type.
        row: Row of the value in its column.
    """

    def __init__(self, value: Any, wanted: pa.DataType, row: int) -> None:
        super().__init__(f"the value {value!r} in row {row} has no equal in {wanted}.")
        self.value, self.wanted, self.row = value, wanted, row

    def with_row(self, row: int) -> InexactValueError:
        """Return the same error with the row of the list or map that has the value."""
        return InexactValueError(self.value, self.wanted, row)


@contextmanager
def _rows_of_owners(offsets: pa.Array) -> Iterator[None]:
    """Make errors about elements name the row of their list or map."""
    try:
        yield
    except InexactValueError as error:
        raise error.with_row(_owner(offsets, error.row)) from None


def _owner(offsets: pa.Array, element: int) -> int:
    """Return the row of the list or map that has an element."""
    ends = np.maximum.accumulate(offsets.fill_null(0).to_numpy()[1:])
    return int(np.searchsorted(ends, element, side="right"))


def _exact_cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return a column as another type of the same family. Arrow's own casts round doubles and cut times."""
    given = column.type
    if pa.types.is_timestamp(wanted) and wanted.tz is not None and getattr(given, "tz", None) is None:
        raise pa.ArrowInvalid(
            f"{given} has no time zone, and {wanted} is an instant: say which zone is meant, for instance with "
            "pyarrow.compute.assume_timezone()."
        )
    if getattr(given, "tz", None) is not None and getattr(wanted, "tz", None) is None:
        raise pa.ArrowInvalid(
            f"{given} is an instant, and {wanted} has no time zone: convert it, for instance with "
            "pyarrow.compute.local_timestamp()."
        )
    if pa.types.is_floating(given) and pa.types.is_decimal(wanted):
        return _decimals_of(column, wanted)
    if pa.types.is_decimal(given) and pa.types.is_floating(wanted):
        # Arrow's own conversion is off by a bit at many digits.
        values = column.to_pylist()
        result = pa.array([None if value is None else float(value) for value in values], wanted)
        pairs = zip(values, result.to_pylist(), strict=True)
        same = pa.array([value is None or _shortest(made, wanted) == value for value, made in pairs], pa.bool_())
    elif pa.types.is_floating(wanted) or pa.types.is_temporal(wanted):
        result = _arrow_cast(column, wanted)
        back = result.cast(given, safe=False)
        same = pc.equal(back, column)
        if pa.types.is_floating(given):
            same = pc.or_(same, pc.and_(pc.is_nan(back), pc.is_nan(column)))
    else:
        return _arrow_cast(column, wanted)
    row = pc.index(same, False).as_py()
    if row >= 0:
        raise InexactValueError(column[row].as_py(), wanted, row)
    return result


def _arrow_cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Cast as Arrow does, which refuses overflow and truncation; find the first row that is refused."""
    try:
        return column.cast(wanted)
    except pa.ArrowInvalid:
        fits, fails = 0, len(column)  # the first rows that fit, and those of which one does not
        while fails - fits > 1:
            middle = (fits + fails) // 2
            try:
                column.slice(0, middle).cast(wanted)
                fits = middle
            except pa.ArrowInvalid:
                fails = middle
        raise InexactValueError(column[fails - 1].as_py(), wanted, fails - 1) from None


def _shortest(value: float, kind: pa.DataType) -> Decimal:
    """Return the number that the shortest text of a float denotes: 0.1 is one tenth."""
    return Decimal(str(np.float32(value)) if pa.types.is_float32(kind) else repr(value))


def _decimals_of(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    context = Context(prec=76)
    unit = Decimal(1).scaleb(-wanted.scale)
    found: list[Decimal | None] = []
    for row, value in enumerate(column.to_pylist()):
        number = None if value is None else _shortest(value, column.type)
        if number is not None:
            limit = Decimal(1).scaleb(wanted.precision - wanted.scale)
            if not number.is_finite() or abs(number) >= limit or number != number.quantize(unit, context=context):
                raise InexactValueError(value, wanted, row)
        found.append(number)
    return pa.array(found, wanted)


def _family(kind: pa.DataType) -> str:
    """Return the family of a type; values of one family are converted without guessing their meaning."""
    name = str(kind).partition("[")[0].partition("(")[0]
    return _FAMILIES.get(name, name)


def is_any_list(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is a list of any layout."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _cast_struct(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    given = [column.type.field(position).name for position in range(column.type.num_fields)]
    fields = [wanted.field(position) for position in range(wanted.num_fields)]
    missing = {field.name for field in fields}.symmetric_difference(given)
    if missing or len(given) != len(fields):
        raise pa.ArrowInvalid(f"the fields {sorted(missing)} are not in both, {given} and {wanted}.")
    parts = dict(zip(given, column.flatten(), strict=True))
    arrays = [cast_array(parts[field.name], field.type) for field in fields]
    mask = column.is_null() if column.null_count else None
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)


def _without_hidden(column: pa.Array) -> pa.Array:
    """Return lists or maps without the values behind those that are null."""
    return column.take(pa.array(np.arange(len(column)))) if column.null_count else column


def _bounds(column: pa.Array) -> tuple[int, int]:
    if not len(column):
        return 0, 0
    return column.offsets[0].as_py(), column.offsets[len(column)].as_py()


def _offsets(column: pa.Array, start: int) -> pa.Array:
    """Return the offsets of lists, null where a list is null, counted from the first value that is kept."""
    if not len(column):
        return pa.array([0], pa.int32())
    offsets = column.offsets.to_numpy() - start
    if not column.null_count:
        return pa.array(offsets, pa.int32())
    return pa.array(offsets, pa.int32(), mask=np.append(column.is_null().to_numpy(zero_copy_only=False), False))


# Rows of states from the columns of a table: keys with their hashes, values in the form of files.


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
        return (name for name in (self.value, self.map_key, self.namespace, self.stamp) if name is not None)


def column_of(table: pa.Table, name: str) -> pa.Array:
    """Return a column as one array.

    Raises:
        ConfigurationError: There is no such column.
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
        keys, hashes = keys_of_columns(codec, _cast_keys(codec, [column_of(table, name) for name in columns]))
    except pa.ArrowInvalid as error:
        names, declared = ", ".join(map(repr, columns)), describe_key_type(codec.to_json())
        raise OutputTypeError(
            None, f"The key {names} does not fit the declared type {declared}: {error} Cast the column."
        ) from error
    except NullKeyError as error:
        raise NullKeyError(
            None,
            f"The key {list(columns)!r} of row {error.row} is null. A state belongs to a key: leave such rows out.",
            row=error.row,
        ) from None
    return pa.table({HASH: hashes, KEY: keys})


def _cast_keys(codec: KeyCodec, columns: Sequence[pa.Array]) -> Sequence[pa.Array]:
    """Return columns of keys as the declared types; untyped keys, and those that only Python writes, as they are.

    Raises:
        pyarrow.ArrowInvalid: A value has no equal in the declared type.
    """
    if isinstance(codec, CompositeKeyCodec):
        types: Sequence[TypeInformation] = codec.key_type.types
        columns = codec.part_columns(columns)
    elif isinstance(codec, AtomicKeyCodec):
        types = [codec.key_type]
    else:
        return columns
    if len(types) != len(columns):
        return columns  # keys_of_columns says what is wrong
    return [
        column if _is_written_by_python(wanted) else cast_array(_without_dictionary(column), wanted.arrow_type)
        for column, wanted in zip(columns, types, strict=True)
    ]


def _without_dictionary(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def state_rows(columns: StateColumns, keys: pa.Table, table: pa.Table, now: int) -> pa.Table:
    """Return the rows of one state, in the order of the table.

    Args:
        columns: Which columns it is in.
        keys: The result of `key_rows` for the table.
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
        rows[MAP_KEY] = _map_keys(form, column_of(table, columns.map_key), columns.map_key)
    else:
        _refuse_nulls(value, form, columns.value)
    assert form.value is not None
    rows[VALUE] = convert_column(value, form.value, form.name, columns.value)
    if form.has_stamps:
        rows[STAMP] = _stamps(columns, table, now)
    return _with_put(rows)


def _with_put(rows: Mapping[str, Any]) -> pa.Table:
    table = pa.table(rows)
    return table.append_column(OP, pa.array(np.full(table.num_rows, Op.PUT, np.int8)))


def _refuse_nulls(value: pa.Array, form: StateForm, column: str, owners: pa.Array | None = None) -> None:
    if value.null_count:
        row = value.is_null().index(pa.scalar(True)).as_py()
        where = f"null in row {row}" if owners is None else f"a list with a null in row {_owner(owners, row)}"
        raise StateError(
            f"Column {column!r} is {where}, but state {form.name!r} has a value or does not exist: leave such values "
            "out."
        )


def _namespaces(columns: StateColumns, table: pa.Table) -> pa.Array:
    if columns.namespace is None:
        raise ConfigurationError(
            f"State {columns.form.name!r} has namespaces (it belongs to windows): say which column has them, as bytes."
        )
    column = cast_array(column_of(table, columns.namespace), pa.binary())
    _refuse_nulls(column, columns.form, columns.namespace)
    return column


def _map_keys(form: StateForm, column: pa.Array, name: str, owners: pa.Array | None = None) -> pa.Array:
    assert form.map_key is not None
    try:
        with nullcontext() if owners is None else _rows_of_owners(owners):
            keys, _ = keys_of_columns(form.map_key, _cast_keys(form.map_key, [column]))
    except pa.ArrowInvalid as error:
        raise OutputTypeError(
            None, f"Column {name!r} does not fit the map keys of state {form.name!r}: {error} Cast the column."
        ) from error
    except NullKeyError as error:
        at = error.row if owners is None else _owner(owners, error.row or 0)
        raise NullKeyError(None, f"A map key of state {form.name!r} is null, in row {at} of column {name!r}.") from None
    return keys


def times_of(column: pa.Array, name: str) -> pa.Array:
    """Return a column of times in milliseconds.

    Raises:
        StateError: One is null.
        OutputTypeError: They are no times.
    """
    times = _milliseconds(column, name)
    if times.null_count:
        raise StateError(f"Column {name!r} of times is null in row {times.is_null().index(pa.scalar(True)).as_py()}.")
    return times


def _milliseconds(column: pa.Array, name: str | None) -> pa.Array:
    """Return whole milliseconds, or timestamps, as milliseconds since 1970, rounded down.

    Raises:
        OutputTypeError: They are no times.
    """
    try:
        return to_event_times(column if pa.types.is_timestamp(column.type) else cast_array(column, pa.int64()))
    except pa.ArrowInvalid as error:
        raise OutputTypeError(None, f"Column {name!r} is no column of times: {error}") from error


def _stamps(columns: StateColumns, table: pa.Table, now: int) -> pa.Array:
    if columns.stamp is None:
        return pa.array(np.full(table.num_rows, now, np.int64))
    column = column_of(table, columns.stamp)
    stamps = _milliseconds(column, columns.stamp)
    _refuse_nulls(stamps, columns.form, columns.stamp)
    return stamps


def _list_rows(columns: StateColumns, rows: dict[str, Any], value: pa.Array, table: pa.Table, now: int) -> pa.Table:
    """Return rows of lists; those of one key, and so single elements, are joined when they are sorted."""
    form = columns.form
    assert form.value is not None
    _refuse_nulls(value, form, columns.value)
    if _depth(value.type) <= _depth(form.value_type):
        single = pa.array(np.arange(len(value) + 1, dtype=np.int32))
        rows[VALUE] = pa.ListArray.from_arrays(single, convert_column(value, form.value, form.name, columns.value))
        if form.has_stamps:
            rows[STAMP] = pa.ListArray.from_arrays(single, _stamps(columns, table, now))
        return _with_put(rows)
    lists = value if pa.types.is_list(value.type) else value.cast(pa.list_(value.type.value_type))
    lengths = lists.value_lengths()
    elements = lists.flatten()
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths.to_numpy())]).astype(np.int32))
    _refuse_nulls(elements, form, columns.value, offsets)
    rows[VALUE] = pa.ListArray.from_arrays(
        offsets, convert_column(elements, form.value, form.name, columns.value, offsets)
    )
    if form.has_stamps:
        rows[STAMP] = _list_stamps(columns, table, offsets, len(elements), now)
    return _with_put(rows).filter(pc.greater(lengths, 0))  # a list without elements does not exist


def _depth(kind: pa.DataType) -> int:
    """Return the depth of nested lists."""
    return 1 + _depth(kind.value_type) if is_any_list(kind) else 0


def _list_stamps(columns: StateColumns, table: pa.Table, offsets: pa.Array, count: int, now: int) -> pa.Array:
    given = None if columns.stamp is None else column_of(table, columns.stamp)
    if given is not None and pa.types.is_list(given.type):
        stamps = _milliseconds(given.flatten(), columns.stamp)
        if len(stamps) != count or stamps.null_count:
            raise StateError(
                f"Column {columns.stamp!r} has {len(stamps)} times for {count} elements of state {columns.form.name!r}."
            )
    else:
        lengths = np.diff(offsets.to_numpy())
        stamps = pa.array(np.repeat(_stamps(columns, table, now).to_numpy(), lengths))
    return pa.ListArray.from_arrays(offsets, stamps)


def _exploded(columns: StateColumns, rows: dict[str, Any], value: pa.Array, table: pa.Table, now: int) -> pa.Table:
    """Return rows of entries from a column of maps."""
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
    inside = pa.array(offsets - start)
    entries[MAP_KEY] = _map_keys(form, value.keys.slice(start, end - start), columns.value, inside)
    entries[VALUE] = convert_column(value.items.slice(start, end - start), form.value, form.name, columns.value, inside)
    if form.has_stamps:
        entries[STAMP] = repeated.column(STAMP)
    return _with_put(entries)


def _timer_rows(columns: StateColumns, keys: pa.Table, table: pa.Table) -> pa.Table:
    time = column_of(table, columns.value)
    times = _milliseconds(time, columns.value)
    _refuse_nulls(times, columns.form, columns.value)
    if len(times) and pc.min(times).as_py() == MIN_TIME:
        raise StateError(f"A timer of {columns.form.name!r} has the least time there is, {MIN_TIME}, and cannot.")
    names = pa.array(np.full(table.num_rows, b"", object), pa.binary())
    if columns.namespace is not None:
        names = cast_array(column_of(table, columns.namespace), pa.binary()).fill_null(b"")
    rows = {HASH: keys.column(HASH), TIMESTAMP: times, KEY: keys.column(KEY), NAMESPACE: names}
    return _with_put(rows)
