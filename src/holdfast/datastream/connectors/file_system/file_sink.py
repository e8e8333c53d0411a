"""`FileSink`, as PyFlink's programs build it, on the sink of files that is exactly once (`sinks.output_files`)."""

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

# What one can say of the files of a `FileSink`: their names, sizes, directories and formats.

PART_SIZE: Final = 128 << 20
MINUTE: Final = 60_000


class RollingPolicy:
    """When a task ends a file and begins another. With the epoch a file ends in any case: it is committed then."""

    @staticmethod
    def default_rolling_policy(
        part_size: int = PART_SIZE, rollover_interval: int = MINUTE, inactivity_interval: int = MINUTE
    ) -> DefaultRollingPolicy:
        """Ends a file that is large enough.

        Args:
            part_size: In bytes.
            rollover_interval: How long a file may be written to, in milliseconds. A file is written to for the part of
                one epoch that its task takes, so it never comes to this; it is checked, and has no other effect.
            inactivity_interval: The same.
        """
        return DefaultRollingPolicy(part_size, rollover_interval, inactivity_interval)

    @staticmethod
    def on_checkpoint_rolling_policy() -> OnCheckpointRollingPolicy:
        """Ends files with the epoch alone."""
        return OnCheckpointRollingPolicy()


@dataclass(frozen=True)
class DefaultRollingPolicy(RollingPolicy):
    """Ends a file that is large enough; see `RollingPolicy.default_rolling_policy`."""

    part_size: int = PART_SIZE
    rollover_interval: int = MINUTE
    inactivity_interval: int = MINUTE

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) is not int or value <= 0:
                raise ConfigurationError(f"{name} of a rolling policy is a number above 0, not {value!r}.")


class OnCheckpointRollingPolicy(RollingPolicy):
    """Ends files with the epoch alone."""


class OutputFileConfig:
    """How files are called: `<prefix>-<epoch>-<subtask>-<nonce><suffix>`.

    Args:
        part_prefix: What names begin with.
        part_suffix: What they end with.

    Raises:
        ConfigurationError: They cannot be in a name, or readers would skip it.
    """

    def __init__(self, part_prefix: str, part_suffix: str) -> None:
        self.names = FileNames(part_prefix, part_suffix)

    @staticmethod
    def builder() -> OutputFileConfig.OutputFileConfigBuilder:
        """Makes one step by step."""
        return OutputFileConfig.OutputFileConfigBuilder()

    def get_part_prefix(self) -> str:
        """What names begin with."""
        return self.names.prefix

    def get_part_suffix(self) -> str:
        """What names end with."""
        return self.names.suffix

    class OutputFileConfigBuilder:
        """Makes an `OutputFileConfig` step by step."""

        def __init__(self) -> None:
            self._prefix, self._suffix = "part", ""

        def with_part_prefix(self, prefix: str) -> OutputFileConfig.OutputFileConfigBuilder:
            """Sets what names begin with; `part` by default."""
            self._prefix = prefix
            return self

        def with_part_suffix(self, suffix: str) -> OutputFileConfig.OutputFileConfigBuilder:
            """Sets what names end with, such as `.parquet`; nothing by default."""
            self._suffix = suffix
            return self

        def build(self) -> OutputFileConfig:
            """The finished one."""
            return OutputFileConfig(self._prefix, self._suffix)


@dataclass(frozen=True)
class BucketAssigner:
    """In which directory below the path of the sink a row's file is.

    Attributes:
        buckets: What divides the rows.
    """

    buckets: Buckets

    @staticmethod
    def base_path_bucket_assigner() -> BucketAssigner:
        """All files are in the path of the sink."""
        return BucketAssigner(BASE_PATH)

    @staticmethod
    def date_time_bucket_assigner(format_str: str = "yyyy-MM-dd--HH", timezone_id: str | None = None) -> BucketAssigner:
        """A directory for each hour, day or the like, by the processing time of the epoch.

        Args:
            format_str: Of `yyyy`, `yy`, `MM`, `dd`, `DDD`, `HH`, `mm` and `ss`, texts in single quotes, and other
                characters; `/` makes directories in directories.
            timezone_id: The name of a time zone; UTC by default, whatever the machines' is.
        """
        return BucketAssigner(TimeBuckets(format_str, timezone_id or "UTC"))

    @staticmethod
    def column_bucket_assigner(columns: str | Sequence[str]) -> BucketAssigner:
        """A directory for each combination of values, such as `day=2026-11-24/word=kelp`; ours, PyFlink has none.

        Args:
            columns: The columns, the outermost first. Files in a bulk format do not have them.
        """
        names = (columns,) if isinstance(columns, str) else tuple(columns)
        if not names:
            raise ConfigurationError("column_bucket_assigner takes one column at least.")
        return BucketAssigner(ColumnBuckets(names))


