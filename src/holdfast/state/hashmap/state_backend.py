"""The state backend `hashmap`, and the older names under which Flink's users know it."""

from __future__ import annotations

from typing import Any, Final

from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.kernel.secret import get_logger
from holdfast.state.backend.interface import StateBackend, StateBackendFactory
from holdfast.state.backend.kv_state_registry import TaskKvStateRegistry
from holdfast.state.declaration.environment import Environment
from holdfast.state.hashmap.keyed_backend import HashMapKeyedStateBackend
from holdfast.state.operator.operator_state import DefaultOperatorStateBackend
from holdfast.state.operator.operator_state_backend import OperatorStateBackend
from holdfast.types.key.abstract_key_codec import KeyCodec

logger = get_logger(__name__)


class HashMapStateBackend(StateBackend):
    """Holds the working set of each subtask as Python objects, bounded by `state.backend.hashmap.memory`."""

    def create_keyed_state_backend(
        self,
        env: Environment,
        job_id: Any,
        operator_identifier: str,
        key_serializer: KeyCodec,
        number_of_key_groups: int,
        key_group_range: KeyGroupRange,
        kv_state_registry: TaskKvStateRegistry | None = None,
    ) -> HashMapKeyedStateBackend:
        """Return the keyed state of one subtask, without a version yet."""
        return HashMapKeyedStateBackend(
            env, job_id, operator_identifier, key_serializer, number_of_key_groups, key_group_range, kv_state_registry
        )

    def create_operator_state_backend(self, env: Environment, operator_identifier: str) -> OperatorStateBackend:
        """Return the operator state of one subtask, empty."""
        return DefaultOperatorStateBackend(operator_identifier)


class HashMapStateBackendFactory(StateBackendFactory[HashMapStateBackend]):
    """Makes the backend `hashmap`."""

    def create_from_config(self, config: Configuration) -> HashMapStateBackend:
        """Return the backend; its options are read where they act."""
        return HashMapStateBackend()

    def get_identifier(self) -> str:
        """Return the short name."""
        return "hashmap"


class MemoryStateBackend(HashMapStateBackend):
    """Deprecated name of `HashMapStateBackend` together with `JobManagerCheckpointStorage`.

    Args:
        max_state_size: Largest checkpoint in bytes.
    """

    DEFAULT_MAX_STATE_SIZE: Final = 5 * 1024 * 1024

    def __init__(self, max_state_size: int = DEFAULT_MAX_STATE_SIZE) -> None:
        logger.warning(
            "MemoryStateBackend is deprecated: use HashMapStateBackend and execution.checkpointing.storage 'jobmanager'"
        )
        if max_state_size < 1:
            raise ConfigurationError(f"The largest state must have at least one byte, not {max_state_size!r}.")
        self.max_state_size = max_state_size

    def get_max_state_size(self) -> int:
        """Return the size of the largest checkpoint in bytes."""
        return self.max_state_size


class FsStateBackend(HashMapStateBackend):
    """Deprecated name of `HashMapStateBackend` together with `FileSystemCheckpointStorage`.

    Args:
        checkpoint_data_uri: Directory of checkpoints, a path or URI.
    """

    def __init__(self, checkpoint_data_uri: str) -> None:
        logger.warning("FsStateBackend is deprecated: use HashMapStateBackend with execution.checkpointing.dir")
        if not isinstance(checkpoint_data_uri, str) or not checkpoint_data_uri:
            raise ConfigurationError(f"FsStateBackend needs the directory of checkpoints, not {checkpoint_data_uri!r}.")
        self.checkpoint_path = checkpoint_data_uri

    def get_checkpoint_path(self) -> str:
        """Return the directory of checkpoints."""
        return self.checkpoint_path

    def __repr__(self) -> str:
        return f"FsStateBackend({self.checkpoint_path!r})"
