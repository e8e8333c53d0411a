"""What one can say of the files of a `FileSink`: their names, sizes, directories and formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.datastream.formats.bulk_writer import ArrowFormat, CsvFormat
from holdfast.datastream.sinks.buckets import BASE_PATH, Buckets, ColumnBuckets, TimeBuckets
from holdfast.datastream.sinks.output_files import FileNames
from holdfast.errors import ConfigurationError
from holdfast.runtime.function.staging import FileFormat, ParquetFormat

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
