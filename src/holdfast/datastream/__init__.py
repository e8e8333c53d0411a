"""What users write: environment, streams, functions, state and sinks, in PyFlink's spelling.

Importing this package needs no pyspark; executing a job does.
"""

from holdfast.checkpoint.storage import FileSystemCheckpointStorage, JobManagerCheckpointStorage
from holdfast.datastream.broadcast import BroadcastConnectedStream, BroadcastStream
from holdfast.datastream.checkpoint_config import CheckpointConfig, CheckpointingMode, ExternalizedCheckpointCleanup
from holdfast.datastream.environment import StreamExecutionEnvironment
from holdfast.datastream.functions import (
    AggregateFunction,
    BroadcastProcessFunction,
    CheckpointedFunction,
    CheckpointListener,
    FilterFunction,
    FlatMapFunction,
    FoldFunction,
    Function,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedBroadcastProcessFunction,
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
    FileName,
    ForEachEpochSink,
    ParquetFileSink,
    PrintSink,
    Sink,
    SinkWriter,
    WriterContext,
    WriterInitContext,
)
from holdfast.datastream.state_backend import FsStateBackend, HashMapStateBackend, MemoryStateBackend
from holdfast.datastream.stream import DataStream, DataStreamSink
from holdfast.runtime.job_client import JobClient
from holdfast.runtime.status import JobStatus

__all__ = [
    "AggregateFunction",
    "BatchSinkWriter",
    "BroadcastConnectedStream",
    "BroadcastProcessFunction",
    "BroadcastStream",
    "CheckpointConfig",
    "CheckpointListener",
    "CheckpointedFunction",
    "CheckpointingMode",
    "CollectedElements",
    "CommitRequest",
    "Committer",
    "CommitterInitContext",
    "DataStream",
    "DataStreamSink",
    "ExternalizedCheckpointCleanup",
    "FileName",
    "FileSystemCheckpointStorage",
    "FilterFunction",
    "FlatMapFunction",
    "FoldFunction",
    "ForEachEpochSink",
    "FsStateBackend",
    "Function",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "HashMapStateBackend",
    "JobClient",
    "JobExecutionResult",
    "JobManagerCheckpointStorage",
    "JobStatus",
    "KeySelector",
    "KeyedBroadcastProcessFunction",
    "KeyedProcessFunction",
    "KeyedStream",
    "MapFunction",
    "MemoryStateBackend",
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
