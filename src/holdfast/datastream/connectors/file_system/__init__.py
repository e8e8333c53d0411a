"""`FileSink`: streams into directories of files, exactly once, under PyFlink's names."""

from holdfast.datastream.connectors.file_system.file_sink import FileSink
from holdfast.datastream.connectors.file_system.file_sink_settings import (
    BucketAssigner,
    BulkWriterFactory,
    DefaultRollingPolicy,
    OnCheckpointRollingPolicy,
    OutputFileConfig,
    RollingPolicy,
)

__all__ = [
    "BucketAssigner",
    "BulkWriterFactory",
    "DefaultRollingPolicy",
    "FileSink",
    "OnCheckpointRollingPolicy",
    "OutputFileConfig",
    "RollingPolicy",
]
