"""Sinks without a client library, and the interface for sinks of your own."""

from holdfast.datastream.sinks.driver_sinks import ForEachEpochSink, PrintSink
from holdfast.datastream.sinks.for_each_sink import ForEachSink
from holdfast.datastream.sinks.output_files import ParquetFileSink
from holdfast.runtime.function.sink import (
    BatchSinkWriter,
    CommitRequest,
    Committer,
    CommitterInitContext,
    RefusedElementError,
    Sink,
    SinkWriter,
    WriterContext,
    WriterInitContext,
)
from holdfast.storage.job_directory import FileName

__all__ = [
    "BatchSinkWriter",
    "CommitRequest",
    "Committer",
    "CommitterInitContext",
    "FileName",
    "ForEachEpochSink",
    "ForEachSink",
    "ParquetFileSink",
    "PrintSink",
    "RefusedElementError",
    "Sink",
    "SinkWriter",
    "WriterContext",
    "WriterInitContext",
]
