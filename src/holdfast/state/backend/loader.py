"""Choosing the state backend of a job."""

from __future__ import annotations

import importlib
from typing import Any, Final

from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.secret import get_logger
from holdfast.state.backend.interface import StateBackend, StateBackendFactory
from holdfast.state.declaration.options import STATE_BACKEND

logger = get_logger(__name__)

# By path, because the backends import the interfaces of this package.
_BUILT_IN: Final = {
    "hashmap": "holdfast.state.hashmap.state_backend:HashMapStateBackendFactory",
    "columnar": "holdfast.state.columnar.state_backend:ColumnarStateBackendFactory",
}
_LEGACY: Final = {
    "filesystem": "checkpoints go to execution.checkpointing.dir",
    "jobmanager": "set execution.checkpointing.storage to 'jobmanager' to keep checkpoints in memory",
    "memory": "set execution.checkpointing.storage to 'jobmanager' to keep checkpoints in memory",
}


def load_state_backend(configuration: Configuration, from_application: StateBackend | None = None) -> StateBackend:
    """Return the state backend that a program or its configuration asks for.

    Args:
        configuration: Of the job.
        from_application: Set in the program; wins over the configuration.

    Raises:
        ConfigurationError: The name or class path leads nowhere, or the factory refuses the configuration.
    """
    if from_application is not None:
        return from_application
    name = configuration.get(STATE_BACKEND)
    short = name.strip().lower()
    if short in _LEGACY:
        logger.warning("state.backend %r is deprecated: use state.backend.type 'hashmap'; %s", name, _LEGACY[short])
        short = "hashmap"
    if short in ("rocksdb", "forst"):
        logger.warning("there is no RocksDB and no ForSt here: the state backend 'columnar' serves %r", name)
        short = "columnar"
    factory = _load_factory(_BUILT_IN.get(short, name.strip()))
    try:
        backend = factory.create_from_config(configuration)
    except HoldfastError:
        raise
    except Exception as error:
        raise ConfigurationError(f"The state backend {name!r} could not be made: {error!r}.") from error
    if not isinstance(backend, StateBackend):
        raise ConfigurationError(f"The factory of state backend {name!r} made {backend!r}, which is no StateBackend.")
    return backend


def _load_factory(path: str) -> StateBackendFactory[StateBackend]:
    module, _, name = path.partition(":") if ":" in path else path.rpartition(".")
    known = "'hashmap', 'columnar', or the class path of a StateBackendFactory such as 'package.module:Class'"
    if not module or not name:
        raise ConfigurationError(f"There is no state backend {path!r}; possible are {known}.")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"The state backend {path!r} could not be loaded: {error}. Possible are {known}; the class must be "
            "importable on every host."
        ) from error
    if not (isinstance(found, type) and issubclass(found, StateBackendFactory)):
        raise ConfigurationError(
            f"{path!r} is not a subclass of StateBackendFactory, which a state backend is made by."
        )
    factory: StateBackendFactory[StateBackend] = found()
    return factory
