"""`Types`, which creates all declared types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.types.changelog_type import ChangelogTypeInformation
from holdfast.types.collection import ListTypeInformation, MapTypeInformation
from holdfast.types.composite import RowTypeInformation, StructTypeInformation, TupleTypeInformation
from holdfast.types.opaque import OpaqueTypeInformation, PickledTypeInformation, SerializerTypeInformation
from holdfast.types.type_information import (
    AtomicTypeInformation,
    CharTypeInformation,
    CollatedStringTypeInformation,
    DecimalTypeInformation,
    SqlTimestampTypeInformation,
    TypeInformation,
    ValueSerializer,
    ValueSerializerSnapshot,
    type_from_json,
)

__all__ = [
    "AtomicTypeInformation",
    "ChangelogTypeInformation",
    "CharTypeInformation",
    "CollatedStringTypeInformation",
    "DecimalTypeInformation",
    "ListTypeInformation",
    "MapTypeInformation",
    "OpaqueTypeInformation",
    "PickledTypeInformation",
    "RowTypeInformation",
    "SerializerTypeInformation",
    "SqlTimestampTypeInformation",
    "StructTypeInformation",
    "TupleTypeInformation",
    "TypeInformation",
    "Types",
    "ValueSerializer",
    "ValueSerializerSnapshot",
    "type_from_json",
]


class Types:
    """The types of values, as in PyFlink's ``Types``. Each method returns a `TypeInformation`.

    >>> Types.ROW_NAMED(["word", "n"], [Types.STRING(), Types.LONG()])
    <struct<word: string, n: bigint>>
    """

    @staticmethod
    def STRING() -> TypeInformation:
        """Text (`str`)."""
        return AtomicTypeInformation("string")

    @staticmethod
    def BYTE() -> TypeInformation:
        """Whole numbers of 8 bits (`int`)."""
        return AtomicTypeInformation("tinyint")

    @staticmethod
    def BOOLEAN() -> TypeInformation:
        """True and False (`bool`)."""
        return AtomicTypeInformation("boolean")

    @staticmethod
    def SHORT() -> TypeInformation:
        """Whole numbers of 16 bits (`int`)."""
        return AtomicTypeInformation("smallint")

    @staticmethod
    def INT() -> TypeInformation:
        """Whole numbers of 32 bits (`int`)."""
        return AtomicTypeInformation("int")

    @staticmethod
    def LONG() -> TypeInformation:
        """Whole numbers of 64 bits (`int`)."""
        return AtomicTypeInformation("bigint")

    @staticmethod
    def FLOAT() -> TypeInformation:
        """Numbers of 32 bits (`float`)."""
        return AtomicTypeInformation("float")

    @staticmethod
    def DOUBLE() -> TypeInformation:
        """Numbers of 64 bits (`float`)."""
        return AtomicTypeInformation("double")

    @staticmethod
    def CHAR(length: int = 1) -> TypeInformation:
        """Text of a fixed length, padded with spaces (`str`)."""
        return CharTypeInformation(length)

    @staticmethod
    def BIG_INT() -> TypeInformation:
        """Whole numbers of up to 38 digits (`int`)."""
        return DecimalTypeInformation(38, 0, as_int=True)

    @staticmethod
    def BIG_DEC() -> TypeInformation:
        """Numbers with 20 digits before and 18 after the point (`decimal.Decimal`), as BIG_DEC of Flink's tables.

        In a stream, PyFlink's type has any number of digits. A column of Spark, Arrow or Parquet has 38.
        """
        return DecimalTypeInformation(38, 18)

    @staticmethod
    def DECIMAL(precision: int = 10, scale: int = 0) -> TypeInformation:
        """Numbers of a fixed precision and scale (`decimal.Decimal`)."""
        return DecimalTypeInformation(precision, scale)

    @staticmethod
    def BINARY() -> TypeInformation:
        """Bytes (`bytes`)."""
        return AtomicTypeInformation("binary")

    @staticmethod
    def SQL_DATE() -> TypeInformation:
        """Days (`datetime.date`)."""
        return AtomicTypeInformation("date")

    @staticmethod
    def SQL_TIME() -> TypeInformation:
        """Times of day (`datetime.time`)."""
        return AtomicTypeInformation("time")

    @staticmethod
    def SQL_TIMESTAMP() -> TypeInformation:
        """Instants as UTC `datetime.datetime` without a time zone; one with a time zone is converted to UTC."""
        return SqlTimestampTypeInformation()

    @staticmethod
    def INSTANT() -> TypeInformation:
        """Instants (`datetime.datetime` in UTC; one without a time zone is taken as UTC)."""
        return AtomicTypeInformation("timestamp")

    @staticmethod
    def TIMESTAMP_NTZ() -> TypeInformation:
        """Timestamps without a time zone (naive `datetime.datetime`)."""
        return AtomicTypeInformation("timestamp_ntz")

    @staticmethod
    def DURATION() -> TypeInformation:
        """Lengths of time (`datetime.timedelta`); Spark's day-time intervals."""
        return AtomicTypeInformation("interval day to second")

    @staticmethod
    def PICKLED_BYTE_ARRAY() -> TypeInformation:
        """Any Python object, pickled."""
        return PickledTypeInformation()

    @staticmethod
    def ROW(field_types: Sequence[TypeInformation]) -> RowTypeInformation:
        """Rows with the fields f0, f1 and so on (`Row`).

        Args:
            field_types: Types of the fields.
        """
        return RowTypeInformation([f"f{position}" for position in range(len(field_types))], field_types)

    @staticmethod
    def ROW_NAMED(
        field_names: Sequence[str],
        field_types: Sequence[TypeInformation],
        defaults: Mapping[str, Any] | None = None,
    ) -> RowTypeInformation:
        """Rows with named fields (`Row`).

        Args:
            field_names: Names of the fields.
            field_types: Types of the fields.
            defaults: Values of fields in state that was written before they were added; None for other fields.
        """
        return RowTypeInformation(field_names, field_types, defaults)

    @staticmethod
    def CHANGELOG(field_names: Sequence[str], field_types: Sequence[TypeInformation]) -> ChangelogTypeInformation:
        """Rows of a changelog: rows with named fields and a kind (`Row.of_kind`).

        As DDL: `changelog<id: bigint, name: string>`. In batches the kind is the column `row_kind`.

        Args:
            field_names: Names of the fields, without the kind.
            field_types: Types of the fields.
        """
        return ChangelogTypeInformation(field_names, field_types)

    @staticmethod
    def TUPLE(field_types: Sequence[TypeInformation]) -> TypeInformation:
        """Tuples of fixed length (`tuple`)."""
        return TupleTypeInformation(field_types)

    @staticmethod
    def PRIMITIVE_ARRAY(element_type: TypeInformation) -> TypeInformation:
        """Arrays of numbers (`list`); arrays of bytes are `bytes`."""
        return Types.BINARY() if element_type == Types.BYTE() else ListTypeInformation(element_type)

    @staticmethod
    def BASIC_ARRAY(element_type: TypeInformation) -> TypeInformation:
        """Arrays of boxed values (`list`)."""
        return ListTypeInformation(element_type)

    @staticmethod
    def OBJECT_ARRAY(element_type: TypeInformation) -> TypeInformation:
        """Arrays of anything (`list`)."""
        return ListTypeInformation(element_type)

    @staticmethod
    def LIST(element_type_info: TypeInformation) -> TypeInformation:
        """Lists (`list`)."""
        return ListTypeInformation(element_type_info)

    @staticmethod
    def MAP(key_type_info: TypeInformation, value_type_info: TypeInformation) -> TypeInformation:
        """Maps (`dict`)."""
        return MapTypeInformation(key_type_info, value_type_info)
