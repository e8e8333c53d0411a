"""State backends as programs set them, and the options that say the same."""

from __future__ import annotations

import logging
from typing import Any

from holdfast.checkpoint.config.options import CHECKPOINT_STORAGE, CHECKPOINTS_DIRECTORY
from holdfast.errors import ConfigurationError
from holdfast.state import ColumnarStateBackend, FsStateBackend, HashMapStateBackend, MemoryStateBackend, StateBackend
from holdfast.state.declaration.options import STATE_BACKEND

logger = logging.getLogger(__name__)

__all__ = [
    "ColumnarStateBackend",
    "EmbeddedRocksDBStateBackend",
    "FsStateBackend",
    "HashMapStateBackend",
    "MemoryStateBackend",
    "StateBackend",
    "options_of",
]


class EmbeddedRocksDBStateBackend(ColumnarStateBackend):
    """The name under which PyFlink has state that is larger than memory: here that is the columnar backend.

    Args:
        enable_incremental_checkpointing: Accepted: an epoch writes only what it has changed.
    """

    def __init__(self, enable_incremental_checkpointing: bool | None = None) -> None:
        super().__init__()
        logger.info("EmbeddedRocksDBStateBackend: there is no RocksDB here; the columnar backend serves it")

    def is_incremental_checkpoints_enabled(self) -> bool:
        """True: an epoch writes only what it has changed."""
        return True

    def set_db_storage_paths(self, *paths: str) -> None:
        """Accepted: the columnar backend maps runs where they are cached, and has no database of its own."""

    def get_db_storage_paths(self) -> list[str] | None:
        """None: there is no database."""
        return None

    def set_number_of_transfer_threads(self, number_of_transfer_threads: int) -> None:
        """Accepted: nothing is transferred at a checkpoint."""


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
    if type(backend) in (ColumnarStateBackend, EmbeddedRocksDBStateBackend):
        return {STATE_BACKEND.key: "columnar"}
    raise ConfigurationError(
        f"set_state_backend() knows the backends of Holdfast, not {backend!r}: set the option {STATE_BACKEND.key} to "
        "the class path of a StateBackendFactory ('package.module:Class'), which every worker can import."
    )
