"""The state backend `columnar`."""

from __future__ import annotations

from typing import Any

from holdfast.kernel.configuration import Configuration
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.state.backend.cache import StateCache
from holdfast.state.backend.interface import StateBackend, StateBackendFactory
from holdfast.state.backend.kv_state_registry import TaskKvStateRegistry
from holdfast.state.columnar.keyed_backend import ColumnarKeyedStateBackend
from holdfast.state.declaration.environment import Environment
from holdfast.state.operator.operator_state import DefaultOperatorStateBackend
from holdfast.state.operator.operator_state_backend import OperatorStateBackend
from holdfast.types.key.abstract_key_codec import KeyCodec


class ColumnarStateBackend(StateBackend):
    """Holds nothing but the mapped runs: for state that is larger than memory, and for vectorised functions."""

    def create_keyed_state_backend(
        self,
        env: Environment,
        job_id: Any,
        operator_identifier: str,
        key_serializer: KeyCodec,
        number_of_key_groups: int,
        key_group_range: KeyGroupRange,
        kv_state_registry: TaskKvStateRegistry | None = None,
    ) -> ColumnarKeyedStateBackend:
        """Return the keyed state of one subtask, without a version yet."""
        return ColumnarKeyedStateBackend(
            env,
            job_id,
            operator_identifier,
            key_serializer,
            number_of_key_groups,
            key_group_range,
            kv_state_registry,
            # Nothing is kept, and what another backend has kept is not for this one.
            StateCache(),
        )

    def create_operator_state_backend(self, env: Environment, operator_identifier: str) -> OperatorStateBackend:
        """Return the operator state of one subtask, empty."""
        return DefaultOperatorStateBackend(operator_identifier)


class ColumnarStateBackendFactory(StateBackendFactory[ColumnarStateBackend]):
    """Makes the backend `columnar`."""

    def create_from_config(self, config: Configuration) -> ColumnarStateBackend:
        """Return the backend."""
        return ColumnarStateBackend()

    def get_identifier(self) -> str:
        """Return the short name."""
        return "columnar"
