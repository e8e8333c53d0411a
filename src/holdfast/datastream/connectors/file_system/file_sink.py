"""`FileSink`, as PyFlink's programs build it, on the sink of files that is exactly once (`sinks.output_files`)."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pyarrow as pa

from holdfast.datastream.connectors.file_system.encoded_format import EncodedFormat, EncodingWriter
from holdfast.datastream.connectors.file_system.file_sink_settings import (
    BucketAssigner,
    BulkWriterFactory,
    DefaultRollingPolicy,
    OutputFileConfig,
    RollingPolicy,
)
from holdfast.datastream.formats.bulk_writer import (
    TEXT_COMPRESSION,
    CsvFormat,
    require_compression,
)
from holdfast.datastream.sinks.buckets import ColumnBuckets
from holdfast.datastream.sinks.output_files import FileNames, OutputFiles
from holdfast.errors import ConfigurationError
from holdfast.runtime.function.sink import BatchSinkWriter, WriterInitContext
from holdfast.runtime.function.staging import FileFormat, ParquetFormat, require_columns, require_parquet
from holdfast.types.conversion.arrow import element_schema
from holdfast.types.encoder import Encoder
from holdfast.types.information.type_information import TypeInformation


class FileSink(OutputFiles):
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
