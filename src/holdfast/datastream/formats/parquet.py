"""Parquet files as an input, under PyFlink's name."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.common.flink_paths import refusing
from holdfast.datastream.flink_paths import REFUSED_FORMATS
from holdfast.datastream.formats.input_file import InputFile
from holdfast.datastream.formats.input_format import ROWS, BulkFormat, RowFormat

__getattr__ = refusing(__name__, REFUSED_FORMATS)


class ParquetColumnarRowInputFormat(RowFormat, BulkFormat):
    """Rows of Parquet files. A row group is read by the task in whose range its middle lies, as far as sizes tell.

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
            middles = enumerate(_middles(parquet.metadata, file.length))
            groups = [number for number, middle in middles if begin <= middle < end]
            if groups:
                names = self.schema.names
                for batch in parquet.iter_batches(ROWS, row_groups=groups, columns=names, use_threads=False):
                    yield self.conform(batch)


def _middles(metadata: Any, length: int) -> list[int]:
    """A byte of the file for each row group: its middle, if they shared the bytes of the file by their sizes.

    Where they really lie is told of each column, and who asks for that of a damaged file ends the process: Arrow checks
    more than it should there, and throws where nobody catches.
    """
    sizes = [max(1, metadata.row_group(number).total_byte_size) for number in range(metadata.num_row_groups)]
    ends = list(accumulate(sizes))
    return [(2 * end - size) * length // (2 * ends[-1]) for end, size in zip(ends, sizes, strict=True)]
