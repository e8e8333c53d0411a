"""The task that a state backend works for, the options of state backends, and the registry of queryable states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Final

from holdfast.kernel.configuration import ConfigOption, Configuration, MemorySize
from holdfast.kernel.key_group import KeyGroupRange


@dataclass(frozen=True)
class Environment:
    """The task for which a state backend is created.

    Attributes:
        job_id: The job, 32 hexadecimal digits.
        operator: Uid of the operator.
        subtask: Index of the subtask, from 0.
        parallelism: Number of subtasks of the operator.
        max_parallelism: Number of key groups of the operator.
        configuration: Configuration of the job.
        processing_time: Processing time of the epoch in milliseconds since 1970; it does not advance within an epoch.
    """

    job_id: str
    operator: str
    subtask: int = 0
    parallelism: int = 1
    max_parallelism: int = 128
    configuration: Configuration = field(default_factory=Configuration)
    processing_time: int = 0


TaskEnvironment = Environment
"""Earlier name of `Environment`."""


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


class TaskKvStateRegistry(ABC):
    """Registry of the queryable states of one task; the state backend of the task calls it."""

    @abstractmethod
    def register_kv_state(self, key_group_range: KeyGroupRange, registration_name: str, state_name: str) -> None:
        """Register a state that can be queried.

        Args:
            key_group_range: The key groups that the task owns.
            registration_name: The name under which clients query the state.
            state_name: Name of the state in its descriptor.
        """

    @abstractmethod
    def unregister_all(self) -> None:
        """Remove all states of the task; the backend calls it when it is disposed."""
