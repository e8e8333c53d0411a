"""The contexts of user functions: facts, state, timers and side outputs of the subtask that they run in."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final, NoReturn

from holdfast.checkpoint.storage import (
    BufferedStream,
    CheckpointedStateScope,
    CheckpointStateOutputStream,
    CheckpointStreamFactory,
    InlineStateHandle,
)
from holdfast.errors import ConfigurationError, StateError, StateMigrationError
from holdfast.kernel.watermark import MIN_WATERMARK
from holdfast.runtime.function.metric import MetricGroup, TaskMetrics
from holdfast.runtime.function.user_function import (
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
    RuntimeContext,
    TimeDomain,
    TimerService,
)
from holdfast.state.api import (
    RAW_KEYED,
    BroadcastState,
    DescriptorStateStore,
    KeyedStateCheckpointOutputStream,
    KeyedStateStore,
    KeyGroupStatePartitionStreamProvider,
    OperatorStateCheckpointOutputStream,
    OperatorStateStore,
    RawStateInitializationContext,
    RawStateSnapshotContext,
    ReadOnlyBroadcastState,
    StatePartitionStreamProvider,
)
from holdfast.state.backend import AbstractKeyedStateBackend, NoCurrentKey
from holdfast.state.descriptor import ListStateDescriptor
from holdfast.state.operator_state import OperatorStateBackend
from holdfast.types.row import CHANGES, current_value

BACKEND = "holdfast.backend"
CONTEXT = "holdfast.context"
"""Keys of a deep copy's memo under which handles and contexts find the task that they are bound to."""


@dataclass
class SubtaskInfo:
    """Facts about one subtask of one operator in one epoch; times are milliseconds since 1970.

    In a task of a job by epochs nothing of it changes.

    Attributes:
        processing_time: The current processing time; it advances in a real-time task only.
        watermark: The watermark before the elements that are processed; it advances in a real-time task only.
        is_restored: Whether the job attempt began with a checkpoint.
        has_past: Whether there is state of an earlier epoch.
        checkpoint_id: The expected id of the next checkpoint.
        restored_checkpoint_id: The newest checkpoint that was complete when the epoch began.
        completed_checkpoint_id: The same, if it has completed since the epoch before.
        aborted_checkpoint_ids: Checkpoints that failed since then.
    """

    uid: str
    name: str = ""
    job_id: str = ""
    subtask: int = 0
    parallelism: int = 1
    max_parallelism: int = 128
    epoch: int = 1
    attempt_number: int = 0
    processing_time: int = 0
    watermark: int = MIN_WATERMARK
    is_restored: bool = False
    has_past: bool = False
    checkpoint_id: int = 1
    restored_checkpoint_id: int | None = None
    completed_checkpoint_id: int | None = None
    aborted_checkpoint_ids: tuple[int, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)


class SubtaskContext(DescriptorStateStore, RuntimeContext):
    """The runtime context of `open`; copies of a function get the one of their own task."""

    def __init__(self, info: SubtaskInfo, backend: AbstractKeyedStateBackend | None) -> None:
        self._info = info
        self._backend = backend
        self.metrics = TaskMetrics()

    def __deepcopy__(self, memo: dict[Any, Any]) -> SubtaskContext:
        bound = memo.get(CONTEXT, self)
        assert isinstance(bound, SubtaskContext)
        return bound

    def get_task_name(self) -> str:
        return self._info.name

    def get_index_of_this_subtask(self) -> int:
        return self._info.subtask

    def get_number_of_parallel_subtasks(self) -> int:
        return self._info.parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        return self._info.max_parallelism

    def get_attempt_number(self) -> int:
        return self._info.attempt_number

    def get_job_parameter(self, key: str, default_value: str | None = None) -> str | None:
        return self._info.parameters.get(key, default_value)

    def get_job_id(self) -> str:
        return self._info.job_id

    def is_restored(self) -> bool:
        return self._info.is_restored

    def get_metrics_group(self) -> MetricGroup:
        return MetricGroup(self.metrics)

    def _state(self, descriptor: Any) -> Any:
        if self._backend is None:
            raise ConfigurationError(
                f"operator {self._info.uid!r} requests keyed state {descriptor.get_name()!r}, but its stream is not "
                "keyed: call key_by() before it"
            )
        return self._backend.get_partitioned_state(None, None, descriptor)


