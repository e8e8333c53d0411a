"""Types of Spark for declared types.

Spark reads DDL text by the settings of a session: `spark.sql.timestampType` decides what `timestamp` is, and with
`spark.sql.ansi.enforceReservedKeywords` a field cannot be called `order`. So schemas are objects, and the texts of SQL
that need the name of a type have one that each session reads in the same way.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import pyarrow as pa
from pyspark.sql import types as T

from holdfast.types.arrow import VALUE_COLUMN
from holdfast.types.collection import ListTypeInformation, MapTypeInformation
from holdfast.types.composite import RowTypeInformation, StructTypeInformation
from holdfast.types.type_information import CollatedStringTypeInformation, TypeInformation


class Times(Enum):
    """How columns of Spark hold times of day, for which it has a type only since 4.1, and only if it is enabled."""

    NANOS = "bigint"
    """Nanoseconds since midnight."""
    TEXTS = "string"
    """Texts such as `23:59:58.000000`."""


_SIMPLE: Final[dict[str, T.DataType]] = {
    "boolean": T.BooleanType(),
    "tinyint": T.ByteType(),
    "smallint": T.ShortType(),
    "int": T.IntegerType(),
    "bigint": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "string": T.StringType(),
    "binary": T.BinaryType(),
    "date": T.DateType(),
    "timestamp": T.TimestampType(),
    "timestamp_ntz": T.TimestampNTZType(),
    "interval day to second": T.DayTimeIntervalType(),
}


def spark_type(kind: TypeInformation, times: Times) -> T.DataType:
    """Return the type of Spark for a type."""
    if isinstance(kind, StructTypeInformation):
        return _struct(kind, times)
    if isinstance(kind, ListTypeInformation):
        return T.ArrayType(spark_type(kind.element_type, times))
    if isinstance(kind, MapTypeInformation):
        return T.MapType(spark_type(kind.key_type, times), spark_type(kind.value_type, times))
    if isinstance(kind, CollatedStringTypeInformation):
        return T.StringType(kind.collation)
    if pa.types.is_decimal(kind.arrow_type):
        return T.DecimalType(kind.arrow_type.precision, kind.arrow_type.scale)
    return _SIMPLE[times.value if pa.types.is_time(kind.arrow_type) else kind.ddl]


def stream_schema(element_type: TypeInformation, times: Times) -> T.StructType:
    """Return the columns of a stream's batches: those of its rows, or one column with its elements."""
    is_row = isinstance(element_type, RowTypeInformation)
    return _struct(element_type if is_row else RowTypeInformation([VALUE_COLUMN], [element_type]), times)


def sql_type(kind: T.DataType) -> str:
    """Return the name of a type for a text of SQL, which each session reads in the same way."""
    if isinstance(kind, T.StructType):
        return f"struct<{', '.join(f'{quote(field.name)}: {sql_type(field.dataType)}' for field in kind.fields)}>"
    if isinstance(kind, T.ArrayType):
        return f"array<{sql_type(kind.elementType)}>"
    if isinstance(kind, T.MapType):
        return f"map<{sql_type(kind.keyType)}, {sql_type(kind.valueType)}>"
    return "timestamp_ltz" if isinstance(kind, T.TimestampType) else kind.simpleString()


def quote(name: str) -> str:
    """Return the name of a column or a field for a text of SQL."""
    return "`" + name.replace("`", "``") + "`"


def _struct(kind: TypeInformation, times: Times) -> T.StructType:
    assert isinstance(kind, StructTypeInformation)
    pairs = zip(kind.names, kind.types, strict=True)
    return T.StructType([T.StructField(name, spark_type(part, times)) for name, part in pairs])
