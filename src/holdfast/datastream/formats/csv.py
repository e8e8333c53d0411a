"""`CsvReaderFormat` reads CSV files; the row schemas read and write CSV messages, under PyFlink's names."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv

from holdfast.common.flink_paths import module_getattr
from holdfast.datastream.flink_paths import REFUSED_FORMATS
from holdfast.datastream.formats.bulk_writer import require_delimiter
from holdfast.datastream.formats.input_format import (
    Block,
    InputFile,
    RowLineFormat,
    can_split_text,
    line_blocks,
    matches,
    read_all,
    require_calendar,
    split_lines,
)
from holdfast.errors import ConfigurationError, InputError, OutputTypeError
from holdfast.types import flink_text
from holdfast.types.changelog_type import ChangelogTypeInformation
from holdfast.types.collection import ListTypeInformation
from holdfast.types.composite import RowTypeInformation
from holdfast.types.csv_value import CsvColumnReader, csv_text, csv_value_reader, is_null_if_empty
from holdfast.types.serialization import DeserializationSchema, SerializationSchema
from holdfast.types.type_information import TypeInformation
from holdfast.types.type_parser import to_row_type
from holdfast.types.types import Types

_LONGEST_UNQUOTED: Final = 24
"""Longer texts are always quoted, as in Flink, so that both write the same bytes."""
_LONE_RETURN: Final = "\\r[^\\n]"
_MARK_OF_ORDER: Final = "\\xef\\xbb\\xbf"
_READ_BY_ARROW: Final = (pa.types.is_boolean, pa.types.is_date, pa.types.is_timestamp)


@dataclass(frozen=True)
class _CsvSyntax:
    """The syntax of a line.

    Attributes:
        delimiter: The character between two values.
        quote: The character around text with special characters; None for no quoting.
        escape: The escape character; a quote within quotes may be doubled in any case.
        array: The text between the elements of an array.
        null: The text for null; None if there is none.
        line: The end of each written line.
    """

    delimiter: str = ","
    quote: str | None = '"'
    escape: str | None = None
    array: str = ";"
    null: str | None = None
    line: str = "\n"


class _Builder:
    """The common settings of both builders."""

    def __init__(self, type_info: Any) -> None:
        if type_info is None:
            raise ConfigurationError("A schema of CSV needs the type of its rows.")
        self._type = to_row_type(type_info)
        self._form = _CsvSyntax()

    def set_field_delimiter(self, delimiter: str) -> Self:
        """Set the character between two values; a comma by default."""
        return self._with(delimiter=_one_character("field delimiter", delimiter))

    def set_array_element_delimiter(self, delimiter: str) -> Self:
        """Set the text between the elements of an array; a semicolon by default."""
        if not isinstance(delimiter, str) or not delimiter:
            raise ConfigurationError(f"The delimiter of the elements of an array is a text, not {delimiter!r}.")
        return self._with(array=delimiter)

    def set_quote_character(self, c: str) -> Self:
        """Set the character around text with special characters; a double quote by default."""
        return self._with(quote=_one_character("quote character", c))

    def set_escape_character(self, c: str) -> Self:
        """Set the escape character; none by default. A quote within quotes may be doubled in any case."""
        return self._with(escape=_one_character("escape character", c))

    def set_null_literal(self, null_literal: str) -> Self:
        """Set the text for null; none by default."""
        return self._with(null=str(null_literal))

    def _with(self, **values: Any) -> Self:
        self._form = replace(self._form, **values)
        marks = [mark for mark in (self._form.delimiter, self._form.quote, self._form.escape) if mark]
        if len(set(marks)) < len(marks):
            raise ConfigurationError(f"Delimiter, quote and escape character of CSV are different ones, not {marks!r}.")
        return self


class CsvRowDeserializationSchema(DeserializationSchema):
    """Reads rows from lines of CSV; create it with `CsvRowDeserializationSchema.Builder(type_info)`.

    Values are in the order of the fields. Dates and times are ISO 8601, binaries base64. An empty value is null, except
    for texts, binaries and arrays.

    Example:
        >>> from holdfast.datastream.formats.csv import CsvRowDeserializationSchema
        >>> row = CsvRowDeserializationSchema.Builder("word string, n bigint").build().deserialize(b"kelp,7")
        >>> row.word, row.n
        ('kelp', 7)
    """

    class Builder(_Builder):
        """Builds the schema.

        Args:
            type_info: The type of the rows: `Types.ROW_NAMED(...)`, or DDL such as `"id bigint, name string"`.

        Raises:
            ConfigurationError: It is not a row type.
        """

        def __init__(self, type_info: Any) -> None:
            super().__init__(type_info)
            self._ignores_errors = False
            self._allows_comments = False

        def set_allow_comments(self, allow_comments: bool) -> Self:
            """Skip lines that begin with `#`."""
            self._allows_comments = bool(allow_comments)
            return self

        def set_ignore_parse_errors(self, ignore_parse_errors: bool) -> Self:
            """Read invalid values, and missing ones at the end of a line, as null; otherwise they fail the job.

            Invalid lines, and those with too many values, are skipped.
            """
            self._ignores_errors = bool(ignore_parse_errors)
            return self

        def build(self) -> CsvRowDeserializationSchema:
            """Create the schema.

            Raises:
                ConfigurationError: CSV has no form for a field.
            """
            return CsvRowDeserializationSchema(self._type, self._form, self._ignores_errors, self._allows_comments)

    def __init__(
        self, row_type: RowTypeInformation, form: _CsvSyntax, ignores_errors: bool, allows_comments: bool
    ) -> None:
        self._settings = (row_type, form, ignores_errors, allows_comments)
        self._type = row_type
        self._ignores_errors = ignores_errors
        self._allows_comments = allows_comments
        self._null = form.null
        self._fields = [
            (name, _reader(part, form), part.adopt, _empty_is_null(part))
            for name, part in zip(row_type.names, row_type.types, strict=True)
        ]
        self._dialect: dict[str, Any] = {
            "delimiter": form.delimiter,
            "quotechar": form.quote,
            "escapechar": form.escape,
            "doublequote": True,
            "strict": True,
        }

    def deserialize(self, message: bytes) -> Any:
        """Return the row of a line; None for a comment, and for an invalid line if errors are ignored.

        Raises:
            ValueError: The line is invalid.
        """
        try:
            text = message.decode()
            if self._allows_comments and text.startswith("#"):
                return None
            if len(text) > csv.field_size_limit():
                # A setting of the whole process; a value is at most as long as its message.
                csv.field_size_limit(len(text))
            lines = list(csv.reader(io.StringIO(text, newline=""), **self._dialect))
            if len(lines) != 1:
                raise ValueError(f"it has {len(lines)} lines, not one")
            return self._type.row_type.make(self._values(lines[0]))
        except (ValueError, csv.Error, OutputTypeError) as error:
            if self._ignores_errors:
                return None
            raise ValueError(f"it is no CSV of {self._type}: {error!s:.1000}") from None

    def first_invalid(self, content: bytes) -> tuple[int, str] | None:
        """Return where the first invalid row begins, as the number of a line, and why it is invalid.

        Args:
            content: Rows, with values that may have line breaks.
        """
        csv.field_size_limit(max(csv.field_size_limit(), len(content)))
        lines = (line.decode() for line in io.BytesIO(content.removeprefix(codecs.BOM_UTF8)))
        rows = csv.reader(lines, **self._dialect)
        number = 1
        try:
            for row in rows:
                if row:
                    self._values(row)
                number = rows.line_num + 1
        except csv.Error as error:
            return number, f"a quote is not closed, or text follows the one that ends a value: {error}"
        except (ValueError, OutputTypeError) as error:
            return number, f"{error!s:.1000}"
        return None

    def _values(self, texts: list[str]) -> list[Any]:
        missing = len(self._fields) - len(texts)
        if missing < 0 or (missing and not self._ignores_errors):
            raise ValueError(f"it has {len(texts)} values, and the type {len(self._fields)}")
        values = []
        for text, (name, read, adopt, has_null) in zip(texts, self._fields, strict=False):
            try:
                is_null = text == self._null or (has_null and not text)
                values.append(None if is_null else adopt(read(text)))
            except (ValueError, OutputTypeError) as error:
                if not self._ignores_errors:
                    raise ValueError(f"field {name!r}: {error}") from None
                values.append(None)
        return values + [None] * missing

    def get_produced_type(self) -> RowTypeInformation:
        return self._type

    def __reduce__(self) -> tuple[Any, ...]:
        return CsvRowDeserializationSchema, self._settings


class CsvRowSerializationSchema(SerializationSchema):
    """Writes rows as lines of CSV in Flink's format; create it with `CsvRowSerializationSchema.Builder(type_info)`.

    A text is quoted if it is longer than 24 characters, or has the escape character, or a character up to comma, quote
    and end of line in Unicode's order, such as a space. Rows of a changelog have their kind as a last value, from 0 to
    3. Floating-point numbers are written as in Java: a FLOAT has the digits of its 32 bits.

    Example:
        >>> from holdfast.datastream.formats.csv import CsvRowSerializationSchema
        >>> schema = CsvRowSerializationSchema.Builder("word string, n bigint").set_line_delimiter("").build()
        >>> schema.serialize(("kelp", 7))
        b'kelp,7'
    """

    class Builder(_Builder):
        """Builds the schema.

        Args:
            type_info: The type of the rows, as `output_type` takes it.

        Raises:
            ConfigurationError: It is not a row type.
        """

        def set_line_delimiter(self, delimiter: str) -> Self:
            """Set the end of each line; a line feed by default. It may be empty."""
            if delimiter not in ("", "\n", "\r", "\r\n"):
                raise ConfigurationError(f"A line of CSV ends with a line feed, or with nothing, not {delimiter!r}.")
            return self._with(line=delimiter)

        def disable_quote_character(self) -> Self:
            """Never quote; text must not contain special characters."""
            return self._with(quote=None)

        def build(self) -> CsvRowSerializationSchema:
            """Create the schema.

            Raises:
                ConfigurationError: CSV has no form for a field.
            """
            return CsvRowSerializationSchema(self._type, self._form)

    def __init__(self, row_type: RowTypeInformation, form: _CsvSyntax) -> None:
        self._type = row_type
        self._form = form
        for part in row_type.types:
            _reader(part, form)
        self._writers = [_writer(part, form) for part in row_type.types]
        marks = [mark for mark in (form.delimiter, form.quote, *form.line) if mark]
        self._plain_from = max(map(ord, marks)) + 1

    def serialize(self, element: Any) -> bytes:
        """Write a row of the type.

        Raises:
            OutputTypeError: The row is not of the type.
        """
        form = self._form
        row = self._type.adopt(element)
        texts = [self._text(value, write) for value, write in zip(row, self._writers, strict=False)]
        if isinstance(self._type, ChangelogTypeInformation):
            texts.append(str(row.get_row_kind().value))
        return (form.delimiter.join(texts) + form.line).encode()

    def _text(self, value: Any, write: Callable[[Any], str]) -> str:
        if value is None:
            return self._form.null or ""
        text = write(value)
        is_bare = isinstance(value, (int, float, Decimal)) and self._form.delimiter not in text
        return text if is_bare else self._quoted(text)

    def _quoted(self, text: str) -> str:
        quote, escape = self._form.quote, self._form.escape
        if quote is None:
            return text
        length = len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2
        has_escape = escape is not None and escape in text
        if length <= _LONGEST_UNQUOTED and not has_escape and all(ord(c) >= self._plain_from for c in text):
            return text
        # As in Flink, a quote is doubled even if there is an escape character.
        text = text.replace(escape, escape * 2) if escape is not None else text
        return f"{quote}{text.replace(quote, quote * 2)}{quote}"

    def __reduce__(self) -> tuple[Any, ...]:
        return CsvRowSerializationSchema, (self._type, self._form)


def _one_character(what: str, given: Any) -> str:
    if not isinstance(given, str) or len(given) != 1 or given in "\r\n":
        raise ConfigurationError(f"The {what} of CSV is one character, not {given!r}.")
    return given


def _empty_is_null(described: TypeInformation) -> bool:
    """Return whether an empty value is null; an empty array is one without elements."""
    return not isinstance(described, (RowTypeInformation, ListTypeInformation)) and is_null_if_empty(described)


def _reader(described: TypeInformation, form: _CsvSyntax) -> Callable[[str], Any]:
    """Return a function that reads a value; elements of arrays and fields of nested rows are separated by `array`."""
    delimiter, null = form.array, form.null
    if isinstance(described, RowTypeInformation):
        parts = list(map(csv_value_reader, described.types))

        def read_row(text: str) -> list[Any] | None:
            if not text:
                return None
            items = text.split(delimiter)
            if len(items) != len(parts):
                raise ValueError(f"it has {len(items)} values, and the row {len(parts)}")
            return [None if item == null else part(item) for part, item in zip(parts, items, strict=True)]

        return read_row
    if not isinstance(described, ListTypeInformation):
        return csv_value_reader(described)
    part = csv_value_reader(described.element_type)

    def read(text: str) -> list[Any]:
        return [None if item == null else part(item) for item in text.split(delimiter)] if text else []

    return read


def _writer(described: TypeInformation, form: _CsvSyntax) -> Callable[[Any], str]:
    """Return a function that writes a value other than None, as `_reader` reads it."""
    delimiter, null = form.array, form.null or ""
    if isinstance(described, RowTypeInformation):
        parts = list(map(_text_writer, described.types))
        return lambda row: delimiter.join(
            null if item is None else part(item) for part, item in zip(parts, row, strict=True)
        )
    if isinstance(described, ListTypeInformation):
        write = _text_writer(described.element_type)
        return lambda items: delimiter.join(null if item is None else write(item) for item in items)
    return _text_writer(described)


def _text_writer(described: TypeInformation) -> Callable[[Any], str]:
    return flink_text.flink_formatter(described) if described in (Types.FLOAT(), Types.DOUBLE()) else csv_text


__all__ = ["CsvReaderFormat", "CsvRowDeserializationSchema", "CsvRowSerializationSchema"]

__getattr__ = module_getattr(__name__, REFUSED_FORMATS)


class CsvReaderFormat(RowLineFormat):
    """Reads rows of CSV files, for `FileSource.for_record_stream_format`; create it with `for_schema`.

    Each line is read as `CsvRowDeserializationSchema` reads a message. An empty value is null, except in columns of
    text and binaries, where it is the empty one.

    Example:
        >>> from holdfast.datastream.formats.csv import CsvReaderFormat
        >>> lines = CsvReaderFormat.for_schema("word string, n bigint")
        >>> [batch] = lines.parse(b"kelp,7")
        >>> batch.to_pylist()
        [{'word': 'kelp', 'n': 7}]
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
        self._messages = CsvRowDeserializationSchema(self._row_type, _CsvSyntax(delimiter), False, False)
        self._columns = list(map(CsvColumnReader, self._row_type.types))
        self._unusual = "|".join((_LONE_RETURN, _MARK_OF_ORDER, _wrong_quotes(delimiter, multi_line=False)))
        self._signs = (_LONE_RETURN, _MARK_OF_ORDER, '"')

    @staticmethod
    def for_schema(
        schema: Any, *, header: bool = False, delimiter: str = ",", multi_line: bool = False
    ) -> CsvReaderFormat:
        """Return a format for files with these columns, in their order.

        Args:
            schema: The columns: type information, DDL such as `'key string, n bigint'`, or an Arrow schema.
            header: Whether the first line of each file has the names of the columns, which must be these.
            delimiter: The character between two values.
            multi_line: Whether quoted values may contain line breaks. One task reads all of such a file.

        Raises:
            ConfigurationError: The delimiter is not one ASCII character, or there are no columns, or nested ones.
        """
        return CsvReaderFormat(schema, header, delimiter, multi_line)

    def can_split(self, path: str) -> bool:
        return not self._multi_line and can_split_text(path)

    def has_single_lines(self) -> bool:
        return not self._multi_line

    def blocks(self, file: InputFile, begin: int, end: int) -> Iterator[Block]:
        is_first = self._header and (begin == 0 or file.codec is not None)
        for block in [Block(0, read_all(file))] if self._multi_line else line_blocks(file, begin, end):
            rows = self._without_header(block.content, file) if is_first else block.content
            is_first = False
            if rows.strip(b"\r\n"):
                yield Block(block.at + len(block.content) - len(rows), rows)

    def _without_header(self, block: bytes, file: InputFile) -> bytes:
        first, _, rest = block.partition(b"\n")
        names = split_lines(first).to_pylist()[0].lstrip("\ufeff") if first else ""
        found = [name.strip().strip('"') for name in names.split(self._delimiter)]
        if found != self.schema.names:
            raise InputError(
                f"the file {file.path!r} has the columns {', '.join(found)}, but the CSV format of this input declares "
                f"{', '.join(self.schema.names)}. Give files of another schema an input of their own"
            )
        return rest

    def parse(self, content: bytes) -> Iterator[pa.RecordBatch]:
        if not self._multi_line:
            yield from super().parse(content)
        elif content.strip(b"\r\n"):
            try:
                if b'"' in content and matches(content, _wrong_quotes(self._delimiter, multi_line=True)):
                    raise ValueError(
                        "the quote that begins a value is not closed, or text follows the one that ends it"
                    )
                batch = self._read_columns(content)
            except ValueError as error:
                found = self._messages.first_invalid(content)
                if found is None:
                    raise
                line, reason = found
                raise ValueError(f"line {line + self._header}: {reason}") from error
            yield batch

    def _read_columns(self, content: bytes) -> pa.RecordBatch:
        has_hexadecimal = (b"x" in content or b"X" in content) and matches(content, "0[xX]")
        try:
            batch = self._read_csv(content, [_as_read(kind, has_hexadecimal) for kind in self.schema.types])
            is_read = all(map(_is_finite, batch.columns))
        except pa.ArrowInvalid:
            is_read = False
        if not is_read:  # maybe there are values in a form that only Python reads
            batch = self._read_csv(content, [pa.string() for _ in self.schema])
        fields = zip(self.schema, batch.columns, self._columns, strict=True)
        columns = [self._typed(field, column, read) for field, column, read in fields]
        for column in columns:
            require_calendar(column)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _read_csv(self, content: bytes, kinds: list[pa.DataType]) -> pa.RecordBatch:
        table = pv.read_csv(
            pa.BufferReader(content),
            read_options=pv.ReadOptions(
                column_names=self.schema.names, use_threads=False, block_size=min(len(content) + 1, 2**31 - 1)
            ),
            parse_options=pv.ParseOptions(delimiter=self._delimiter, newlines_in_values=self._multi_line),
            convert_options=pv.ConvertOptions(
                column_types=dict(zip(self.schema.names, kinds, strict=True)),
                null_values=[""],
                strings_can_be_null=False,
                quoted_strings_can_be_null=False,
                true_values=["true", "True", "TRUE", "1"],
                false_values=["false", "False", "FALSE", "0"],
            ),
        )
        [batch] = table.combine_chunks().to_batches()
        return batch

    def _typed(self, field: pa.Field, column: pa.Array, read: CsvColumnReader) -> pa.Array:
        if not pa.types.is_string(column.type):
            return column.cast(field.type)
        try:
            return read(column)
        except (ValueError, OutputTypeError) as error:
            raise ValueError(f"field {field.name!r}: {error!s:.1000}") from None

    def _read_message(self, line: bytes) -> Any:
        if b'"' in line and matches(line, _wrong_quotes(self._delimiter, multi_line=False, is_unclosed=True)):
            [texts] = csv.reader([line.decode(errors="replace")], delimiter=self._delimiter)
            name = self.schema.names[min(len(texts), len(self.schema)) - 1]
            raise ValueError(
                f"the quote that begins a value of column {name!r} is not closed in its line; "
                "multi_line=True reads values that have ends of lines in them"
            )
        return self._messages.deserialize(line)


