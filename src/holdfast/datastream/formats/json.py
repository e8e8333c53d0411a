"""`JsonLinesFormat` reads files of JSON lines; the row schemas read and write JSON messages, under PyFlink's names."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from holdfast.datastream.formats.input_format import (
    Block,
    InputFile,
    LineFormat,
    RowFormat,
    can_split_text,
    line_blocks,
    require_calendar,
)
from holdfast.errors import ConfigurationError, OutputTypeError
from holdfast.types.arrow import rows_to_batch
from holdfast.types.changelog_type import ChangelogTypeInformation
from holdfast.types.composite import RowTypeInformation
from holdfast.types.flink_text import json_number_formatter
from holdfast.types.json_value import as_bytes, json_reader, parse_json, row_type_of_json_schema
from holdfast.types.serialization import DeserializationSchema, SerializationSchema, as_dict_with_kind, flink_json_text
from holdfast.types.type_parser import to_row_type


class JsonRowDeserializationSchema(DeserializationSchema):
    """Reads rows from JSON objects; create it with `builder()`.

    Undeclared fields are ignored. Dates and times are ISO 8601, binaries base64, decimals numbers or text. As in Flink,
    a number or boolean may be text, text may be a number, object or array, and a Z after a time without a time zone is
    ignored.

    Example:
        >>> from holdfast.datastream.formats.json import JsonRowDeserializationSchema
        >>> schema = JsonRowDeserializationSchema.builder().type_info("word string, n bigint").build()
        >>> row = schema.deserialize(b'{"word": "kelp", "n": 7}')
        >>> row.word, row.n
        ('kelp', 7)
    """

    Builder: ClassVar[type[JsonRowDeserializationSchemaBuilder]]
    """PyFlink's name of the builder's class."""

    def __init__(self, row_type: RowTypeInformation, *, fails_on_missing: bool, ignores_errors: bool) -> None:
        self._type = row_type
        self._fails_on_missing = fails_on_missing
        self._ignores_errors = ignores_errors
        self._read = json_reader(row_type, needs_all=fails_on_missing, is_lenient=True, ignores_errors=ignores_errors)

    @staticmethod
    def builder() -> JsonRowDeserializationSchemaBuilder:
        """Return a builder."""
        return JsonRowDeserializationSchemaBuilder()

    def deserialize(self, message: bytes) -> Any:
        """Return the row of a JSON object; None for an invalid one if errors are ignored.

        Raises:
            ValueError: The message is not a JSON object of the type.
        """
        try:
            row = self._read(parse_json(message))
            if row is None:
                raise ValueError("it is null")
            return self._type.adopt(row)
        except (ValueError, OutputTypeError) as error:
            if self._ignores_errors:
                return None
            raise ValueError(f"it is no JSON of {self._type}: {error!s:.1000}") from None

    def get_produced_type(self) -> RowTypeInformation:
        return self._type

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._type, self._fails_on_missing, self._ignores_errors)


class JsonRowDeserializationSchemaBuilder:
    """Builds a `JsonRowDeserializationSchema`, under PyFlink's names."""

    def __init__(self) -> None:
        self._type: RowTypeInformation | None = None
        self._fails_on_missing = False
        self._ignores_errors = False

    def type_info(self, type_info: Any) -> JsonRowDeserializationSchemaBuilder:
        """Set the type of the rows: `Types.ROW_NAMED(...)`, or DDL such as `"id bigint, name string"`."""
        self._type = to_row_type(type_info)
        return self

    def json_schema(self, json_schema: str) -> JsonRowDeserializationSchemaBuilder:
        """Set the type of the rows by the JSON schema of an object; all numbers are `Decimal`, as in Flink.

        Raises:
            ConfigurationError: The schema is invalid, or has a part without a type.
        """
        self._type = row_type_of_json_schema(json_schema)
        return self

    def fail_on_missing_field(self) -> JsonRowDeserializationSchemaBuilder:
        """Treat a missing field as an error; otherwise it is null."""
        self._fails_on_missing = True
        return self

    def ignore_parse_errors(self) -> JsonRowDeserializationSchemaBuilder:
        """Read invalid fields as null, and skip what is not an object; otherwise they fail the job."""
        self._ignores_errors = True
        return self

    def build(self) -> JsonRowDeserializationSchema:
        """Create the schema.

        Raises:
            ConfigurationError: There is no type, JSON has no form for it, or both ways to treat errors were chosen.
        """
        if self._type is None:
            raise ConfigurationError("A JsonRowDeserializationSchema needs type_info().")
        if self._fails_on_missing and self._ignores_errors:
            raise ConfigurationError("fail_on_missing_field() and ignore_parse_errors() exclude each other.")
        return _rebuild(self._type, self._fails_on_missing, self._ignores_errors)


