"""Lines of JSON as an input, and under PyFlink's path what reads and writes rows of JSON messages."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.json as pj

from holdfast.datastream.formats.input_file import InputFile
from holdfast.datastream.formats.input_format import RowFormat
from holdfast.datastream.formats.json_row import JsonRowDeserializationSchema, JsonRowSerializationSchema
from holdfast.datastream.formats.text_lines import Block, LineFormat, can_split_text, line_blocks

__all__ = ["JsonLinesFormat", "JsonRowDeserializationSchema", "JsonRowSerializationSchema"]


class JsonLinesFormat(RowFormat, LineFormat):
    """Rows of files with an object of JSON in each line. What an object does not have is null.

    Args:
        row_type: The fields to read, by name: type information, DDL such as `'key string, n bigint'`, or an Arrow
            schema. Objects may have others beside them.
    """

    name = "JSON lines"

    def can_split(self, path: str) -> bool:
        return can_split_text(path)

    def blocks(self, file: InputFile, begin: int, end: int) -> Iterator[Block]:
        return line_blocks(file, begin, end)

    def parse(self, content: bytes) -> Iterator[pa.RecordBatch]:
        if not content.strip():
            return
        _require_lines(content)
        table = pj.read_json(
            pa.BufferReader(content),
            read_options=pj.ReadOptions(use_threads=False, block_size=min(len(content) + 1, 2**31 - 1)),
            parse_options=pj.ParseOptions(explicit_schema=self.schema, unexpected_field_behavior="ignore"),
        )
        for batch in table.combine_chunks().to_batches():
            yield self.conform(batch)


def _require_lines(content: bytes) -> None:
    """Makes sure that no object goes over the end of its line: Arrow would read it, unless a range ends in there.

    Raises:
        ValueError: One does, or a line is none.
    """
    lines = content.removeprefix(codecs.BOM_UTF8).strip()
    # Between two objects, one that ends a line and one that begins the next, is no place inside of a third.
    between = lines.count(b"}\n{") + (lines.count(b"}\r\n{") if b"\r" in lines else 0)
    if lines.startswith(b"{") and lines.endswith(b"}") and lines.count(b"\n") == between:
        return
    for line in map(bytes.strip, lines.split(b"\n")):  # with blanks around objects, or lines that are empty
        if line and not (line.startswith(b"{") and line.endswith(b"}")):
            raise ValueError("a line has one object, from its first character to its last")
