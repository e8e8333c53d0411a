"""The functions that programs subclass, and the contexts that they are given."""

from holdfast.checkpoint.coordination.master_hook import MasterTriggerRestoreHook, WithMasterCheckpointHook
from holdfast.common.flink_paths import refusing
from holdfast.datastream.flink_paths import REFUSED
from holdfast.runtime.function.async_function import AsyncFunction, AsyncRetryPredicate, AsyncRetryStrategy
from holdfast.runtime.function.broadcast import (
    BaseBroadcastProcessFunction,
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
)
from holdfast.runtime.function.two_inputs import (
    CoFlatMapFunction,
    CoGroupFunction,
    CoMapFunction,
    CoProcessFunction,
    JoinFunction,
    KeyedCoProcessFunction,
    ProcessJoinFunction,
    RichCoFlatMapFunction,
    RichCoMapFunction,
)
from holdfast.runtime.function.user_function import (
    AggregateFunction,
    CheckpointedFunction,
    CheckpointListener,
    FilterFunction,
    FlatMapFunction,
    FoldFunction,
    Function,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    OutputTag,
    Partitioner,
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
from holdfast.runtime.operator.vectorised.batch_function import BatchContext, BatchFunction, ColumnState
from holdfast.runtime.window.window_function import (
    AllWindowFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WindowFunction,
)
from holdfast.state.declaration.api import FunctionInitializationContext, FunctionSnapshotContext, KeyedStateStore

__all__ = [
    "AggregateFunction",
    "AllWindowFunction",
    "AsyncFunction",
    "AsyncRetryPredicate",
    "AsyncRetryStrategy",
    "BaseBroadcastProcessFunction",
    "BatchContext",
    "BatchFunction",
    "BroadcastProcessFunction",
    "CheckpointListener",
    "CheckpointedFunction",
    "CoFlatMapFunction",
    "CoGroupFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "ColumnState",
    "FilterFunction",
    "FlatMapFunction",
    "FoldFunction",
    "Function",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "JoinFunction",
    "KeySelector",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStateStore",
    "MapFunction",
    "MasterTriggerRestoreHook",
    "OutputTag",
    "Partitioner",
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
    "TimeDomain",
    "TimerService",
    "WindowFunction",
    "WithMasterCheckpointHook",
]

__getattr__ = refusing(__name__, REFUSED)
