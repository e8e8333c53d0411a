"""Times of day where Spark sees them: as numbers on the way between our own tasks, as texts where somebody reads them.

Spark has no type for them before 4.1, and since then one that is off unless `spark.sql.timeType.enabled` says
otherwise; Parquet files that have them it cannot read. So what crosses an exchange has nanoseconds since midnight, of
which Spark makes the same hash as of its own times. A frame that a program gets has texts such as `23:59:58.000000`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, TypeVar

import pyarrow as pa

from holdfast.types.conversion.arrow import element_ddl, element_schema
from holdfast.types.conversion.convert import to_row_type, to_type
from holdfast.types.information.type_information import TypeInformation

Columns = TypeVar("Columns", pa.RecordBatch, pa.Table)
_MICROSECONDS: Final = pa.time64("us")


@lru_cache(maxsize=1024)
def has_times(kind: pa.DataType) -> bool:
    """Whether there are times of day in a type, or in parts of it."""
    if pa.types.is_map(kind):
        return has_times(kind.key_type) or has_times(kind.item_type)
    if pa.types.is_list(kind):
        return has_times(kind.value_type)
    if pa.types.is_struct(kind):
        return any(has_times(field.type) for field in _fields(kind))
    return bool(pa.types.is_time(kind))


def numbered_type(kind: pa.DataType) -> pa.DataType:
    """The type with a number of nanoseconds for each time of day."""
    return _replaced(kind, pa.int64())


def numbered_ddl(kind: TypeInformation) -> str:
    """The type as Spark SQL writes it, with a number of nanoseconds for each time of day."""
    return to_type(numbered_type(kind.arrow_type)).ddl if has_times(kind.arrow_type) else kind.ddl


def numbered_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with a number of nanoseconds for each time of day."""
    return pa.schema([field.with_type(numbered_type(field.type)) for field in schema])


def numbered_elements_ddl(element_type: TypeInformation) -> str:
    """The columns of a stream as Spark SQL writes them, with a number of nanoseconds for each time of day."""
    schema = element_schema(element_type)
    return _ddl_of(element_type, schema, numbered_schema(schema))


def told_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with a text for each time of day."""
    return pa.schema([field.with_type(_replaced(field.type, pa.string())) for field in schema])


def told_elements_ddl(element_type: TypeInformation) -> str:
    """The columns of a stream as Spark SQL writes them, with a text for each time of day."""
    schema = element_schema(element_type)
    return _ddl_of(element_type, schema, told_schema(schema))


def with_numbers(columns: Columns) -> Columns:
    """The columns with a number of nanoseconds for each time of day."""
    return _cast(columns, numbered_schema(columns.schema))


def with_texts(columns: Columns) -> Columns:
    """The columns with a text for each time of day, to the microsecond."""
    whole = pa.schema([field.with_type(_replaced(field.type, _MICROSECONDS)) for field in columns.schema])
    return _cast(_cast(columns, whole), told_schema(columns.schema))


def with_times(columns: Columns, schema: pa.Schema) -> Columns:
    """The columns with the times of day that a schema has, whose other columns may differ and stay as they are.

    Args:
        columns: With numbers, or with times.
        schema: Of as many columns, in the same order.
    """
    if not any(has_times(kind) for kind in schema.types):
        return columns
    pairs = zip(columns.schema, schema, strict=True)
    wanted = [own.with_type(field.type) if has_times(field.type) else own for own, field in pairs]
    return _cast(columns, pa.schema(wanted))


def _ddl_of(element_type: TypeInformation, schema: pa.Schema, replaced: pa.Schema) -> str:
    return element_ddl(element_type) if replaced.types == schema.types else to_row_type(replaced).schema_ddl


def _cast(columns: Columns, schema: pa.Schema) -> Columns:
    if columns.schema.types == schema.types:
        return columns
    arrays = [column.cast(kind) for column, kind in zip(columns.columns, schema.types, strict=True)]
    result: Columns = type(columns).from_arrays(arrays, schema=schema)
    return result


def _replaced(kind: pa.DataType, other: pa.DataType) -> pa.DataType:
    if not has_times(kind):
        return kind
    if pa.types.is_time(kind):
        return other
    if pa.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(
            key.with_type(_replaced(key.type, other)), item.with_type(_replaced(item.type, other)), kind.keys_sorted
        )
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_replaced(kind.value_type, other)))
    return pa.struct([field.with_type(_replaced(field.type, other)) for field in _fields(kind)])


def _fields(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(position) for position in range(kind.num_fields)]
