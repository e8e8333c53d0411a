"""`FileSource` and `FileSink`: read and write files exactly once, under PyFlink's names."""

from holdfast.common.flink_paths import module_getattr
from holdfast.datastream.connectors.file_system.file_sink import (
    BucketAssigner,
    BulkWriterFactory,
    DefaultRollingPolicy,
    FileSink,
    OnCheckpointRollingPolicy,
    OutputFileConfig,
    RollingPolicy,
)
from holdfast.datastream.connectors.file_system.file_source import DEAD_LETTER, FileSource, FileSourceBuilder
from holdfast.datastream.flink_paths import REFUSED_OF_FILES
from holdfast.datastream.formats.input_format import BulkFormat, StreamFormat

__all__ = [
    "DEAD_LETTER",
    "BucketAssigner",
    "BulkFormat",
    "BulkWriterFactory",
    "DefaultRollingPolicy",
    "FileSink",
    "FileSource",
    "FileSourceBuilder",
    "OnCheckpointRollingPolicy",
    "OutputFileConfig",
    "RollingPolicy",
    "StreamFormat",
]

__getattr__ = module_getattr(__name__, REFUSED_OF_FILES)
