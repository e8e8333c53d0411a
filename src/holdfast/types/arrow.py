"""Elements of streams as Arrow batches: conversion both ways, checks, columns of timestamps, and times of day.

A stream of rows has one Arrow column per field; a stream of any other type has one column named ``value``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ConfigurationError, HoldfastError, OutputTypeError
from holdfast.types.composite import RowTypeInformation
from holdfast.types.type_information import TypeInformation

VALUE_COLUMN: Final = "value"
Timestamps: TypeAlias = "pa.Int64Array"
_PER_MILLISECOND: Final = {"us": 1_000, "ns": 1_000_000}
Columns = TypeVar("Columns", pa.RecordBatch, pa.Table)


class ElementsTooLongError(OutputTypeError):
    """The elements have the declared type, but together more text or bytes than an Arrow array holds: 2 GiB."""


def element_schema(element_type: TypeInformation) -> pa.Schema:
    """Return the Arrow schema of a stream's batches.

    Raises:
        ConfigurationError: The type is a row without fields: a batch without columns has no number of rows.
    """
    if not isinstance(element_type, RowTypeInformation):
        return pa.schema([pa.field(VALUE_COLUMN, element_type.arrow_type)])
    if not element_type.names:
        raise ConfigurationError("Rows of a stream need at least one field.")
    return element_type.arrow_schema


def element_ddl(element_type: TypeInformation) -> str:
    """Return the schema of a stream's batches as Spark SQL writes it."""
    if isinstance(element_type, RowTypeInformation):
        return element_type.schema_ddl
    return f"{VALUE_COLUMN} {element_type.ddl}"


def elements_to_batch(elements: Sequence[Any], element_type: TypeInformation, uid: str | None = None) -> pa.RecordBatch:
    """Convert elements to one batch.

    Raises:
        OutputTypeError: An element does not have the type; the message names the element, field and value.
        ElementsTooLongError: The elements are too long for one batch.
    """
    if isinstance(element_type, RowTypeInformation):
        return rows_to_batch(elements, element_type, uid)
    try:
        return pa.RecordBatch.from_arrays([element_type.to_array(elements)], schema=element_schema(element_type))
    except Exception as error:  # noqa: BLE001 - raised again, with the element's position
        _raise_located(elements, element_type, uid, error)


def rows_to_batch(rows: Sequence[Any], row_type: RowTypeInformation, uid: str | None = None) -> pa.RecordBatch:
    """Convert rows to one batch; they may be Rows, tuples, lists, dicts, named tuples and rows of PySpark.

    Raises:
        OutputTypeError: A row does not match the type; the message names the row, field, value and declared type.
        ElementsTooLongError: The rows are too long for one batch.
    """
    schema = element_schema(row_type)
    if not rows:
        return pa.RecordBatch.from_pylist([], schema=schema)
    try:
        columns = row_type.columns(rows)
        arrays = [part.to_array(column) for part, column in zip(row_type.types, columns, strict=True)]
        # Arrow splits values that are too long for one array into several, which a batch rejects.
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    except Exception as error:  # noqa: BLE001 - raised again, with the element's position
        _raise_located(rows, row_type, uid, error)


def batch_to_elements(batch: pa.RecordBatch, element_type: TypeInformation, uid: str | None = None) -> list[Any]:
    """Convert a batch, whose columns are in the order of the type's fields, to elements.

    Raises:
        OutputTypeError: Python has no such value, for instance 24:00:00 as a time of day; the message names the column.
    """
    columns = columns_to_lists(batch, element_type, uid)
    if isinstance(element_type, RowTypeInformation):
        return element_type.make_rows(columns)
    return columns[0]


def columns_to_lists(batch: pa.RecordBatch, element_type: TypeInformation, uid: str | None = None) -> list[list[Any]]:
    """Convert each column of a batch, in the order of the type's fields, to a list.

    Raises:
        OutputTypeError: The batch has another number of columns than the type, or a value that Python does not have.
    """
    types = element_type.types if isinstance(element_type, RowTypeInformation) else (element_type,)
    if batch.num_columns != len(types):
        raise OutputTypeError(None, f"A batch has the columns {batch.schema.names!r}, but {element_type} was declared.")
    lists = []
    for part, column, name in zip(types, batch.columns, batch.schema.names, strict=True):
        try:
            lists.append(part.to_list(column))
        except OutputTypeError as wrong:
            raise OutputTypeError(
                uid,
                f"{_producer(uid)} produced a row whose value of {name!r} is not of its type: {wrong}",
                field=name,
                declared=str(part),
            ) from wrong
    return lists


