"""Formats of files that are written in whole batches."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.csv as pc

from holdfast.errors import ConfigurationError
from holdfast.runtime.function.sink import FormatWriter

ARROW_COMPRESSION: Final = ("none", "lz4", "zstd")
TEXT_COMPRESSION: Final = ("none", "gzip")


@dataclass(frozen=True)
class ArrowFormat:
    """Files of Arrow's IPC format ("Feather").

    Attributes:
        compression: `none`, `lz4` or `zstd`.
    """

    compression: str = "lz4"

    def __post_init__(self) -> None:
        require_compression("Arrow files", self.compression, ARROW_COMPRESSION)

    @property
    def keeps_columns(self) -> bool:
        """Readers take the columns from the names of directories."""
        return False

    def open_writer(self, file: BinaryIO, schema: pa.Schema) -> FormatWriter:
        """A writer of one file."""
        options = pa.ipc.IpcWriteOptions(compression=None if self.compression == "none" else self.compression)
        writer = pa.ipc.new_file(file, schema, options=options)
        return ClosingWriter(lambda table: writer.write_table(table), writer.close)


@dataclass(frozen=True)
class CsvFormat:
    """Comma-separated values.

    Attributes:
        header: Whether files begin with the names of the columns.
        delimiter: What stands between two values.
        compression: `none` or `gzip`.
    """

    header: bool = True
    delimiter: str = ","
    compression: str = "none"

    def __post_init__(self) -> None:
        require_compression("CSV files", self.compression, TEXT_COMPRESSION)
        require_delimiter(self.delimiter)

    @property
    def keeps_columns(self) -> bool:
        """Readers take the columns from the names of directories."""
        return False

    def open_writer(self, file: BinaryIO, schema: pa.Schema) -> FormatWriter:
        """A writer of one file."""
        sink, end = compressed(file, self.compression)
        options = pc.WriteOptions(include_header=self.header, delimiter=self.delimiter)
        writer = pc.CSVWriter(sink, schema, write_options=options)
        return ClosingWriter(lambda table: writer.write_table(table), writer.close, end)


class ClosingWriter:
    """A writer of a file that knows whether it was closed.

    Args:
        write: Writes a table.
        ends: What is called, in turn, when the file ends.
    """

    def __init__(self, write: Callable[[pa.Table], Any], *ends: Callable[[], Any]) -> None:
        self._write = write
        self._ends = ends
        self.is_open = True

    def write_table(self, table: pa.Table, row_group_size: int | None = None) -> None:
        """Writes rows behind those that are there."""
        self._write(table)

    def close(self) -> None:
        """Ends the file."""
        self.is_open = False
        for end in self._ends:
            end()


def compressed(file: BinaryIO, compression: str) -> tuple[Any, Callable[[], Any]]:
    """Where to write what a file is to hold compressed, and what ends it."""
    if compression == "none":
        return file, lambda: None
    # Without a time in it, the same rows are the same bytes.
    packed = gzip.GzipFile(fileobj=file, mode="wb", mtime=0)
    return packed, packed.close


def require_compression(what: str, given: str, known: tuple[str, ...]) -> None:
    """Makes sure that a compression is known.

    Raises:
        ConfigurationError: It is not.
    """
    if given not in known:
        raise ConfigurationError(f"{what} are compressed with {', '.join(known)}, not {given!r}.")


def require_delimiter(given: Any) -> None:
    """Makes sure that Arrow can write and read CSV with a delimiter.

    Raises:
        ConfigurationError: It cannot.
    """
    if not isinstance(given, str) or len(given) != 1 or not given.isascii() or given in '"\n\r':
        raise ConfigurationError(f"The delimiter of CSV is one character of ASCII, not {given!r}.")
