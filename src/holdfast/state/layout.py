"""How a declared state lies in the columns of a run."""

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

from holdfast.errors import CorruptFileError, StateError, StateMigrationError
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
from holdfast.types.atomic import AtomicTypeInformation, CollatedStringTypeInformation, DecimalTypeInformation
from holdfast.types.changed_row import CHANGES, current_value, original, originals
from holdfast.types.changelog_type import ChangelogTypeInformation
from holdfast.types.collection import ListTypeInformation, MapTypeInformation
from holdfast.types.composite import DataclassTypeInformation, RecordTypeInformation, StructTypeInformation
from holdfast.types.key_codec import KeyCodec, key_codec_for, shown_key_type
from holdfast.types.opaque import OpaqueTypeInformation, PickledTypeInformation, SerializerTypeInformation
from holdfast.types.serializer import TypeSerializer
from holdfast.types.type_information import TypeInformation

# Namespaces: what state of one key is told apart by, such as the windows of a key.


class VoidNamespace:
    """The one namespace of state that is not in windows."""

    INSTANCE: VoidNamespace

    def __repr__(self) -> str:
        return "VoidNamespace"


VoidNamespace.INSTANCE = VoidNamespace()


class VoidNamespaceSerializer(TypeSerializer[VoidNamespace]):
    """Writes the one namespace as nothing."""

    def serialize(self, value: VoidNamespace) -> bytes:
        """Return no bytes."""
        return b""

    def deserialize(self, data: bytes) -> VoidNamespace:
        """Return the one namespace."""
        return VoidNamespace.INSTANCE

    def is_immutable_type(self) -> bool:
        """It cannot change."""
        return True


VOID: Final = VoidNamespace.INSTANCE


def is_void(namespace: Any, serializer: Any) -> bool:
    """Whether state is without namespaces; None for both says so as well.

    Raises:
        StateError: One of both is missing.
    """
    if isinstance(serializer, VoidNamespaceSerializer) or (serializer is None and namespace in (None, VOID)):
        return True
    if namespace is None or serializer is None:
        raise StateError(
            f"State in namespaces needs a namespace and its serializer, not {namespace!r} and {serializer!r}."
        )
    return False


# What the footer of a run says of a state, checked before anybody believes it.


def require_schema(schema: Mapping[str, Any], name: str, path: str) -> None:
    """Make sure that a segment's schema has the fields that every state has; what its types are is asked later.

    Args:
        schema: As a footer has it.
        name: Of the state.
        path: Of the run.

    Raises:
        CorruptFileError: It has not.
    """
    try:
        check_nesting(schema)
        kind, queryable = StateKind(schema["kind"]), schema.get("queryable")
        if (kind is StateKind.MAP) != (schema["map_key"] is not None) or type(queryable) not in (str, type(None)):
            raise ValueError(
                f"{kind.value} state with map keys {schema['map_key']!r:.80}, asked for as {queryable!r:.80}"
            )
        for form in forms_of(schema):
            if type(form.ttl) is not bool or type(form.since) not in (int, type(None)):
                raise ValueError(f"its time to live is {form.ttl!r:.40} since {form.since!r:.40}")
        schema["namespace"]
    except PARSE_ERRORS as error:
        raise CorruptFileError(
            path, None, f"what its footer says of state {name!r:.80} is no state: {error!r:.300}."
        ) from error


# How values of a declared type live in memory and in columns of a run.
#
# User code must never hold a reference into state, and what it reads must be what it would read after a restart. So a
# value is *adopted* when it is written (checked, brought into the form that would be read back) and *exposed* when it
# is read. Values that cannot change are shared and cost neither; others are copied; those without a declared type are
# encoded. What is in memory in between is called the stored form; None stands for no value and is never adopted.

# Instances of exactly these classes are in the form that would be read back, as far as one can tell without looking at
# the value; what does not fit after all (a number of 65 bits, a time zone) is found when the column is written.
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
# Pickled values of these classes are kept as they are: they cannot change, and pickling them is all that it costs.
_PROTOCOL: Final = pickle.HIGHEST_PROTOCOL
_ATOMIC: Final = frozenset({bool, int, float, str, bytes, date, datetime, time, timedelta, Decimal})


class _Nothing:
    """A class without instances: no value is exactly of it."""


