"""Type information under its path in PyFlink."""

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
    """Makes `isinstance(t, RowTypeInfo)` true for every row type."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, RowTypeInformation)


class RowTypeInfo(metaclass=_IsRowType):
    """Creates a row type from types and names in PyFlink's order; the result is a `RowTypeInformation`."""

    def __new__(  # type: ignore[misc]
        cls, field_types: Sequence[TypeInformation], field_names: Sequence[str] | None = None
    ) -> RowTypeInformation:
        return Types.ROW(field_types) if field_names is None else Types.ROW_NAMED(field_names, field_types)


class BasicTypeInfo:
    """Types of single values, the same as in `Types`."""

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
    """Types of dates, times and instants, the same as in `Types`."""

    DATE = Types.SQL_DATE
    TIME = Types.SQL_TIME
    TIMESTAMP = Types.SQL_TIMESTAMP
