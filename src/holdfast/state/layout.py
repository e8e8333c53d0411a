"""Layout of state in memory and in the columns of a run: namespaces, value codecs, and the columns of each kind."""

from __future__ import annotations

import json
import pickle
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import IntEnum
from functools import cached_property
from itertools import chain, islice, pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from holdfast.errors import CorruptFileError, MissingClassError, StateError, StateMigrationError
from holdfast.kernel.parsing import PARSE_ERRORS, check_nesting
from holdfast.state.descriptor import MapStateDescriptor, StateDescriptor, StateKind
from holdfast.state.evolution import (
    FORMER,
    SINCE,
    TTL,
    TYPE,
    Conversion,
    Form,
    evolve_forms,
    find_conversion,
    forms_of,
    is_prefix_of,
)
from holdfast.state.probe import KEY
from holdfast.state.run_file import HASH, Segment
from holdfast.types.changelog_type import ChangelogTypeInformation
from holdfast.types.collection import ListTypeInformation, MapTypeInformation
from holdfast.types.composite import DataclassTypeInformation, RecordTypeInformation, StructTypeInformation
from holdfast.types.key_codec import KeyCodec, describe_key_type, key_codec_for
from holdfast.types.opaque import OpaqueTypeInformation, PickledTypeInformation, SerializerTypeInformation
from holdfast.types.row import CHANGES, current_value, original, originals
from holdfast.types.serializer import TypeSerializer
from holdfast.types.type_information import (
    AtomicTypeInformation,
    CollatedStringTypeInformation,
    DecimalTypeInformation,
    TypeInformation,
)

_PROTOCOL: Final = pickle.HIGHEST_PROTOCOL
# Undeclared values of these immutable classes are pickled when the run is written, not on every access.
_ATOMIC: Final = frozenset({bool, int, float, str, bytes, date, datetime, time, timedelta, Decimal})
NAMESPACE: Final = "namespace"
MAP_KEY: Final = "map_key"
OP: Final = "op"
VALUE: Final = "value"
STAMP: Final = "stamp"
TIME_TO_LIVE: Final = "time_to_live"
_PARTS: Final = {"kind": "kind", "map_key": "the map key type", "namespace": "the namespace"}
_SAMPLE: Final = 64

# Namespaces separate state of one key, such as the state of its windows.


class VoidNamespace:
    """The namespace of state without namespaces."""

    INSTANCE: VoidNamespace

    def __repr__(self) -> str:
        return "VoidNamespace"


VoidNamespace.INSTANCE = VoidNamespace()


class VoidNamespaceSerializer(TypeSerializer[VoidNamespace]):
    def serialize(self, value: VoidNamespace) -> bytes:
        return b""

    def deserialize(self, data: bytes) -> VoidNamespace:
        return VoidNamespace.INSTANCE

    def is_immutable_type(self) -> bool:
        return True


VOID: Final = VoidNamespace.INSTANCE


def is_void(namespace: Any, serializer: Any) -> bool:
    """Return whether state is without namespaces: both arguments are None or void.

    Raises:
        StateError: Only one of both is set.
    """
    if isinstance(serializer, VoidNamespaceSerializer) or (serializer is None and namespace in (None, VOID)):
        return True
    if namespace is None or serializer is None:
        raise StateError(f"A namespace and its serializer must be set together, not {namespace!r} and {serializer!r}.")
    return False


