"""Options of state backends, of local copies and of compaction."""

from __future__ import annotations

from typing import Final

from holdfast.kernel.configuration import ConfigOption, MemorySize

STATE_BACKEND: Final = ConfigOption(
    "state.backend.type",
    str,
    "hashmap",
    "The state backend: 'hashmap' (decoded objects, kept between epochs), 'columnar' (only mapped runs, for state that "
    "is larger than memory), or the class path of a StateBackendFactory ('package.module:Class'). The older names "
    "'filesystem', 'jobmanager' and 'memory' mean 'hashmap'; Flink's 'rocksdb' and 'forst' mean 'columnar'.",
    deprecated_keys=("state.backend",),
)

HASHMAP_MEMORY: Final = ConfigOption(
    "state.backend.hashmap.memory",
    MemorySize,
    128 * 1024 * 1024,
    "Approximate memory limit of the decoded state of all subtasks in a worker process. State that exceeds it is read "
    "from its runs again when it is needed. Within an epoch only unchanged state can be evicted.",
)

LOCAL_CACHE_DIRECTORY: Final = ConfigOption[str | None](
    "state.local-cache.directory",
    str,
    None,
    "A local directory of each executor's host for copies of run files, if checkpoint storage is slower to read than "
    "the local disk. A copy is verified by its checksums when it is added. By default files on mounted storage are "
    "mapped without a copy, and files of object stores are copied to a directory in the temporary directory.",
)

LOCAL_CACHE_SIZE: Final = ConfigOption(
    "state.local-cache.size",
    MemorySize,
    10 * 1024 * 1024 * 1024,
    "Maximum size of the copies in state.local-cache.directory; the least recently used are deleted first.",
)

COMPACTION_ENABLED: Final = ConfigOption(
    "state.compaction.enabled",
    bool,
    True,
    "Whether the runs of a job are merged in the background. Without compaction each epoch adds a run to a subtask, "
    "and lookups get slower with each run.",
)

COMPACTION_MAX_RUNS: Final = ConfigOption(
    "state.compaction.max-runs",
    int,
    8,
    "Maximum number of runs that a lookup of a key reads, at least 3. Above it merges are urgent; epochs "
    "do not wait for them. A lower limit makes lookups faster, but rewrites state more often.",
)

COMPACTION_EXECUTOR: Final = ConfigOption(
    "state.compaction.executor",
    str,
    "process",
    "Where runs are merged: 'process' (a process of low priority on the driver's host) or 'thread' (a thread of the "
    "driver).",
)
