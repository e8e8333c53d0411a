"""`JsonLinesFormat` reads files of JSON lines; the row schemas read and write JSON messages, under PyFlink's names."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from json.encoder import encode_basestring
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from holdfast.datastream.formats.input_format import (
    Block,
    InputFile,
    RowLineFormat,
    can_split_text,
    line_blocks,
    matches,
    require_calendar,
)
from holdfast.errors import ConfigurationError, OutputTypeError
from holdfast.types.changelog_type import ChangelogTypeInformation
from holdfast.types.collection import ListTypeInformation, MapTypeInformation
from holdfast.types.composite import RowTypeInformation
from holdfast.types.flink_text import json_number_formatter
from holdfast.types.json_value import as_bytes, column_reader, json_reader, parse_json, row_type_of_json_schema
from holdfast.types.serialization import DeserializationSchema, SerializationSchema, as_dict_with_kind, flink_json_text
from holdfast.types.type_information import (
    AtomicTypeInformation,
    CharTypeInformation,
    DecimalTypeInformation,
    TypeInformation,
)
from holdfast.types.type_parser import to_row_type

_ONE_OBJECT: Final = "a line has one object, from its first character to its last"
_BEGIN: Final = r"[:\[,][ \t\r]*"
_END: Final = r"[ \t\r]*[,\]}]"
_NOT_A_NUMBER: Final = _BEGIN + "-?(?:NaN|Inf)"
_MAX_DIGITS: Final = 38
_FEW: Final = 256
"""Messages up to which Python is faster than Arrow, which starts a thread for each call."""


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

    def deserialize_batch(self, messages: Sequence[bytes]) -> pa.RecordBatch | None:
        is_extended = type(self) is not JsonRowDeserializationSchema
        if self._fails_on_missing or is_extended or isinstance(self._type, ChangelogTypeInformation):
            return None
        return self._read_few(messages) if len(messages) <= _FEW else self._lines.read_single(messages)

    def _read_few(self, messages: Sequence[bytes]) -> pa.RecordBatch | None:
        """Return the rows of messages by columns; None if one is not a row of the type."""
        try:
            rows = list(map(parse_json, messages))
            if not all(row.__class__ is dict for row in rows):
                return None
            columns = [to_column([row.get(name) for row in rows]) for name, to_column in self._columns]
        except (TypeError, ValueError, OverflowError, OutputTypeError):
            return None
        return pa.RecordBatch.from_arrays(columns, schema=self._type.arrow_schema)

    @cached_property
    def _columns(self) -> list[tuple[str, Callable[[list[Any]], pa.Array]]]:
        return [(name, column_reader(part)) for name, part in zip(self._type.names, self._type.types, strict=True)]

    @cached_property
    def _lines(self) -> JsonLinesFormat:
        return JsonLinesFormat(self._type)

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
        self._write = _writer(row_type)
        self._writers = [_writer(part) for part in row_type.types]
        self._template = _template(row_type)
        is_flat = all(isinstance(part, AtomicTypeInformation) for part in row_type.types)
        self._has_columns = is_flat and not isinstance(row_type, ChangelogTypeInformation)

    @staticmethod
    def builder() -> JsonRowSerializationSchemaBuilder:
        """Return a builder."""
        return JsonRowSerializationSchemaBuilder()

    def serialize(self, element: Any) -> bytes:
        """Write a row of the type.

        Raises:
            OutputTypeError: The row is not of the type.
        """
        return self._write(self._type.adopt(element)).encode()

    def serialize_batch(self, batch: pa.RecordBatch) -> Sequence[bytes] | None:
        is_extended = type(self) is not JsonRowSerializationSchema
        if not self._has_columns or is_extended or not batch.schema.equals(self._type.arrow_schema):
            return None
        try:
            texts = [
                list(map(write, part.to_list(column)))
                for write, part, column in zip(self._writers, self._type.types, batch.columns, strict=True)
            ]
        except ValueError:  # NaN, for instance
            return None
        return [(self._template % fields).encode() for fields in zip(*texts, strict=True)]

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


def _writer(kind: TypeInformation) -> Callable[[Any], str]:
    """Return a function that writes values of a type as `flink_json_text` does.

    What can be decided by the type is decided here, once, and not for each value.
    """
    simple = _WRITERS.get(kind.ddl) if isinstance(kind, AtomicTypeInformation) else None
    if simple is not None:
        return simple
    if isinstance(kind, RowTypeInformation) and not isinstance(kind, ChangelogTypeInformation):
        return _row_writer(kind)
    with_kind = as_dict_with_kind if isinstance(kind, ChangelogTypeInformation) else None
    with_numbers = json_number_formatter(kind)

    def write(value: Any) -> str:
        shown = value if with_kind is None else with_kind(value)
        return flink_json_text(shown if with_numbers is None else with_numbers(shown))

    return write


def _row_writer(row_type: RowTypeInformation) -> Callable[[Any], str]:
    template = _template(row_type)
    writers = [_writer(part) for part in row_type.types]

    def write(row: Any) -> str:
        if row is None:
            return "null"
        return template % tuple([write_field(field) for write_field, field in zip(writers, row, strict=True)])

    return write


def _template(row_type: RowTypeInformation) -> str:
    """Return the JSON of a row with `%s` for the value of each field."""
    names = [json.dumps(name, ensure_ascii=False).replace("%", "%%") for name in row_type.names]
    return f"{{{','.join(f'{name}:%s' for name in names)}}}"


_WRITERS: Final[dict[str, Callable[[Any], str]]] = {
    **dict.fromkeys(
        ("tinyint", "smallint", "int", "bigint"), lambda value: "null" if value is None else int.__repr__(value)
    ),
    "boolean": {True: "true", False: "false", None: "null"}.__getitem__,
    "string": lambda value: "null" if value is None else encode_basestring(value),
}


def _rebuild(
    row_type: RowTypeInformation, fails_on_missing: bool, ignores_errors: bool
) -> JsonRowDeserializationSchema:
    return JsonRowDeserializationSchema(row_type, fails_on_missing=fails_on_missing, ignores_errors=ignores_errors)


# PyFlink nests the builders.
JsonRowDeserializationSchema.Builder = JsonRowDeserializationSchemaBuilder
JsonRowSerializationSchema.Builder = JsonRowSerializationSchemaBuilder


__all__ = ["JsonLinesFormat", "JsonRowDeserializationSchema", "JsonRowSerializationSchema"]

_WHOLE: Final = {
    pa.float32(): (2.0**24, f"{_BEGIN}-?[0-9]{{8,}}{_END}"),
    pa.float64(): (2.0**53, f"{_BEGIN}-?[0-9]{{16,}}{_END}"),
}
"""Below this limit the type can represent every integer; an expression of lines with integers above it."""


class JsonLinesFormat(RowLineFormat):
    """Reads rows of files with a JSON object in each line, for `FileSource.for_record_stream_format`.

    Each line is read as `JsonRowDeserializationSchema` reads a message: missing fields are null, dates and times are
    ISO 8601, binaries base64, decimals numbers or text, as `Encoder.json_encoder()` writes them.

    Args:
        row_type: The fields to read, by name: type information, DDL such as `'key string, n bigint'`, or an Arrow
            schema. Objects may have other fields. Rows with maps, and lines with unusual forms of values, are read by
            Python one by one, and not by Arrow.

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
    _blank = b" \t\n\r\x0b\f"

    def __init__(self, row_type: Any) -> None:
        super().__init__(row_type)
        self._messages = _rebuild(self._row_type, False, False)
        self._as_written = pa.schema([field.with_type(_as_text(field.type)) for field in self.schema])
        self._has_columns = not _is_only_for_messages(self._row_type)
        kinds = [kind for field in self.schema for kind in _simple_types(field.type)]
        scales = [kind.scale for kind in kinds if pa.types.is_decimal(kind)]
        self._unusual = f"{_NOT_A_NUMBER}|{_unusual_decimals(max(scales))}" if scales else _NOT_A_NUMBER
        # Searches of a mere text are ten times faster.
        self._signs = (self._unusual,) if scales else ("NaN", "Inf")

    def can_split(self, path: str) -> bool:
        return can_split_text(path)

    def blocks(self, file: InputFile, begin: int, end: int) -> Iterator[Block]:
        return line_blocks(file, begin, end)

    def read_single(self, lines: Sequence[bytes]) -> pa.RecordBatch | None:
        """Return the rows of lines by columns; None if one has to be read as a message."""
        content = b"\n".join(lines)
        is_unusual = any(matches(content, sign) for sign in self._signs)
        if not self._has_columns or is_unusual or content.count(b"\n") >= len(lines):
            return None
        try:
            batch = self._read_columns(content)
        except ValueError:
            return None
        return batch if batch.num_rows == len(lines) else None  # an empty line has no row

    def _read_columns(self, content: bytes) -> pa.RecordBatch:
        if not content.isascii():
            content.decode()  # Arrow does not look at undeclared fields
        count = _number_of_lines(content)
        table = pj.read_json(
            pa.BufferReader(content),
            read_options=pj.ReadOptions(use_threads=False, block_size=min(len(content) + 1, 2**31 - 1)),
            parse_options=pj.ParseOptions(explicit_schema=self._as_written, unexpected_field_behavior="ignore"),
        )
        if table.num_rows != count:
            raise ValueError(_ONE_OBJECT)
        [batch] = table.combine_chunks().to_batches()
        columns = [_from_text(batch[field.name], field.type, content) for field in self.schema]
        return self.conform(pa.RecordBatch.from_arrays(columns, schema=self.schema))

    def _read_message(self, line: bytes) -> Any:
        return self._messages.deserialize(line)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._row_type,)


