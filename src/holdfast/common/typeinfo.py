"""Type information under its PyFlink names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.types.collection import ListTypeInformation, MapTypeInformation
from holdfast.types.composite import RowTypeInformation, TupleTypeInformation
from holdfast.types.opaque import PickledTypeInformation
from holdfast.types.type_information import TypeInformation
from holdfast.types.types import Types

TupleTypeInfo = TupleTypeInformation
ListTypeInfo = ListTypeInformation
MapTypeInfo = MapTypeInformation
PickledBytesTypeInfo = PickledTypeInformation
PrimitiveArrayTypeInfo = Types.PRIMITIVE_ARRAY
BasicArrayTypeInfo = Types.BASIC_ARRAY
ObjectArrayTypeInfo = Types.OBJECT_ARRAY

__all__ = [
    "BasicArrayTypeInfo",
    "BasicTypeInfo",
    "ListTypeInfo",
    "MapTypeInfo",
    "ObjectArrayTypeInfo",
    "PickledBytesTypeInfo",
    "PrimitiveArrayTypeInfo",
    "RowTypeInfo",
    "RowTypeInformation",
    "SqlTimeTypeInfo",
    "TupleTypeInfo",
    "TupleTypeInformation",
    "TypeInformation",
    "Types",
]


class _IsRowType(type(RowTypeInformation)):  # type: ignore[misc]
    """Lets `isinstance` say that every type of rows is one."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, RowTypeInformation)


class RowTypeInfo(metaclass=_IsRowType):
    """The type of rows, made of types and names in PyFlink's order; what it makes is a `RowTypeInformation`."""

    def __new__(  # type: ignore[misc]
        cls, field_types: Sequence[TypeInformation], field_names: Sequence[str] | None = None
    ) -> RowTypeInformation:
        """Return the type; without names the fields are f0, f1 and so on."""
        return Types.ROW(field_types) if field_names is None else Types.ROW_NAMED(field_names, field_types)


class BasicTypeInfo:
    """Types of single values, as `Types` has them."""

    STRING_TYPE_INFO = Types.STRING
    BOOLEAN_TYPE_INFO = Types.BOOLEAN
    BYTE_TYPE_INFO = Types.BYTE
    SHORT_TYPE_INFO = Types.SHORT
    INT_TYPE_INFO = Types.INT
    LONG_TYPE_INFO = Types.LONG
    FLOAT_TYPE_INFO = Types.FLOAT
    DOUBLE_TYPE_INFO = Types.DOUBLE
    CHAR_TYPE_INFO = Types.CHAR
    BIG_INT_TYPE_INFO = Types.BIG_INT
    BIG_DEC_TYPE_INFO = Types.BIG_DEC
    INSTANT_TYPE_INFO = Types.INSTANT


class SqlTimeTypeInfo:
    """Types of days, times and instants, as `Types` has them."""

    DATE = Types.SQL_DATE
    TIME = Types.SQL_TIME
    TIMESTAMP = Types.SQL_TIMESTAMP
