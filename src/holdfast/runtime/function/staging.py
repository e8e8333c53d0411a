"""A writer that stages Arrow batches in one file, mostly of Parquet: what sinks and edges of epoch jobs write in tasks.

Measured for 100,000 rows (a string of ten characters and two longs) on one core, batches of 10,000 rows, fsync
included, in milliseconds of CPU and megabytes; pyarrow's defaults are the first line, ours the second::

    snappy, dictionary         13.7 ms   1.58 MB      (16.6 ms with a row group for each batch)
    snappy, no dictionary       7.6 ms   1.51 MB
    lz4, no dictionary          6.1 ms   1.62 MB
    zstd, no dictionary         9.3 ms   1.01 MB
    none, no dictionary         3.3 ms   3.00 MB

Dictionaries of columns with many distinct values cost more than they save; `use_dictionary` names the columns that
gain.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, Protocol, cast

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from holdfast.errors import ConfigurationError
from holdfast.kernel import fault
from holdfast.runtime.function.sink import BatchSinkWriter, Committable, Sink, WriterInitContext
from holdfast.storage.file_system.scheme import file_system_for, join
from holdfast.types.conversion.arrow import element_schema
from holdfast.types.information.type_information import TypeInformation, Types

ROW_GROUP_BYTES: Final = 64 << 20
ROW_GROUP_ROWS: Final = 1 << 20

CHECKSUM: Final = "checksum"
"""In a committable: XXH3-64 of all bytes of the file that it names, hexadecimal. Older versions wrote none."""


class FormatWriter(Protocol):
    """Writes one file.

    Attributes:
        is_open: Whether `close` has yet to be called.
    """

    is_open: bool

    def write_table(self, table: pa.Table, row_group_size: int | None = None) -> None:
        """Writes rows behind those that are there."""

    def close(self) -> None:
        """Ends the file, which the caller closes."""


class FileFormat(Protocol):
    """How files are written."""

    @property
    def keeps_columns(self) -> bool:
        """Whether files have the columns by which directories are named."""

    def open_writer(self, file: BinaryIO, schema: pa.Schema) -> FormatWriter:
        """A writer of one file; the caller closes both."""


@dataclass(frozen=True)
class ParquetFormat:
    """How Parquet files are written.

    Attributes:
        compression: `snappy`, `zstd`, `lz4`, `gzip` or `none`.
        use_dictionary: Whether columns are dictionary-encoded, or the names of those that are.
    """

    compression: str = "snappy"
    use_dictionary: bool | tuple[str, ...] = False

    def __post_init__(self) -> None:
        if self.compression not in ("snappy", "zstd", "lz4", "gzip", "none"):
            raise ConfigurationError(
                f"Parquet files are compressed with snappy, zstd, lz4, gzip or none, not {self.compression!r}."
            )

    @property
    def keeps_columns(self) -> bool:
        """Readers take the columns from the names of directories."""
        return False

    def open_writer(self, file: BinaryIO, schema: pa.Schema) -> FormatWriter:
        """A writer of one file; the caller closes both."""
        dictionary = self.use_dictionary if isinstance(self.use_dictionary, bool) else list(self.use_dictionary)
        writer: FormatWriter = pq.ParquetWriter(
            file, schema, compression=self.compression, use_dictionary=dictionary, write_page_checksum=True
        )
        return writer


class ParquetStaging(BatchSinkWriter):
    """Stages the batches of one subtask and epoch in one new file; without rows there is no file and no committable.

    A file in the job's directory will be read by a committer, so the committable has the checksum of its bytes.

    Args:
        directory: Where the file is staged.
        name: Its name there, which nobody else uses.
        committable: What identifies the staged output to the committer; rows and bytes are added to it.
        file_format: How the file is written.
        check: Called before the file is made; raises if the directory is not the right one.
        open_output: Makes the file, given the committable, which it may add to; by default one with that name.
    """

    def __init__(
        self,
        directory: str,
        name: str,
        committable: dict[str, Any],
        file_format: FileFormat | None = None,
        check: Callable[[], None] | None = None,
        open_output: Callable[[dict[str, Any]], AbstractContextManager[BinaryIO]] | None = None,
    ) -> None:
        self._check = check
        self._path = join(directory, name)
        self._open_output = open_output or self._open
        self._sum = xxhash.xxh3_64() if open_output is None else None
        self._committable = committable
        self._format: FileFormat = file_format or ParquetFormat()
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._rows = 0
        self._output: AbstractContextManager[BinaryIO] | None = None
        self._file: BinaryIO | None = None
        self._writer: FormatWriter | None = None
        self._bytes: int | None = None

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Takes a batch; whole row groups are written as they fill, so that memory stays bounded."""
        if not batch.num_rows:
            return
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_rows >= ROW_GROUP_ROWS or self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write_row_group()

    def flush(self, end_of_input: bool) -> None:
        """Writes what waits and makes the file durable."""
        if self._waiting:
            self._write_row_group()
        if self._writer is None:
            return
        try:
            with fault.point("sink.stage"):
                self._writer.close()
                assert self._file is not None
                size = self._file.tell()
                self._leave(None, None, None)
        except BaseException:
            self._leave(*sys.exc_info())
            raise
        self._bytes = size

    @property
    def size(self) -> int:
        """Bytes in the file, and of what waits to be written into it."""
        written = 0 if self._file is None else self._file.tell()
        return written + self._waiting_bytes

    def prepare_commit(self) -> list[Committable]:
        """What was staged: one committable, or none if there were no rows."""
        if self._bytes is None:
            return []
        checksum = {} if self._sum is None else {CHECKSUM: self._sum.hexdigest()}
        return [{**self._committable, "rows": self._rows, "bytes": self._bytes, **checksum}]

    def abort(self) -> None:
        """Removes the file as far as it was written."""
        if self._output is not None:
            error = InterruptedError("the attempt has failed")
            with suppress(Exception):  # the context manager reports the error that it was left with
                self._leave(InterruptedError, error, None)

    def _open(self, committable: dict[str, Any]) -> AbstractContextManager[BinaryIO]:
        return file_system_for(self._path).open_output(self._path)

    def _write_row_group(self) -> None:
        table = pa.Table.from_batches(self._waiting)
        if self._writer is None:
            if self._check is not None:
                self._check()
            self._output = self._open_output(self._committable)
            file = self._output.__enter__()
            self._file = file if self._sum is None else cast("BinaryIO", _Summed(file, self._sum))
            self._writer = self._format.open_writer(self._file, table.schema)
        try:
            self._writer.write_table(table, row_group_size=table.num_rows)
        except BaseException:
            self._leave(*sys.exc_info())
            raise
        self._rows += table.num_rows
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def _leave(self, *exception: Any) -> None:
        """Leaves the file's context: the file is durable then, or removed and the error translated."""
        output, writer = self._output, self._writer
        self._output = self._file = self._writer = None
        if output is None:
            return
        if writer is not None and writer.is_open:
            with suppress(Exception):  # the file is thrown away; its writer must not try again when it is collected
                writer.close()
            writer.is_open = False
        output.__exit__(*exception)