def _unusual_decimals(scale: int) -> str:
    """Return an expression of lines with numbers that Arrow might read as other decimals of up to a scale.

    Arrow multiplies by a power of ten without checking whether 128 bits are enough, and reads the power from beyond the
    end of its table if there is a large exponent, which may end the process.
    """
    number = rf'{_BEGIN}"?[ \t\r]*[-+]?'
    return "|".join(
        (
            number + f"0*[1-9][0-9]{{{_MAX_DIGITS - scale},}}",
            number + f"[0-9]*[.][0-9]{{{_MAX_DIGITS},}}",
            _BEGIN + r"-?[0-9.]+[eE]",
            _BEGIN + r'"[ \t\r]*[-+]?[0-9.]+[eE][-+0-9]',
            r"\\u00(?:2[bBdDeE]|3[0-9]|[46]5)",  # digits, signs, points and exponents in text, as escapes
        )
    )


def _simple_types(kind: pa.DataType) -> Iterator[pa.DataType]:
    if pa.types.is_struct(kind):
        for field in kind.fields:
            yield from _simple_types(field.type)
    elif pa.types.is_list(kind):
        yield from _simple_types(kind.value_type)
    else:
        yield kind


def _is_only_for_messages(described: TypeInformation) -> bool:
    """Return whether Arrow cannot read values of the type from JSON, or reads others than the schema of messages."""
    if isinstance(described, RowTypeInformation):
        return any(map(_is_only_for_messages, described.types))
    if isinstance(described, ListTypeInformation):
        return _is_only_for_messages(described.element_type)
    is_whole = isinstance(described, DecimalTypeInformation) and described.as_int
    return is_whole or isinstance(described, (MapTypeInformation, CharTypeInformation))


