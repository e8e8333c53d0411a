"""Elements of streams to Arrow batches and back.

A stream of rows has one Arrow column a field; a stream of any other type has one column named ``value``. The fast way
converts whole columns; only when it fails are the elements looked at one by one, to say which one is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn

import pyarrow as pa

from holdfast.errors import ConfigurationError, HoldfastError, OutputTypeError
from holdfast.types.information.type_information import RowTypeInformation, TypeInformation

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
                f"{_producer(uid)} produced rows of which the value of {name!r} is none of its type: {wrong}",
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
