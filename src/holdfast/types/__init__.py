"""Types of values: their Arrow form, rows, keys and serializers."""

from holdfast.types.composite import RowTypeInformation
from holdfast.types.row import Row
from holdfast.types.serializer import (
    CompositeTypeSerializerSnapshot,
    SimpleTypeSerializerSnapshot,
    TypeSerializer,
    TypeSerializerSchemaCompatibility,
    TypeSerializerSnapshot,
)
from holdfast.types.type_information import TypeInformation
from holdfast.types.types import Types

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