def _as_text(kind: pa.DataType) -> pa.DataType:
    """Replace types that Arrow does not read from JSON, or not exactly, by strings, and floats by doubles."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_text(field.type)) for field in kind.fields])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_as_text(kind.value_type)))
    if pa.types.is_floating(kind):
        return pa.float64()
    is_local = pa.types.is_timestamp(kind) and kind.tz is None  # Arrow would convert a time with a zone to UTC
    is_read = not (pa.types.is_temporal(kind) or pa.types.is_binary(kind)) or pa.types.is_timestamp(kind)
    return kind if is_read and not is_local else pa.string()


def _from_text(column: pa.Array, kind: pa.DataType, content: bytes) -> pa.Array:
    """Convert an unsliced column that was read from lines as `_as_text` to its type, as strictly as Python's reader.

    Raises:
        ValueError: A value is not of the type, or only Python's reader can decide that.
    """
    if pa.types.is_struct(kind):
        parts = [_from_text(column.field(position), field.type, content) for position, field in enumerate(kind.fields)]
        return pa.StructArray.from_arrays(parts, fields=kind.fields, mask=column.is_null())
    if pa.types.is_list(kind):
        values = _from_text(column.values, kind.value_type, content)
        return pa.ListArray.from_arrays(column.offsets, values, type=kind, mask=column.is_null())
    if pa.types.is_binary(kind):
        return pa.array([None if text is None else as_bytes(text) for text in column.to_pylist()], kind)
    if pa.types.is_floating(kind):
        found, (limit, long_number) = column.cast(kind), _WHOLE[kind]
        if not pc.all(pc.less(pc.abs(found), limit), min_count=0).as_py():
            if not pc.all(pc.is_finite(found), min_count=0).as_py():
                raise ValueError("a number is too large")
            if matches(content, long_number):
                raise ValueError("a whole number may be one that the type does not have")
        values = found.to_numpy(zero_copy_only=False)
        if (np.signbit(values) & (values == 0)).any() and matches(content, _BEGIN + "-0" + _END):
            raise ValueError("a whole number is -0, which Python reads as 0")
        return found
    if pa.types.is_time(kind):  # Arrow reads times only after a date
        return pc.binary_join_element_wise("1970-01-01T", column, "").cast(pa.timestamp("us")).cast(kind)
    found = column if column.type.equals(kind) else _without_utc(column).cast(kind)
    require_calendar(found)
    return found


def _without_utc(texts: pa.Array) -> pa.Array:
    """Remove a Z from the end of dates and times, which is ignored in messages, too."""
    if pc.any(pc.ends_with(texts, "Z")).as_py():
        return pc.replace_substring_regex(texts, "([0-9])Z$", r"\1")
    return texts


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
