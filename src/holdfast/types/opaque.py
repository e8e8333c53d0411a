"""Types whose values only Python can read: pickled objects, and the bytes of a user's own serializer."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import FunctionType
from typing import Any, Final

import pyarrow as pa

from holdfast.errors import UserFunctionError
from holdfast.types.program_classes import DurablePickler, is_of_program, loads, program_object, reduce_by_name
from holdfast.types.row import Row, revive
from holdfast.types.serializer import (
    TypeSerializer,
    TypeSerializerSchemaCompatibility,
    TypeSerializerSnapshot,
    snapshot_from_json,
)
from holdfast.types.type_information import AtomicTypeInformation, Compatibility, TypeInformation, register_type

_NAMED: Final = (type, FunctionType)
_SAFE_CLASSES: Final = frozenset({date, datetime, time, timedelta, Decimal, set, frozenset, bytearray, complex})


class _NotPlain(Exception):  # internal signal, not seen by callers
    pass


class _PlainPickler(pickle.Pickler):
    """Pickles values of built-in and of the program's own classes, much faster than cloudpickle, and no others."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) in _SAFE_CLASSES or isinstance(value, Row):
            return NotImplemented
        # Only classes are looked up in the set: a value may fail to hash although its class has __hash__.
        if value is revive or value is program_object or (type(value) is type and value in _SAFE_CLASSES):
            return NotImplemented
        if isinstance(value, _NAMED):
            by_name = reduce_by_name(value)
            if by_name is not None:
                return by_name
        elif is_of_program(type(value)):
            return NotImplemented
        raise _NotPlain


def dumps(value: Any) -> bytes:
    """Pickle a value for another process of the program, whose own classes and functions are pickled by name."""
    buffer = io.BytesIO()
    try:
        _PlainPickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    except _NotPlain:
        buffer = io.BytesIO()
        DurablePickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


class OpaqueTypeInformation(TypeInformation):
    """The base class of both: a binary column whose bytes only Python can read."""

    ddl = "binary"
    arrow_type = pa.binary()
    is_immutable = False

    def dump(self, value: Any) -> bytes:
        """Return the bytes of a value that is not None."""
        return dumps(value)

    def load(self, data: bytes) -> Any:
        return loads(data)

    def adopt(self, value: Any) -> Any:
        return value

    def copy(self, value: Any) -> Any:
        return None if value is None else self.load(self.dump(value))

    def to_array(self, values: Sequence[Any]) -> pa.Array:
        dump = self.dump
        return pa.array([None if value is None else dump(value) for value in values], self.arrow_type)

    def read(self, array: pa.Array) -> list[Any]:
        load = self.load
        return [None if data is None else load(data) for data in array.to_pylist()]

    def to_plain(self, value: Any) -> Any:
        return None if value is None else self.dump(value)

    def from_plain(self, plain: Any) -> Any:
        return None if plain is None else self.load(plain)


class PickledTypeInformation(OpaqueTypeInformation):
    """Any Python object, pickled. The type of values without a declared type."""

    dump = staticmethod(dumps)
    load = staticmethod(loads)

    def to_json(self) -> Any:
        return "pickled"

    def _resolve_other(self, old: TypeInformation) -> Compatibility:
        return TypeSerializerSchemaCompatibility.compatible_after_migration(f"{old} becomes pickled")

    def __str__(self) -> str:
        return "pickled"

    def __reduce__(self) -> tuple[Any, ...]:
        return PickledTypeInformation, ()


class SerializerTypeInformation(OpaqueTypeInformation):
    """Values that a user's own `TypeSerializer` serializes."""

    def __init__(self, serializer: TypeSerializer[Any]) -> None:
        self.serializer = serializer
        self.is_immutable = serializer.is_immutable_type()
        self._snapshot = serializer.snapshot()

    def to_json(self) -> Any:
        return {"type": "serializer", "snapshot": self._snapshot.to_json()}

    def dump(self, value: Any) -> bytes:
        data = self._call("serialize", value)
        if not isinstance(data, (bytes, bytearray)):
            raise self.mismatch(value, f"the serializer returned {data!r:.100} instead of bytes")
        return bytes(data)

    def load(self, data: bytes) -> Any:
        return self._call("deserialize", data)

    def copy(self, value: Any) -> Any:
        return None if value is None else self._call("copy", value)

    def create_serializer(self) -> TypeSerializer[Any]:
        return self.serializer

    def resolve_compatibility(self, old: TypeInformation) -> Compatibility:
        before: TypeSerializerSnapshot[Any]
        before = old._snapshot if isinstance(old, SerializerTypeInformation) else old.create_serializer().snapshot()
        return self._snapshot.resolve_schema_compatibility(before)

    def __str__(self) -> str:
        return f"serializer {type(self.serializer).__qualname__}"

    def __reduce__(self) -> tuple[Any, ...]:
        return SerializerTypeInformation, (self.serializer,)

    def _call(self, method: str, argument: Any) -> Any:
        try:
            return getattr(self.serializer, method)(argument)
        except Exception as error:
            name = type(self.serializer).__qualname__
            raise UserFunctionError(
                name, None, None, f"{name}.{method}({argument!r:.200}) raised {type(error).__name__}: {error}"
            ) from error


register_type("pickled", lambda document: PickledTypeInformation())
register_type(
    "serializer",
    lambda document: SerializerTypeInformation(snapshot_from_json(document["snapshot"]).restore_serializer()),
)


# Query servers, clients and commands must not load classes or pickles. They read opaque values as sealed types: binary
# columns that can be passed on, but not converted to anything else.


class SealedTypeInformation(AtomicTypeInformation):
    """Bytes that are pickled or custom-serialized, in a process that must not load them.

    Args:
        document: Their type as JSON.
    """

    def __init__(self, document: Any) -> None:
        super().__init__("binary")
        self.document = document

    def to_json(self) -> Any:
        return {"type": "sealed", "of": self.document}

    def _resolve_other(self, old: Any) -> Compatibility:
        return TypeSerializerSchemaCompatibility.incompatible(
            f"only the program can turn {old} into {self}; compaction does, some epochs after the change"
        )

    def __str__(self) -> str:
        if not isinstance(self.document, Mapping):
            return str(self.document)
        return f"serializer ({self.document['snapshot']['class']})"

    def __reduce__(self) -> tuple[Any, ...]:
        return SealedTypeInformation, (self.document,)


def is_opaque(document: Any) -> bool:
    """Return whether a type's JSON is, as a whole, one that only the program can read."""
    return document == "pickled" or (isinstance(document, Mapping) and document.get("type") == "serializer")


def seal_json(document: Any) -> Any:
    """Return the JSON of a type or of a segment's schema, with all opaque types in it sealed."""
    if is_opaque(document):
        return {"type": "sealed", "of": document}
    if isinstance(document, Mapping):
        return {name: part if name == "default" else seal_json(part) for name, part in document.items()}
    return [seal_json(part) for part in document] if isinstance(document, list) else document


register_type("sealed", lambda document: SealedTypeInformation(document["of"]))