def require_schema(schema: Mapping[str, Any], name: str, path: str) -> None:
    """Check that a segment's schema has the fields of a state. Types are checked when they are used.

    Args:
        schema: Schema from a footer.
        name: Name of the state.
        path: Path of the run.

    Raises:
        CorruptFileError: A field is missing or malformed.
    """
    try:
        check_nesting(schema)
        kind, queryable = StateKind(schema["kind"]), schema.get("queryable")
        if (kind is StateKind.MAP) != (schema["map_key"] is not None) or type(queryable) not in (str, type(None)):
            raise ValueError(
                f"{kind.value} state with map keys {schema['map_key']!r:.80}, queryable as {queryable!r:.80}"
            )
        for form in forms_of(schema):
            if type(form.ttl) is not bool or type(form.since) not in (int, type(None)):
                raise ValueError(f"its time to live is {form.ttl!r:.40} since {form.since!r:.40}")
        schema["namespace"]
    except PARSE_ERRORS as error:
        raise CorruptFileError(
            path, None, f"its footer has an invalid schema of state {name!r:.80}: {error!r:.300}."
        ) from error


# User code must never hold a reference into state, and must read the value that it would read after a restart. So a
# value is *adopted* when it is written (checked, and converted to the form that would be read back), and *exposed* when
# it is read. The form in memory between the two is the *stored form*. Immutable values are shared and need neither,
# others are copied, and values without a declared type are encoded. None means no value and is never adopted.

# Instances of exactly these classes are stored as they are, without a look at the value. The few that do not fit (an
# integer of 65 bits, a time zone) are found when the column is written.
_EXACT: Final[dict[str, type]] = {
    "boolean": bool,
    "tinyint": int,
    "smallint": int,
    "int": int,
    "bigint": int,
    "double": float,
    "string": str,
    "binary": bytes,
    "date": date,
    "timestamp_ntz": datetime,
    "time": time,
    "interval day to second": timedelta,
}


class _NoInstances:
    """A class without instances: the exact class of no value."""


class ValueCodec(ABC):
    """Converts the values of one state between user form, stored form and columns.

    Attributes:
        type: The declared type.
        exact: Class whose instances are their own stored form and may be shared.
        owner: The state, for errors; empty if unknown.
    """

    exact: type = _NoInstances
    owner = ""

    def __init__(self, type_info: TypeInformation) -> None:
        self.type = type_info

    @abstractmethod
    def adopt(self, value: Any) -> Any:
        """Return the stored form of a value that is not None.

        Raises:
            Exception: The value does not fit the declared type, or a serializer of the user raised.
        """

    @abstractmethod
    def expose(self, stored: Any) -> Any:
        """Return the value of a stored form that is not None."""

    @property
    def shares(self) -> bool:
        """Whether the stored form is the value itself, which is immutable."""
        return False

    def to_array(self, stored: Sequence[Any]) -> pa.Array:
        """Return a column of stored forms, with null for None."""
        return self.type.to_array(stored)

    def to_stored(self, array: pa.Array) -> list[Any]:
        """Return the stored forms of a column, with None for null.

        Raises:
            MissingClassError: The program does not have the class of a value.
        """
        try:
            return self.type.to_list(array)
        except MissingClassError as error:
            raise self._located(error) from error

    def _located(self, error: MissingClassError) -> MissingClassError:
        return MissingClassError(f"{self.owner or 'State'}: {error}")


class SharedCodec(ValueCodec):
    """Codec of immutable values."""

    def __init__(self, type_info: TypeInformation) -> None:
        super().__init__(type_info)
        self.exact = exact_class(type_info)

    def adopt(self, value: Any) -> Any:
        return self.type.adopt(value)

    def expose(self, stored: Any) -> Any:
        return stored

    @property
    def shares(self) -> bool:
        return True


class RowCodec(SharedCodec):
    """Codec of rows whose fields are immutable, and of tuples of such rows.

    User code may change a row that it has read; the state keeps the original. So values are compared with the changes
    of this process (`original`) on every access, once any row was changed.
    """

    def __init__(self, type_info: TypeInformation) -> None:
        super().__init__(type_info)
        self._whole = self.exact
        if isinstance(type_info, StructTypeInformation) and any(part.contains_rows for part in type_info.types):
            self.exact = _NoInstances  # nested rows may have been changed, which the class does not show

    def adopt(self, value: Any) -> Any:
        now = current_value(value) if CHANGES else value
        return now if type(now) is self._whole else self.type.adopt(now)

    def expose(self, stored: Any) -> Any:
        return original(stored) if CHANGES else stored

    @property
    def shares(self) -> bool:
        return False

    def to_array(self, stored: Sequence[Any]) -> pa.Array:
        return super().to_array(originals(stored) if CHANGES else stored)


