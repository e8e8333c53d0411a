"""The interface of declared types, and the serializer of their values."""

from __future__ import annotations

import json
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from holdfast.errors import ConfigurationError, CorruptFileError, OutputTypeError, StateMigrationError
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.types import tagged
from holdfast.types.serializer import (
    TypeSerializer,
    TypeSerializerSchemaCompatibility,
    TypeSerializerSnapshot,
)

Compatibility = TypeSerializerSchemaCompatibility[Any]


class TypeInformation(ABC):
    """The type of values in a stream, a field or a state.

    Python values have one *adopted* form each: `adopt` checks a value and returns it as it would be read back after it
    was stored. None is valid for every type.
    """

    contains_rows: bool = False
    """Whether there are Rows in adopted values, or they are Rows: a program may change these."""

    @property
    @abstractmethod
    def arrow_type(self) -> pa.DataType:
        """The Arrow type, as Spark expects it from a Python operator with this type."""

    @property
    @abstractmethod
    def ddl(self) -> str:
        """The type as Spark SQL writes it."""

    @property
    @abstractmethod
    def is_immutable(self) -> bool:
        """Whether adopted values may be shared: they never change, or are Rows, which keep their original values."""

    @abstractmethod
    def to_json(self) -> Any:
        """Return a JSON value from which `type_from_json` restores this type."""

    @abstractmethod
    def adopt(self, value: Any) -> Any:
        """Check one value and return it in adopted form; exact, but slow.

        Raises:
            OutputTypeError: The value does not have this type; `field` is the path to the wrong part.
        """

    @abstractmethod
    def to_array(self, values: Sequence[Any]) -> pa.Array:
        """Convert a column of Python values to Arrow.

        Raises:
            OutputTypeError: A value does not have this type.
            pyarrow.ArrowException, ValueError, TypeError, OverflowError, ArithmeticError: The same, for the column.
        """

    @abstractmethod
    def read(self, array: pa.Array) -> list[Any]:
        """Convert an array of exactly `arrow_type` to Python values; callers use `to_list`."""

    def to_list(self, array: pa.Array) -> list[Any]:
        """Convert an Arrow array to Python values; one of another layout or time zone is cast first."""
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        if array.type != self.arrow_type:
            array = array.cast(self.arrow_type)
        return self.read(array)

    def copy(self, value: Any) -> Any:
        """Return a value that shares nothing mutable with this adopted one, with the original contents of Rows."""
        return value if self.is_immutable else self.adopt(value)

    def to_plain(self, value: Any) -> Any:
        """Return an adopted value in a form that `tagged.encode` accepts."""
        return value

    def from_plain(self, plain: Any) -> Any:
        """Return the value from the result of `to_plain`, as `tagged.decode` read it back."""
        return self.adopt(plain)

    def resolve_compatibility(self, old: TypeInformation) -> Compatibility:
        """Return whether this type can read state of the old type."""
        if self == old:
            return TypeSerializerSchemaCompatibility.compatible_as_is()
        return self._resolve_other(old)

    def _resolve_other(self, old: TypeInformation) -> Compatibility:
        return TypeSerializerSchemaCompatibility.incompatible(f"{old} cannot become {self}")

    def migrate(self, value: Any, old: TypeInformation) -> Any:
        """Convert a value of the old type, where `resolve_compatibility` requires migration."""
        return self.adopt(value)

    def create_serializer(self) -> TypeSerializer[Any]:
        """Return a serializer of single values of this type."""
        return ValueSerializer(self)

    def mismatch(self, value: Any, reason: str = "") -> OutputTypeError:
        """Return the error for a value that does not have this type."""
        text = f"{value!r:.200} of class {type(value).__name__!r} is not of the declared type {self!s:.300}"
        return OutputTypeError(None, f"{text}: {reason}" if reason else text, declared=str(self))

    def __str__(self) -> str:
        return self.ddl

    def __repr__(self) -> str:
        return f"<{self}>"

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, TypeInformation) and self.to_json() == other.to_json())

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_json(), sort_keys=True))


