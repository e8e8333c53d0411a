"""Elements of streams to Arrow batches and back.

A stream of rows has one Arrow column a field; a stream of any other type has one column named ``value``. The fast way
converts whole columns; only when it fails are the elements looked at one by one, to say which one is wrong.
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
from holdfast.types.type_parser import to_row_type, to_type

VALUE_COLUMN: Final = "value"


class ElementsTooLongError(OutputTypeError):
    """Each element is of its type, but together they have more text or bytes than an array of Arrow can: 2 GiB."""


def element_schema(element_type: TypeInformation) -> pa.Schema:
    """Return the Arrow schema of a stream's batches.

    Raises:
        ConfigurationError: It is a row without fields, of which no batch can tell how many there are.
    """
    if not isinstance(element_type, RowTypeInformation):
        return pa.schema([pa.field(VALUE_COLUMN, element_type.arrow_type)])
    if not element_type.names:
        raise ConfigurationError("A stream's rows need at least one field.")
    return element_type.arrow_schema


def element_ddl(element_type: TypeInformation) -> str:
    """Return the schema of a stream's batches as Spark SQL writes it."""
    if isinstance(element_type, RowTypeInformation):
        return element_type.schema_ddl
    return f"{VALUE_COLUMN} {element_type.ddl}"


def elements_to_batch(elements: Sequence[Any], element_type: TypeInformation, uid: str | None = None) -> pa.RecordBatch:
    """Convert elements to one batch.

    Raises:
        OutputTypeError: An element is not of the type; it names the element, field and value.
        ElementsTooLongError: They are too many for one batch.
    """
    if isinstance(element_type, RowTypeInformation):
        return rows_to_batch(elements, element_type, uid)
    try:
        return pa.RecordBatch.from_arrays([element_type.to_array(elements)], schema=element_schema(element_type))
    except Exception as error:
        _raise_located(elements, element_type, uid, error)


def rows_to_batch(rows: Sequence[Any], row_type: RowTypeInformation, uid: str | None = None) -> pa.RecordBatch:
    """Convert rows to one batch; they may be Rows, tuples, lists, dicts, named tuples and rows of PySpark.

    Raises:
        OutputTypeError: A row does not match the type; it names the row, field, value and declared type.
        ElementsTooLongError: They are too many for one batch.
    """
    schema = element_schema(row_type)
    if not rows:
        return pa.RecordBatch.from_pylist([], schema=schema)
    try:
        columns = row_type.columns(rows)
        arrays = [part.to_array(column) for part, column in zip(row_type.types, columns, strict=True)]
        # Of what is too long for one array Arrow makes several, which no batch takes.
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    except Exception as error:
        _raise_located(rows, row_type, uid, error)


def batch_to_elements(batch: pa.RecordBatch, element_type: TypeInformation, uid: str | None = None) -> list[Any]:
    """Convert a batch to elements; its columns stand in the order of the type's fields.

    Raises:
        OutputTypeError: Python has no such value, such as 24:00:00 as a time of day; names the column.
    """
    columns = columns_to_lists(batch, element_type, uid)
    if isinstance(element_type, RowTypeInformation):
        return element_type.make_rows(columns)
    return columns[0]


