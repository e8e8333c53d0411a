"""What a state backend is told about the task that it works for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Final

from holdfast.kernel.configuration import ConfigOption, Configuration, MemorySize
from holdfast.kernel.key_group import KeyGroupRange


class Environment(ABC):
    """The task for which a backend is made. Times are milliseconds since 1970."""

    @abstractmethod
    def get_job_id(self) -> str:
        """Returns the job, 32 hexadecimal digits."""

    @abstractmethod
    def get_operator(self) -> str:
        """Returns the uid of the operator."""

    @abstractmethod
    def get_index_of_this_subtask(self) -> int:
        """Returns the subtask, from 0."""

    @abstractmethod
    def get_number_of_parallel_subtasks(self) -> int:
        """Returns the parallelism of the operator."""

    @abstractmethod
    def get_max_number_of_parallel_subtasks(self) -> int:
        """Returns the number of key groups of the operator."""

    @abstractmethod
    def get_configuration(self) -> Configuration:
        """Returns the configuration of the job."""

    @abstractmethod
    def get_processing_time(self) -> int:
        """Returns the processing time of the epoch, which stands still within it."""


@dataclass(frozen=True)
class TaskEnvironment(Environment):
    """An environment of given facts."""

    job_id: str
    operator: str
    subtask: int = 0
    parallelism: int = 1
    max_parallelism: int = 128
    configuration: Configuration = field(default_factory=Configuration)
    processing_time: int = 0

    def get_job_id(self) -> str:
        """Returns the job, 32 hexadecimal digits."""
        return self.job_id

    def get_operator(self) -> str:
        """Returns the uid of the operator."""
        return self.operator

    def get_index_of_this_subtask(self) -> int:
        """Returns the subtask, from 0."""
        return self.subtask

    def get_number_of_parallel_subtasks(self) -> int:
        """Returns the parallelism of the operator."""
        return self.parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        """Returns the number of key groups of the operator."""
        return self.max_parallelism

    def get_configuration(self) -> Configuration:
        """Returns the configuration of the job."""
        return self.configuration

    def get_processing_time(self) -> int:
        """Returns the processing time of the epoch."""
        return self.processing_time


# Options of state backends.

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


# Where a task says which of its states can be queried.


class TaskKvStateRegistry(ABC):
    """Told which queryable states a task has."""

    @abstractmethod
    def register_kv_state(self, key_group_range: KeyGroupRange, registration_name: str, state_name: str) -> None:
        """A state can be queried under a name, for these key groups."""

    @abstractmethod
    def unregister_all(self) -> None:
        """The task has ended."""