class ElementContext(KeyedProcessFunction.OnTimerContext, ProcessFunction.Context):
    """The context of `process_element` and `on_timer`. One object a task; its fields change with each element."""

    def __init__(self, info: SubtaskInfo, backend: AbstractKeyedStateBackend | None) -> None:
        self._info = info
        self._backend = backend
        self._timers: SubtaskTimerService = (
            UnkeyedTimerService(info) if backend is None else KeyedTimerService(info, backend)
        )
        self.side_outputs: dict[str, list[Any]] = {}
        self.side_timestamps: dict[str, list[int | None]] | None = None
        self.element_timestamp: int | None = None
        self.domain: Any = None

    def timestamp(self) -> int | None:
        return self.element_timestamp

    def get_current_key(self) -> Any:
        if self._backend is None:
            raise ConfigurationError(
                f"operator {self._info.uid!r} requests the current key, but its stream is not keyed: call key_by() "
                "before it"
            )
        return self._backend.get_current_key()

    def timer_service(self) -> TimerService:
        return self._timers

    def set_watermark(self, watermark: int) -> None:
        self._timers.watermark = watermark

    def time_domain(self) -> Any:
        return self.domain

    def output(self, tag: OutputTag, value: Any) -> None:
        self.side_outputs.setdefault(tag.tag_id, []).append(current_value(value) if CHANGES else value)
        if self.side_timestamps is not None:
            time = None if self.domain is TimeDomain.PROCESSING_TIME else self.element_timestamp
            self.side_timestamps.setdefault(tag.tag_id, []).append(time)


class SubtaskTimerService(TimerService):
    """The times of a task."""

    def __init__(self, info: SubtaskInfo) -> None:
        self._info = info
        self.watermark = info.watermark

    def current_processing_time(self) -> int:
        return self._info.processing_time

    def current_watermark(self) -> int:
        return self.watermark


