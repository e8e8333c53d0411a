"""Sinks: where streams end. All of them stand on the public interface of `holdfast.runtime.function.sink`."""

from holdfast.datastream.sinks.epoch import ForEachEpochSink, PrintSink
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
    "ParquetFileSink",
    "PrintSink",
    "RefusedElementError",
    "Sink",
    "SinkWriter",
    "WriterContext",
    "WriterInitContext",
]
