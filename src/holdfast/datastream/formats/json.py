"""Lines of JSON as an input, and under PyFlink's path what reads and writes rows of JSON messages."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.json as pj

from holdfast.datastream.formats.input_file import InputFile
from holdfast.datastream.formats.input_format import RowFormat
from holdfast.datastream.formats.json_row import JsonRowDeserializationSchema, JsonRowSerializationSchema
from holdfast.datastream.formats.text_lines import Block, LineFormat, can_split_text, line_blocks
from holdfast.errors import OutputTypeError
from holdfast.types.conversion.arrow import rows_to_batch
from holdfast.types.conversion.json_value import json_reader, parse_json

__all__ = ["JsonLinesFormat", "JsonRowDeserializationSchema", "JsonRowSerializationSchema"]

_ONE_OBJECT: Final = "a line has one object, from its first character to its last"


class JsonLinesFormat(RowFormat, LineFormat):
    """Rows of files with an object of JSON in each line. What an object does not have is null.

    Dates and times are ISO 8601, binaries base64, decimals numbers or text, as `Encoder.json_encoder()` writes them.

    Args:
        row_type: The fields to read, by name: type information, DDL such as `'key string, n bigint'`, or an Arrow
            schema. Objects may have others beside them. Rows with dates, times, binaries or maps are read by Python,
            one by one, because Arrow does not read these from text.

    Raises:
        ConfigurationError: JSON has no form for a field.
    """

    name = "JSON lines"

    def __init__(self, row_type: Any) -> None:
        super().__init__(row_type)
        self._read_row = json_reader(self._row_type)
        self._is_known_to_arrow = all(map(_is_known_to_arrow, self.schema.types))

    def can_split(self, path: str) -> bool:
        return can_split_text(path)

    def blocks(self, file: InputFile, begin: int, end: int) -> Iterator[Block]:
        return line_blocks(file, begin, end)

    def parse(self, content: bytes) -> Iterator[pa.RecordBatch]:
        if not content.strip():
            return
        if not self._is_known_to_arrow:
            lines = content.removeprefix(codecs.BOM_UTF8).split(b"\n")
            yield rows_to_batch([self._row(line) for line in lines if line.strip()], self._row_type)
            return
        count = _number_of_lines(content)
        table = pj.read_json(
            pa.BufferReader(content),
            read_options=pj.ReadOptions(use_threads=False, block_size=min(len(content) + 1, 2**31 - 1)),
            parse_options=pj.ParseOptions(explicit_schema=self.schema, unexpected_field_behavior="ignore"),
        )
        if table.num_rows != count:
            raise ValueError(_ONE_OBJECT)
        for batch in table.combine_chunks().to_batches():
            yield self.conform(batch)

    def _row(self, line: bytes) -> Any:
        row = self._read_row(parse_json(line))
        if row is None:
            raise ValueError("it is null")
        try:
            return self._row_type.adopt(row)
        except OutputTypeError as error:
            raise ValueError(str(error)) from None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._row_type,)


def _is_known_to_arrow(kind: pa.DataType) -> bool:
    """Whether Arrow reads values of a type from what JSON has in their place."""
    if pa.types.is_struct(kind):
        return all(_is_known_to_arrow(field.type) for field in kind.fields)
    if pa.types.is_list(kind):
        return _is_known_to_arrow(kind.value_type)
    unknown = (pa.types.is_date, pa.types.is_time, pa.types.is_binary, pa.types.is_map)
    return not any(is_one(kind) for is_one in unknown)


def _number_of_lines(content: bytes) -> int:
    """How many lines have an object, none of which goes over the end of its line.

    Arrow would read one that does, unless a range ends in there, and several in a line.

    Raises:
        ValueError: One does, or a line is none.
    """
    lines = content.removeprefix(codecs.BOM_UTF8).strip()
    # Between two objects, one that ends a line and one that begins the next, is no place inside of a third.
    between = lines.count(b"}\n{") + (lines.count(b"}\r\n{") if b"\r" in lines else 0)
    if lines.startswith(b"{") and lines.endswith(b"}") and lines.count(b"\n") == between:
        return between + 1
    full = [line for line in map(bytes.strip, lines.split(b"\n")) if line]  # with blanks around objects
    if not all(line.startswith(b"{") and line.endswith(b"}") for line in full):
        raise ValueError(_ONE_OBJECT)
    return len(full)
