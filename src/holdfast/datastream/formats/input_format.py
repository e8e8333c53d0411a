"""Formats of files that a `FileSource` reads into columns: bulk formats, and formats of lines.

A task reads a split, a range of bytes of a file. Each format has a rule by which everything in a file belongs to
exactly one range, however the file is split: the line that begins in it, or the part of a row group whose middle is in
it.
"""

from __future__ import annotations

import codecs
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ConfigurationError, InputError, InputGoneError, NotExistError
from holdfast.storage.file_system import local_path
from holdfast.storage.scheme import file_system_for
from holdfast.types.arrow import VALUE_COLUMN, rows_to_batch
from holdfast.types.composite import RowTypeInformation
from holdfast.types.type_information import TypeInformation
from holdfast.types.type_parser import to_row_type
from holdfast.types.types import Types

_CODECS: Final = {".gz": "gzip", ".gzip": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".br": "brotli"}
ROWS: Final = 64 * 1024
"""Rows of a batch."""
BLOCK: Final = 4 << 20
LARGEST: Final = 1 << 30
"""The limit in bytes of a line, and of a file that is read completely: a small compressed file may expand hugely."""
_LINE_FEED: Final = 10
_CARRIAGE_RETURN: Final = 13
_IN_A_BLOCK: Final = re.compile(r"(?<=: )Row #\d+: | in row \d+$")
"""Row numbers in Arrow's messages; they count from the beginning of a block, so they mean nothing for the file."""
NUMBERED: Final = 1 << 30
"""The first bytes of a file, in which lines that go aside are numbered: each range reads again what is before it."""
_SHOWN: Final = 200
"""Characters of a line in a message."""
_FEW: Final = 16 << 10
"""Bytes of lines that are read as messages if Arrow cannot read some of them."""


@dataclass(frozen=True)
class InputFile:
    """A file as it was when an epoch was planned.

    Attributes:
        path: The path or URI.
        time: The time of the last change, in milliseconds since 1970.
        length: The length in bytes.
    """

    path: str
    time: int
    length: int

    @classmethod
    def of(cls, path: str) -> InputFile:
        """Return the current state of a file. Blocks.

        Raises:
            InputGoneError: The file does not exist.
            StorageError: The storage fails.
        """
        try:
            status = file_system_for(path).status(path)
        except NotExistError as error:
            raise InputGoneError(
                f"the file {path!r} is gone, which was listed and has not been read: put it back and run the job "
                "again. A job reads each file once, whole: do not delete or move what it may not have read"
            ) from error
        return cls(path, status.mtime, status.size)

    def require_same(self) -> None:
        """Check that the file has not changed. Blocks.

        Raises:
            InputGoneError: The file does not exist.
            InputError: The file has changed.
        """
        now = InputFile.of(self.path)
        if now != self:
            raise self.changed(now)

    def changed(self, now: InputFile) -> InputError:
        """Return the error for a file that has changed."""
        what = "changed"
        if now.length != self.length:
            what = "truncated" if now.length < self.length else "appended to"
        return InputError(
            f"the file {self.path!r} was {what} after it was listed: it had {self.length} bytes and was last changed "
            f"at {_time_text(self.time)}, and has {now.length} of {_time_text(now.time)}. A job reads each file once, "
            "whole: let a file be complete when it gets its name (write it elsewhere, then rename it), and leave it "
            "as it is"
        )

    @property
    def codec(self) -> str | None:
        """The compression of the whole file by its suffix; None if there is none."""
        return next((codec for ending, codec in _CODECS.items() if self.path.endswith(ending)), None)

    def open(self) -> Any:
        """Open the file for Arrow, whose reader closes it. Blocks."""
        local = local_path(self.path)
        # Not memory-mapped: if somebody truncates the file, that would kill the process.
        return (
            pa.OSFile(local) if local is not None else pa.PythonFile(file_system_for(self.path).open_input(self.path))
        )

    def open_text(self) -> Any:
        """Open the file for Arrow, decompressed. Blocks."""
        return self.open() if self.codec is None else pa.CompressedInputStream(self.open(), self.codec)


