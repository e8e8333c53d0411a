"""Comma-separated values as an input, and rows of them, under PyFlink's names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv

from holdfast.common.flink_paths import refusing
from holdfast.datastream.flink_paths import REFUSED_FORMATS
from holdfast.datastream.formats.bulk_writer import require_delimiter
from holdfast.datastream.formats.csv_row import CsvRowDeserializationSchema, CsvRowSerializationSchema
from holdfast.datastream.formats.input_file import InputFile
from holdfast.datastream.formats.input_format import RowFormat, require_calendar
from holdfast.datastream.formats.text_lines import Block, LineFormat, can_split_text, line_blocks, lines_of, whole
from holdfast.errors import ConfigurationError
from holdfast.runtime.job.engine import InputError

__all__ = ["CsvReaderFormat", "CsvRowDeserializationSchema", "CsvRowSerializationSchema"]

__getattr__ = refusing(__name__, REFUSED_FORMATS)


class CsvReaderFormat(RowFormat, LineFormat):
    """Rows of CSV files; `CsvReaderFormat.for_schema(schema)` makes one.

    An empty value is null, but for columns of text, where it is a text without characters.
    """

    name = "CSV"

    def __init__(self, schema: Any, header: bool, delimiter: str, multi_line: bool) -> None:
        super().__init__(schema)
        nested = [field.name for field in self.schema if pa.types.is_nested(field.type)]
        if nested:
            raise ConfigurationError(f"CSV has no lists, maps or structs, and {nested!r} are some: declare texts.")
        require_delimiter(delimiter)
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

    def has_single_lines(self) -> bool:
        return not self._multi_line

    def blocks(self, file: InputFile, begin: int, end: int) -> Iterator[Block]:
        is_first = self._header and (begin == 0 or file.codec is not None)
        for block in [Block(0, whole(file))] if self._multi_line else line_blocks(file, begin, end):
            rows = self._without_header(block.content, file) if is_first else block.content
            is_first = False
            if rows.strip(b"\r\n"):
                yield Block(block.at + len(block.content) - len(rows), rows)

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

    def parse(self, content: bytes) -> Iterator[pa.RecordBatch]:
        if not content.endswith(b"\n"):
            content += b"\n"  # so that a quote that is not closed has it in its text
        if not content.strip(b"\r\n"):
            return
        table = pv.read_csv(
            pa.BufferReader(content),
            read_options=pv.ReadOptions(
                column_names=self.schema.names, use_threads=False, block_size=min(len(content) + 1, 2**31 - 1)
            ),
            parse_options=pv.ParseOptions(delimiter=self._delimiter, newlines_in_values=self._multi_line),
            convert_options=pv.ConvertOptions(
                column_types=self.schema, null_values=[""], strings_can_be_null=False, quoted_strings_can_be_null=False
            ),
        )
        if not self._multi_line and b'"' in content:
            self._require_lines(table)
        for batch in table.combine_chunks().to_batches():
            for column in batch.columns:
                require_calendar(column)
            yield batch

    def _require_lines(self, table: pa.Table) -> None:
        """Makes sure that no value goes over the end of its line, as one does that begins with a quote and has no end.

        Raises:
            ValueError: One does; the lines that it goes over would be missing.
        """
        for field in self.schema:
            has_lines = pa.types.is_string(field.type) or pa.types.is_binary(field.type)
            if has_lines and pc.any(pc.match_substring(table[field.name], "\n")).as_py():
                raise ValueError(
                    f"the quote that begins a value of column {field.name!r} is not closed in its line; "
                    "multi_line=True reads values that have ends of lines in them"
                )