class CopyCodec(ValueCodec):
    """Codec of mutable values: lists, maps, and rows with such fields."""

    def __init__(self, type_info: TypeInformation) -> None:
        super().__init__(type_info)
        plain = isinstance(type_info, ListTypeInformation | MapTypeInformation) and _is_exact(type_info)
        self._copied_as: type = _NoInstances
        if plain:
            self._copied_as = list if isinstance(type_info, ListTypeInformation) else dict

    def adopt(self, value: Any) -> Any:
        if type(value) is not self._copied_as:
            return self.type.adopt(value)
        return self.type.copy(current_value(value) if CHANGES else value)

    def expose(self, stored: Any) -> Any:
        return self.type.copy(stored)

    def to_array(self, stored: Sequence[Any]) -> pa.Array:
        return super().to_array(originals(stored) if CHANGES and self.type.contains_rows else stored)


class Encoded(bytes):
    """The bytes of a value that is encoded by pickle or by a serializer of the user."""

    __slots__ = ()


class OpaqueCodec(ValueCodec):
    """Codec of values that are pickled, or written by a serializer of the user.

    Attributes:
        kept: Immutable classes whose instances are stored as they are, and pickled when the run is written.
    """

    def __init__(self, type_info: OpaqueTypeInformation) -> None:
        super().__init__(type_info)
        self._dump = type_info.dump
        self._load = type_info.load
        self.kept = _ATOMIC if isinstance(type_info, PickledTypeInformation) else frozenset()

    def adopt(self, value: Any) -> Any:
        return value if type(value) in self.kept else Encoded(self._dump(value))

    def expose(self, stored: Any) -> Any:
        try:
            return self._load(stored) if type(stored) is Encoded else stored
        except MissingClassError as error:
            raise self._located(error) from error

    def to_array(self, stored: Sequence[Any]) -> pa.Array:
        # Only instances of `kept` are not encoded yet; plain pickle is sufficient for them, and fast.
        return pa.array(
            [item if item is None or type(item) is Encoded else pickle.dumps(item, _PROTOCOL) for item in stored],
            self.type.arrow_type,
        )

    def to_stored(self, array: pa.Array) -> list[Any]:
        return [item if item is None else Encoded(item) for item in array.to_pylist()]


def value_codec_for(type_info: TypeInformation, owner: str = "") -> ValueCodec:
    codec = _value_codec_for(type_info)
    codec.owner = owner
    return codec


def _value_codec_for(type_info: TypeInformation) -> ValueCodec:
    if isinstance(type_info, OpaqueTypeInformation) and not type_info.is_immutable:
        return OpaqueCodec(type_info)
    if not type_info.is_immutable:
        return CopyCodec(type_info)
    return RowCodec(type_info) if type_info.contains_rows else SharedCodec(type_info)


def exact_class(type_info: TypeInformation) -> type:
    """Return the class whose instances are their own stored form and may be shared, `_NoInstances` if none."""
    if isinstance(type_info, RecordTypeInformation | ChangelogTypeInformation):
        return _NoInstances
    if isinstance(type_info, StructTypeInformation):
        return type_info.row_type if _is_exact(type_info) else _NoInstances
    if isinstance(type_info, DecimalTypeInformation):
        return int if type_info.as_int else _NoInstances
    if type(type_info) in (AtomicTypeInformation, CollatedStringTypeInformation):
        assert isinstance(type_info, AtomicTypeInformation)
        return _EXACT.get(type_info.name, _NoInstances)
    return _NoInstances


