"""State backends as programs set them, and the options that say the same."""

from __future__ import annotations

from enum import Enum
from typing import Any, NoReturn

from holdfast.checkpoint.options import CHECKPOINT_STORAGE, CHECKPOINTS_DIRECTORY
from holdfast.common.flink_paths import module_getattr
from holdfast.datastream.flink_paths import REFUSED
from holdfast.errors import ConfigurationError
from holdfast.kernel.secret import get_logger
from holdfast.state import ColumnarStateBackend, FsStateBackend, HashMapStateBackend, MemoryStateBackend, StateBackend
from holdfast.state.environment import STATE_BACKEND

logger = get_logger(__name__)

__all__ = [
    "ColumnarStateBackend",
    "EmbeddedRocksDBStateBackend",
    "FsStateBackend",
    "HashMapStateBackend",
    "MemoryStateBackend",
    "PredefinedOptions",
    "StateBackend",
    "options_of",
]

__getattr__ = module_getattr(__name__, REFUSED)


class PredefinedOptions(Enum):
    """How Flink tunes RocksDB for a kind of disk; accepted, and of no effect on the columnar backend."""

    DEFAULT = 0
    SPINNING_DISK_OPTIMIZED = 1
    SPINNING_DISK_OPTIMIZED_HIGH_MEM = 2
    FLASH_SSD_OPTIMIZED = 3


class EmbeddedRocksDBStateBackend(ColumnarStateBackend):
    """The name under which PyFlink has state that is larger than memory: here that is the columnar backend.

    Args:
        enable_incremental_checkpointing: Accepted: an epoch writes only what it has changed.
    """

    def __init__(self, enable_incremental_checkpointing: bool | None = None) -> None:
        super().__init__()
        self._predefined = PredefinedOptions.DEFAULT
        logger.info("EmbeddedRocksDBStateBackend: there is no RocksDB here; the columnar backend serves it")

    def is_incremental_checkpoints_enabled(self) -> bool:
        """True: an epoch writes only what it has changed."""
        return True

    def set_db_storage_paths(self, *paths: str) -> None:
        """Accepted: the columnar backend maps runs where they are cached, and has no database of its own."""

    def get_db_storage_paths(self) -> list[str] | None:
        """None: there is no database."""
        return None

    def set_number_of_transfer_threads(self, number_of_transfering_threads: int) -> None:
        """Accepted: nothing is transferred at a checkpoint."""

    def get_number_of_transfer_threads(self) -> int:
        """0: nothing is transferred at a checkpoint."""
        return 0

    def set_predefined_options(self, options: PredefinedOptions) -> None:
        """Accepted: there is no RocksDB to be tuned."""
        self._predefined = options

    def get_predefined_options(self) -> PredefinedOptions:
        """What was set."""
        return self._predefined

    def set_options(self, options_factory_class_name: str) -> NoReturn:
        """Refused: a factory of options is a class of Java.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(
            f"set_options({options_factory_class_name!r}) names a class of Java that tunes RocksDB, and there is none "
            "here: leave it out."
        )

    def get_options(self) -> None:
        """None: there is no factory of options."""


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
