"""A file of lines as a source reads it: the same whole or in pieces, and what cannot be read is told by name."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from holdfast.datastream.connectors.file_system import DEAD_LETTER
from holdfast.datastream.connectors.file_system.file_source import FileSplits
from holdfast.datastream.formats.input_format import InputFile, InputFormat
from holdfast.errors import HoldfastError
from holdfast.types.arrow import elements_to_batch
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
