"""`FileSink`, with its rolling policies, bucket assigners and formats, under PyFlink's names (`sinks.output_files`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa

from holdfast.datastream.formats.bulk_writer import (
    TEXT_COMPRESSION,
    ArrowFormat,
    ClosingWriter,
    CsvFormat,
    compressed,
    require_compression,
)
from holdfast.datastream.sinks.output_files import (
    BASE_PATH,
    Buckets,
    ColumnBuckets,
    FileNames,
    FileOutputSink,
    TimeBuckets,
)
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.runtime.function.sink import (
    BatchSinkWriter,
    FileFormat,
    FormatWriter,
    ParquetFormat,
    RefusedElementError,
    WriterInitContext,
    require_columns,
    require_parquet,
)
from holdfast.types.arrow import batch_to_elements, element_schema
from holdfast.types.changelog_type import ChangelogTypeInformation
from holdfast.types.flink_text import flink_formatter
from holdfast.types.serialization import Encoder
from holdfast.types.type_information import TypeInformation

PART_SIZE: Final = 128 << 20
MINUTE: Final = 60_000
_ENCODED: Final = "__encoded"


class RollingPolicy:
    """When a task begins a new file. Every file also ends with its epoch, because it is committed then.

    >>> RollingPolicy.default_rolling_policy(part_size=1_000_000).part_size
    1000000
    """

    @staticmethod
    def default_rolling_policy(
        part_size: int = PART_SIZE, rollover_interval: int = MINUTE, inactivity_interval: int = MINUTE
    ) -> DefaultRollingPolicy:
        """Begin a new file when the current one is large enough.

        Args:
            part_size: The size in bytes.
            rollover_interval: Milliseconds. Has no effect, because files end with their epoch.
            inactivity_interval: Milliseconds. Has no effect.

        Raises:
            ConfigurationError: A value is not a positive integer.
        """
        return DefaultRollingPolicy(part_size, rollover_interval, inactivity_interval)

    @staticmethod
    def on_checkpoint_rolling_policy() -> OnCheckpointRollingPolicy:
        """Write one file for each task, epoch and bucket."""
        return OnCheckpointRollingPolicy()


@dataclass(frozen=True)
class DefaultRollingPolicy(RollingPolicy):
    """A new file when the current one is large enough; see `RollingPolicy.default_rolling_policy`."""

    part_size: int = PART_SIZE
    rollover_interval: int = MINUTE
    inactivity_interval: int = MINUTE

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) is not int or value <= 0:
                raise ConfigurationError(f"{name} of a rolling policy is a number above 0, not {value!r}.")


class OnCheckpointRollingPolicy(RollingPolicy):
    """One file for each task, epoch and bucket."""


class OutputFileConfig:
    """The names of files: `<prefix>-<epoch>-<subtask>-<nonce><suffix>`.

    Args:
        part_prefix: The prefix.
        part_suffix: The suffix, such as `.parquet`.

    Raises:
        ConfigurationError: They cannot be in a name, or readers would skip such names.

    Example:
        >>> from holdfast.datastream.connectors.file_system import OutputFileConfig
        >>> OutputFileConfig.builder().with_part_prefix("counts").with_part_suffix(".csv").build().get_part_suffix()
        '.csv'
    """

    def __init__(self, part_prefix: str, part_suffix: str) -> None:
        self.names = FileNames(part_prefix, part_suffix)

    @staticmethod
    def builder() -> OutputFileConfig.OutputFileConfigBuilder:
        """Return a builder."""
        return OutputFileConfig.OutputFileConfigBuilder()

    def get_part_prefix(self) -> str:
        """Return the prefix."""
        return self.names.prefix

    def get_part_suffix(self) -> str:
        """Return the suffix."""
        return self.names.suffix

    class OutputFileConfigBuilder:
        """Builds an `OutputFileConfig`."""

        def __init__(self) -> None:
            self._prefix, self._suffix = "part", ""

        def with_part_prefix(self, prefix: str) -> OutputFileConfig.OutputFileConfigBuilder:
            """Set the prefix; `part` by default."""
            self._prefix = prefix
            return self

        def with_part_suffix(self, suffix: str) -> OutputFileConfig.OutputFileConfigBuilder:
            """Set the suffix, such as `.parquet`; none by default."""
            self._suffix = suffix
            return self

        def build(self) -> OutputFileConfig:
            """Create the configuration."""
            return OutputFileConfig(self._prefix, self._suffix)


@dataclass(frozen=True)
class BucketAssigner:
    """The directory of a row's file below the path of the sink.

    >>> BucketAssigner.column_bucket_assigner(["day", "word"])
    BucketAssigner(buckets=ColumnBuckets(columns=('day', 'word')))

    Attributes:
        buckets: Assigns rows to directories.
    """

    buckets: Buckets

    @staticmethod
    def base_path_bucket_assigner() -> BucketAssigner:
        """Write all files into the path of the sink."""
        return BucketAssigner(BASE_PATH)

    @staticmethod
    def date_time_bucket_assigner(format_str: str = "yyyy-MM-dd--HH", timezone_id: str | None = None) -> BucketAssigner:
        """Use a directory for each hour, day or another unit, by processing time.

        By epochs that is the time of the epoch, in real time the current one.

        Args:
            format_str: A pattern of `yyyy`, `yy`, `MM`, `dd`, `DDD`, `HH`, `mm` and `ss`, text in single quotes, and
                other characters; `/` separates nested directories.
            timezone_id: The name of a time zone; UTC by default, whatever the machine's time zone is.

        Raises:
            ConfigurationError: The pattern has other letters, or the time zone is unknown.
        """
        return BucketAssigner(TimeBuckets(format_str, timezone_id or "UTC"))

    @staticmethod
    def column_bucket_assigner(columns: str | Sequence[str]) -> BucketAssigner:
        """Use a directory for each combination of values, such as `day=2026-11-24/word=kelp`. PyFlink has no such one.

        Args:
            columns: The columns, the outermost first. Files in a bulk format do not contain them.

        Raises:
            ConfigurationError: There is no column.
        """
        names = (columns,) if isinstance(columns, str) else tuple(columns)
        if not names:
            raise ConfigurationError("column_bucket_assigner needs at least one column.")
        return BucketAssigner(ColumnBuckets(names))


@dataclass(frozen=True)
class BulkWriterFactory:
    """A format whose files are written in batches.

    >>> BulkWriterFactory.parquet("zstd").file_format.compression
    'zstd'

    Attributes:
        file_format: The format.
    """

    file_format: FileFormat

    @staticmethod
    def parquet(compression: str = "snappy") -> BulkWriterFactory:
        """Write Parquet, compressed with `snappy`, `zstd`, `lz4`, `gzip` or `none`."""
        return BulkWriterFactory(ParquetFormat(compression))

    @staticmethod
    def arrow(compression: str = "lz4") -> BulkWriterFactory:
        """Write Arrow's IPC format, compressed with `lz4`, `zstd` or `none`."""
        return BulkWriterFactory(ArrowFormat(compression))

    @staticmethod
    def csv(header: bool = True, delimiter: str = ",", compression: str = "none") -> BulkWriterFactory:
        """Write comma-separated values, compressed with `gzip` or `none`."""
        return BulkWriterFactory(CsvFormat(header, delimiter, compression))


