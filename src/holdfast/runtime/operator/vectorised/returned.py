"""What a function of batches has returned, as one batch of the declared type."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from holdfast.errors import OutputTypeError
from holdfast.types.conversion.arrow import element_schema
from holdfast.types.information.type_information import TypeInformation


def as_one_batch(result: Any, output_type: TypeInformation, uid: str) -> pa.RecordBatch:
    """Return what a function has returned as one batch of the declared type; columns are taken by name.

    Raises:
        OutputTypeError: A column is missing or has another type.
    """
    schema = element_schema(output_type)
    if isinstance(result, pa.RecordBatch) and result.schema.equals(schema, check_metadata=True):
        return result
    tables = [_conformed(part, schema, output_type, uid) for part in _parts(result)]
    if not tables:
        return pa.RecordBatch.from_pylist([], schema=schema)
    columns = pa.concat_tables(tables).combine_chunks()
    arrays = [pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _parts(result: Any) -> Iterable[Any]:
    if result is None:
        return ()
    return (result,) if isinstance(result, pa.RecordBatch | pa.Table) else result


def _conformed(part: Any, schema: pa.Schema, output_type: TypeInformation, uid: str) -> pa.Table:
    if not isinstance(part, pa.RecordBatch | pa.Table):
        raise OutputTypeError(
            uid, f"It returned {type(part).__name__!r}, not record batches or tables.", declared=str(output_type)
        )
    table = pa.Table.from_batches([part]) if isinstance(part, pa.RecordBatch) else part
    missing = [name for name in schema.names if name not in table.schema.names]
    if missing or table.num_columns != len(schema):
        raise OutputTypeError(
            uid, f"It returned the columns {table.schema.names!r}, not {schema.names!r}.", declared=str(output_type)
        )
    try:
        return table.select(schema.names).cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise OutputTypeError(
            uid, f"It returned a column of another type: {error}", declared=str(output_type)
        ) from error
