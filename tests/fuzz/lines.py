"""A file of lines as a source reads it: the same whole or in pieces, and what cannot be read is told by name."""

from __future__ import annotations

import codecs
import json
from itertools import pairwise
from typing import Any

from holdfast.datastream.connectors.file_system import DEAD_LETTER
from holdfast.datastream.connectors.file_system.file_source import FileSplits
from holdfast.datastream.formats.input_format import Block, InputFile, InputFormat, LineFormat, UnreadableLine
from holdfast.errors import HoldfastError
from holdfast.types.arrow import batch_to_elements, elements_to_batch
from holdfast.types.serialization import DeserializationSchema
from holdfast.types.type_parser import to_type


def read(path: str, kind: InputFormat) -> None:
    """Reads a file, with a place for lines that cannot be read and without.

    Raises:
        HoldfastError: It cannot be read without such a place.
    """
    whole = _read(path, kind, 1)
    if not isinstance(whole, HoldfastError) and kind.can_split(path):
        assert _read(path, kind, 7) == whole, "in pieces it is another one"
    for batch in FileSplits(kind).read(_splits(path, 1)):
        batch.validate(full=True)


def _read(path: str, kind: InputFormat, pieces: int) -> Any:
    refused: list[Any] = []
    rows: list[str] = []
    try:
        for batch in FileSplits(kind, letters="unreadable").read(_splits(path, pieces), refused.append):
            batch.validate(full=True)
            rows += map(repr, batch.to_pylist())
    except HoldfastError as error:  # all of it is no file of the format
        assert path in str(error)
        return error
    elements_to_batch(refused, to_type(DEAD_LETTER))
    return rows, [line[:3] for line in refused]


def _splits(path: str, pieces: int) -> str:
    file = InputFile.of(path)
    cuts = [file.length * n // pieces for n in range(pieces + 1)]
    return json.dumps([[path, file.time, file.length, *pair] for pair in pairwise(cuts)])


class _Content:
    """The lines of a file that is in memory."""

    path = "a file"

    def __init__(self, content: bytes) -> None:
        self._content = content

    def number_at(self, position: int) -> int:
        return self._content.count(b"\n", 0, position) + 1


def read_lines(kind: LineFormat, content: bytes) -> tuple[list[Any], list[tuple[int, bytes]]]:
    """Read lines as a source reads them from a file: the rows, and the unreadable lines with their positions."""
    refused: list[UnreadableLine] = []
    rows = [
        row
        for batch in kind._parse_or_split(_Content(content), Block(0, content), refused.append)  # type: ignore[arg-type]
        for row in batch_to_elements(batch, kind.element_type())
    ]
    return rows, [(line.position, line.line) for line in refused]


def read_as_messages(schema: DeserializationSchema, content: bytes) -> tuple[list[Any], list[tuple[int, bytes]]]:
    """Read each line as a message: the rows, and the lines that are no messages with their positions."""
    kind, rows, refused, at = schema.get_produced_type(), [], [], 0
    for line in content.split(b"\n"):
        if line.strip(b"\r"):
            try:
                row = schema.deserialize(line.removeprefix(codecs.BOM_UTF8))
                rows += batch_to_elements(elements_to_batch([row], kind), kind)
            except ValueError:
                refused.append((at, line.rstrip(b"\r")))
        at += len(line) + 1
    return rows, refused


def require_agreement(kind: LineFormat, schema: DeserializationSchema, content: bytes) -> None:
    """Check that lines of a file have the values of messages, and that the same ones cannot be read.

    Raises:
        HoldfastError: None can be read.
    """
    found, expected = read_lines(kind, content), read_as_messages(schema, content)
    assert repr(found) == repr(expected), "in a message it has another value"
    if not found[0]:
        raise HoldfastError("no line can be read")