class ValueCodec(ABC):
    """Adopts and exposes the values of one state.

    Attributes:
        type: The declared type.
        exact: Class whose instances are their own stored form and may be shared.
    """

    exact: type = _Nothing

    def __init__(self, type_info: TypeInformation) -> None:
        self.type = type_info

    @abstractmethod
    def adopt(self, value: Any) -> Any:
        """Return the stored form of a value that is not None.

        Raises:
            Exception: It is not of the declared type; whatever a user's serializer raises.
        """

    @abstractmethod
    def expose(self, stored: Any) -> Any:
        """Return the value of a stored form that is not None."""

    @property
    def shares(self) -> bool:
        """Whether the stored form is the value itself, which cannot change."""
        return False

    def to_array(self, stored: Sequence[Any]) -> pa.Array:
        """Convert stored forms, or None, to a column."""
        return self.type.to_array(stored)

    def to_stored(self, array: pa.Array) -> list[Any]:
        """Convert a column to stored forms, None where it is null."""
        return self.type.to_list(array)


class SharedCodec(ValueCodec):
    """Values that cannot change."""

    def __init__(self, type_info: TypeInformation) -> None:
        super().__init__(type_info)
        self.exact = exact_class(type_info)

    def adopt(self, value: Any) -> Any:
        """Check a value and bring it into the form that would be read back."""
        return self.type.adopt(value)

    def expose(self, stored: Any) -> Any:
        """Return the value itself."""
        return stored

    @property
    def shares(self) -> bool:
        """Nobody can change them."""
        return True


class RowCodec(SharedCodec):
    """Rows whose fields cannot change, and tuples of such rows.

    Who reads one may change it, for himself: what is in state is what the row was (`original`). So what is read or
    written goes through here once a row was changed in this process.
    """

    def __init__(self, type_info: TypeInformation) -> None:
        super().__init__(type_info)
        self._whole = self.exact
        if isinstance(type_info, StructTypeInformation) and any(part.contains_rows for part in type_info.types):
            self.exact = _Nothing  # rows within may have been changed: its class does not tell

    def adopt(self, value: Any) -> Any:
        """Check a value as it is now, and bring it into the form that would be read back."""
        now = current_value(value) if CHANGES else value
        return now if type(now) is self._whole else self.type.adopt(now)

    def expose(self, stored: Any) -> Any:
        """Return the value as it was written."""
        return original(stored) if CHANGES else stored

    @property
    def shares(self) -> bool:
        """What is in memory may be a row that somebody has changed."""
        return False

    def to_array(self, stored: Sequence[Any]) -> pa.Array:
        """Convert what was written."""
        return super().to_array(originals(stored) if CHANGES else stored)


class CopyCodec(ValueCodec):
    """Values of a declared type that can change: lists, maps, and rows with such fields."""

    def __init__(self, type_info: TypeInformation) -> None:
        super().__init__(type_info)
        plain = isinstance(type_info, ListTypeInformation | MapTypeInformation) and _is_exact(type_info)
        self._copied_as: type = _Nothing
        if plain:
            self._copied_as = list if isinstance(type_info, ListTypeInformation) else dict

    def adopt(self, value: Any) -> Any:
        """Return a copy, checked throughout where its parts need it."""
        if type(value) is not self._copied_as:
            return self.type.adopt(value)
        return self.type.copy(current_value(value) if CHANGES else value)

    def expose(self, stored: Any) -> Any:
        """Return a copy, of rows as they were written."""
        return self.type.copy(stored)

    def to_array(self, stored: Sequence[Any]) -> pa.Array:
        """Convert what was written."""
        return super().to_array(originals(stored) if CHANGES and self.type.contains_rows else stored)


class Encoded(bytes):
    """The bytes of a value that only Python can read."""

    __slots__ = ()


class OpaqueCodec(ValueCodec):
    """Values that are pickled, or that a user's serializer writes: encoded when written, decoded when read.

    Attributes:
        kept: Classes whose instances are their own stored form, and are pickled when the run is written.
    """

    def __init__(self, type_info: OpaqueTypeInformation) -> None:
        super().__init__(type_info)
        self._dump = type_info.dump
        self._load = type_info.load
        self.kept = _ATOMIC if isinstance(type_info, PickledTypeInformation) else frozenset()

    def adopt(self, value: Any) -> Any:
        """Return the encoded value, or a number or text as it is."""
        return value if type(value) in self.kept else Encoded(self._dump(value))

    def expose(self, stored: Any) -> Any:
        """Return a new object every time."""
        return self._load(stored) if type(stored) is Encoded else stored

    def to_array(self, stored: Sequence[Any]) -> pa.Array:
        """Convert to a column of bytes."""
        # Only what was kept as it is is not encoded yet, and plain pickle is right for that, and fast.
        return pa.array(
            [item if item is None or type(item) is Encoded else pickle.dumps(item, _PROTOCOL) for item in stored],
            self.type.arrow_type,
        )

    def to_stored(self, array: pa.Array) -> list[Any]:
        """Take the bytes as they are."""
        return [item if item is None else Encoded(item) for item in array.to_pylist()]