def _as_read(kind: pa.DataType, has_hexadecimal: bool) -> pa.DataType:
    """Return the type as which Arrow reads a column: its own, or text where Arrow reads other values than Python."""
    if kind == pa.float64() or (pa.types.is_integer(kind) and not has_hexadecimal):
        return kind
    return kind if any(is_one(kind) for is_one in _READ_BY_ARROW) else pa.string()


def _is_finite(column: pa.Array) -> bool:
    return not pa.types.is_floating(column.type) or bool(pc.all(pc.is_finite(column), min_count=0).as_py())


def _wrong_quotes(delimiter: str, *, multi_line: bool, is_unclosed: bool = False) -> str:
    """Return an expression of lines with a quoted value that is not closed, or that is followed by other text."""
    comma, line = f"\\x{ord(delimiter):02x}", "" if multi_line else "\\n"
    inner = f'(?:[^"{line}]|"")*'
    value = f'(?:"{inner}"|[^"{comma}\\r\\n][^{comma}\\r\\n]*|)'
    between = f"(?:{comma}|\\r?\\n)" if multi_line else comma
    begin, end = ("\\A", "\\z") if multi_line else ("^", "$")
    wrong = end if is_unclosed else f'(?:"[^"{comma}\\r\\n]|{end})'
    return f'(?m:{begin}(?:{value}{between})*"{inner}{wrong})'
