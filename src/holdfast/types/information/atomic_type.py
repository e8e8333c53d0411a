"""Types of values without parts, by their names in Spark SQL; `atom` says what their values are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from holdfast.errors import ConfigurationError
from holdfast.types.information.abstract_type import Compatibility, TypeInformation, register_type
from holdfast.types.information.atom import ATOMS, SQL_TIMESTAMP
from holdfast.types.serializer import TypeSerializerSchemaCompatibility


class AtomicTypeInformation(TypeInformation):
    """A simple type, by its name in Spark SQL."""

    is_immutable = True
    ddl = ""
    arrow_type = pa.null()

    def __init__(self, name: str) -> None:
        self._atom = ATOMS[name]
        self.ddl = name
        self.arrow_type = self._atom.arrow

    @property
    def name(self) -> str:
        """The name in Spark SQL."""
        return self._atom.name

    def to_json(self) -> Any:
        """Return the name."""
        return self._atom.name

    def adopt(self, value: Any) -> Any:
        """Check one value."""
        if value is None:
            return None
        try:
            return self._atom.adopt(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise self.mismatch(value, str(error)) from None

    def to_array(self, values: Sequence[Any]) -> pa.Array:
        """Convert a column; only values of exactly the expected classes go the fast way."""
        atom = self._atom
        if atom.plain.issuperset(map(type, values)):
            array = pa.array(values, atom.arrow)
            if atom.holds is None or atom.holds(values, array):
                return array
        return pa.array([self.adopt(value) for value in values], atom.arrow)

    def read(self, array: pa.Array) -> list[Any]:
        """Convert an array to Python."""
        return self._atom.read(array)

    def _resolve_other(self, old: TypeInformation) -> Compatibility:
        if isinstance(old, AtomicTypeInformation) and self.name in _WIDER.get(old.name, ()):
            return TypeSerializerSchemaCompatibility.compatible_after_migration(f"{old} becomes {self}")
        if self.name == "string" and isinstance(old, CharTypeInformation):
            return TypeSerializerSchemaCompatibility.compatible_as_is()
        return super()._resolve_other(old)

    def __reduce__(self) -> tuple[Any, ...]:
        return AtomicTypeInformation, (self._atom.name,)


# Numbers that fit exactly into a wider type.
_WIDER: Final[dict[str, tuple[str, ...]]] = {
    "tinyint": ("smallint", "int", "bigint", "float", "double"),
    "smallint": ("int", "bigint", "float", "double"),
    "int": ("bigint", "double"),
    "float": ("double",),
}


MAX_CHAR_LENGTH: Final = 1 << 20
"""Each value is padded to the length, which a file or a server may have said."""


class CharTypeInformation(AtomicTypeInformation):
    """Text of a fixed length, padded with spaces; a string to Spark."""

    def __init__(self, length: int = 1) -> None:
        super().__init__("string")
        if not 1 <= length <= MAX_CHAR_LENGTH:
            raise ConfigurationError(f"The length of CHAR is 1 or more, up to {MAX_CHAR_LENGTH}, not {length!r:.40}.")
        self.length = length

    def to_json(self) -> Any:
        """Return the name and the length."""
        return {"type": "char", "length": self.length}

    def adopt(self, value: Any) -> Any:
        """Check one text and pad it."""
        text = super().adopt(value)
        if text is not None and len(text) > self.length:
            raise self.mismatch(value, f"it is longer than {self.length}")
        return text if text is None else text.ljust(self.length)

    def to_array(self, values: Sequence[Any]) -> pa.Array:
        """Convert and pad a column."""
        return pa.array([self.adopt(value) for value in values], self.arrow_type)

    def _resolve_other(self, old: TypeInformation) -> Compatibility:
        if isinstance(old, CharTypeInformation) and old.length < self.length:
            return TypeSerializerSchemaCompatibility.compatible_after_migration(f"{old} becomes {self}")
        return TypeSerializerSchemaCompatibility.incompatible(f"{old} cannot become {self}")

    def __str__(self) -> str:
        return f"char({self.length})"

    def __reduce__(self) -> tuple[Any, ...]:
        return CharTypeInformation, (self.length,)


class SqlTimestampTypeInformation(AtomicTypeInformation):
    """Timestamps that a program sees without a time zone, in UTC; to Spark, to files and to others they are instants.

    It is equal to the type of instants, because nothing tells what either has written.
    """

    def __init__(self) -> None:
        super().__init__("timestamp")
        self._atom = SQL_TIMESTAMP

    def __reduce__(self) -> tuple[Any, ...]:
        return SqlTimestampTypeInformation, ()


class CollatedStringTypeInformation(AtomicTypeInformation):
    """Text that Spark compares by other rules than byte by byte; it cannot be a key."""

    def __init__(self, collation: str) -> None:
        super().__init__("string")
        self.collation = collation.upper()
        self.ddl = f"string collate {self.collation}"

    def to_json(self) -> Any:
        """Return the name and the collation."""
        return {"type": "collated", "collation": self.collation}

    def __reduce__(self) -> tuple[Any, ...]:
        return CollatedStringTypeInformation, (self.collation,)


for _name in ATOMS:
    register_type(_name, lambda document: AtomicTypeInformation(document["type"]))
register_type("char", lambda document: CharTypeInformation(document["length"]))
register_type("collated", lambda document: CollatedStringTypeInformation(document["collation"]))
