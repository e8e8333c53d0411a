"""State backends as programs set them, and the options that say the same."""

from __future__ import annotations

from typing import Any

from holdfast.checkpoint.config.options import CHECKPOINT_STORAGE, CHECKPOINTS_DIRECTORY
from holdfast.errors import ConfigurationError
from holdfast.state import ColumnarStateBackend, FsStateBackend, HashMapStateBackend, MemoryStateBackend, StateBackend
from holdfast.state.declaration.options import STATE_BACKEND

__all__ = [
    "ColumnarStateBackend",
    "FsStateBackend",
    "HashMapStateBackend",
    "MemoryStateBackend",
    "StateBackend",
    "options_of",
]


def options_of(backend: StateBackend) -> dict[str, Any]:
    """The options that choose a backend, and the checkpoint storage where an older backend names one.

    Backends are made in the workers, from options; so one of your own is set by the class path of its factory.

    Raises:
        ConfigurationError: It is a backend of your own, or none.
    """
    if isinstance(backend, FsStateBackend):
        directory = backend.get_checkpoint_path()
        return {
            STATE_BACKEND.key: "hashmap",
            CHECKPOINT_STORAGE.key: "filesystem",
            CHECKPOINTS_DIRECTORY.key: directory,
        }
    if isinstance(backend, MemoryStateBackend):
        return {STATE_BACKEND.key: "hashmap", CHECKPOINT_STORAGE.key: "jobmanager"}
    if type(backend) is HashMapStateBackend:
        return {STATE_BACKEND.key: "hashmap"}
    if type(backend) is ColumnarStateBackend:
        return {STATE_BACKEND.key: "columnar"}
    raise ConfigurationError(
        f"set_state_backend() knows the backends of Holdfast, not {backend!r}: set the option {STATE_BACKEND.key} to "
        "the class path of a StateBackendFactory ('package.module:Class'), which every worker can import."
    )
