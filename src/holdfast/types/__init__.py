"""Types of values: their Arrow form, their rows, keys and serializers."""

from holdfast.types.information.type_information import RowTypeInformation, TypeInformation, Types
from holdfast.types.row import Row
from holdfast.types.serializer import (
    CompositeTypeSerializerSnapshot,
    SimpleTypeSerializerSnapshot,
    TypeSerializer,
    TypeSerializerSchemaCompatibility,
    TypeSerializerSnapshot,
)

__all__ = [
    "CompositeTypeSerializerSnapshot",
    "Row",
    "RowTypeInformation",
    "SimpleTypeSerializerSnapshot",
    "TypeInformation",
    "TypeSerializer",
    "TypeSerializerSchemaCompatibility",
    "TypeSerializerSnapshot",
    "Types",
]
