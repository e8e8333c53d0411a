"""The task that a state backend works for, and the registry of its queryable states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from holdfast.kernel.configuration import Configuration
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
        processing_time: Processing time in milliseconds since 1970 at the beginning of the epoch.
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