def _is_exact(type_info: TypeInformation) -> bool:
    """Return whether values of the right classes are in stored form, including all their parts."""
    if isinstance(type_info, RecordTypeInformation | ChangelogTypeInformation):
        return False
    if isinstance(type_info, StructTypeInformation):
        return all(map(_is_exact, type_info.types))
    if isinstance(type_info, ListTypeInformation):
        return _is_exact(type_info.element_type)
    if isinstance(type_info, MapTypeInformation):
        return _is_exact(type_info.key_type) and _is_exact(type_info.value_type)
    return isinstance(type_info, OpaqueTypeInformation) or exact_class(type_info) is not _NoInstances


def classes_of(type_info: TypeInformation) -> list[Any]:
    """Return the classes that decode columns of a type and its parts. Types with equal JSON may differ in them."""
    found: list[Any] = [type(type_info)]
    parts: Sequence[TypeInformation] = ()
    if isinstance(type_info, DataclassTypeInformation):
        found.append(type_info.dataclass)
    if isinstance(type_info, SerializerTypeInformation):
        found.append(type(type_info.serializer))
    elif isinstance(type_info, ListTypeInformation):
        parts = (type_info.element_type,)
    elif isinstance(type_info, MapTypeInformation):
        parts = (type_info.key_type, type_info.value_type)
    elif isinstance(type_info, StructTypeInformation):
        parts = type_info.types
    return [*found, *(one for part in parts for one in classes_of(part))]


# Columns of a segment: ``hash`` (uint64), ``key`` (the key codec's type), ``namespace`` (binary, if the state has
# namespaces), ``map_key`` (the map key's type, null in a clear), ``op`` (int8), ``value`` (the declared type; a list of
# it for list state), ``stamp`` (int64, milliseconds of the last use, if the state has a time to live; a list for list
# state). Rows are sorted by hash, key, namespace and map key.


class Op(IntEnum):
    """Effect of a row on older runs: put replaces, delete removes, append extends a list, clear empties a map."""

    PUT = 0
    DELETE = 1
    APPEND = 2
    CLEAR = 3