class KeyedTimerService(SubtaskTimerService):
    """The times of a task, and timers of the current key."""

    def __init__(self, info: SubtaskInfo, backend: AbstractKeyedStateBackend) -> None:
        super().__init__(info)
        self._backend = backend

    def register_processing_time_timer(self, timestamp: int) -> None:
        self._backend.timers.register_processing_time_timer(timestamp)

    def register_event_time_timer(self, timestamp: int) -> None:
        self._backend.timers.register_event_time_timer(timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        self._backend.timers.delete_processing_time_timer(timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        self._backend.timers.delete_event_time_timer(timestamp)

    def processing_time_timers(self) -> list[int]:
        """Return the processing-time timers of the current key, in order."""
        return self._backend.timers.processing_time_timers()

    def event_time_timers(self) -> list[int]:
        """Return the event-time timers of the current key, in order."""
        return self._backend.timers.event_time_timers()


class UnkeyedTimerService(SubtaskTimerService):
    """The times of a task without keys. As in Flink, timers belong to keys, so there are none."""

    def register_processing_time_timer(self, timestamp: int) -> None:
        self._refuse("registered a timer")

    def register_event_time_timer(self, timestamp: int) -> None:
        self._refuse("registered a timer")

    def delete_processing_time_timer(self, timestamp: int) -> None:
        self._refuse("deleted a timer")

    def delete_event_time_timer(self, timestamp: int) -> None:
        self._refuse("deleted a timer")

    def _refuse(self, what: str) -> NoReturn:
        raise ConfigurationError(
            f"operator {self._info.uid!r} {what}, but its stream is not keyed: call key_by() before it. Without keys "
            "there are current times, but no timers"
        )


_OPERATOR: Final[ListStateDescriptor[bytes]] = ListStateDescriptor("_raw_operator", "binary")
# Union state: each subtask gets what all have written, and keeps its own key groups.
_KEYED: Final[ListStateDescriptor[tuple[int, bytes]]] = ListStateDescriptor(
    RAW_KEYED, "struct<key_group: int, data: binary>"
)


class RawState:
    """The raw state of one subtask in one epoch: lists of bytes in its operator state.

    Args:
        uid: The operator.
        store: Its operator state, restored.
        backend: Its keyed state; None for operators without keys.

    Raises:
        StateMigrationError: There is raw keyed state, and the operator has no keys any more.
    """

    def __init__(self, uid: str, store: OperatorStateBackend, backend: AbstractKeyedStateBackend | None) -> None:
        self._uid = uid
        self._store = store
        self._backend = backend
        self._partitions: list[io.BytesIO] | None = None
        self._key_groups: dict[int, io.BytesIO] | None = None
        self._keep_own()

    def operator_inputs(self) -> list[StatePartitionStreamProvider]:
        """Return the partitions; those that the next snapshot does not write are deleted."""
        self._used_partitions()
        return [_Partition(data) for data in self._store.get_list_state(_OPERATOR).get()]

    def keyed_inputs(self) -> list[KeyGroupStatePartitionStreamProvider]:
        """Return the streams of key groups; those that the next snapshot does not write are deleted."""
        self._keyed()
        self._used_key_groups()
        stored = sorted(self._store.get_union_list_state(_KEYED).get(), key=lambda part: part[0])
        return [_KeyGroupPartition(key_group, data) for key_group, data in stored]

    def begin_snapshot(self) -> None:
        """Forget what an earlier snapshot has written."""
        self._partitions = None if self._partitions is None else []
        self._key_groups = None if self._key_groups is None else {}

    def end_snapshot(self) -> None:
        """Write the new streams into state; raw state that was not used stays."""
        if self._partitions is not None:
            self._store.get_list_state(_OPERATOR).update([part.getvalue() for part in self._partitions])
        if self._key_groups is not None:
            parts = [(key_group, part.getvalue()) for key_group, part in sorted(self._key_groups.items())]
            self._store.get_union_list_state(_KEYED).update(parts)

    def streams(self) -> CheckpointStreamFactory:
        """Return a factory of streams; each stream that is closed with a handle is one partition."""
        self._used_partitions()
        return _Streams(self._add_partition)

    def operator_output(self) -> OperatorStateCheckpointOutputStream:
        return _OperatorOutput(self._used_partitions())

    def keyed_output(self) -> KeyedStateCheckpointOutputStream:
        own = self._keyed().key_group_range
        return _KeyedOutput(self._used_key_groups(), range(own.start, own.end + 1))

    def _add_partition(self, data: bytes) -> None:
        part = io.BytesIO()
        part.write(data)
        self._used_partitions().append(part)

    def _used_partitions(self) -> list[io.BytesIO]:
        if self._partitions is None:
            self._partitions = []
        return self._partitions

    def _used_key_groups(self) -> dict[int, io.BytesIO]:
        if self._key_groups is None:
            self._key_groups = {}
        return self._key_groups

    def _keyed(self) -> AbstractKeyedStateBackend:
        if self._backend is None:
            raise StateError(
                f"Operator {self._uid!r} has no keys, so it has no raw keyed state; use key_by() before it."
            )
        return self._backend

    def _keep_own(self) -> None:
        """Drop key groups of other subtasks, which are read when a job starts or is rescaled."""
        if _KEYED.name not in self._store.get_registered_state_names():
            return
        if self._backend is None:
            raise StateMigrationError(
                f"Operator {self._uid!r} has raw keyed state, but no keys any more. Keep key_by() before it, or give "
                "it another uid."
            )
        state, own = self._store.get_union_list_state(_KEYED), self._backend.key_group_range
        stored = list(state.get())
        kept = [part for part in stored if own.start <= part[0] <= own.end]
        if len(kept) < len(stored):
            state.update(kept)


class _Partition(StatePartitionStreamProvider):
    def __init__(self, data: bytes) -> None:
        self._data = data

    def get_stream(self) -> BinaryIO:
        return io.BytesIO(self._data)


class _KeyGroupPartition(_Partition, KeyGroupStatePartitionStreamProvider):
    def __init__(self, key_group: int, data: bytes) -> None:
        super().__init__(data)
        self._key_group = key_group

    def get_key_group_id(self) -> int:
        return self._key_group


class _Streams(CheckpointStreamFactory):
    def __init__(self, add: Callable[[bytes], None]) -> None:
        self._add = add

    def create_checkpoint_state_output_stream(
        self, scope: CheckpointedStateScope = CheckpointedStateScope.EXCLUSIVE
    ) -> CheckpointStateOutputStream:
        return BufferedStream(self._finish)

    def _finish(self, data: bytes) -> InlineStateHandle:
        # The whole state of the subtask goes to a file or not when it is written.
        self._add(data)
        return InlineStateHandle(data)


class _OperatorOutput(OperatorStateCheckpointOutputStream):
    def __init__(self, partitions: list[io.BytesIO]) -> None:
        self._partitions = partitions

    def start_new_partition(self) -> None:
        self._partitions.append(io.BytesIO())

    def write(self, data: bytes) -> int:
        if not self._partitions:
            self.start_new_partition()
        return self._partitions[-1].write(data)


class _KeyedOutput(KeyedStateCheckpointOutputStream):
    def __init__(self, parts: dict[int, io.BytesIO], own: range) -> None:
        self._parts = parts
        self._own = own

    def start_new_key_group(self, key_group_id: int) -> None:
        if key_group_id not in self._own:
            raise StateError(
                f"Key group {key_group_id!r} belongs to another subtask; this one has {self._own.start} to "
                f"{self._own.stop - 1}."
            )
        if key_group_id in self._parts:
            raise StateError(f"Key group {key_group_id!r} was started before in this snapshot; write each one once.")
        self._parts[key_group_id] = io.BytesIO()

    def get_key_group_list(self) -> Iterable[int]:
        return self._own

    def write(self, data: bytes) -> int:
        if not self._parts:
            raise StateError("Raw keyed state belongs to a key group: call start_new_key_group() before write().")
        return next(reversed(self._parts.values())).write(data)


class InitializationContext(RawStateInitializationContext):
    """The context of `initialize_state`, on the fresh copy of each task."""

    def __init__(self, info: SubtaskInfo, keyed: KeyedStateStore, operator: OperatorStateStore, raw: RawState) -> None:
        self._info = info
        self._keyed = keyed
        self._operator = operator
        self._raw = raw

    def is_restored(self) -> bool:
        """Return whether there is state of an earlier epoch, of this job attempt or of a checkpoint."""
        return self._info.has_past

    def get_restored_checkpoint_id(self) -> int | None:
        """Return the newest checkpoint that was complete when the epoch began, None if there was none."""
        return self._info.restored_checkpoint_id

    def get_operator_state_store(self) -> OperatorStateStore:
        """Return the operator state of this subtask."""
        return self._operator

    def get_keyed_state_store(self) -> KeyedStateStore:
        """Return the keyed state; a state of a stream without keys raises ConfigurationError."""
        return self._keyed

    def get_raw_operator_state_inputs(self) -> list[StatePartitionStreamProvider]:
        """Return the partitions of raw operator state of this subtask."""
        return self._raw.operator_inputs()

    def get_raw_keyed_state_inputs(self) -> list[KeyGroupStatePartitionStreamProvider]:
        """Return the raw state of the key groups of this subtask."""
        return self._raw.keyed_inputs()


class SnapshotContext(RawStateSnapshotContext):
    """The context of `snapshot_state`, at the end of each epoch."""

    def __init__(self, info: SubtaskInfo, checkpoint_id: int | None, raw: RawState) -> None:
        self._info = info
        self._raw = raw
        self._checkpoint_id = info.checkpoint_id if checkpoint_id is None else checkpoint_id

    def get_checkpoint_id(self) -> int:
        """Return the id of the next checkpoint; an epoch that completes none belongs to it, too."""
        return self._checkpoint_id

    def get_checkpoint_timestamp(self) -> int:
        """Return the processing time of the epoch."""
        return self._info.processing_time

    def get_checkpoint_stream_factory(self) -> CheckpointStreamFactory:
        """Return a factory of streams; each one that is closed with a handle is a partition of raw operator state."""
        return self._raw.streams()

    def get_raw_operator_state_output(self) -> OperatorStateCheckpointOutputStream:
        """Return the stream of raw operator state."""
        return self._raw.operator_output()

    def get_raw_keyed_operator_state_output(self) -> KeyedStateCheckpointOutputStream:
        """Return the stream of raw keyed state."""
        return self._raw.keyed_output()


class BroadcastStates:
    """The broadcast states of one subtask that the program declares."""

    def __init__(self, uid: str, descriptors: Iterable[Any], store: OperatorStateStore) -> None:
        self._uid = uid
        self._states = {descriptor.name: store.get_broadcast_state(descriptor) for descriptor in descriptors}

    def get(self, descriptor: Any) -> BroadcastState[Any, Any]:
        """Return the state with the name of a descriptor."""
        state = self._states.get(descriptor.name)
        if state is None:
            raise ConfigurationError(
                f"operator {self._uid!r} requests broadcast state {descriptor.name!r}, which was not passed to "
                f"broadcast(): {sorted(self._states)}"
            )
        return state


class NonBroadcastContext(ElementContext, KeyedBroadcastProcessFunction.OnTimerContext):
    """The context of the side that is not broadcast."""

    def __init__(self, info: SubtaskInfo, backend: AbstractKeyedStateBackend | None, states: BroadcastStates) -> None:
        super().__init__(info, backend)
        self._states = states

    def get_broadcast_state(self, state_descriptor: Any) -> ReadOnlyBroadcastState[Any, Any]:
        return ReadOnlyView(state_descriptor.name, self._states.get(state_descriptor))

    def current_processing_time(self) -> int:
        return self._info.processing_time

    def current_watermark(self) -> int:
        return self._timers.watermark


class BroadcastElementContext(KeyedBroadcastProcessFunction.Context):
    """The context of the broadcast side; both sides share their side outputs."""

    def __init__(
        self,
        info: SubtaskInfo,
        backend: AbstractKeyedStateBackend | None,
        states: BroadcastStates,
        reader: ElementContext,
    ) -> None:
        self._info = info
        self._backend = backend
        self._states = states
        self._reader = reader

    def begin(self) -> None:
        """Unset the current key: broadcast elements have none."""
        if self._backend is not None:
            self._backend.slot = NoCurrentKey()

    def get_broadcast_state(self, state_descriptor: Any) -> BroadcastState[Any, Any]:
        return self._states.get(state_descriptor)

    def apply_to_keyed_state(self, state_descriptor: Any, function: Callable[[Any, Any], None]) -> None:
        if self._backend is None:
            raise ConfigurationError(f"operator {self._info.uid!r} has no keyed state: call key_by() before connect()")
        self._backend.apply_to_all_keys(state_descriptor, function)

    def timestamp(self) -> int | None:
        return None

    def output(self, tag: OutputTag, value: Any) -> None:
        self._reader.output(tag, value)

    def current_processing_time(self) -> int:
        return self._info.processing_time

    def current_watermark(self) -> int:
        return self._info.watermark


class ReadOnlyView(ReadOnlyBroadcastState[Any, Any]):
    """Broadcast state for the side that may not change it."""

    def __init__(self, name: str, state: BroadcastState[Any, Any]) -> None:
        self._name = name
        self._state = state

    def get(self, key: Any) -> Any:
        return self._state.get(key)

    def contains(self, key: Any) -> bool:
        return self._state.contains(key)

    def items(self) -> Iterable[tuple[Any, Any]]:
        return self._state.items()

    def keys(self) -> Iterable[Any]:
        return self._state.keys()

    def values(self) -> Iterable[Any]:
        return self._state.values()

    def is_empty(self) -> bool:
        return self._state.is_empty()

    def clear(self) -> None:
        self._refuse()

    def put(self, key: Any, value: Any) -> None:
        self._refuse()

    def put_all(self, dict_value: Any) -> None:
        self._refuse()

    def remove(self, key: Any) -> None:
        self._refuse()

    def _refuse(self) -> None:
        raise StateError(
            f"broadcast state {self._name!r} can be changed in process_broadcast_element() only: another element is "
            "processed on one subtask, and the subtasks would differ"
        )


def notify_listener(function: Any, completed: int | None, aborted: Sequence[int]) -> None:
    """Notify a `CheckpointListener` of checkpoints since the epoch before."""
    if completed is not None:
        function.notify_checkpoint_complete(completed)
    for checkpoint_id in aborted:
        function.notify_checkpoint_aborted(checkpoint_id)