def columns_to_lists(batch: pa.RecordBatch, element_type: TypeInformation, uid: str | None = None) -> list[list[Any]]:
    """Convert each column of a batch to a list; the columns stand in the order of the type's fields.

    Raises:
        OutputTypeError: The batch has another number of columns than the type, or values that Python has not.
    """
    types = element_type.types if isinstance(element_type, RowTypeInformation) else (element_type,)
    if batch.num_columns != len(types):
        raise OutputTypeError(
            None, f"A batch with the columns {batch.schema.names!r} arrived where {element_type} was declared."
        )
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
    """Raise the error again as one that names the element; errors of other kinds pass."""
    if isinstance(error, HoldfastError) and not isinstance(error, OutputTypeError):
        raise error
    for position, element in enumerate(elements):
        try:
            _check(element, element_type)
        except OutputTypeError as wrong:
            raise _located(wrong, wrong.field, position, element_type, uid) from error
        except HoldfastError:
            raise
        except Exception as wrong:
            raise _located(wrong, None, position, element_type, uid) from error
    raise ElementsTooLongError(
        uid,
        f"{_producer(uid)} produced {len(elements):,} elements that make no batch of {element_type}: {error}",
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


def _located(
    wrong: Exception, field: str | None, position: int, element_type: TypeInformation, uid: str | None
) -> OutputTypeError:
    declared = wrong.declared if isinstance(wrong, OutputTypeError) else str(element_type)
    where = f", field {field!r}" if field else ""
    return OutputTypeError(
        uid,
        f"Element {position} of a batch that {_producer(uid)} produced{where}: {wrong}. "
        "Return values of the declared type, or declare another output type.",
        row=position,
        field=field,
        declared=declared,
    )


def _producer(uid: str | None) -> str:
    return f"operator {uid!r}" if uid is not None else "an operator"


# Timestamps of elements as a column: event times in milliseconds, null for an element that has none.
#
# They stay a column from the assigner on, through exchanges and into operators. A list of numbers is made only where
# somebody looks at elements one by one.

Timestamps: TypeAlias = "pa.Int64Array"


_PER_MILLISECOND: Final = {"us": 1_000, "ns": 1_000_000}


def timestamp_column(times: Any) -> Timestamps:
    """Make a column of numbers, or of an array; None is null."""
    stamps: Timestamps = pa.array(times, pa.int64())
    return stamps


def to_event_times(column: pa.Array) -> Timestamps:
    """Make a column of whole numbers of milliseconds, or of timestamps, one of event times."""
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
    """The timestamps of elements that have none."""
    return pa.nulls(count, pa.int64())


def iterate_timestamps(stamps: Timestamps | None) -> Iterable[int | None]:
    """The timestamps as numbers, as many as there are; without an end where event time plays no part."""
    if stamps is None:
        return repeat(None)
    numbers: list[int | None] = stamps.to_pylist() if stamps.null_count else stamps.to_numpy().tolist()
    return numbers


def timestamps_of_outputs(stamps: Timestamps | None, ends: Sequence[int]) -> Timestamps:
    """The timestamps of what was emitted, element by element: those of what it was emitted for.

    Args:
        stamps: Those of the elements that came; None where they had none.
        ends: How much had been emitted after each of them.
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
    """Some columns as one."""
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts) if parts else no_timestamps(0)


# Times of day where Spark sees them: as numbers on the way between our own tasks, as texts where somebody reads them.
#
# Spark has no type for them before 4.1, and since then one that is off unless `spark.sql.timeType.enabled` says
# otherwise; Parquet files that have them it cannot read. So what crosses an exchange has nanoseconds since midnight, of
# which Spark makes the same hash as of its own times. A frame that a program gets has texts such as `23:59:58.000000`.

Columns = TypeVar("Columns", pa.RecordBatch, pa.Table)
_MICROSECONDS: Final = pa.time64("us")


@lru_cache(maxsize=1024)
def has_times_of_day(kind: pa.DataType) -> bool:
    """Whether there are times of day in a type, or in parts of it."""
    if pa.types.is_map(kind):
        return has_times_of_day(kind.key_type) or has_times_of_day(kind.item_type)
    if pa.types.is_list(kind):
        return has_times_of_day(kind.value_type)
    if pa.types.is_struct(kind):
        return any(has_times_of_day(field.type) for field in _fields(kind))
    return bool(pa.types.is_time(kind))


def type_with_nanos(kind: pa.DataType) -> pa.DataType:
    """The type with a number of nanoseconds for each time of day."""
    return _replaced(kind, pa.int64())


def ddl_with_nanos(kind: TypeInformation) -> str:
    """The type as Spark SQL writes it, with a number of nanoseconds for each time of day."""
    return to_type(type_with_nanos(kind.arrow_type)).ddl if has_times_of_day(kind.arrow_type) else kind.ddl


def schema_with_nanos(schema: pa.Schema) -> pa.Schema:
    """The schema with a number of nanoseconds for each time of day."""
    return pa.schema([field.with_type(type_with_nanos(field.type)) for field in schema])


def element_ddl_with_nanos(element_type: TypeInformation) -> str:
    """The columns of a stream as Spark SQL writes them, with a number of nanoseconds for each time of day."""
    schema = element_schema(element_type)
    return _ddl_of(element_type, schema, schema_with_nanos(schema))


def schema_with_time_texts(schema: pa.Schema) -> pa.Schema:
    """The schema with a text for each time of day."""
    return pa.schema([field.with_type(_replaced(field.type, pa.string())) for field in schema])


def element_ddl_with_time_texts(element_type: TypeInformation) -> str:
    """The columns of a stream as Spark SQL writes them, with a text for each time of day."""
    schema = element_schema(element_type)
    return _ddl_of(element_type, schema, schema_with_time_texts(schema))


def times_to_nanos(columns: Columns) -> Columns:
    """The columns with a number of nanoseconds for each time of day."""
    return _cast(columns, schema_with_nanos(columns.schema))


def times_to_texts(columns: Columns) -> Columns:
    """The columns with a text for each time of day, to the microsecond."""
    whole = pa.schema([field.with_type(_replaced(field.type, _MICROSECONDS)) for field in columns.schema])
    return _cast(_cast(columns, whole), schema_with_time_texts(columns.schema))


def nanos_to_times(columns: Columns, schema: pa.Schema) -> Columns:
    """The columns with the times of day that a schema has, whose other columns may differ and stay as they are.

    Args:
        columns: With numbers, or with times.
        schema: Of as many columns, in the same order.
    """
    if not any(has_times_of_day(kind) for kind in schema.types):
        return columns
    pairs = zip(columns.schema, schema, strict=True)
    wanted = [own.with_type(field.type) if has_times_of_day(field.type) else own for own, field in pairs]
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
    if not has_times_of_day(kind):
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
