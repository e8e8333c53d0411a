"""Raw state of a function: kept as lists of bytes in the operator state of its subtask."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import BinaryIO, Final

from holdfast.checkpoint.storage.location import (
    CheckpointedStateScope,
    CheckpointStateOutputStream,
    CheckpointStreamFactory,
)
from holdfast.checkpoint.storage.stream import BufferedStream, InlineStateHandle
from holdfast.errors import StateError, StateMigrationError
from holdfast.state.backend import AbstractKeyedStateBackend, OperatorStateBackend
from holdfast.state.declaration.api import StatePartitionStreamProvider
from holdfast.state.declaration.descriptor import ListStateDescriptor
from holdfast.state.declaration.raw_state import (
    RAW_KEYED,
    KeyedStateCheckpointOutputStream,
    KeyGroupStatePartitionStreamProvider,
    OperatorStateCheckpointOutputStream,
)

_OPERATOR: Final[ListStateDescriptor[bytes]] = ListStateDescriptor("_raw_operator", "binary")
# Each subtask gets what all have written, and keeps its own key groups.
_KEYED: Final[ListStateDescriptor[tuple[int, bytes]]] = ListStateDescriptor(
    RAW_KEYED, "struct<key_group: int, data: binary>"
)


class RawState:
    """The raw state of one subtask in one epoch.

    Args:
        uid: Of the operator.
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
        """Return the partitions; what the epoch's snapshot does not write again is gone."""
        self._used_partitions()
        return [_Partition(data) for data in self._store.get_list_state(_OPERATOR).get()]

    def keyed_inputs(self) -> list[KeyGroupStatePartitionStreamProvider]:
        """Return what key groups have; what the epoch's snapshot does not write again is gone."""
        self._keyed()
        self._used_key_groups()
        stored = sorted(self._store.get_union_list_state(_KEYED).get(), key=lambda part: part[0])
        return [_KeyGroupPartition(key_group, data) for key_group, data in stored]

    def begin_snapshot(self) -> None:
        """Forget what a snapshot before this one has written."""
        self._partitions = None if self._partitions is None else []
        self._key_groups = None if self._key_groups is None else {}

    def end_snapshot(self) -> None:
        """Put what was written into state; what nobody has asked for stays."""
        if self._partitions is not None:
            self._store.get_list_state(_OPERATOR).update([part.getvalue() for part in self._partitions])
        if self._key_groups is not None:
            parts = [(key_group, part.getvalue()) for key_group, part in sorted(self._key_groups.items())]
            self._store.get_union_list_state(_KEYED).update(parts)

    def streams(self) -> CheckpointStreamFactory:
        """Return a factory of streams, of which each that is closed with a handle is one partition."""
        self._used_partitions()
        return _Streams(self._add_partition)

    def operator_output(self) -> OperatorStateCheckpointOutputStream:
        """Return the stream of raw operator state."""
        return _OperatorOutput(self._used_partitions())

    def keyed_output(self) -> KeyedStateCheckpointOutputStream:
        """Return the stream of raw keyed state."""
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
        """Drop key groups of other subtasks, which come along when a job starts or is rescaled."""
        if _KEYED.name not in self._store.get_registered_state_names():
            return
        if self._backend is None:
            raise StateMigrationError(
                f"Operator {self._uid!r} has raw keyed state, and no keys any more. Keep key_by() before it, or start "
                "it under another uid."
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
        """Open a new stream."""
        return BufferedStream(self._finish)

    def _finish(self, data: bytes) -> InlineStateHandle:
        # Whether the bytes go to a file is decided for the whole state of the subtask, when it is written.
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
            raise StateError(f"Key group {key_group_id!r} was begun before in this snapshot; write each of them once.")
        self._parts[key_group_id] = io.BytesIO()

    def get_key_group_list(self) -> Iterable[int]:
        return self._own

    def write(self, data: bytes) -> int:
        if not self._parts:
            raise StateError("Raw keyed state belongs to a key group: call start_new_key_group() before write().")
        return next(reversed(self._parts.values())).write(data)