def _raise_located(
    elements: Sequence[Any], element_type: TypeInformation, uid: str | None, error: Exception
) -> NoReturn:
    """Raise an error that names the first invalid element. Errors of other kinds are raised as they are."""
    if isinstance(error, HoldfastError) and not isinstance(error, OutputTypeError):
        raise error
    for position, element in enumerate(elements):
        try:
            _check(element, element_type)
        except OutputTypeError as wrong:
            raise _element_error(wrong, wrong.field, position, element_type, uid) from error
        except HoldfastError:
            raise
        except Exception as wrong:  # noqa: BLE001 - raised again, with the element's position
            raise _element_error(wrong, None, position, element_type, uid) from error
    raise ElementsTooLongError(
        uid,
        f"{_producer(uid)} produced {len(elements):,} elements that do not fit into a batch of {element_type}: {error}",
        declared=str(element_type),
    ) from error


def _check(element: Any, element_type: TypeInformation) -> None:
    if isinstance(element_type, RowTypeInformation):
        if element is None:
            raise element_type.mismatch(element, "a Row, tuple, list or dict is needed")
        element_type.adopt(element)
        for part, value in zip(element_type.types, element_type.arrange(element), strict=True):
            part.to_array([value])
    else:
        element_type.adopt(element)
        element_type.to_array([element])


def _element_error(
    wrong: Exception, field: str | None, position: int, element_type: TypeInformation, uid: str | None
) -> OutputTypeError:
    declared = wrong.declared if isinstance(wrong, OutputTypeError) else str(element_type)
    where = f", field {field!r}" if field else ""
    remedy = "Return values of the declared type, or declare another output type."
    if field is None and isinstance(element_type, RowTypeInformation):
        remedy += (
            " If a process or flat_map function returned one row, write `yield` in place of `return`: what it returns "
            "is a collection of elements."
        )
    return OutputTypeError(
        uid,
        f"Element {position} of a batch that {_producer(uid)} produced{where}: {wrong}. {remedy}",
        row=position,
        field=field,
        declared=declared,
    )


def _producer(uid: str | None) -> str:
    return f"operator {uid!r}" if uid is not None else "an operator"


# Timestamps of elements are event times in milliseconds, null for an element without one. They stay a column from the
# assigner through exchanges into operators; a list of numbers is made only for code that reads elements one by one.


def timestamp_column(times: Any) -> Timestamps:
    """Return an array or a sequence of milliseconds, with None for null, as a column of timestamps."""
    stamps: Timestamps = pa.array(times, pa.int64())
    return stamps