def nested_error(error: OutputTypeError, step: str) -> OutputTypeError:
    """Return the error of a part as an error of the whole, with the path to the part."""
    inner = error.field or ""
    path = step + (f".{inner}" if inner and not inner.startswith("[") else inner)
    return OutputTypeError(error.uid, str(error), row=error.row, field=path, declared=error.declared)


_readers: dict[str, Callable[[dict[str, Any]], TypeInformation]] = {}


def register_type(kind: str, reader: Callable[[dict[str, Any]], TypeInformation]) -> None:
    """Let `type_from_json` read documents whose ``type`` is `kind`."""
    _readers[kind] = reader


def type_from_json(document: Any) -> TypeInformation:
    """Restore a type from the result of `to_json`: a name, or an object with a ``type``.

    Raises:
        StateMigrationError: The document is of a newer release, or damaged.
    """
    content = {"type": document} if isinstance(document, str) else document
    kind = content.get("type") if isinstance(content, dict) else None
    reader = _readers.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise _unknown(document)
    try:
        return reader(content)
    except (*PARSE_ERRORS, ConfigurationError, pa.ArrowException, OSError) as error:
        raise _unknown(document) from error


def _unknown(document: Any) -> StateMigrationError:
    return StateMigrationError(
        f"{reprlib.repr(document)} is not a type that this release knows. Upgrade, or check the file."
    )


class ValueSerializer(TypeSerializer[Any]):
    """Serializes single values of a declared type in a self-describing form, without pickle."""

    def __init__(self, type_information: TypeInformation) -> None:
        self.type_information = type_information

    def serialize(self, value: Any) -> bytes:
        """Return the bytes of a value.

        Raises:
            OutputTypeError: The value does not have the declared type.
        """
        return tagged.encode(self.type_information.to_plain(self.type_information.adopt(value)))

    def deserialize(self, data: bytes) -> Any:
        """Return the value from bytes that `serialize` returned.

        Raises:
            CorruptFileError: They are other bytes.
        """
        try:
            return self.type_information.from_plain(tagged.decode(data))
        except (tagged.TaggedValueError, OutputTypeError) as error:
            raise CorruptFileError(f"value of {self.type_information}", None, str(error)) from error

    def is_immutable_type(self) -> bool:
        return self.type_information.is_immutable and not self.type_information.contains_rows

    def copy(self, value: Any) -> Any:
        kind = self.type_information
        return kind.copy(kind.adopt(value)) if kind.contains_rows else kind.copy(value)

    def duplicate(self) -> ValueSerializer:
        """Return self, which has no mutable state."""
        return self

    def snapshot_configuration(self) -> TypeSerializerSnapshot[Any]:
        return ValueSerializerSnapshot(self.type_information)


class ValueSerializerSnapshot(TypeSerializerSnapshot[Any]):
    """The snapshot of a `ValueSerializer`: the type."""

    def __init__(self, type_information: TypeInformation | None = None) -> None:
        self._type = type_information

    @property
    def type_information(self) -> TypeInformation:
        if self._type is None:
            raise StateMigrationError("The snapshot was not read yet.")
        return self._type

    def get_current_version(self) -> int:
        return 1

    def write_snapshot(self) -> Any:
        return self.type_information.to_json()

    def read_snapshot(self, read_version: int, content: Any) -> None:
        self._type = type_from_json(content)

    def restore_serializer(self) -> TypeSerializer[Any]:
        return ValueSerializer(self.type_information)

    def resolve_schema_compatibility(
        self, old_serializer_snapshot: TypeSerializerSnapshot[Any]
    ) -> TypeSerializerSchemaCompatibility[Any]:
        if not isinstance(old_serializer_snapshot, ValueSerializerSnapshot):
            return TypeSerializerSchemaCompatibility.incompatible(
                f"written by {old_serializer_snapshot.to_json()['class']!r}, now declared as {self.type_information}"
            )
        return self.type_information.resolve_compatibility(old_serializer_snapshot.type_information)