class JsonRowSerializationSchema(SerializationSchema):
    """Writes rows as JSON objects in Flink's format, without spaces; create it with `builder()`.

    Decimals are numbers, dates and times ISO 8601, binaries base64; a FLOAT has the digits of its 32 bits. Timestamps
    and times of day end in a Z even without a time zone, because Flink's schema reads no others. Rows of a changelog
    have their kind in a last field, `row_kind`.

    Example:
        >>> from holdfast.datastream.formats.json import JsonRowSerializationSchema
        >>> JsonRowSerializationSchema.builder().with_type_info("word string, n bigint").build().serialize(("kelp", 7))
        b'{"word":"kelp","n":7}'
    """

    Builder: ClassVar[type[JsonRowSerializationSchemaBuilder]]
    """PyFlink's name of the builder's class."""

    def __init__(self, row_type: RowTypeInformation) -> None:
        self._type = row_type
        self._with_number_texts = json_number_formatter(row_type)

    @staticmethod
    def builder() -> JsonRowSerializationSchemaBuilder:
        """Return a builder."""
        return JsonRowSerializationSchemaBuilder()

    def serialize(self, element: Any) -> bytes:
        """Write a row of the type.

        Raises:
            OutputTypeError: The row is not of the type.
        """
        row = self._type.adopt(element)
        is_change = isinstance(self._type, ChangelogTypeInformation)
        shown = as_dict_with_kind(row) if is_change else row
        if self._with_number_texts is not None:
            shown = self._with_number_texts(shown)
        return flink_json_text(shown).encode()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._type,)


class JsonRowSerializationSchemaBuilder:
    """Builds a `JsonRowSerializationSchema`, under PyFlink's names."""

    def __init__(self) -> None:
        self._type: RowTypeInformation | None = None

    def with_type_info(self, type_info: Any) -> JsonRowSerializationSchemaBuilder:
        """Set the type of the rows, as `output_type` takes it."""
        self._type = to_row_type(type_info)
        return self

    def build(self) -> JsonRowSerializationSchema:
        """Create the schema.

        Raises:
            ConfigurationError: There is no type.
        """
        if self._type is None:
            raise ConfigurationError("A JsonRowSerializationSchema needs with_type_info().")
        return JsonRowSerializationSchema(self._type)


def _rebuild(
    row_type: RowTypeInformation, fails_on_missing: bool, ignores_errors: bool
) -> JsonRowDeserializationSchema:
    return JsonRowDeserializationSchema(row_type, fails_on_missing=fails_on_missing, ignores_errors=ignores_errors)


# PyFlink nests the builders.
JsonRowDeserializationSchema.Builder = JsonRowDeserializationSchemaBuilder
JsonRowSerializationSchema.Builder = JsonRowSerializationSchemaBuilder


__all__ = ["JsonLinesFormat", "JsonRowDeserializationSchema", "JsonRowSerializationSchema"]

_ONE_OBJECT: Final = "a line has one object, from its first character to its last"
_WHOLE: Final = {pa.float32(): 2.0**24, pa.float64(): 2.0**53}
"""Below these, the type can represent every integer."""


