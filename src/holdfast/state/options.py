"""Options of state backends."""

from __future__ import annotations

from typing import Final

from holdfast.kernel.option import ConfigOption, MemorySize

STATE_BACKEND: Final = ConfigOption(
    "state.backend.type",
    str,
    "hashmap",
    "The state backend: 'hashmap', or the class path of a StateBackendFactory ('package.module:Class'). The older "
    "names 'filesystem', 'jobmanager' and 'memory' mean 'hashmap'.",
    deprecated_keys=("state.backend",),
)

HASHMAP_MEMORY: Final = ConfigOption(
    "state.backend.hashmap.memory",
    MemorySize,
    1024 * 1024 * 1024,
    "Memory that the decoded state of all subtasks may take in a worker process between epochs, about. What does not "
    "fit is read from its runs again in the next epoch.",
)
