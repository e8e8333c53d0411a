"""Read and write parts of key groups in Spark tasks: rows are placed by their keys, and each task writes its part.

A task may run twice, also at the same time. Each attempt writes under names of its own, and only files named in the
rows that Spark returns in the end are used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.runtime.exchange.layout import RESERVED
from holdfast.spark.exchange import place
from holdfast.spark.failure import translate
from holdfast.spark.frame import frame_with, map_in_arrow
from holdfast.spark.schema import Times, quote, spark_type, stream_schema
from holdfast.spark.worker import TaskFailedError
from holdfast.types.arrow import (
    nanos_to_times,
    times_to_nanos,
    times_to_texts,
)
from holdfast.types.composite import RowTypeInformation
from holdfast.types.type_parser import to_row_type, to_type

SUBTASK: Final = f"{RESERVED}subtask"
HASH: Final = f"{RESERVED}hash"
KEY: Final = f"{RESERVED}key"
_WRITTEN: Final = "written"

Keys = Callable[[pa.Table], tuple[Any, Any, pa.Array]]
"""From rows to the part, the hash and the key of each."""
Write = Callable[[int, Any, pa.Array, pa.Table], Any]
"""Writes the rows of a part: (part, hashes, keys, rows) -> JSON, or None."""


def row_type_of(frame: DataFrame) -> RowTypeInformation:
    """Return the type of the rows of a frame.

    Raises:
        ConfigurationError: It is a stream, or one of its columns has no form in Python.
    """
    if frame.isStreaming:
        raise ConfigurationError("A savepoint is made of a DataFrame that ends, not of a stream.")
    return to_row_type(frame.schema)


def write_parts(
    frame: DataFrame, columns: list[str], parallelism: int, key_type: pa.DataType, keys: Keys, write: Write
) -> list[Any]:
    """Place the rows of a frame by their keys, and let tasks write them. Blocks.

    Args:
        frame: The rows.
        columns: The columns that are needed.
        parallelism: Number of parts.
        key_type: Type of keys, as files have them.
        keys: Computes keys; runs in tasks.
        write: Writes a part; runs in tasks.

    Returns:
        What `write` returned, without None.

    Raises:
        HoldfastError: A task refused something, or Spark cannot read the rows.
    """
    needed = frame.select(*map(quote, columns))
    placed_by = [
        T.StructField(SUBTASK, T.IntegerType()),
        T.StructField(HASH, T.LongType()),
        T.StructField(KEY, spark_type(to_type(key_type), Times.NANOS)),
    ]
    keyed = map_in_arrow(needed, _keyed(keys), T.StructType([*placed_by, *needed.schema.fields]))
    placed = place(keyed, parallelism, SUBTASK)
    written = map_in_arrow(placed, _written(write, key_type), T.StructType([T.StructField(_WRITTEN, T.StringType())]))
    try:
        return [json.loads(row[0]) for row in written.collect()]
    except Exception as failure:
        raise translate(failure, "reading the rows of a DataFrame and writing them as state") from failure


def read_parts(
    session: SparkSession, parts: int, kind: RowTypeInformation, read: Callable[[int], Iterator[pa.RecordBatch]]
) -> DataFrame:
    """Return a frame whose partitions tasks read when Spark needs them; times of day are texts in it.

    Args:
        session: Session of the frame.
        parts: Number of partitions.
        kind: Kind of the rows.
        read: Reads one part; runs in tasks.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for batch in batches:
                for part in batch.column(0).to_pylist():
                    yield from map(times_to_texts, read(part))
        except HoldfastError as error:
            raise TaskFailedError(error) from error

    return map_in_arrow(session.range(0, parts, 1, parts), run, stream_schema(kind, Times.TEXTS))


def _keyed(keys: Keys) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for batch in batches:
                parts, hashes, stored = keys(pa.Table.from_batches([batch]))
                arrays = [pa.array(parts, pa.int32()), pa.array(hashes.view(np.int64)), stored, *batch.columns]
                sent = pa.RecordBatch.from_arrays(arrays, names=[SUBTASK, HASH, KEY, *batch.schema.names])
                yield sent.set_column(2, KEY, times_to_nanos(sent.select([KEY])).column(0))
        except HoldfastError as error:
            raise TaskFailedError(error) from error

    return run


def _written(write: Write, key_type: pa.DataType) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrived = [batch for batch in batches if batch.num_rows]
        if not arrived:
            return
        try:
            rows = pa.Table.from_batches(arrived)
            parts = rows.column(SUBTASK).to_numpy()
            for part in np.unique(parts).tolist():  # Spark may put several partitions together
                own = rows if (parts == part).all() else rows.filter(pa.array(parts == part))
                hashes = own.column(HASH).to_numpy().view(np.uint64)
                keys = nanos_to_times(own.select([KEY]), pa.schema([(KEY, key_type)])).column(0).combine_chunks()
                found = write(part, hashes, keys, own.drop_columns([SUBTASK, HASH, KEY]))
                if found is not None:
                    yield pa.RecordBatch.from_arrays([pa.array([json.dumps(found)])], names=[_WRITTEN])
        except HoldfastError as error:
            raise TaskFailedError(error) from error

    return run


def frame_of_table(session: SparkSession, table: pa.Table) -> DataFrame:
    """Return a small Arrow table as a frame; times of day are texts in it."""
    batch = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
    return frame_with(times_to_texts(batch[0]), stream_schema(to_row_type(table.schema), Times.TEXTS), session)
