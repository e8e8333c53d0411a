"""`ArrowFormat` and `CsvFormat`: the formats of `BulkWriterFactory` beside Parquet."""

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
        """False: readers take these columns from the names of directories."""
        return False

    def open_writer(self, file: BinaryIO, schema: pa.Schema) -> FormatWriter:
        options = pa.ipc.IpcWriteOptions(compression=None if self.compression == "none" else self.compression)
        writer = pa.ipc.new_file(file, schema, options=options)
        return ClosingWriter(writer.write_table, writer.close)


@dataclass(frozen=True)
class CsvFormat:
    """Comma-separated values.

    Attributes:
        header: Whether files begin with the names of the columns.
        delimiter: The character between two values.
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
        """False: readers take these columns from the names of directories."""
        return False

    def open_writer(self, file: BinaryIO, schema: pa.Schema) -> FormatWriter:
        sink, end = compressed(file, self.compression)
        options = pc.WriteOptions(include_header=self.header, delimiter=self.delimiter)
        writer = pc.CSVWriter(sink, schema, write_options=options)
        return ClosingWriter(writer.write_table, writer.close, end)


class ClosingWriter:
    """A writer of a file made of functions.

    Args:
        write: Writes a table.
        ends: Called in order by `close`.
    """

    def __init__(self, write: Callable[[pa.Table], Any], *ends: Callable[[], Any]) -> None:
        self._write = write
        self._ends = ends
        self.is_open = True

    def write_table(self, table: pa.Table, row_group_size: int | None = None) -> None:
        self._write(table)

    def close(self) -> None:
        self.is_open = False
        for end in self._ends:
            end()


def compressed(file: BinaryIO, compression: str) -> tuple[Any, Callable[[], Any]]:
    """Return a file that compresses into another file, and the function that ends it."""
    if compression == "none":
        return file, lambda: None
    # Without a timestamp, so that the same rows give the same bytes.
    packed = gzip.GzipFile(fileobj=file, mode="wb", mtime=0)
    return packed, packed.close


def require_compression(what: str, given: str, known: tuple[str, ...]) -> None:
    """Check that a compression is known.

    Raises:
        ConfigurationError: It is not.
    """
    if given not in known:
        raise ConfigurationError(f"{what} are compressed with {', '.join(known)}, not {given!r}.")


def require_delimiter(given: Any) -> None:
    """Check that Arrow supports a delimiter of CSV.

    Raises:
        ConfigurationError: It does not.
    """
    if not isinstance(given, str) or len(given) != 1 or not given.isascii() or given in '"\n\r':
        raise ConfigurationError(f"The delimiter of CSV is one character of ASCII, not {given!r}.")