@dataclass(frozen=True, eq=False)
class StateLayout:
    """Layout of one state in files.

    Attributes:
        name: Name of the state.
        kind: Kind of the state.
        key: Codec of the operator's keys.
        value: Codec of values, elements or accumulators.
        map_key: Codec of the keys of map state.
        namespace: Serializer snapshot of the namespaces as JSON; None for state without.
        ttl: Whether values have timestamps of their last use.
        queryable: Name under which the state can be queried, None if it cannot.
        time_to_live: Milliseconds after the last use at which compaction may drop a value; None if it must not.
        forms: Forms of the earlier declarations, oldest first, and of the current one.
        is_schema_new: Whether no run has the current declaration yet.
    """

    name: str
    kind: StateKind
    key: KeyCodec
    value: ValueCodec
    map_key: KeyCodec | None = None
    namespace: Any = None
    ttl: bool = False
    queryable: str | None = None
    time_to_live: int | None = None
    forms: tuple[Form, ...] = ()
    is_schema_new: bool = False

    @classmethod
    def of(cls, descriptor: StateDescriptor[Any], key: KeyCodec, namespace: Any = None) -> StateLayout:
        ttl = descriptor.ttl_config
        map_key = key_codec_for(descriptor.key_type_info) if isinstance(descriptor, MapStateDescriptor) else None
        value = value_codec_for(descriptor.type_info)
        return cls(
            descriptor.name,
            descriptor.kind,
            key,
            value,
            map_key,
            namespace,
            ttl.is_enabled(),
            descriptor.queryable_state_name,
            ttl.ttl if ttl.is_enabled() and ttl.cleanup_strategies.in_compaction else None,
            (Form(value.type.to_json(), ttl.is_enabled(), None, value.type),),
        )

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The schema of the segment in the footer."""
        form = self.forms[-1]
        schema: dict[str, Any] = {
            "kind": self.kind.value,
            TYPE: form.document,
            "map_key": None if self.map_key is None else self.map_key.to_json(),
            "namespace": self.namespace,
            TTL: form.ttl,
        }
        former = [one.to_json() for one in self.forms[:-1]] or None
        # Query servers and compaction read these fields from files, without the program.
        for name, value in (
            ("queryable", self.queryable),
            (TIME_TO_LIVE, self.time_to_live),
            (SINCE, form.since),
            (FORMER, former),
        ):
            if value is not None:
                schema[name] = value
        return schema

    def evolve_from(self, stored: Sequence[tuple[Mapping[str, Any], str]], now: int) -> StateLayout:
        """Return the layout of the state after its earlier declarations.

        Args:
            stored: Schema of each segment and path of its run, oldest first.
            now: Processing time.

        Raises:
            StateMigrationError: Kind, map keys or namespaces differ, or the value type is not compatible.
        """
        if all(schema == self.schema for schema, _ in stored):
            return self
        for schema, path in stored:
            require_schema(schema, self.name, path)
            self._check(schema, path)
        forms = tuple(evolve_forms(self.name, self.forms[-1], stored, now))
        result = replace(self, value=value_codec_for(forms[-1].type, self.value.owner), forms=forms)
        for schema, _ in stored:
            result.conversion(schema)
        known = [forms_of(schema) for schema, _ in stored]
        documents = [[form.to_json() for form in one] for one in known]
        is_known = [form.to_json() for form in forms] in documents
        # Compaction, which reads files only, must learn of a longer time to live before it drops more.
        is_known &= not stored or stored[-1][0].get(TIME_TO_LIVE) == self.time_to_live
        return result if is_known else replace(result, is_schema_new=True)

    def _check(self, stored: Mapping[str, Any], path: str) -> None:
        for part, what in _PARTS.items():
            before, now = stored.get(part), self.schema[part]
            if before != now:
                raise StateMigrationError(
                    f"State {self.name!r} was written with {what} {_short(before)} (by {path!r}), the program declares "
                    f"{_short(now)}. Declare it as it was, or give the new state another name."
                )

    def conversion(self, stored: Mapping[str, Any]) -> Conversion | None:
        """Return the conversion of a segment to the current form, None if none is needed.

        Raises:
            StateMigrationError: There is no conversion.
        """
        known = self._conversions.get(id(stored))
        if known is None:
            found = None if stored == self.schema else find_conversion(stored, self.forms, self.kind)
            # The entry keeps the schema alive, so its id is not reused.
            known = self._conversions[id(stored)] = (stored, found)
        return known[1]

    @cached_property
    def _conversions(self) -> dict[int, tuple[Mapping[str, Any], Conversion | None]]:
        return {}

    def can_read(self, stored: Mapping[str, Any]) -> bool:
        """Return whether a segment can be decoded into cells that this layout has decoded before.

        The segment may come from another program with the same job name, whose declaration is unrelated.
        """
        if stored == self.schema:
            return True
        is_alike = all(stored.get(part) == self.schema[part] for part in _PARTS)
        return is_alike and is_prefix_of(forms_of(stored), self.forms)

    def decodes_like(self, other: StateLayout) -> bool:
        """Return whether both layouts decode the same cells.

        Schemas do not name the classes of a program, and a changed program may have another class of the same name.
        """
        return self.schema == other.schema and classes_of(self.value.type) == classes_of(other.value.type)

    def empty_table(self) -> pa.Table:
        """Return a segment without rows."""
        columns = {HASH: pa.array([], pa.uint64()), KEY: self.key.storage_array([])}
        if self.namespace is not None:
            columns[NAMESPACE] = pa.array([], pa.binary())
        if self.map_key is not None:
            columns[MAP_KEY] = self.map_key.storage_array([])
        columns |= self.encode([], lists=self.kind is StateKind.LIST)
        return pa.table(columns | {OP: pa.array([], pa.int8())})

    def encode(self, cells: Sequence[Any], *, lists: bool = False) -> dict[str, pa.Array]:
        """Return the columns of cells.

        Args:
            cells: Stored values, or None; with a time to live, pairs of stored value and timestamp; or lists of these.
            lists: Whether the cells are lists.

        Raises:
            Exception: A value does not fit the type; `blame` finds it.
        """
        if lists:
            offsets = _offsets(cells)
            flat = self.encode(list(chain.from_iterable(cell or () for cell in cells)))
            return {name: pa.ListArray.from_arrays(offsets, array) for name, array in flat.items()}
        if not self.ttl:
            return {VALUE: self.value.to_array(cells)}
        values = [None if cell is None else cell[0] for cell in cells]
        stamps = pa.array([None if cell is None else cell[1] for cell in cells], pa.int64())
        return {VALUE: self.value.to_array(values), STAMP: stamps}

    def decode(self, segment: Segment, rows: pa.Array) -> list[Any]:
        """Return the cells of some rows of a segment."""
        table, convert = segment.table, self.conversion(segment.entry.schema)
        columns = [_taken(table, name, rows) for name in (VALUE, STAMP) if name in table.column_names]
        if convert is not None:
            stamp = columns[1] if len(columns) > 1 else None
            value, stamp = convert.convert(columns[0], stamp, _taken(table, OP, rows))
            columns = [value] if stamp is None else [value, stamp]
        if self.kind is not StateKind.LIST:
            return self._decode(columns)
        offsets = columns[0].offsets.to_numpy()
        first, last = int(offsets[0]), int(offsets[-1])
        flat = self._decode([column.values.slice(first, last - first) for column in columns])
        return [flat[start - first : end - first] for start, end in pairwise(offsets.tolist())]

    def _decode(self, columns: list[pa.Array]) -> list[Any]:
        values = self.value.to_stored(columns[0])
        if not self.ttl:
            return values
        stamps = columns[1].to_pylist()
        return [None if stamp is None else (value, stamp) for value, stamp in zip(values, stamps, strict=True)]

    def blame(self, stored: Iterable[Any]) -> tuple[int, Exception] | None:
        """Return position and error of the first stored value that does not fit the type, None if all fit."""
        for position, item in enumerate(stored):
            try:
                self.value.to_array([item])
            except Exception as error:  # noqa: BLE001 - the caller reports it with its position
                return position, error
        return None


def _taken(table: pa.Table, name: str, rows: pa.Array) -> pa.Array:
    taken = table.column(name).take(rows)
    return taken.combine_chunks() if isinstance(taken, pa.ChunkedArray) else taken


def _offsets(cells: Sequence[Any]) -> pa.Array:
    ends = np.zeros(len(cells) + 1, np.int32)
    np.cumsum([len(cell) if cell else 0 for cell in cells], out=ends[1:])
    return pa.array(ends)


def _short(value: Any) -> str:
    if isinstance(value, Mapping) and value.get("kind") in ("atomic", "composite", "tagged"):
        return describe_key_type(value)
    return value if isinstance(value, str) else json.dumps(value)


def average_size(values: Sequence[Any]) -> float:
    """Return the average size of some values in bytes, estimated from a sample."""
    step = max(1, len(values) // _SAMPLE)
    sample = values[::step]
    return sum(_size(value) for value in sample) / max(1, len(sample))


def _size(value: Any) -> float:
    size: float = sys.getsizeof(value) if value is not None else 0
    if isinstance(value, (list, tuple)):
        size += len(value) * _average_of_few(value)
    elif isinstance(value, dict):
        size += len(value) * (_average_of_few(value) + _average_of_few(value.values()))
    return size


def _average_of_few(values: Iterable[Any]) -> float:
    sample = list(islice(values, 8))
    return sum(sys.getsizeof(value) for value in sample) / max(1, len(sample))