@dataclass(frozen=True)
class BulkWriterFactory:
    """A format whose files are written in whole batches.

    Attributes:
        file_format: The format.
    """

    file_format: FileFormat

    @staticmethod
    def parquet(compression: str = "snappy") -> BulkWriterFactory:
        """Parquet, compressed with `snappy`, `zstd`, `lz4`, `gzip` or `none`."""
        return BulkWriterFactory(ParquetFormat(compression))

    @staticmethod
    def arrow(compression: str = "lz4") -> BulkWriterFactory:
        """Arrow's IPC format, compressed with `lz4`, `zstd` or `none`."""
        return BulkWriterFactory(ArrowFormat(compression))

    @staticmethod
    def csv(header: bool = True, delimiter: str = ",", compression: str = "none") -> BulkWriterFactory:
        """Comma-separated values, with `none` or `gzip`."""
        return BulkWriterFactory(CsvFormat(header, delimiter, compression))


# Files of the bytes that an encoder makes of each element.
#
# Elements are encoded as they come, before anything is kept of their batch: one that cannot be encoded is refused
# alone.

_ENCODED: Final = "__encoded"


@dataclass(frozen=True)
class EncodedFormat:
    """Files of the bytes that an encoder makes of each element.

    Attributes:
        encoder: Makes them.
        compression: `none` or `gzip`.
    """

    encoder: Encoder
    compression: str = "none"

    @property
    def keeps_columns(self) -> bool:
        """An encoder is given whole elements."""
        return True

    def open_writer(self, file: BinaryIO, schema: pa.Schema) -> FormatWriter:
        """A writer of one file, of what `EncodingWriter` has made."""
        sink, end = compressed(file, self.compression)

        def write(table: pa.Table) -> None:
            for encoded in table[_ENCODED].chunks:
                sink.write(_content(encoded))

        return ClosingWriter(write, end)


class EncodingWriter(BatchSinkWriter):
    """Encodes elements, and hands on their bytes.

    Args:
        writer: Takes them.
        encoder: Of the elements.
        element_type: Their type.
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
        """Encodes and hands on a batch.

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
    """A column of texts.

    Raises:
        TypeError: One is none of bytes.
    """
    offsets = np.zeros(len(parts) + 1, np.int64)
    content = b"".join(parts)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(parts), [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    )


def _content(column: pa.LargeBinaryArray) -> memoryview:
    """All texts of a column, one behind the other, as they lie in memory."""
    _, offsets, content = column.buffers()
    ends = np.frombuffer(offsets, np.int64)
    return memoryview(content)[int(ends[column.offset]) : int(ends[column.offset + len(column)])]


