"""What users write: environment, streams, functions, state and sinks, in PyFlink's spelling.

Importing this package needs no pyspark; executing a job does.
"""

from holdfast.checkpoint.config import CheckpointConfig
from holdfast.checkpoint.options import CheckpointingMode, ExternalizedCheckpointCleanup
from holdfast.datastream.environment import StreamExecutionEnvironment
from holdfast.datastream.functions import (
    AggregateFunction,
    CheckpointedFunction,
    FilterFunction,
    FlatMapFunction,
    FoldFunction,
    Function,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ReduceFunction,
    RichFilterFunction,
    RichFlatMapFunction,
    RichFunction,
    RichMapFunction,
    RichReduceFunction,
    RuntimeContext,
    TimeDomain,
    TimerService,
)
from holdfast.datastream.keyed_stream import KeyedStream
from holdfast.datastream.result import CollectedElements, JobExecutionResult
from holdfast.datastream.sinks import (
    BatchSinkWriter,
    CommitRequest,
    Committer,
    CommitterInitContext,
    ForEachEpochSink,
    ParquetFileSink,
    PrintSink,
    Sink,
    SinkWriter,
    WriterContext,
    WriterInitContext,
)
from holdfast.datastream.stream import DataStream, DataStreamSink
from holdfast.runtime.job_client import JobClient
from holdfast.runtime.status import JobStatus

__all__ = [
    "AggregateFunction",
    "BatchSinkWriter",
    "CheckpointConfig",
    "CheckpointedFunction",
    "CheckpointingMode",
    "CollectedElements",
    "CommitRequest",
    "Committer",
    "CommitterInitContext",
    "DataStream",
    "DataStreamSink",
    "ExternalizedCheckpointCleanup",
    "FilterFunction",
    "FlatMapFunction",
    "FoldFunction",
    "ForEachEpochSink",
    "Function",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "JobClient",
    "JobExecutionResult",
    "JobStatus",
    "KeySelector",
    "KeyedProcessFunction",
    "KeyedStream",
    "MapFunction",
    "OutputTag",
    "ParquetFileSink",
    "PrintSink",
    "ProcessFunction",
    "ReduceFunction",
    "RichFilterFunction",
    "RichFlatMapFunction",
    "RichFunction",
    "RichMapFunction",
    "RichReduceFunction",
    "RuntimeContext",
    "Sink",
    "SinkWriter",
    "StreamExecutionEnvironment",
    "TimeDomain",
    "TimerService",
    "WriterContext",
    "WriterInitContext",
]
