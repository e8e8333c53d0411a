"""Sinks: where streams end. All of them stand on the public interface of `holdfast.runtime.function.sink`."""

from holdfast.datastream.sinks.epoch import ForEachEpochSink
from holdfast.datastream.sinks.parquet import ParquetFileSink
from holdfast.datastream.sinks.printing import PrintSink
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
from holdfast.storage.job.naming import FileName

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
