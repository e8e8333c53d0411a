"""Parquet files as an input, under PyFlink's name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.common.flink_paths import module_getattr
from holdfast.datastream.flink_paths import REFUSED_FORMATS
from holdfast.datastream.formats.input_format import ROWS, BulkFormat, InputFile, RowFormat

__getattr__ = module_getattr(__name__, REFUSED_FORMATS)

_PARTS: Final = 4
"""That a file has at least. Whoever has a part of a row group decodes what is before it as well, so they are few."""


class ParquetColumnarRowInputFormat(RowFormat, BulkFormat):
    """Rows of Parquet files. A row group is read by the task in whose range its middle lies, as far as sizes tell.

    In a file of few row groups these have parts with a middle of their own, so that several tasks read it all the same.

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
            own = [part for part in _parts(parquet.metadata, file.length) if begin <= part.middle < end]
            if own:
                yield from self._rows_of(parquet, own)

    def _rows_of(self, parquet: Any, parts: list[_Part]) -> Iterator[pa.RecordBatch]:
        """The rows of parts that follow each other."""
        before, rest = parts[0].begin, sum(part.end - part.begin for part in parts)
        groups = sorted({part.group for part in parts})
        batches = parquet.iter_batches(ROWS, row_groups=groups, columns=self.schema.names, use_threads=False)
        while rest > 0:
            batch = next(batches, None)
            if batch is None:
                raise ValueError(f"{rest} rows are missing that its footer tells of")
            own = batch.slice(before, rest)
            before, rest = max(0, before - batch.num_rows), rest - own.num_rows
            if own.num_rows:
                yield self.conform(own)


class _Part(NamedTuple):
    """Of a row group.

    Attributes:
        middle: A byte of the file.
        group: Number of the row group.
        begin: Its first row in the row group.
        end: The row behind its last one.
    """

    middle: int
    group: int
    begin: int
    end: int


def _parts(metadata: Any, length: int) -> Iterator[_Part]:
    """Yields what is read as a whole: the middles are where they were if row groups shared the file by their sizes.

    Where they really lie is told of each column, and who asks for that of a damaged file ends the process: Arrow checks
    more than it should there, and throws where nobody catches.
    """
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    sizes = [max(1, group.total_byte_size) for group in groups]
    parts = -(-_PARTS // max(1, len(groups)))
    whole, before = 2 * parts * sum(sizes), 0
    for number, (group, size) in enumerate(zip(groups, sizes, strict=True)):
        for part in range(parts):
            middle = (before + (2 * part + 1) * size) * length // whole
            yield _Part(middle, number, group.num_rows * part // parts, group.num_rows * (part + 1) // parts)
        before += 2 * parts * size
