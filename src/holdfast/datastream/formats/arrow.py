"""`ArrowInputFormat`: reads files and streams of Arrow's IPC format ("Feather")."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from holdfast.datastream.formats.input_format import BulkFormat, InputFile, RowFormat

_MAGIC = b"ARROW1"


class ArrowInputFormat(RowFormat, BulkFormat):
    """Reads rows of Arrow files, for `FileSource.for_bulk_file_format`.

    A task reads those record batches of a file whose middle is in its range, as if all batches had the same size. A
    stream has no index of its batches, so the task of its first byte reads it completely.

    Args:
        row_type: The columns to read, by name; see `ParquetColumnarRowInputFormat`.

    Example:
        >>> from holdfast.datastream.formats.arrow import ArrowInputFormat
        >>> ArrowInputFormat("word string, n bigint").element_type().names
        ('word', 'n')
    """

    name = "Arrow"

    def read(self, file: InputFile, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        with file.open() as opened:
            is_file = opened.read(len(_MAGIC)) == _MAGIC
            opened.seek(0)
            batches = _of_file(opened, file.length, begin, end) if is_file else _of_stream(opened, begin, end)
            is_known = False
            for batch in batches:
                if not is_known:
                    self.require_columns(batch.schema, file.path)
                    is_known = True
                yield from self.conform_in_parts(batch)


def _of_file(opened: pa.NativeFile, length: int, begin: int, end: int) -> Iterator[pa.RecordBatch]:
    reader = pa.ipc.open_file(opened)
    count = reader.num_record_batches
    for number in range(count):
        if begin <= (2 * number + 1) * length // (2 * count) < end:
            yield reader.get_batch(number)


def _of_stream(opened: pa.NativeFile, begin: int, end: int) -> Iterator[pa.RecordBatch]:
    if begin == 0 < end:
        yield from pa.ipc.open_stream(opened)
