"""Parquet files as an input, under PyFlink's name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.common.flink_paths import refusing
from holdfast.datastream.flink_paths import REFUSED_FORMATS
from holdfast.datastream.formats.input_file import InputFile
from holdfast.datastream.formats.input_format import ROWS, BulkFormat, RowFormat

__getattr__ = refusing(__name__, REFUSED_FORMATS)


class ParquetColumnarRowInputFormat(RowFormat, BulkFormat):
    """Rows of Parquet files. A row group is read by the task in whose range its middle lies.

    Args:
        row_type: The columns to read, by name: type information, DDL such as `'key string, n bigint'`, or an Arrow
            schema. Files may have others beside them, and columns of narrower types.
    """

    name = "Parquet"

    def __init__(self, row_type: Any) -> None:
        super().__init__(row_type)

    def read(self, file: InputFile, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        is_remote = "://" in file.path
        with file.open() as opened, pq.ParquetFile(opened, pre_buffer=is_remote) as parquet:
            self.require_columns(parquet.schema_arrow, file.path)
            groups = [n for n in range(parquet.num_row_groups) if begin <= _middle(parquet.metadata, n) < end]
            if groups:
                names = self.schema.names
                for batch in parquet.iter_batches(ROWS, row_groups=groups, columns=names, use_threads=False):
                    yield self.conform(batch)


def _middle(metadata: Any, number: int) -> int:
    """The byte in the middle of a row group."""
    group = metadata.row_group(number)
    columns = [group.column(n) for n in range(group.num_columns)]
    first = min(
        column.data_page_offset
        if not column.has_dictionary_page or not column.dictionary_page_offset
        else min(column.dictionary_page_offset, column.data_page_offset)
        for column in columns
    )
    return int(first + sum(column.total_compressed_size for column in columns) // 2)
