"""Raw state: bytes that a function writes itself, when its snapshot is taken, and reads when it is set up.

Holdfast knows nothing of it but where it belongs: raw operator state to a subtask, whose partitions are dealt out when
the parallelism changes, raw keyed state to a key group. What a snapshot does not write again is gone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Final

from holdfast.state.declaration.api import (
    FunctionInitializationContext,
    StatePartitionStreamProvider,
    StateSnapshotContext,
)

RAW_KEYED: Final = "_raw_keyed"
"""Name of the operator state in which raw keyed state is kept."""


class KeyGroupStatePartitionStreamProvider(StatePartitionStreamProvider):
    """Gives the bytes of one key group."""

    @abstractmethod
    def get_key_group_id(self) -> int:
        """Returns the key group."""


class RawOutputStream(ABC):
    """What raw state is written to."""

    @abstractmethod
    def write(self, data: bytes) -> int:
        """Appends bytes to the current part and returns their number."""


class OperatorStateCheckpointOutputStream(RawOutputStream):
    """Raw operator state: partitions, of which each goes to one subtask as a whole."""

    @abstractmethod
    def start_new_partition(self) -> None:
        """Begins another partition; the first one begins by itself."""


class KeyedStateCheckpointOutputStream(RawOutputStream):
    """Raw keyed state: the bytes of each key group."""

    @abstractmethod
    def start_new_key_group(self, key_group_id: int) -> None:
        """Begins the bytes of a key group of the subtask, each once a snapshot.

        Raises:
            StateError: It belongs to another subtask, or was begun before.
        """

    @abstractmethod
    def get_key_group_list(self) -> Iterable[int]:
        """Returns the key groups of the subtask."""


class RawStateInitializationContext(FunctionInitializationContext):
    """What `initialize_state` is given."""

    @abstractmethod
    def get_raw_operator_state_inputs(self) -> Iterable[StatePartitionStreamProvider]:
        """Returns the partitions of raw operator state that this subtask has."""

    @abstractmethod
    def get_raw_keyed_state_inputs(self) -> Iterable[KeyGroupStatePartitionStreamProvider]:
        """Returns the raw state of the key groups of this subtask that have any, ascending.

        Raises:
            StateError: The operator has no keys.
        """


class RawStateSnapshotContext(StateSnapshotContext):
    """What `snapshot_state` is given."""

    @abstractmethod
    def get_raw_operator_state_output(self) -> OperatorStateCheckpointOutputStream:
        """Returns the stream of raw operator state, the same for all calls of a snapshot."""

    @abstractmethod
    def get_raw_keyed_operator_state_output(self) -> KeyedStateCheckpointOutputStream:
        """Returns the stream of raw keyed state, the same for all calls of a snapshot.

        Raises:
            StateError: The operator has no keys.
        """