class FileSink(FileOutputSink):
    """Writes a stream into a directory of files, exactly once; made by `for_row_format` or `for_bulk_format`.

    It is what `ParquetFileSink` is, with the same hidden folder, ledger and identity, for any format.
    """

    @staticmethod
    def for_row_format(base_path: str | os.PathLike[str], encoder: Encoder) -> FileSinkBuilder:
        """Builds a sink that writes element by element.

        Args:
            base_path: The directory, which all hosts share.
            encoder: Makes the bytes of an element.

        Raises:
            ConfigurationError: It is no encoder.
        """
        if not isinstance(encoder, Encoder):
            raise ConfigurationError(f"for_row_format takes an Encoder, not {encoder!r}.")
        return FileSinkBuilder(base_path, EncodedFormat(encoder))

    @staticmethod
    def for_bulk_format(base_path: str | os.PathLike[str], writer_factory: BulkWriterFactory) -> FileSinkBuilder:
        """Builds a sink that writes batches: `BulkWriterFactory.parquet()`, `.arrow()` or `.csv()`.

        Args:
            base_path: The directory, which all hosts share.
            writer_factory: The format.

        Raises:
            ConfigurationError: It is no such format.
        """
        if not isinstance(writer_factory, BulkWriterFactory):
            raise ConfigurationError(f"for_bulk_format takes a BulkWriterFactory, not {writer_factory!r}.")
        return FileSinkBuilder(base_path, writer_factory.file_format)

    def check_input(self, element_type: TypeInformation) -> None:
        """Refuses a stream of undeclared type, unless an encoder takes its elements as they are."""
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
                    f"{self!r} writes CSV, which has no lists, maps, structs or bytes, and {odd!r} are some: map them "
                    "to columns of simple types, or write another format."
                )
        super().check_input(element_type)

    def create_writer(self, context: WriterInitContext) -> BatchSinkWriter:
        writer = super().create_writer(context)
        if not isinstance(self.format, EncodedFormat):
            return writer
        kept = self.buckets.columns if isinstance(self.buckets, ColumnBuckets) else ()
        return EncodingWriter(writer, self.format.encoder, context.input_type, kept)


class FileSinkBuilder:
    """Makes a `FileSink` step by step.

    Args:
        base_path: The directory.
        file_format: Of the files.
    """

    def __init__(self, base_path: str | os.PathLike[str], file_format: FileFormat) -> None:
        self._path = base_path
        self._format = file_format
        self._names = FileNames()
        self._buckets = BucketAssigner.date_time_bucket_assigner().buckets
        self._part_size = DefaultRollingPolicy().part_size if isinstance(file_format, EncodedFormat) else 0

    def with_bucket_check_interval(self, interval: int) -> FileSinkBuilder:
        """Has no effect: files end with their epoch, and no timer looks at them.

        Args:
            interval: In milliseconds.
        """
        return self

    def with_bucket_assigner(self, bucket_assigner: BucketAssigner) -> FileSinkBuilder:
        """Sets in which directories files are; one for each hour by default.

        Raises:
            ConfigurationError: It is no bucket assigner.
        """
        self._buckets = _checked(bucket_assigner, BucketAssigner).buckets
        return self

    def with_output_file_config(self, output_file_config: OutputFileConfig) -> FileSinkBuilder:
        """Sets how files are called.

        Raises:
            ConfigurationError: It is no such configuration.
        """
        self._names = _checked(output_file_config, OutputFileConfig).names
        return self

    def with_rolling_policy(self, policy: RollingPolicy) -> FileSinkBuilder:
        """Sets when files end within an epoch; by default those in a row format at 128 MiB, others not.

        Raises:
            ConfigurationError: It is no rolling policy.
        """
        _checked(policy, RollingPolicy)
        self._part_size = policy.part_size if isinstance(policy, DefaultRollingPolicy) else 0
        return self

    def with_compression(self, compression: str) -> FileSinkBuilder:
        """Compresses the files of a row format with `gzip`; the formats of a bulk writer know compressions themselves.

        Raises:
            ConfigurationError: There is no such compression, or the format is that of a bulk writer.
        """
        require_compression("Files in a row format", compression, TEXT_COMPRESSION)
        if not isinstance(self._format, EncodedFormat):
            raise ConfigurationError("The compression of a bulk format is an argument of its writer factory.")
        self._format = replace(self._format, compression=compression)
        return self

    def build(self) -> FileSink:
        """The finished sink.

        Raises:
            ConfigurationError: There is no file system for the path.
        """
        return FileSink(self._path, self._format, self._names, self._buckets, self._part_size)


def _checked(given: Any, wanted: Any) -> Any:
    if not isinstance(given, wanted):
        raise ConfigurationError(f"A {wanted.__name__} is needed here, not {given!r}.")
    return given
