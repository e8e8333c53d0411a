"""The interfaces between a task and its state, and how a backend is chosen."""

from holdfast.state.backend.handle import BACKEND_MEMO_KEY, StateHandle
from holdfast.state.backend.interface import (
    ResolvedCheckpoint,
    StateBackend,
    StateBackendFactory,
)
from holdfast.state.backend.keyed import AbstractKeyedStateBackend
from holdfast.state.backend.kv_state_registry import TaskKvStateRegistry
from holdfast.state.backend.loader import load_state_backend
from holdfast.state.operator.operator_state_backend import OperatorStateBackend

__all__ = [
    "BACKEND_MEMO_KEY",
    "AbstractKeyedStateBackend",
    "OperatorStateBackend",
    "ResolvedCheckpoint",
    "StateBackend",
    "StateBackendFactory",
    "StateHandle",
    "TaskKvStateRegistry",
    "load_state_backend",
]