def to_event_times(column: pa.Array) -> Timestamps:
    """Return a column of milliseconds or of Arrow timestamps as a column of event times."""
    numbers = column.cast(pa.int64())
    if not pa.types.is_timestamp(column.type):
        return numbers
    scale = _PER_MILLISECOND.get(column.type.unit)
    if scale is None:
        return numbers if column.type.unit == "ms" else pc.multiply_checked(numbers, 1000)
    # Numpy rounds down and Arrow towards zero, which would put times before 1970 into the window after their own.
    if not numbers.null_count:
        return pa.array(numbers.to_numpy() // scale)
    mask = numbers.is_null().to_numpy(zero_copy_only=False)
    return pa.array(numbers.fill_null(0).to_numpy() // scale, mask=mask)


def no_timestamps(count: int) -> Timestamps:
    return pa.nulls(count, pa.int64())


def iterate_timestamps(stamps: Timestamps | None) -> Iterable[int | None]:
    """Return the timestamps as numbers; an endless iterator of None where the stream has no event time."""
    if stamps is None:
        return repeat(None)
    numbers: list[int | None] = stamps.to_pylist() if stamps.null_count else stamps.to_numpy().tolist()
    return numbers


def timestamps_of_outputs(stamps: Timestamps | None, ends: Sequence[int]) -> Timestamps:
    """Return the timestamps of emitted elements: those of the inputs for which they were emitted.

    Args:
        stamps: Timestamps of the inputs; None if they have none.
        ends: Number of elements emitted after each input.
    """
    emitted = ends[-1] if ends else 0
    if stamps is None:
        return no_timestamps(emitted)
    counts = np.array(ends, np.int64)
    counts[1:] -= counts[:-1].copy()
    if (counts == 1).all():
        return stamps
    return stamps.take(pa.array(np.repeat(np.arange(len(counts)), counts)))


def concat_timestamps(parts: Sequence[Timestamps]) -> Timestamps:
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts) if parts else no_timestamps(0)


# Times of day in frames of Spark. Before 4.1 Spark has no type for them, later it is off unless
# `spark.sql.timeType.enabled` is true, and it cannot read Parquet files that have them. So exchanges have nanoseconds
# since midnight, whose hash in Spark equals that of its own times, and the frames of programs have texts such as
# `23:59:58.000000`.

_MICROSECONDS: Final = pa.time64("us")


@lru_cache(maxsize=1024)
def has_times_of_day(kind: pa.DataType) -> bool:
    """Return whether a type is a time of day, or has one in it."""
    if pa.types.is_map(kind):
        return has_times_of_day(kind.key_type) or has_times_of_day(kind.item_type)
    if pa.types.is_list(kind):
        return has_times_of_day(kind.value_type)
    if pa.types.is_struct(kind):
        return any(has_times_of_day(field.type) for field in _fields(kind))
    return bool(pa.types.is_time(kind))


def type_with_nanos(kind: pa.DataType) -> pa.DataType:
    """Return a type with nanoseconds since midnight (int64) in place of times of day."""
    return _replace_times(kind, pa.int64())


def schema_with_nanos(schema: pa.Schema) -> pa.Schema:
    """Return the schema with nanoseconds in place of times of day."""
    return pa.schema([field.with_type(type_with_nanos(field.type)) for field in schema])


def schema_with_time_texts(schema: pa.Schema) -> pa.Schema:
    """Return the schema with texts in place of times of day."""
    return pa.schema([field.with_type(_replace_times(field.type, pa.string())) for field in schema])


def times_to_nanos(columns: Columns) -> Columns:
    """Convert times of day to nanoseconds since midnight."""
    return _cast(columns, schema_with_nanos(columns.schema))


def times_to_texts(columns: Columns) -> Columns:
    """Convert times of day to texts with microseconds."""
    whole = pa.schema([field.with_type(_replace_times(field.type, _MICROSECONDS)) for field in columns.schema])
    return _cast(_cast(columns, whole), schema_with_time_texts(columns.schema))


def nanos_to_times(columns: Columns, schema: pa.Schema) -> Columns:
    """Convert nanoseconds back to times of day where a schema has them; other columns are returned as they are.

    Args:
        columns: Columns with nanoseconds or with times.
        schema: The schema with times; as many columns, in the same order.
    """
    if not any(has_times_of_day(kind) for kind in schema.types):
        return columns
    pairs = zip(columns.schema, schema, strict=True)
    wanted = [own.with_type(field.type) if has_times_of_day(field.type) else own for own, field in pairs]
    return _cast(columns, pa.schema(wanted))


def _cast(columns: Columns, schema: pa.Schema) -> Columns:
    if columns.schema.types == schema.types:
        return columns
    arrays = [column.cast(kind) for column, kind in zip(columns.columns, schema.types, strict=True)]
    result: Columns = type(columns).from_arrays(arrays, schema=schema)
    return result


def _replace_times(kind: pa.DataType, other: pa.DataType) -> pa.DataType:
    if not has_times_of_day(kind):
        return kind
    if pa.types.is_time(kind):
        return other
    if pa.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(
            key.with_type(_replace_times(key.type, other)),
            item.with_type(_replace_times(item.type, other)),
            kind.keys_sorted,
        )
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_replace_times(kind.value_type, other)))
    return pa.struct([field.with_type(_replace_times(field.type, other)) for field in _fields(kind)])


def _fields(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(position) for position in range(kind.num_fields)]


# Arrow makes invalid values silently when a function of batches casts or multiplies: 24:00:00 as a time of day, a
# decimal with more digits than its precision, text that is not UTF-8. A file with one is refused only when somebody
# reads it, so sinks check before they write. Cost for 200,000 rows in batches of 10,000: 0.7 ms for a column of texts
# of ten characters, 1.3 ms for a hundred characters, 0.3 ms for decimals, 0.1 ms for times, less for other numbers.
def check_values(batch: pa.RecordBatch, uid: str) -> None:
    """Check all values of a batch.

    Args:
        batch: The columns.
        uid: The operator or sink that writes them.

    Raises:
        OutputTypeError: A value is not of its column's type. The message names the column and the value.
    """
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if (problem := _find_problem(column)) is not None:
            raise OutputTypeError(
                uid,
                f"{uid!r} got a row that cannot be written: the value of {name!r} is not of its type: {problem}",
                field=name,
                declared=str(column.type),
            )


def with_invalid_columns_null(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with nulls instead of each column that has an invalid value."""
    columns = [pa.nulls(len(c), c.type) if _find_problem(c) is not None else c for c in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _validate(column: pa.Array) -> None:
    column.validate()
    # Arrow validates all rows below a slice of lists or structs, so the nested arrays are cut to the slice first.
    if pa.types.is_struct(column.type):
        for child in column.flatten():
            _validate(child)
    elif pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        _validate(column.flatten())
    elif pa.types.is_map(column.type):
        first, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
        for part in (column.keys, column.items):
            _validate(part.slice(first, end - first))
    else:
        column.validate(full=True)


def _find_problem(column: pa.Array) -> str | None:
    try:
        _validate(column)
    except pa.ArrowInvalid as error:
        return str(error)
    return None
