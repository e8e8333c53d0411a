"""Options of state backends."""

from __future__ import annotations

from typing import Final

from holdfast.kernel.option import ConfigOption, MemorySize

STATE_BACKEND: Final = ConfigOption(
    "state.backend.type",
    str,
    "hashmap",
    "The state backend: 'hashmap' (decoded objects, kept between epochs), 'columnar' (nothing but the mapped runs, for "
    "state that is larger than memory), or the class path of a StateBackendFactory ('package.module:Class'). The older "
    "names 'filesystem', 'jobmanager' and 'memory' mean 'hashmap', and Flink's 'rocksdb' and 'forst' 'columnar'.",
    deprecated_keys=("state.backend",),
)

HASHMAP_MEMORY: Final = ConfigOption(
    "state.backend.hashmap.memory",
    MemorySize,
    128 * 1024 * 1024,
    "Memory that the decoded state of all subtasks may take in a worker process, about. Within an epoch only what it "
    "has not changed is given up; what does not fit is read from its runs again when it is needed.",
)

LOCAL_CACHE_DIRECTORY: Final = ConfigOption[str | None](
    "state.local-cache.directory",
    str,
    None,
    "A directory on a disk of each executor's host that keeps copies of run files, for checkpoint storage that is "
    "slower to read than that disk. A copy is checked by its checksums when it enters. The default is to keep none, "
    "because files on mounted storage are mapped where they are, and a directory in the temporary one for object "
    "stores.",
)

LOCAL_CACHE_SIZE: Final = ConfigOption(
    "state.local-cache.size",
    MemorySize,
    10 * 1024 * 1024 * 1024,
    "Bytes that the copies in state.local-cache.directory may take; those that were used least recently go first.",
)

COMPACTION_ENABLED: Final = ConfigOption(
    "state.compaction.enabled",
    bool,
    True,
    "Whether the runs of a job are merged in the background. Without that each epoch adds a run to a subtask, and each "
    "further one makes reading slower.",
)

COMPACTION_MAX_RUNS: Final = ConfigOption(
    "state.compaction.max-runs",
    int,
    8,
    "How many runs a key may have to be looked for in, at least 3. An epoch waits for a compaction if there are more. "
    "Fewer make reading faster and rewrite state more often.",
)

COMPACTION_EXECUTOR: Final = ConfigOption(
    "state.compaction.executor",
    str,
    "process",
    "Where runs are merged: 'process', a process of low priority beside the driver, or 'thread', a thread of the "
    "driver.",
)
