"""`ParquetColumnarRowInputFormat`: reads Parquet files, under PyFlink's name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.common.flink_paths import module_getattr
from holdfast.datastream.flink_paths import REFUSED_FORMATS
from holdfast.datastream.formats.input_format import ROWS, BulkFormat, InputFile, RowFormat

__getattr__ = module_getattr(__name__, REFUSED_FORMATS)

_MIN_PARTS: Final = 4
"""Minimum parts of a file. Few, because a task that reads a part of a row group also decodes the rows before it."""


class ParquetColumnarRowInputFormat(RowFormat, BulkFormat):
    """Reads rows of Parquet files, for `FileSource.for_bulk_file_format`.

    A task reads the row groups whose middle is in its range, estimated by their sizes. The row groups of a file with
    few of them are divided into parts, so that several tasks can read it.

    Args:
        row_type: The columns to read, by name: type information, DDL such as `'key string, n bigint'`, or an Arrow
            schema. Files may have other columns, and narrower types.

    Raises:
        ConfigurationError: There are no columns.

    Example:
        >>> from holdfast.datastream.connectors.file_system import FileSource
        >>> from holdfast.datastream.formats.parquet import ParquetColumnarRowInputFormat
        >>> rows = ParquetColumnarRowInputFormat("word string, n bigint")
        >>> FileSource.for_bulk_file_format(rows, "/data/words").build().element_type().names
        ('word', 'n')
    """

    name = "Parquet"

    def read(self, file: InputFile, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        is_remote = "://" in file.path
        with file.open() as opened, pq.ParquetFile(opened, pre_buffer=is_remote) as parquet:
            self.require_columns(parquet.schema_arrow, file.path)
            own = [part for part in _parts(parquet.metadata, file.length) if begin <= part.middle < end]
            if own:
                yield from self._rows_of(parquet, own)

    def _rows_of(self, parquet: Any, parts: list[_Part]) -> Iterator[pa.RecordBatch]:
        """Read the rows of consecutive parts."""
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
    """A part of a row group.

    Attributes:
        middle: The estimated byte of its middle in the file.
        group: The number of the row group.
        begin: The first row in the row group.
        end: The row after the last one.
    """

    middle: int
    group: int
    begin: int
    end: int


def _parts(metadata: Any, length: int) -> Iterator[_Part]:
    """Yield the parts of a file; the middles assume that the sizes of row groups are proportional to their bytes.

    The real offsets are in the metadata of columns, but reading these from a damaged file can abort the process,
    because Arrow throws an exception that nobody catches.
    """
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    sizes = [max(1, group.total_byte_size) for group in groups]
    parts = -(-_MIN_PARTS // max(1, len(groups)))
    whole, before = 2 * parts * sum(sizes), 0
    for number, (group, size) in enumerate(zip(groups, sizes, strict=True)):
        for part in range(parts):
            middle = (before + (2 * part + 1) * size) * length // whole
            yield _Part(middle, number, group.num_rows * part // parts, group.num_rows * (part + 1) // parts)
        before += 2 * parts * size
