"""Serializers of a user who changes them: for tests of what becomes of the state."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from holdfast.types.serializer import (
    TypeSerializer,
    TypeSerializerSchemaCompatibility,
    TypeSerializerSnapshot,
)

Compatibility = TypeSerializerSchemaCompatibility[Any]


class PriceSerializer(TypeSerializer[Decimal]):
    """Prices: as text in version 1, in hundredths in version 2."""

    def __init__(self, version: int = 1) -> None:
        self.version = version

    def serialize(self, value: Decimal) -> bytes:
        """Return text or hundredths."""
        return str(value).encode() if self.version == 1 else int(value * 100).to_bytes(8, "big")

    def deserialize(self, data: bytes) -> Decimal:
        """Return the price."""
        return Decimal(data.decode()) if self.version == 1 else Decimal(int.from_bytes(data, "big")) / 100

    def snapshot_configuration(self) -> TypeSerializerSnapshot[Decimal]:
        """Return the version."""
        return PriceSnapshot(self.version)


class PriceSnapshot(TypeSerializerSnapshot[Decimal]):
    """The version of a `PriceSerializer`."""

    def __init__(self, version: int = 0) -> None:
        self.version = version

    def get_current_version(self) -> int:
        """Return the version of the content, which never changed."""
        return 1

    def write_snapshot(self) -> Any:
        """Return the version."""
        return self.version

    def read_snapshot(self, read_version: int, content: Any) -> None:
        """Take over the version."""
        self.version = content

    def restore_serializer(self) -> PriceSerializer:
        """Return a serializer of the version."""
        return PriceSerializer(self.version)

    def resolve_schema_compatibility(self, old_serializer_snapshot: Any) -> Compatibility:
        """Newer versions migrate older ones; version 0 does not work at all."""
        old = old_serializer_snapshot.version
        if old // self.version > 1:
            return TypeSerializerSchemaCompatibility.incompatible(
                f"version {self.version} cannot read what version {old} has written"
            )
        if old == self.version:
            return TypeSerializerSchemaCompatibility.compatible_as_is()
        return TypeSerializerSchemaCompatibility.compatible_after_migration()


class CodeSerializer(TypeSerializer[str]):
    """Words as their position in a list."""

    def __init__(self, words: Sequence[str] = ()) -> None:
        self.words = list(words)

    def serialize(self, value: str) -> bytes:
        """Return the position."""
        return bytes([self.words.index(value)])

    def deserialize(self, data: bytes) -> str:
        """Return the word."""
        return self.words[data[0]]

    def is_immutable_type(self) -> bool:
        """Words never change."""
        return True

    def snapshot_configuration(self) -> TypeSerializerSnapshot[str]:
        """Return the words."""
        return CodeSnapshot(self.words)


class CodeSnapshot(TypeSerializerSnapshot[str]):
    """The words of a `CodeSerializer`."""

    def __init__(self, words: Sequence[str] = ()) -> None:
        self.words = list(words)

    def get_current_version(self) -> int:
        """Return the version of the content, which never changed."""
        return 1

    def write_snapshot(self) -> Any:
        """Return the words."""
        return self.words

    def read_snapshot(self, read_version: int, content: Any) -> None:
        """Take over the words."""
        self.words = list(content)

    def restore_serializer(self) -> CodeSerializer:
        """Return a serializer of these words."""
        return CodeSerializer(self.words)

    def resolve_schema_compatibility(self, old_serializer_snapshot: Any) -> Compatibility:
        """Older words keep their positions, new ones come behind them."""
        old = old_serializer_snapshot.words
        words = [*old, *(word for word in self.words if word not in old)]
        if words == self.words:
            return TypeSerializerSchemaCompatibility.compatible_as_is()
        return TypeSerializerSchemaCompatibility.compatible_with_reconfigured_serializer(CodeSerializer(words))


class UnitSerializer(TypeSerializer[Any]):
    """Numbers that come back with a unit, which is not written."""

    def __init__(self, unit: str = "") -> None:
        self.unit = unit

    def serialize(self, value: Any) -> bytes:
        """Return the number."""
        return bytes([value])

    def deserialize(self, data: bytes) -> Any:
        """Return number and unit."""
        return data[0], self.unit

    def snapshot_configuration(self) -> TypeSerializerSnapshot[Any]:
        """Return the unit."""
        return UnitSnapshot(self.unit)


class UnitSnapshot(TypeSerializerSnapshot[Any]):
    """The unit of a `UnitSerializer`."""

    def __init__(self, unit: str = "") -> None:
        self.unit = unit

    def get_current_version(self) -> int:
        """Return the version of the content, which never changed."""
        return 1

    def write_snapshot(self) -> Any:
        """Return the unit."""
        return self.unit

    def read_snapshot(self, read_version: int, content: Any) -> None:
        """Take over the unit."""
        self.unit = content

    def restore_serializer(self) -> UnitSerializer:
        """Return a serializer of this unit."""
        return UnitSerializer(self.unit)

    def resolve_schema_compatibility(self, old_serializer_snapshot: Any) -> Compatibility:
        """Any unit will do."""
        return TypeSerializerSchemaCompatibility.compatible_as_is()
