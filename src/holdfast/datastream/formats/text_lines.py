"""Text from line end to line end: lines that begin in a range of bytes belong to it, however long they are.

Blocks of lines are read at once. Only where one cannot be read, it is halved until the lines are found that are to
blame.
"""

from __future__ import annotations

import codecs
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.datastream.formats.input_file import InputFile
from holdfast.datastream.formats.input_format import InputFormat
from holdfast.errors import ConfigurationError
from holdfast.runtime.job.engine import InputError
from holdfast.types.conversion.arrow import VALUE_COLUMN
from holdfast.types.information.type_information import TypeInformation, Types

BLOCK: Final = 4 << 20
LARGEST: Final = 1 << 30
"""Bytes of a line, or of a file that is read whole: a small file that is compressed may have any number of them."""
_LINE_FEED: Final = 10
_CARRIAGE_RETURN: Final = 13
_IN_A_BLOCK: Final = re.compile(r"(?<=: )Row #\d+: | in row \d+$")
"""Where Arrow has found something: a number of the lines that it was given at once, which says nothing of the file."""


class Block(NamedTuple):
    """Whole lines.

    Attributes:
        at: The byte of the file, or of what it is uncompressed, at which the first of them begins.
        content: The lines, with their ends.
    """

    at: int
    content: bytes


class UnreadableLine(NamedTuple):
    """A line that is none of its format: a row of `DEAD_LETTER`.

    Attributes:
        path: The file.
        position: The byte of it, or of what it is uncompressed, at which the line begins.
        line: What stands there, without the end of the line.
        reason: Why it cannot be read.
    """

    path: str
    position: int
    line: bytes
    reason: str


Refuse = Callable[[UnreadableLine], None]


class StreamFormat(InputFormat):
    """A format that is read from the beginning of a range to its end: `FileSource.for_record_stream_format` takes it.

    `StreamFormat.text_line_format()` is one; others are in `holdfast.datastream.formats`.
    """

    @staticmethod
    def text_line_format(charset_name: str = "UTF-8") -> StreamFormat:
        """Lines of text, each an element of type STRING without the end of the line.

        Args:
            charset_name: How characters are encoded. Files of another encoding than UTF-8 are read whole, by one task.

        Raises:
            ConfigurationError: Python knows no such encoding.
        """
        return TextLineFormat(charset_name)


class LineFormat(StreamFormat):
    """A format whose elements are lines, each of which can be read without the others."""

    @abstractmethod
    def blocks(self, file: InputFile, begin: int, end: int) -> Iterator[Block]:
        """The lines that belong to a range of bytes, without those that have no elements. Blocks."""

    @abstractmethod
    def parse(self, content: bytes) -> Iterator[pa.RecordBatch]:
        """The elements of lines.

        Raises:
            ValueError: They cannot be read.
        """

    def has_single_lines(self) -> bool:
        """Whether a line can be read without the others, as this one is set up."""
        return True

    def read(self, file: InputFile, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        return self.readable(file, begin, end, None)

    def readable(self, file: InputFile, begin: int, end: int, refuse: Refuse | None) -> Iterator[pa.RecordBatch]:
        """The elements that belong to a range of bytes, as `read` has them. Blocks.

        Args:
            file: The file.
            begin: The first byte of the range.
            end: The byte after the range.
            refuse: Gets the lines that cannot be read; None if the first of them is raised.

        Raises:
            InputError: A line cannot be read.
        """
        for block in self.blocks(file, begin, end):
            yield from self._readable(file.path, block, refuse)

    def _readable(self, path: str, block: Block, refuse: Refuse | None) -> Iterator[pa.RecordBatch]:
        try:
            batches = list(self.parse(block.content))
        except ValueError as error:
            if not self.has_single_lines():
                raise
            yield from self._blamed(path, block, refuse, _IN_A_BLOCK.sub("", str(error)))
        else:
            yield from batches

    def _blamed(self, path: str, block: Block, refuse: Refuse | None, reason: str) -> Iterator[pa.RecordBatch]:
        middle = block.content.find(b"\n", len(block.content) // 2, -1) + 1 or block.content.rfind(b"\n", 0, -1) + 1
        if middle:
            yield from self._readable(path, Block(block.at, block.content[:middle]), refuse)
            yield from self._readable(path, Block(block.at + middle, block.content[middle:]), refuse)
            return
        line = UnreadableLine(path, block.at, block.content.rstrip(b"\r\n"), reason)
        if refuse is None:
            raise InputError(
                f"the line at byte {line.position} of the file {path!r} cannot be read as {self.name}: {reason}"
            )
        refuse(line)


class TextLineFormat(LineFormat):
    """Lines of text, each an element.

    Args:
        charset: How characters are encoded.

    Raises:
        ConfigurationError: Python knows no such encoding.
    """

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
        lines = lines_of(content)
        lines.validate(full=True)  # bytes that are no text would go unnoticed until somebody looks at them
        yield pa.RecordBatch.from_arrays([lines], names=[VALUE_COLUMN])

    def blocks(self, file: InputFile, begin: int, end: int) -> Iterator[Block]:
        if self._charset == "utf-8":
            return line_blocks(file, begin, end)
        content = whole(file).decode(self._charset).encode()
        return iter([Block(0, content)] if content else ())


def can_split_text(path: str) -> bool:
    """Whether a file of text can be read from the middle on, which one that is compressed as a whole cannot."""
    return InputFile(path, 0, 0).codec is None


def whole(file: InputFile) -> bytes:
    """All that is in a file, uncompressed. Blocks.

    Raises:
        ValueError: That is too much.
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
    """Whole lines, in blocks of some megabytes: those that begin in a range of the bytes of a file.

    Args:
        file: The file. Of one that is compressed as a whole all lines are given.
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
    """Lines from one that begins at a byte to the last one that begins before another."""
    begun: list[bytes] = []
    while at < end or begun:
        stream.seek(at)
        block = stream.read(BLOCK)
        if not block:
            break
        # The last line of the range ends where the first byte of the next range, or one after it, begins a line.
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
    """Where the first line begins that begins in a range; its end if there is none."""
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


def lines_of(block: bytes) -> pa.StringArray:
    """The lines of a block as one column, without their ends (a line feed, or a carriage return before one)."""
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
