"""Parquet files, exactly once (`output_files`)."""

from __future__ import annotations

import os
from collections.abc import Sequence

from holdfast.datastream.sinks.buckets import BASE_PATH, ColumnBuckets
from holdfast.datastream.sinks.output_files import FileNames, OutputFiles
from holdfast.runtime.function.staging import ParquetFormat, require_parquet
from holdfast.types.information.type_information import TypeInformation


class ParquetFileSink(OutputFiles):
    """Writes a stream into a directory of Parquet files, exactly once.

    Args:
        path: The directory, or `s3://bucket/directory`; it is made if it is missing. A relative path
            is taken from the driver's working directory.
        compression: `snappy`, `zstd`, `lz4`, `gzip` or `none`.
        use_dictionary: Whether columns are dictionary-encoded, or the names of those that are. Off by default: it
            costs time, and gains only for columns with few distinct values.
        partition_by: Columns by whose values files are divided, in directories such as `day=2026-11-24/word=kelp`, as
            Spark, DuckDB and Polars read them. The files do not have these columns.
        part_size: Bytes after which a task begins another file, 0 if it does not; one ends with each epoch anyway.

    Raises:
        ConfigurationError: There is no file system for the path, or an unknown compression.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        compression: str = "snappy",
        use_dictionary: bool | Sequence[str] = False,
        partition_by: str | Sequence[str] = (),
        part_size: int = 0,
    ) -> None:
        dictionary = use_dictionary if isinstance(use_dictionary, bool) else tuple(use_dictionary)
        columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        buckets = ColumnBuckets(columns) if columns else BASE_PATH
        file_format = ParquetFormat(compression, dictionary)
        super().__init__(path, file_format, FileNames(suffix=".parquet"), buckets, part_size)

    def check_input(self, element_type: TypeInformation) -> None:
        """Refuses a stream of undeclared type."""
        require_parquet("ParquetFileSink", element_type)
        super().check_input(element_type)