def value_codec_for(type_info: TypeInformation) -> ValueCodec:
    """Return the codec of a declared type."""
    if isinstance(type_info, OpaqueTypeInformation) and not type_info.is_immutable:
        return OpaqueCodec(type_info)
    if not type_info.is_immutable:
        return CopyCodec(type_info)
    return RowCodec(type_info) if type_info.contains_rows else SharedCodec(type_info)


def exact_class(type_info: TypeInformation) -> type:
    """Return the class whose instances are their own stored form and may be shared; one without instances if none."""
    if isinstance(type_info, RecordTypeInformation | ChangelogTypeInformation):
        return _Nothing
    if isinstance(type_info, StructTypeInformation):
        return type_info.row_type if _is_exact(type_info) else _Nothing
    if isinstance(type_info, DecimalTypeInformation):
        return int if type_info.as_int else _Nothing
    if type(type_info) in (AtomicTypeInformation, CollatedStringTypeInformation):
        assert isinstance(type_info, AtomicTypeInformation)
        return _EXACT.get(type_info.name, _Nothing)
    return _Nothing


def _is_exact(type_info: TypeInformation) -> bool:
    """Whether values of the right classes are in the form that would be read back, with all their parts."""
    if isinstance(type_info, RecordTypeInformation | ChangelogTypeInformation):
        return False
    if isinstance(type_info, StructTypeInformation):
        return all(map(_is_exact, type_info.types))
    if isinstance(type_info, ListTypeInformation):
        return _is_exact(type_info.element_type)
    if isinstance(type_info, MapTypeInformation):
        return _is_exact(type_info.key_type) and _is_exact(type_info.value_type)
    return isinstance(type_info, OpaqueTypeInformation) or exact_class(type_info) is not _Nothing


def classes_of(type_info: TypeInformation) -> list[Any]:
    """Return the classes that make objects of columns, parts included: types that look alike there may have others."""
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


# How the state of one descriptor lies in the segments of runs.
#
# Columns: ``hash`` (uint64), ``key`` (the key codec's type), ``namespace`` (binary, where state has namespaces),
# ``map_key`` (the map key's type, null in a clear), ``op`` (int8), ``value`` (the declared type; a list of it for list
# state), ``stamp`` (int64, milliseconds of the last use; a list for list state; where state expires). Sorted by hash,
# key, namespace and map key. A row speaks about all older runs: put replaces, delete removes, append extends a list,
# clear removes all entries of a map.
#
# A segment may have an older form than the program declares; see `holdfast.state.evolution`.

NAMESPACE: Final = "namespace"
MAP_KEY: Final = "map_key"
OP: Final = "op"
VALUE: Final = "value"
STAMP: Final = "stamp"
TIME_TO_LIVE: Final = "time_to_live"


class Op(IntEnum):
    """What a row does to what older runs say."""

    PUT = 0
    DELETE = 1
    APPEND = 2
    CLEAR = 3


