"""State backends as programs set them, and the options that they stand for."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.checkpoint.options import CHECKPOINT_STORAGE, CHECKPOINTS_DIRECTORY
from holdfast.common.flink_paths import module_getattr
from holdfast.datastream.flink_paths import REFUSED
from holdfast.datastream.no_effect import accept_without_effect
from holdfast.errors import ConfigurationError
from holdfast.kernel.secret import get_logger
from holdfast.state import ColumnarStateBackend, FsStateBackend, HashMapStateBackend, MemoryStateBackend, StateBackend
from holdfast.state.options import STATE_BACKEND

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
    """Flink's settings of RocksDB for a kind of disk; accepted without effect."""

    DEFAULT = 0
    SPINNING_DISK_OPTIMIZED = 1
    SPINNING_DISK_OPTIMIZED_HIGH_MEM = 2
    FLASH_SSD_OPTIMIZED = 3


@accept_without_effect
class EmbeddedRocksDBStateBackend(ColumnarStateBackend):
    """PyFlink's name for state that is larger than memory: here the columnar backend.

    Args:
        enable_incremental_checkpointing: Accepted without effect: each epoch writes only what it changed.
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # methods made by `accept_without_effect`

    def __init__(self, enable_incremental_checkpointing: bool | None = None) -> None:
        super().__init__()
        self._predefined = PredefinedOptions.DEFAULT
        logger.info("EmbeddedRocksDBStateBackend: there is no RocksDB here; the columnar backend serves it")

    def set_predefined_options(self, options: PredefinedOptions) -> None:
        """Keep the argument, without effect: there is no RocksDB."""
        self._predefined = options

    def get_predefined_options(self) -> PredefinedOptions:
        """Return what was set; without effect."""
        return self._predefined

    def set_options(self, options_factory_class_name: str) -> NoReturn:
        """Raise an error: a factory of options is a class of Java.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(
            f"set_options({options_factory_class_name!r}) names a class of Java that tunes RocksDB, and there is none "
            "here: leave it out."
        )


def options_of(backend: StateBackend) -> dict[str, Any]:
    """Return the options that select a backend, and the checkpoint storage where an older backend names one.

    Workers make backends from options, so a backend of your own is set by the class path of its factory.

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
