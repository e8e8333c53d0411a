"""Comma-separated values as an input, and rows of them, under PyFlink's names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc

from holdfast.common.flink_paths import refusing
from holdfast.datastream.flink_paths import REFUSED_FORMATS
from holdfast.datastream.formats.csv_row import CsvRowDeserializationSchema, CsvRowSerializationSchema
from holdfast.datastream.formats.input_file import InputFile
from holdfast.datastream.formats.input_format import RowFormat
from holdfast.datastream.formats.text_lines import StreamFormat, can_split_text, line_blocks, lines_of
from holdfast.errors import ConfigurationError
from holdfast.runtime.job.engine import InputError

__all__ = ["CsvReaderFormat", "CsvRowDeserializationSchema", "CsvRowSerializationSchema"]

__getattr__ = refusing(__name__, REFUSED_FORMATS)


class CsvReaderFormat(RowFormat, StreamFormat):
    """Rows of CSV files; `CsvReaderFormat.for_schema(schema)` makes one.

    An empty value is null, but for columns of text, where it is a text without characters.
    """

    name = "CSV"

    def __init__(self, schema: Any, header: bool, delimiter: str, multi_line: bool) -> None:
        super().__init__(schema)
        if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '"\n\r':
            raise ConfigurationError(f"The delimiter of CSV is one character, not {delimiter!r}.")
        self._header = header
        self._delimiter = delimiter
        self._multi_line = multi_line

    @staticmethod
    def for_schema(
        schema: Any, *, header: bool = False, delimiter: str = ",", multi_line: bool = False
    ) -> CsvReaderFormat:
        """A format of files with these columns, in their order.

        Args:
            schema: The columns: type information, DDL such as `'key string, n bigint'`, or an Arrow schema.
            header: Whether the first line of each file has the names of the columns; they must be these.
            delimiter: What stands between two values.
            multi_line: Whether values in quotes may have ends of lines in them. Such files are read whole, by one task.

        Raises:
            ConfigurationError: The delimiter is not one character, or there are no columns.
        """
        return CsvReaderFormat(schema, header, delimiter, multi_line)

    def can_split(self, path: str) -> bool:
        return not self._multi_line and can_split_text(path)

    def read(self, file: InputFile, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        is_first = self._header and (begin == 0 or file.codec is not None)
        if self._multi_line:
            with file.open_text() as stream:
                content = bytes(stream.read())
            blocks: Iterator[bytes] = iter([content] if content else [])
        else:
            blocks = line_blocks(file, begin, end)
        for block in blocks:
            rows = self._without_header(block, file) if is_first else block
            is_first = False
            if rows.strip(b"\r\n"):
                yield from self._parsed(rows)

    def _without_header(self, block: bytes, file: InputFile) -> bytes:
        first, _, rest = block.partition(b"\n")
        names = lines_of(first).to_pylist()[0].lstrip("\ufeff") if first else ""
        found = [name.strip().strip('"') for name in names.split(self._delimiter)]
        if found != self.schema.names:
            raise InputError(
                f"the file {file.path!r} has the columns {', '.join(found)}, but the CSV format of this input declares "
                f"{', '.join(self.schema.names)}. Give files of another schema an input of their own"
            )
        return rest

    def _parsed(self, rows: bytes) -> Iterator[pa.RecordBatch]:
        table = pc.read_csv(
            pa.BufferReader(rows),
            read_options=pc.ReadOptions(
                column_names=self.schema.names, use_threads=False, block_size=min(len(rows) + 1, 2**31 - 1)
            ),
            parse_options=pc.ParseOptions(delimiter=self._delimiter, newlines_in_values=self._multi_line),
            convert_options=pc.ConvertOptions(
                column_types=self.schema, null_values=[""], strings_can_be_null=False, quoted_strings_can_be_null=False
            ),
        )
        yield from table.combine_chunks().to_batches()