@dataclass(frozen=True, eq=False)
class StateLayout:
    """The form of one state in files.

    Attributes:
        name: Of the state.
        kind: Of the state.
        key: Codec of the operator's keys.
        value: Codec of values, elements or accumulators.
        map_key: Codec of the keys of map state.
        namespace: Serializer snapshot of the namespaces as JSON; None for state without.
        ttl: Whether values have the time of their last use beside them.
        queryable: The name under which the state can be queried, None if it cannot.
        time_to_live: Milliseconds after which compaction may drop what was not used; None if it must not.
        forms: How it was declared before, oldest first, and how it is declared now.
        is_news: Whether no run says yet how it is declared now.
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
    is_news: bool = False

    @classmethod
    def of(cls, descriptor: StateDescriptor[Any], key: KeyCodec, namespace: Any = None) -> StateLayout:
        """Return the layout of a descriptor's state."""
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
        """What a footer says about the segment."""
        form = self.forms[-1]
        schema: dict[str, Any] = {
            "kind": self.kind.value,
            TYPE: form.document,
            "map_key": None if self.map_key is None else self.map_key.to_json(),
            "namespace": self.namespace,
            TTL: form.ttl,
        }
        former = [one.to_json() for one in self.forms[:-1]] or None
        # Query servers and compaction know a job by its files only.
        for name, value in (
            ("queryable", self.queryable),
            (TIME_TO_LIVE, self.time_to_live),
            (SINCE, form.since),
            (FORMER, former),
        ):
            if value is not None:
                schema[name] = value
        return schema

    def after(self, stored: Sequence[tuple[Mapping[str, Any], str]], now: int) -> StateLayout:
        """Return the layout of the state as it goes on from what runs say.

        Args:
            stored: What each segment says about itself, and the path of its run, oldest first.
            now: Processing time.

        Raises:
            StateMigrationError: Kind, map keys or namespaces differ, or the value type cannot take over.
        """
        if all(schema == self.schema for schema, _ in stored):
            return self
        for schema, path in stored:
            require_schema(schema, self.name, path)
            self._check(schema, path)
        forms = tuple(evolve_forms(self.name, self.forms[-1], stored, now))
        result = replace(self, value=value_codec_for(forms[-1].type), forms=forms)
        for schema, _ in stored:
            result.conversion(schema)
        known = [forms_of(schema) for schema, _ in stored]
        documents = [[form.to_json() for form in one] for one in known]
        is_said = [form.to_json() for form in forms] in documents
        # Compaction, which knows files only, must not go on dropping what is to live longer now.
        is_said &= not stored or stored[-1][0].get(TIME_TO_LIVE) == self.time_to_live
        return result if is_said else replace(result, is_news=True)

    def _check(self, stored: Mapping[str, Any], path: str) -> None:
        for part, what in _PARTS.items():
            before, now = stored.get(part), self.schema[part]
            if before != now:
                raise StateMigrationError(
                    f"State {self.name!r} was written with {what} {_short(before)} (by {path!r}), the program declares "
                    f"{_short(now)}. Declare it as it was, or give the new state another name."
                )

    def conversion(self, stored: Mapping[str, Any]) -> Conversion | None:
        """Return what brings columns of a segment into today's form, None if nothing has to be done.

        Raises:
            StateMigrationError: It is not possible.
        """
        known = self._conversions.get(id(stored))
        if known is None:
            found = None if stored == self.schema else find_conversion(stored, self.forms, self.kind)
            # The schema is kept beside it, so no other one can have its id.
            known = self._conversions[id(stored)] = (stored, found)
        return known[1]

    @cached_property
    def _conversions(self) -> dict[int, tuple[Mapping[str, Any], Conversion | None]]:
        return {}

    def can_read(self, stored: Mapping[str, Any]) -> bool:
        """Whether a segment can be decoded into what was decoded before by this layout.

        It need not be of the same program: what another one of the job's name declares has nothing to do with this.
        """
        if stored == self.schema:
            return True
        is_alike = all(stored.get(part) == self.schema[part] for part in _PARTS)
        return is_alike and is_prefix_of(forms_of(stored), self.forms)

    def makes_the_same(self, other: StateLayout) -> bool:
        """Whether cells that another layout has decoded are those that this one decodes.

        The schema names no class of a program, and a program that was changed may have another one of the same name.
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
        """Convert cells to their columns.

        Args:
            cells: Stored values, or None; with a time to live pairs of stored value and stamp; lists of these.
            lists: Whether the cells are lists.

        Raises:
            Exception: A value does not fit the type; which one, `blame` finds out.
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
        """Convert some rows of a segment back to cells."""
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
        """Return the position of the first stored value that does not fit the type, and why; None if all do."""
        for position, item in enumerate(stored):
            try:
                self.value.to_array([item])
            except Exception as error:
                return position, error
        return None


_PARTS: Final = {"kind": "kind", "map_key": "the map key type", "namespace": "the namespace"}


def _taken(table: pa.Table, name: str, rows: pa.Array) -> pa.Array:
    taken = table.column(name).take(rows)
    return taken.combine_chunks() if isinstance(taken, pa.ChunkedArray) else taken


def _offsets(cells: Sequence[Any]) -> pa.Array:
    ends = np.zeros(len(cells) + 1, np.int32)
    np.cumsum([len(cell) if cell else 0 for cell in cells], out=ends[1:])
    return pa.array(ends)


def _short(value: Any) -> str:
    if isinstance(value, Mapping) and value.get("kind") in ("atomic", "composite", "tagged"):
        return shown_key_type(value)
    return value if isinstance(value, str) else json.dumps(value)


# About how much memory Python values take, from a sample of them.

_SAMPLE: Final = 64


def average_size(values: Sequence[Any]) -> float:
    """Return about how many bytes one of some values takes."""
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
