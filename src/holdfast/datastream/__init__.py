"""What users write: environment, streams, functions, state and sinks, in PyFlink's spelling.

Importing this package needs no pyspark; executing a job does.
"""

from typing import Any

from holdfast.checkpoint.storage.checkpoint_storage import (
    CheckpointStorage,
    FileSystemCheckpointStorage,
    JobManagerCheckpointStorage,
)
from holdfast.common.flink_paths import refused, register
from holdfast.datastream.async_data_stream import AsyncDataStream
from holdfast.datastream.checkpoint_config import CheckpointConfig, CheckpointingMode, ExternalizedCheckpointCleanup
from holdfast.datastream.environment.result import CollectedElements, JobExecutionResult
from holdfast.datastream.environment.stream_execution_environment import StreamExecutionEnvironment
from holdfast.datastream.flink_paths import DATASTREAM, REFUSED, REFUSED_MODULES
from holdfast.datastream.functions import (
    AggregateFunction,
    AllWindowFunction,
    AsyncFunction,
    AsyncRetryPredicate,
    AsyncRetryStrategy,
    BatchFunction,
    BroadcastProcessFunction,
    CheckpointedFunction,
    CheckpointListener,
    CoFlatMapFunction,
    CoGroupFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    FoldFunction,
    Function,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    JoinFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    MasterTriggerRestoreHook,
    OutputTag,
    Partitioner,
    ProcessAllWindowFunction,
    ProcessFunction,
    ProcessJoinFunction,
    ProcessWindowFunction,
    ReduceFunction,
    RichCoFlatMapFunction,
    RichCoMapFunction,
    RichFilterFunction,
    RichFlatMapFunction,
    RichFunction,
    RichMapFunction,
    RichReduceFunction,
    RuntimeContext,
    TimeDomain,
    TimerService,
    WindowFunction,
    WithMasterCheckpointHook,
)
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
from holdfast.datastream.slot_sharing_group import MemorySize, SlotSharingGroup
from holdfast.datastream.state_backend import (
    ColumnarStateBackend,
    EmbeddedRocksDBStateBackend,
    FsStateBackend,
    HashMapStateBackend,
    MemoryStateBackend,
    PredefinedOptions,
    StateBackend,
)
from holdfast.datastream.stream.broadcast import BroadcastConnectedStream, BroadcastStream
from holdfast.datastream.stream.connected import ConnectedStreams
from holdfast.datastream.stream.data_stream import DataStream, DataStreamSink
from holdfast.datastream.stream.keyed_stream import KeyedStream
from holdfast.datastream.stream.windowed import AllWindowedStream, WindowedStream
from holdfast.datastream.window import (
    CountWindow,
    GlobalWindow,
    MergingWindowAssigner,
    TimeWindow,
    Trigger,
    TriggerResult,
    Window,
    WindowAssigner,
)
from holdfast.runtime.job.options import RuntimeExecutionMode
from holdfast.runtime.job.status import JobStatus
from holdfast.runtime.master.job_client import JobClient

__all__ = [
    "AggregateFunction",
    "AllWindowFunction",
    "AllWindowedStream",
    "AsyncDataStream",
    "AsyncFunction",
    "AsyncRetryPredicate",
    "AsyncRetryStrategy",
    "BatchFunction",
    "BatchSinkWriter",
    "BroadcastConnectedStream",
    "BroadcastProcessFunction",
    "BroadcastStream",
    "CheckpointConfig",
    "CheckpointListener",
    "CheckpointStorage",
    "CheckpointedFunction",
    "CheckpointingMode",
    "CoFlatMapFunction",
    "CoGroupFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "CollectedElements",
    "ColumnarStateBackend",
    "CommitRequest",
    "Committer",
    "CommitterInitContext",
    "ConnectedStreams",
    "CountWindow",
    "DataStream",
    "DataStreamSink",
    "EmbeddedRocksDBStateBackend",
    "ExternalizedCheckpointCleanup",
    "ExternalizedCheckpointRetention",
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
    "GlobalWindow",
    "HashMapStateBackend",
    "JobClient",
    "JobExecutionResult",
    "JobManagerCheckpointStorage",
    "JobStatus",
    "JoinFunction",
    "KeySelector",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStream",
    "MapFunction",
    "MasterTriggerRestoreHook",
    "MemorySize",
    "MemoryStateBackend",
    "MergingWindowAssigner",
    "OutputTag",
    "ParquetFileSink",
    "Partitioner",
    "PredefinedOptions",
    "PrintSink",
    "ProcessAllWindowFunction",
    "ProcessFunction",
    "ProcessJoinFunction",
    "ProcessWindowFunction",
    "ReduceFunction",
    "RichCoFlatMapFunction",
    "RichCoMapFunction",
    "RichFilterFunction",
    "RichFlatMapFunction",
    "RichFunction",
    "RichMapFunction",
    "RichReduceFunction",
    "RuntimeContext",
    "RuntimeExecutionMode",
    "Sink",
    "SinkWriter",
    "SlotSharingGroup",
    "StateBackend",
    "StreamExecutionEnvironment",
    "TimeDomain",
    "TimeWindow",
    "TimerService",
    "Trigger",
    "TriggerResult",
    "Window",
    "WindowAssigner",
    "WindowFunction",
    "WindowedStream",
    "WithMasterCheckpointHook",
    "WriterContext",
    "WriterInitContext",
]

ExternalizedCheckpointRetention = ExternalizedCheckpointCleanup
register(__name__, DATASTREAM, REFUSED_MODULES)


def __getattr__(name: str) -> Any:
    """Names that PyFlink has here and that Holdfast has not."""
    refused(name, REFUSED)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