def _time_text(time: int) -> str:
    try:
        return datetime.fromtimestamp(time / 1000, UTC).isoformat(timespec="milliseconds")
    except (ArithmeticError, OSError, ValueError):  # file systems allow times outside of the calendar
        return f"{time} ms since 1970"


_FIRST_DAY: Final = date.min.toordinal() - date(1970, 1, 1).toordinal()
_LAST_DAY: Final = date.max.toordinal() - date(1970, 1, 1).toordinal()


class InputFormat(ABC):
    """A format of files. It is pickled into tasks."""

    name: str
    """The name in messages."""

    @abstractmethod
    def element_type(self) -> TypeInformation:
        """Return the type of the elements."""

    @abstractmethod
    def can_split(self, path: str) -> bool:
        """Return whether several tasks can read ranges of a file of this name."""

    @abstractmethod
    def read(self, file: InputFile, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the elements that belong to a range of bytes, in batches with a column for each field. Blocks.

        Raises:
            InputError: The file has other columns than were declared.
        """


class BulkFormat(InputFormat):
    """A format with rows in batches, for `FileSource.for_bulk_file_format`."""


class RowFormat(InputFormat):
    """The base of formats of rows with declared columns.

    Args:
        row_type: The columns to read, by their names in the files: type information, DDL, or an Arrow schema. Files may
            have other columns.

    Raises:
        ConfigurationError: It is not a row type, or has no columns.
    """

    def __init__(self, row_type: Any) -> None:
        found = to_row_type(row_type)
        if not found.names:
            raise ConfigurationError(f"{type(self).__name__} needs the columns to read.")
        self._row_type = found

    def element_type(self) -> RowTypeInformation:
        return self._row_type

    def can_split(self, path: str) -> bool:
        return True

    @property
    def schema(self) -> pa.Schema:
        return self._row_type.arrow_schema

    def require_columns(self, found: pa.Schema, path: str) -> None:
        """Check that a file has the declared columns.

        Raises:
            InputError: One is missing, or has values that do not fit the declared type.
        """
        for field in self.schema:
            positions = found.get_all_field_indices(field.name)
            if len(positions) != 1:
                there = ", ".join(found.names)
                problem = f"has no column {field.name!r}" if not positions else f"has {field.name!r} twice"
                raise InputError(
                    f"the file {path!r} {problem}, which the {self.name} format of this input declares as "
                    f"{field.type}; it has {there}. Give files of another schema an input of their own"
                )
            given = found.field(positions[0]).type
            if not _fits(given, field.type):
                raise InputError(
                    f"the file {path!r} has the column {field.name!r} of type {given}, but the {self.name} format of "
                    f"this input declares {field.type}. Give files of another schema an input of their own"
                )

    def conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Validate the declared columns of a batch, and cast them to their types.

        Raises:
            ValueError: Offsets or UTF-8 are invalid; using such columns might crash the process.
        """
        return self._cast(self._validated(batch))

    def conform_in_parts(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Do the same for a batch of any size, and yield batches of at most `ROWS` rows.

        Raises:
            ValueError: As `conform`.
        """
        columns = self._validated(batch)  # before slicing, because each slice of a list column has the children of all
        for at in range(0, batch.num_rows, ROWS):
            yield self._cast([column.slice(at, ROWS) for column in columns])

    def _validated(self, batch: pa.RecordBatch) -> list[pa.Array]:
        columns = [batch.column(batch.schema.get_field_index(field.name)) for field in self.schema]
        for column in columns:
            column.validate(full=True)
        return columns

    def _cast(self, columns: list[pa.Array]) -> pa.RecordBatch:
        typed = [
            column if column.type.equals(field.type) else column.cast(field.type)
            for column, field in zip(columns, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(typed, schema=self.schema)


def require_calendar(column: pa.Array) -> None:
    """Check that all dates and timestamps in a column are in the years 1 to 9999, which Python supports.

    Raises:
        ValueError: One is not.
    """
    if pa.types.is_struct(column.type) or pa.types.is_list(column.type):
        for part in column.flatten() if pa.types.is_struct(column.type) else [column.flatten()]:
            require_calendar(part)
    elif pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        days = pc.min_max(column.cast(pa.date32(), safe=False).cast(pa.int32())).as_py()
        if days["min"] is not None and not (days["min"] >= _FIRST_DAY and days["max"] <= _LAST_DAY):
            raise ValueError("a date is in none of the years 1 to 9999")


def _fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether every value of a type fits another type."""
    if given.equals(wanted):
        return True
    if pa.types.is_dictionary(given):
        return _fits(given.value_type, wanted)
    if pa.types.is_integer(given) and pa.types.is_integer(wanted):
        return bool(given.bit_width + pa.types.is_unsigned_integer(given) <= wanted.bit_width)
    if pa.types.is_floating(given) and pa.types.is_floating(wanted):
        return bool(given.bit_width <= wanted.bit_width)
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(wanted):
        return (given.tz is None) == (wanted.tz is None)
    if pa.types.is_time(given) and pa.types.is_time(wanted):
        return True
    if pa.types.is_decimal(given) and pa.types.is_decimal(wanted):
        return bool(given.scale == wanted.scale and given.precision <= wanted.precision)
    if pa.types.is_nested(given) and pa.types.is_nested(wanted):
        return _nested_fits(given, wanted)
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    contents = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(any(is_one(given) for is_one in kind) and kind[0](wanted) for kind in (texts, contents))


def _nested_fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        named = [field.name for field in given] == [field.name for field in wanted]
        return named and all(_fits(one.type, other.type) for one, other in zip(given, wanted, strict=True))
    if pa.types.is_map(given) and pa.types.is_map(wanted):
        return _fits(given.key_type, wanted.key_type) and _fits(given.item_type, wanted.item_type)
    lists = (pa.types.is_list, pa.types.is_large_list)
    return (
        any(is_one(given) for is_one in lists)
        and pa.types.is_list(wanted)
        and _fits(given.value_type, wanted.value_type)
    )


# Lines. Blocks of lines are parsed at once. A block that cannot be read is halved until the unreadable lines are found.


class Block(NamedTuple):
    """Complete lines.

    Attributes:
        at: The byte of the decompressed file at which they begin.
        content: The lines with their ends.
    """

    at: int
    content: bytes


class UnreadableLine(NamedTuple):
    """A line that cannot be read, as a row of `DEAD_LETTER`.

    Attributes:
        path: The file.
        position: The byte of the decompressed file at which the line begins.
        line: The bytes without the end of the line.
        reason: Why it cannot be read.
        line_number: The number of the line in the file, from 1; None after the first `NUMBERED` bytes.
    """

    path: str
    position: int
    line: bytes
    reason: str
    line_number: int | None


Refuse = Callable[[UnreadableLine], None]


class _LineNumbers:
    """Counts lines by reading a file again, from its beginning to lines that cannot be read.

    A range does not know how many lines there are before it.
    """

    def __init__(self, file: InputFile) -> None:
        self.path = file.path
        self._file = file
        self._stream: Any = None
        self._at = 0
        self._before = 0

    def number_at(self, position: int) -> int:
        """Return the number of the line that begins at a byte of the decompressed file. Blocks.

        Args:
            position: The byte; at least as large as in the call before.
        """
        if self._stream is None:
            self._stream = self._file.open_text()
        while self._at < position:
            content = self._stream.read(min(BLOCK, position - self._at))
            if not content:
                raise OSError(f"it ends at byte {self._at}, before the line at byte {position}")
            self._before += content.count(b"\n")
            self._at += len(content)
        return self._before + 1

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()


class StreamFormat(InputFormat):
    """A format of sequential records, for `FileSource.for_record_stream_format`.

    `StreamFormat.text_line_format()` is one; others are in `holdfast.datastream.formats`.

    Example:
        >>> from holdfast.datastream.connectors.file_system import StreamFormat
        >>> StreamFormat.text_line_format().element_type()
        <string>
    """

    @staticmethod
    def text_line_format(charset_name: str = "UTF-8") -> StreamFormat:
        """Return a format of text lines, each an element of type STRING without the end of the line.

        Args:
            charset_name: The encoding. One task reads all of a file in another encoding than UTF-8.

        Raises:
            ConfigurationError: Python does not know the encoding.
        """
        return TextLineFormat(charset_name)


class LineFormat(StreamFormat):
    """A format whose elements are lines, each of which can be read without the others."""

    @abstractmethod
    def blocks(self, file: InputFile, begin: int, end: int) -> Iterator[Block]:
        """Yield the lines that belong to a range of bytes, without those that have no elements. Blocks."""

    @abstractmethod
    def parse(self, content: bytes) -> Iterator[pa.RecordBatch]:
        """Parse lines.

        Raises:
            ValueError: A line cannot be read.
        """

    def has_single_lines(self) -> bool:
        """Return whether a line can be read without the others, with these settings."""
        return True

    def read(self, file: InputFile, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        return self.read_lines(file, begin, end, None)

    def read_lines(self, file: InputFile, begin: int, end: int, refuse: Refuse | None) -> Iterator[pa.RecordBatch]:
        """Yield the elements that belong to a range of bytes, like `read`. Blocks.

        Args:
            file: The file.
            begin: The first byte of the range.
            end: The byte after the range.
            refuse: Called with each unreadable line; None to raise the first one.

        Raises:
            InputError: A line cannot be read.
        """
        with closing(_LineNumbers(file)) as numbers:
            for block in self.blocks(file, begin, end):
                yield from self._parse_or_split(numbers, block, refuse)

    def _parse_or_split(self, numbers: _LineNumbers, block: Block, refuse: Refuse | None) -> Iterator[pa.RecordBatch]:
        try:
            batches = list(self.parse(block.content))
        except ValueError as error:
            if not self.has_single_lines():
                raise
            yield from self._isolate_unreadable(numbers, block, refuse, _IN_A_BLOCK.sub("", str(error)))
        else:
            yield from batches

    def _isolate_unreadable(
        self, numbers: _LineNumbers, block: Block, refuse: Refuse | None, reason: str
    ) -> Iterator[pa.RecordBatch]:
        middle = block.content.find(b"\n", len(block.content) // 2, -1) + 1 or block.content.rfind(b"\n", 0, -1) + 1
        if middle:
            yield from self._parse_or_split(numbers, Block(block.at, block.content[:middle]), refuse)
            yield from self._parse_or_split(numbers, Block(block.at + middle, block.content[middle:]), refuse)
            return
        line = block.content.rstrip(b"\r\n")
        if refuse is None:
            raise InputError(
                f"line {numbers.number_at(block.at)} of the file {numbers.path!r} cannot be read as {self.name}: "
                f"{reason}. {line_text(line)}"
            )
        number = numbers.number_at(block.at) if block.at <= NUMBERED else None
        refuse(UnreadableLine(numbers.path, block.at, line, reason, number))


def line_text(line: bytes) -> str:
    """Return the text of a line for a message."""
    shown = line.removeprefix(codecs.BOM_UTF8).decode(errors="backslashreplace")
    return f"The line: {shown[:_SHOWN]}{'...' if len(shown) > _SHOWN else ''}"


class RowLineFormat(RowFormat, LineFormat):
    """The base of formats whose lines are rows: Arrow reads them by columns, and the schema of messages reads the rest.

    A line has the same values in a file and in a message. Lines that Arrow might read as other values match `_unusual`;
    these, and those that Arrow refuses, are read as messages.
    """

    _has_columns = True
    """Whether Arrow reads lines of this type."""
    _unusual: str
    """A regular expression of lines that are read as messages, for RE2 and bytes."""
    _signs: tuple[str, ...]
    """Expressions of which content with such a line matches one."""
    _blank: bytes = b"\r"
    """What a line without a row consists of."""

    @abstractmethod
    def _read_columns(self, content: bytes) -> pa.RecordBatch:
        """Read lines by columns.

        Raises:
            ValueError: Arrow cannot read them, or not exactly.
        """

    @abstractmethod
    def _read_message(self, line: bytes) -> Any:
        """Read a line as a message.

        Raises:
            ValueError: It cannot be read.
        """

    def parse(self, content: bytes) -> Iterator[pa.RecordBatch]:
        yield from self._batches(content.removeprefix(codecs.BOM_UTF8))

    def _batches(self, content: bytes) -> list[pa.RecordBatch]:
        if not self._has_columns:
            return [self._read_messages(self._rows(content))]
        if not content.strip(b"\n" + self._blank):
            return []
        if any(matches(content, sign) for sign in self._signs):
            lines = self._rows(content)
            unusual = pc.match_substring_regex(pa.array(lines, pa.large_binary()), self._unusual).to_pylist()
            if any(unusual):
                return [self._read_mixed(lines, unusual)]
        try:
            return [self._read_columns(content)]
        except ValueError:
            middle = content.find(b"\n", len(content) // 2, -1) + 1
            if len(content) <= _FEW or not middle:
                return [self._read_messages(self._rows(content))]
        return self._batches(content[:middle]) + self._batches(content[middle:])

    def _read_mixed(self, lines: list[bytes], unusual: list[bool]) -> pa.RecordBatch:
        usual = b"\n".join(line for line, is_unusual in zip(lines, unusual, strict=True) if not is_unusual)
        others = self._read_messages([line for line, is_unusual in zip(lines, unusual, strict=True) if is_unusual])
        both = pa.Table.from_batches([*self._batches(usual), others], self.schema)
        # A stable sort of the flags gives the positions of these rows in the file.
        return both.take(np.argsort(np.argsort(unusual, kind="stable"), kind="stable")).combine_chunks().to_batches()[0]

    def _rows(self, content: bytes) -> list[bytes]:
        return [line for line in content.split(b"\n") if line.strip(self._blank)]

    def _read_messages(self, lines: list[bytes]) -> pa.RecordBatch:
        return rows_to_batch([self._read_message(line.removeprefix(codecs.BOM_UTF8)) for line in lines], self._row_type)


def matches(content: bytes, pattern: str) -> bool:
    """Return whether a regular expression of RE2 matches some of the bytes."""
    bounds = pa.py_buffer(np.array([0, len(content)], np.int64))
    whole = pa.LargeBinaryArray.from_buffers(pa.large_binary(), 1, [None, bounds, pa.py_buffer(content)])
    return bool(pc.match_substring_regex(whole, pattern)[0].as_py())


class TextLineFormat(LineFormat):
    """Text lines, each an element; see `StreamFormat.text_line_format`."""

    name = "text"

    def __init__(self, charset: str = "UTF-8") -> None:
        try:
            self._charset = codecs.lookup(charset).name
        except (LookupError, TypeError) as error:
            raise ConfigurationError(f"text_line_format() takes the name of an encoding, not {charset!r}.") from error

    def element_type(self) -> TypeInformation:
        return Types.STRING()

    def can_split(self, path: str) -> bool:
        return self._charset == "utf-8" and can_split_text(path)

    def has_single_lines(self) -> bool:
        return self._charset == "utf-8"

    def parse(self, content: bytes) -> Iterator[pa.RecordBatch]:
        lines = split_lines(content)
        lines.validate(full=True)  # invalid UTF-8 would be noticed only when the text is used
        yield pa.RecordBatch.from_arrays([lines], names=[VALUE_COLUMN])

    def blocks(self, file: InputFile, begin: int, end: int) -> Iterator[Block]:
        if self._charset == "utf-8":
            return line_blocks(file, begin, end)
        content = read_all(file)
        try:
            text = content.decode(self._charset)
        except UnicodeDecodeError as error:
            number = content[: error.start].decode(self._charset, "replace").count("\n") + 1
            raise ValueError(f"line {number}: {error}") from None
        return iter([Block(0, text.encode())] if text else ())


def can_split_text(path: str) -> bool:
    """Return whether a text file can be split, which a compressed one cannot."""
    return InputFile(path, 0, 0).codec is None


def read_all(file: InputFile) -> bytes:
    """Read a complete file, decompressed. Blocks.

    Raises:
        ValueError: It is larger than `LARGEST`.
    """
    parts: list[bytes] = []
    with file.open_text() as stream:
        while block := stream.read(BLOCK):
            parts.append(block)
            _require_bounded(parts, "it is read whole")
    return b"".join(parts)


def _require_bounded(parts: list[bytes], what: str) -> None:
    if sum(map(len, parts)) > LARGEST:
        raise ValueError(f"{what}, and has more than {LARGEST} bytes")


def line_blocks(file: InputFile, begin: int, end: int) -> Iterator[Block]:
    """Yield the lines that begin in a range of bytes of a file, in blocks of some megabytes.

    Args:
        file: The file. If it is compressed, all of its lines are read.
        begin: The first byte of the range.
        end: The byte after the range.
    """
    with file.open_text() as stream:
        at = 0 if file.codec is not None else _first_line(stream, begin, end)
        for lines in _all_lines(stream) if file.codec is not None else _lines_between(stream, at, end):
            yield Block(at, lines)
            at += len(lines)


def _all_lines(stream: Any) -> Iterator[bytes]:
    begun: list[bytes] = []
    while block := stream.read(BLOCK):
        cut = block.rfind(b"\n") + 1
        if cut:
            yield b"".join([*begun, block[:cut]])
            begun = []
        if cut < len(block):
            begun.append(block[cut:])
            _require_bounded(begun, "a line does not end")
    if begun:
        yield b"".join(begun)


def _lines_between(stream: Any, at: int, end: int) -> Iterator[bytes]:
    """Yield the lines from the byte `at`, where one begins, to the last one that begins before `end`."""
    begun: list[bytes] = []
    while at < end or begun:
        stream.seek(at)
        block = stream.read(BLOCK)
        if not block:
            break
        # The last line of the range ends where the next line begins, at `end` or after it.
        cut = block.find(b"\n", max(0, end - 1 - at)) if at + len(block) >= end else block.rfind(b"\n")
        is_last = cut >= 0 and at + cut + 1 >= end
        if cut >= 0:
            yield b"".join([*begun, block[: cut + 1]])
            begun = []
        if is_last:
            return
        if cut + 1 < len(block):
            begun.append(block[cut + 1 :])
            _require_bounded(begun, "a line does not end")
        at += len(block)
    if begun:
        yield b"".join(begun)


def _first_line(stream: Any, begin: int, end: int) -> int:
    """Return the byte of the first line that begins in a range; `end` if there is none."""
    at = max(0, begin - 1)
    while begin > 0 and at < end:
        stream.seek(at)
        block = stream.read(min(BLOCK, end - at))
        if not block:
            return end
        found = block.find(b"\n")
        if found >= 0:
            return int(at + found + 1)
        at += len(block)
    return 0 if not begin else end


def split_lines(block: bytes) -> pa.StringArray:
    """Return the lines of a block as a column, without their ends (LF or CRLF)."""
    content = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(content == _LINE_FEED)
    keep = content != _LINE_FEED
    if not block.endswith(b"\n"):
        ends = np.append(ends, len(content))
    before = ends[ends > 0] - 1
    returns = before[content[before] == _CARRIAGE_RETURN]
    keep[returns] = False
    removed = np.arange(len(ends)) + np.searchsorted(returns, ends)
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends - removed
    data = content[keep]
    return pa.StringArray.from_buffers(len(ends), pa.py_buffer(offsets), pa.py_buffer(data))
