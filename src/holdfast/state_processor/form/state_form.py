"""What is known of a state without the program that has it: its kind, its types, how it lies in columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from holdfast.errors import ConfigurationError, OutputTypeError
from holdfast.runtime.window.window import TimeWindowSerializer
from holdfast.state.declaration.descriptor import StateDescriptor, StateKind
from holdfast.state.layout.column_layout import StateLayout
from holdfast.state.layout.stored_schema import require_schema
from holdfast.state.layout.value_codec import value_codec_for
from holdfast.state.timer.timer_service import EVENT, PROCESSING, TIMER_PREFIX, USER_TIMERS
from holdfast.types.information.sealed_type import SealedTypeInformation, sealed
from holdfast.types.information.type_information import (
    CharTypeInformation,
    ListTypeInformation,
    MapTypeInformation,
    OpaqueTypeInformation,
    StructTypeInformation,
    TypeInformation,
    type_from_json,
)
from holdfast.types.key.abstract_key_codec import KeyCodec
from holdfast.types.key.key_codec import codec_from_json

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


@dataclass(frozen=True)
class StateForm:
    """The form of one state.

    Attributes:
        name: Of the state.
        kind: Of the state; None for timers.
        key: Codec of the operator's keys.
        value: Type of values, elements or accumulators; None for timers.
        map_key: Codec of the keys of map state.
        schema: What a footer says about its segments.
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
        """Return the form of a state that a run has. No class of a program is loaded: its values stay bytes.

        Raises:
            CorruptFileError: What the footer says is no state.
            StateMigrationError: This release does not know a type in it.
        """
        if name.startswith(TIMER_PREFIX):
            return cls(name, None, key, None, None, schema)
        require_schema(schema, name, path)
        map_key = None if schema["map_key"] is None else codec_from_json(schema["map_key"])
        return cls(name, StateKind(schema["kind"]), key, type_from_json(sealed(schema["type"])), map_key, schema)

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
        """Whether it is timers."""
        return self.kind is None

    @property
    def has_namespace(self) -> bool:
        """Whether its rows have namespaces; those of timers always have the column."""
        return self.is_timers or self.schema["namespace"] is not None

    @property
    def has_time_windows(self) -> bool:
        """Whether its namespaces are windows of time, whose start and end are known without the program."""
        return not self.is_timers and self.schema["namespace"] == _TIME_WINDOWS

    @property
    def has_stamps(self) -> bool:
        """Whether it has a time to live, so that each value has the time of its last use."""
        return not self.is_timers and bool(self.schema["ttl"])

    @property
    def value_type(self) -> pa.DataType:
        """The Arrow type of one value, element or accumulator."""
        assert self.value is not None
        return self.value.arrow_type


def fitted(column: pa.Array, wanted: TypeInformation, state: str) -> pa.Array:
    """Return a column of values as files have them.

    Columns of a declared type are converted as columns. What only Python can write (pickled values, those of a
    serializer, texts of a fixed length) is looked at value by value.

    Args:
        column: The values, null for none.
        wanted: Their declared type.
        state: Name of the state, for errors.

    Raises:
        OutputTypeError: A value does not fit; says what.
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    try:
        if isinstance(wanted, SealedTypeInformation) or not _is_written_by_python(wanted):
            return fitted_array(column, wanted.arrow_type)
        codec = value_codec_for(wanted)
        return codec.to_array([None if value is None else codec.adopt(value) for value in column.to_pylist()])
    except (pa.ArrowException, TypeError, ValueError, OutputTypeError) as error:
        raise OutputTypeError(
            None,
            f"Values of the type {column.type} do not fit state {state!r}, which is declared as {wanted}: {error} "
            "Cast the column, or declare the state otherwise.",
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


def fitted_array(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return a column as another Arrow type; the fields of structs are found by name, at any depth.

    Raises:
        pyarrow.ArrowException: A value does not fit, or a field is missing or not known.
    """
    if column.type == wanted:
        return column
    if pa.types.is_struct(wanted) and pa.types.is_struct(column.type):
        return _fitted_struct(column, wanted)
    if pa.types.is_map(wanted) and pa.types.is_map(column.type):
        column = _without_hidden(column)
        start, end = _bounds(column)
        keys = fitted_array(column.keys.slice(start, end - start), wanted.key_type)
        items = fitted_array(column.items.slice(start, end - start), wanted.item_type)
        return pa.MapArray.from_arrays(_offsets(column, start), keys, items, wanted)
    if pa.types.is_list(wanted) and is_any_list(column.type):
        column = _without_hidden(
            column if pa.types.is_list(column.type) else column.cast(pa.list_(column.type.value_type))
        )
        start, end = _bounds(column)
        values = fitted_array(column.values.slice(start, end - start), wanted.value_type)
        return pa.ListArray.from_arrays(_offsets(column, start), values, wanted)
    if _family(column.type) not in (_family(wanted), _family(pa.null())):
        # Arrow would read numbers in texts, and take instants for numbers of a unit that nobody has said.
        raise pa.ArrowInvalid(f"{column.type} is another kind of value than {wanted}.")
    return column.cast(wanted)


def _family(kind: pa.DataType) -> str:
    """What kinds of value can be converted into each other without a decision about their meaning."""
    name = str(kind).partition("[")[0].partition("(")[0]
    return _FAMILIES.get(name, name)


def is_any_list(kind: pa.DataType) -> bool:
    """Whether values of an Arrow type are lists, however they lie."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _fitted_struct(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    given = [column.type.field(position).name for position in range(column.type.num_fields)]
    fields = [wanted.field(position) for position in range(wanted.num_fields)]
    missing = {field.name for field in fields}.symmetric_difference(given)
    if missing or len(given) != len(fields):
        raise pa.ArrowInvalid(f"the fields {sorted(missing)} are not in both, {given} and {wanted}.")
    parts = dict(zip(given, column.flatten(), strict=True))
    arrays = [fitted_array(parts[field.name], field.type) for field in fields]
    mask = column.is_null() if column.null_count else None
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)


def _without_hidden(column: pa.Array) -> pa.Array:
    """Return lists or maps of which those that are null have no values."""
    return column.take(pa.array(np.arange(len(column)))) if column.null_count else column


def _bounds(column: pa.Array) -> tuple[int, int]:
    if not len(column):
        return 0, 0
    return column.offsets[0].as_py(), column.offsets[len(column)].as_py()


def _offsets(column: pa.Array, start: int) -> pa.Array:
    """The offsets of lists, null where a list is null, counted from the first value that is kept."""
    if not len(column):
        return pa.array([0], pa.int32())
    offsets = column.offsets.to_numpy() - start
    if not column.null_count:
        return pa.array(offsets, pa.int32())
    return pa.array(offsets, pa.int32(), mask=np.append(column.is_null().to_numpy(zero_copy_only=False), False))