class JsonLinesFormat(RowFormat, LineFormat):
    """Reads rows of files with a JSON object in each line, for `FileSource.for_record_stream_format`.

    Missing fields are null. Dates and times are ISO 8601, binaries base64, decimals numbers or text, as
    `Encoder.json_encoder()` writes them.

    Args:
        row_type: The fields to read, by name: type information, DDL such as `'key string, n bigint'`, or an Arrow
            schema. Objects may have other fields. Rows with maps, and blocks of lines with unusual forms of dates or
            times, are read by Python one by one, and not by Arrow.

    Raises:
        ConfigurationError: JSON has no form for a field.

    Example:
        >>> from holdfast.datastream.formats.json import JsonLinesFormat
        >>> lines = JsonLinesFormat("word string, n bigint")
        >>> [batch] = lines.parse(b'{"word": "kelp", "n": 7}')
        >>> batch.to_pylist()
        [{'word': 'kelp', 'n': 7}]
    """

    name = "JSON lines"

    def __init__(self, row_type: Any) -> None:
        super().__init__(row_type)
        self._read_row = json_reader(self._row_type)
        self._has_maps = any(map(_has_maps, self.schema.types))
        self._is_known_to_arrow = all(map(_is_known_to_arrow, self.schema.types))
        texts = pa.schema([field.with_type(_as_text(field.type)) for field in self.schema])
        self._as_written = self.schema if self._is_known_to_arrow else texts

    def can_split(self, path: str) -> bool:
        return can_split_text(path)

    def blocks(self, file: InputFile, begin: int, end: int) -> Iterator[Block]:
        return line_blocks(file, begin, end)

    def parse(self, content: bytes) -> Iterator[pa.RecordBatch]:
        if not content.strip():
            return
        if self._is_known_to_arrow:
            yield from self._by_columns(content)
            return
        try:
            batches = None if self._has_maps else list(self._by_columns(content))
        except ValueError:  # Python reads more forms of dates and times than Arrow
            batches = None
        if batches is None:
            lines = content.removeprefix(codecs.BOM_UTF8).split(b"\n")
            batches = [rows_to_batch([self._row(line) for line in lines if line.strip()], self._row_type)]
        yield from batches

    def _by_columns(self, content: bytes) -> Iterator[pa.RecordBatch]:
        count = _number_of_lines(content)
        table = pj.read_json(
            pa.BufferReader(content),
            read_options=pj.ReadOptions(use_threads=False, block_size=min(len(content) + 1, 2**31 - 1)),
            parse_options=pj.ParseOptions(explicit_schema=self._as_written, unexpected_field_behavior="ignore"),
        )
        if table.num_rows != count:
            raise ValueError(_ONE_OBJECT)
        for batch in table.combine_chunks().to_batches():
            if self._is_known_to_arrow:
                for column in batch.columns:
                    require_calendar(column)
            else:
                columns = [_from_text(batch[field.name], field.type) for field in self.schema]
                batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
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
    """Return whether Arrow's reader reads this type from JSON directly."""
    if pa.types.is_struct(kind):
        return all(_is_known_to_arrow(field.type) for field in kind.fields)
    if pa.types.is_list(kind):
        return _is_known_to_arrow(kind.value_type)
    unknown = (pa.types.is_date, pa.types.is_time, pa.types.is_binary, pa.types.is_map, _is_without_zone)
    return not any(is_one(kind) for is_one in unknown)


def _is_without_zone(kind: pa.DataType) -> bool:
    """Return whether it is a timestamp without zone, where Arrow's reader would convert one with a zone to UTC."""
    return bool(pa.types.is_timestamp(kind)) and kind.tz is None


def _has_maps(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_maps(field.type) for field in kind.fields)
    return _has_maps(kind.value_type) if pa.types.is_list(kind) else bool(pa.types.is_map(kind))


def _as_text(kind: pa.DataType) -> pa.DataType:
    """Replace dates, times and binaries in a type by strings, and floats by doubles."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_text(field.type)) for field in kind.fields])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_as_text(kind.value_type)))
    if pa.types.is_floating(kind):
        return pa.float64()
    return pa.string() if pa.types.is_temporal(kind) or pa.types.is_binary(kind) else kind


def _from_text(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert an unsliced column that was read as `_as_text` to its type, as strictly as Python's reader.

    Raises:
        ValueError: A value is not of the type, or only Python's reader can decide that.
    """
    if pa.types.is_struct(kind):
        parts = [_from_text(column.field(position), field.type) for position, field in enumerate(kind.fields)]
        return pa.StructArray.from_arrays(parts, fields=kind.fields, mask=column.is_null())
    if pa.types.is_list(kind):
        values = _from_text(column.values, kind.value_type)
        return pa.ListArray.from_arrays(column.offsets, values, type=kind, mask=column.is_null())
    if pa.types.is_binary(kind):
        return pa.array([None if text is None else as_bytes(text) for text in column.to_pylist()], kind)
    if pa.types.is_floating(kind):
        if not pc.all(pc.less(pc.abs(column), _WHOLE[kind]), min_count=0).as_py():
            raise ValueError("a number is not finite, or maybe a whole one that the type has not")
        return column.cast(kind)
    if pa.types.is_time(kind):  # Arrow reads times only after a date
        return pc.binary_join_element_wise("1970-01-01T", column, "").cast(pa.timestamp("us")).cast(kind)
    if pa.types.is_temporal(kind):
        found = column.cast(kind)
        require_calendar(found)
        return found
    return column


def _number_of_lines(content: bytes) -> int:
    """Count the lines, and check that each has exactly one object.

    Arrow would also read objects over several lines, unless a range ends within one, and several in a line.

    Raises:
        ValueError: A line is not one object.
    """
    lines = content.removeprefix(codecs.BOM_UTF8).strip()
    # If a brace ends every line and the next line begins with one, no line break is inside an object.
    between = lines.count(b"}\n{") + (lines.count(b"}\r\n{") if b"\r" in lines else 0)
    if lines.startswith(b"{") and lines.endswith(b"}") and lines.count(b"\n") == between:
        return between + 1
    full = [line for line in map(bytes.strip, lines.split(b"\n")) if line]  # with whitespace around objects
    if not all(line.startswith(b"{") and line.endswith(b"}") for line in full):
        raise ValueError(_ONE_OBJECT)
    return len(full)