@dataclass(frozen=True)
class EncodedFormat:
    """Files of the bytes that an encoder returns for each element.

    Attributes:
        encoder: The encoder.
        compression: `none` or `gzip`.
    """

    encoder: Encoder
    compression: str = "none"

    @property
    def keeps_columns(self) -> bool:
        """Always true, because an encoder gets whole elements."""
        return True

    def open_writer(self, file: BinaryIO, schema: pa.Schema) -> FormatWriter:
        """Open a writer of one file for the output of `EncodingWriter`."""
        sink, end = compressed(file, self.compression)

        def write(table: pa.Table) -> None:
            for encoded in table[_ENCODED].chunks:
                sink.write(_content(encoded))

        return ClosingWriter(write, end)


class EncodingWriter(BatchSinkWriter):
    """Encodes elements, and passes the bytes to another writer.

    All elements of a batch are encoded before the batch is written, so that one that cannot be encoded is rejected
    alone.

    Args:
        writer: The writer of the bytes.
        encoder: The encoder.
        element_type: The type of the elements.
        kept: Columns that the writer needs beside the bytes, because directories are named by them.
    """

    def __init__(
        self, writer: BatchSinkWriter, encoder: Encoder, element_type: TypeInformation, kept: Sequence[str]
    ) -> None:
        self._writer = writer
        if isinstance(element_type, ChangelogTypeInformation):
            encoder = encoder.with_kinds()
        self._encode = encoder.with_text(flink_formatter(element_type)).encode
        self._type = element_type
        self._kept = list(kept)
        self.flush, self.prepare_commit = writer.flush, writer.prepare_commit  # type: ignore[method-assign]
        self.close, self.abort = writer.close, writer.abort  # type: ignore[method-assign]

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Encode and write a batch.

        Raises:
            RefusedElementError: An element cannot be encoded.
        """
        try:
            encoded = _column(list(map(self._encode, batch_to_elements(batch, self._type))))
        except (HoldfastError, OSError):
            raise
        except Exception as error:
            raise RefusedElementError(f"its bytes cannot be made: {type(error).__name__}: {error}") from error
        columns = [*(batch.column(name) for name in self._kept), encoded]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, names=[*self._kept, _ENCODED]))


def _column(parts: Sequence[bytes]) -> pa.LargeBinaryArray:
    """Return a binary column.

    Raises:
        TypeError: A part is not bytes.
    """
    offsets = np.zeros(len(parts) + 1, np.int64)
    content = b"".join(parts)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(parts), [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    )


def _content(column: pa.LargeBinaryArray) -> memoryview:
    """Return the concatenated values of a column without a copy."""
    _, offsets, content = column.buffers()
    ends = np.frombuffer(offsets, np.int64)
    return memoryview(content)[int(ends[column.offset]) : int(ends[column.offset + len(column)])]


class FileSink(FileOutputSink):
    """Writes a stream into a directory of files of any format, exactly once, like `ParquetFileSink`.

    Create it with `for_row_format` or `for_bulk_format`.

    Example:
        >>> import pathlib, tempfile
        >>> from holdfast.common import Encoder
        >>> from holdfast.datastream.connectors.file_system import BucketAssigner, FileSink
        >>> from holdfast.testing import EpochProgram
        >>> place, program = tempfile.mkdtemp(), EpochProgram()
        >>> words = program.source("words", "word string, n bigint")
        >>> sink = (
        ...     FileSink.for_row_format(f"{place}/out", Encoder.json_encoder())
        ...     .with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
        ...     .build()
        ... )
        >>> result = words.sink_to(sink).uid("files")
        >>> job = program.run(f"{place}/job", [{"words": [("kelp", 1)]}])
        >>> [file.read_text().rstrip() for file in pathlib.Path(place, "out").glob("part-*")]
        ['{"word": "kelp", "n": 1}']
    """

    @staticmethod
    def for_row_format(base_path: str | os.PathLike[str], encoder: Encoder) -> FileSinkBuilder:
        """Return a builder of a sink that encodes each element.

        Args:
            base_path: The directory, which all hosts share, or `s3://bucket/directory`.
            encoder: Encodes an element to bytes.

        Raises:
            ConfigurationError: `encoder` is not an `Encoder`.
        """
        if not isinstance(encoder, Encoder):
            raise ConfigurationError(f"for_row_format takes an Encoder, not {encoder!r}.")
        return FileSinkBuilder(base_path, EncodedFormat(encoder))

    @staticmethod
    def for_bulk_format(base_path: str | os.PathLike[str], writer_factory: BulkWriterFactory) -> FileSinkBuilder:
        """Return a builder of a sink that writes batches.

        Args:
            base_path: The directory, which all hosts share, or `s3://bucket/directory`.
            writer_factory: `BulkWriterFactory.parquet()`, `.arrow()` or `.csv()`.

        Raises:
            ConfigurationError: `writer_factory` is not a `BulkWriterFactory`.
        """
        if not isinstance(writer_factory, BulkWriterFactory):
            raise ConfigurationError(f"for_bulk_format takes a BulkWriterFactory, not {writer_factory!r}.")
        return FileSinkBuilder(base_path, writer_factory.file_format)

    def check_input(self, element_type: TypeInformation) -> None:
        """Check that the format can write the elements.

        Raises:
            ConfigurationError: A bulk format needs a declared type, or has no form for a column.
        """
        if not isinstance(self.format, EncodedFormat):
            (require_parquet if isinstance(self.format, ParquetFormat) else require_columns)("FileSink", element_type)
        if isinstance(self.format, CsvFormat):
            odd = [
                field.name
                for field in element_schema(element_type)
                if pa.types.is_nested(field.type) or pa.types.is_binary(field.type)
            ]
            if odd:
                raise ConfigurationError(
                    f"{self!r} writes CSV, which has no lists, maps, structs or bytes, but {odd!r} are such columns: "
                    "map them to columns of simple types, or write another format."
                )
        super().check_input(element_type)

    def create_writer(self, context: WriterInitContext) -> BatchSinkWriter:
        writer = super().create_writer(context)
        if not isinstance(self.format, EncodedFormat):
            return writer
        kept = self.buckets.columns if isinstance(self.buckets, ColumnBuckets) else ()
        return EncodingWriter(writer, self.format.encoder, context.input_type, kept)


class FileSinkBuilder:
    """Builds a `FileSink`, under PyFlink's names."""

    def __init__(self, base_path: str | os.PathLike[str], file_format: FileFormat) -> None:
        self._path = base_path
        self._format = file_format
        self._names = FileNames()
        self._buckets = BucketAssigner.date_time_bucket_assigner().buckets
        self._part_size = DefaultRollingPolicy().part_size if isinstance(file_format, EncodedFormat) else 0

    def with_bucket_check_interval(self, interval: int) -> FileSinkBuilder:
        """Do nothing: files end with their epoch.

        Args:
            interval: Milliseconds; ignored.
        """
        return self

    def with_bucket_assigner(self, bucket_assigner: BucketAssigner) -> FileSinkBuilder:
        """Set the directories of files; by default one for each hour.

        Raises:
            ConfigurationError: It is not a `BucketAssigner`.
        """
        self._buckets = _checked(bucket_assigner, BucketAssigner).buckets
        return self

    def with_output_file_config(self, output_file_config: OutputFileConfig) -> FileSinkBuilder:
        """Set the names of files.

        Raises:
            ConfigurationError: It is not an `OutputFileConfig`.
        """
        self._names = _checked(output_file_config, OutputFileConfig).names
        return self

    def with_rolling_policy(self, policy: RollingPolicy) -> FileSinkBuilder:
        """Set when a new file begins within an epoch; by default at 128 MiB in a row format, else never.

        Raises:
            ConfigurationError: It is not a `RollingPolicy`.
        """
        _checked(policy, RollingPolicy)
        self._part_size = policy.part_size if isinstance(policy, DefaultRollingPolicy) else 0
        return self

    def with_compression(self, compression: str) -> FileSinkBuilder:
        """Set the compression of a row format, `gzip` or `none`. That of a bulk format is an argument of its factory.

        Raises:
            ConfigurationError: The compression is unknown, or the format is a bulk format.
        """
        require_compression("Files in a row format", compression, TEXT_COMPRESSION)
        if not isinstance(self._format, EncodedFormat):
            raise ConfigurationError("The compression of a bulk format is an argument of its writer factory.")
        self._format = replace(self._format, compression=compression)
        return self

    def build(self) -> FileSink:
        """Create the sink.

        Raises:
            ConfigurationError: There is no file system for the path.
        """
        return FileSink(self._path, self._format, self._names, self._buckets, self._part_size)


def _checked(given: Any, wanted: Any) -> Any:
    if not isinstance(given, wanted):
        raise ConfigurationError(f"A {wanted.__name__} is needed here, not {given!r}.")
    return given