class _Summed:
    """A file whose bytes are summed up as they are written."""

    def __init__(self, file: BinaryIO, checksum: Any) -> None:
        self._file = file
        self._sum = checksum

    def write(self, data: Any) -> int:
        self._sum.update(data)
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class StagingSink(Sink):
    """Stages the elements of an edge that leads from one epoch job of an epoch to a later one.

    Nothing of it is committed, and no checkpoint names its files: the driver hands their names to the later epoch job.
    """

    def create_writer(self, context: WriterInitContext) -> ParquetStaging:
        """Stages a file in the job's directory."""
        name = context.file_name(".parquet")
        return ParquetStaging(context.staging_dir, name, {"file": name})


def read_staged(paths: Sequence[str]) -> pa.Table:
    """The rows of staged files, in the order of the paths."""
    tables = []
    for path in paths:
        with file_system_for(path).open_input(path) as file:
            tables.append(pq.read_table(file))
    return pa.concat_tables(tables)


def require_columns(sink: str, element_type: TypeInformation) -> None:
    """Refuses a stream whose elements are pickled: nobody but Python could read its one column.

    Raises:
        ConfigurationError: The stream's type is undeclared.
    """
    if is_pickled(element_type):
        raise ConfigurationError(
            f"{sink} writes columns, but the type of the stream's elements was not declared, so they are pickled: pass "
            "output_type to the operator before it, for instance output_type='key string, n bigint'."
        )


def require_parquet(sink: str, element_type: TypeInformation) -> None:
    """Refuses a stream whose elements no Parquet file has.

    Raises:
        ConfigurationError: The stream's type is undeclared, or a column is, or has in it, a struct without fields.
    """
    require_columns(sink, element_type)
    require_full_structs(sink, element_type)


def require_full_structs(what: str, element_type: TypeInformation) -> None:
    """Refuses a stream that has structs without fields, where Parquet files are to hold it.

    Raises:
        ConfigurationError: A column of the stream is, or has in it, such a struct.
    """
    for field in element_schema(element_type):
        if _has_empty_struct(field.type):
            raise ConfigurationError(
                f"{what} writes Parquet files, which have no structs without fields, and the column {field.name!r} is "
                f"{field.type}: leave it out, or give the struct a field."
            )


def _has_empty_struct(kind: pa.DataType) -> bool:
    parts = [kind.field(position).type for position in range(kind.num_fields)]
    return any(map(_has_empty_struct, parts)) if parts else pa.types.is_struct(kind)


def is_pickled(element_type: TypeInformation) -> bool:
    """Whether elements of this type are pickled because their type is not known."""
    return element_type == Types.PICKLED_BYTE_ARRAY()
