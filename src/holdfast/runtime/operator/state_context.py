"""What functions with operator state are given: contexts to set up and to save state, and broadcast contexts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from holdfast.checkpoint.storage.location import CheckpointStreamFactory
from holdfast.errors import ConfigurationError, StateError
from holdfast.runtime.function.broadcast import KeyedBroadcastProcessFunction
from holdfast.runtime.function.user_function import OutputTag
from holdfast.runtime.operator.context import ElementContext, SubtaskInfo
from holdfast.runtime.operator.raw_state import RawState
from holdfast.state.backend import AbstractKeyedStateBackend
from holdfast.state.backend.keyed import NoCurrentKey
from holdfast.state.declaration.api import (
    BroadcastState,
    KeyedStateStore,
    OperatorStateStore,
    ReadOnlyBroadcastState,
    StatePartitionStreamProvider,
)
from holdfast.state.declaration.raw_state import (
    KeyedStateCheckpointOutputStream,
    KeyGroupStatePartitionStreamProvider,
    OperatorStateCheckpointOutputStream,
    RawStateInitializationContext,
    RawStateSnapshotContext,
)


class InitializationContext(RawStateInitializationContext):
    """Given to `initialize_state` on the fresh copy of each task."""

    def __init__(self, info: SubtaskInfo, keyed: KeyedStateStore, operator: OperatorStateStore, raw: RawState) -> None:
        self._info = info
        self._keyed = keyed
        self._operator = operator
        self._raw = raw

    def is_restored(self) -> bool:
        """Whether there is state of an epoch before, be it of this job attempt or of a checkpoint."""
        return self._info.has_past

    def get_restored_checkpoint_id(self) -> int | None:
        """The newest checkpoint that was complete when the epoch began, None if there was none."""
        return self._info.restored_checkpoint_id

    def get_operator_state_store(self) -> OperatorStateStore:
        """The state of this subtask."""
        return self._operator

    def get_keyed_state_store(self) -> KeyedStateStore:
        """The state of the keys; asking it for state without `key_by` is an error."""
        return self._keyed

    def get_raw_operator_state_inputs(self) -> list[StatePartitionStreamProvider]:
        """The partitions of raw operator state that this subtask has."""
        return self._raw.operator_inputs()

    def get_raw_keyed_state_inputs(self) -> list[KeyGroupStatePartitionStreamProvider]:
        """The raw state of the key groups of this subtask that have any."""
        return self._raw.keyed_inputs()


class SnapshotContext(RawStateSnapshotContext):
    """Given to `snapshot_state` at the end of each epoch."""

    def __init__(self, info: SubtaskInfo, checkpoint_id: int | None, raw: RawState) -> None:
        self._info = info
        self._raw = raw
        self._checkpoint_id = info.checkpoint_id if checkpoint_id is None else checkpoint_id

    def get_checkpoint_id(self) -> int:
        """The id of the next checkpoint; an epoch that completes none belongs to it too."""
        return self._checkpoint_id

    def get_checkpoint_timestamp(self) -> int:
        """The processing time of the epoch."""
        return self._info.processing_time

    def get_checkpoint_stream_factory(self) -> CheckpointStreamFactory:
        """Opens streams; each that is closed with a handle is one partition of raw operator state."""
        return self._raw.streams()

    def get_raw_operator_state_output(self) -> OperatorStateCheckpointOutputStream:
        """The stream of raw operator state."""
        return self._raw.operator_output()

    def get_raw_keyed_operator_state_output(self) -> KeyedStateCheckpointOutputStream:
        """The stream of raw keyed state."""
        return self._raw.keyed_output()


class BroadcastStates:
    """The broadcast states that a program declared, of one subtask."""

    def __init__(self, uid: str, descriptors: Iterable[Any], store: OperatorStateStore) -> None:
        self._uid = uid
        self._states = {descriptor.name: store.get_broadcast_state(descriptor) for descriptor in descriptors}

    def get(self, descriptor: Any) -> BroadcastState[Any, Any]:
        """The state of a descriptor, found by its name."""
        state = self._states.get(descriptor.name)
        if state is None:
            raise ConfigurationError(
                f"operator {self._uid!r} asked for broadcast state {descriptor.name!r}, which is none of those "
                f"declared in broadcast(): {sorted(self._states)}"
            )
        return state


class ReaderContext(ElementContext, KeyedBroadcastProcessFunction.OnTimerContext):
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


class BroadcastSideContext(KeyedBroadcastProcessFunction.Context):
    """The context of the side that is broadcast; its side outputs are those of the other."""

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
        """Broadcast elements follow, which have no key."""
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
    """Broadcast state as the side sees it that may not change it."""

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
            f"broadcast state {self._name!r} is changed in process_broadcast_element() only: what another element does "
            "happens on one subtask, and the subtasks would differ"
        )


def notify(function: Any, completed: int | None, aborted: Sequence[int]) -> None:
    """Tells a `CheckpointListener` what became of checkpoints since the epoch before."""
    if completed is not None:
        function.notify_checkpoint_complete(completed)
    for checkpoint_id in aborted:
        function.notify_checkpoint_aborted(checkpoint_id)
