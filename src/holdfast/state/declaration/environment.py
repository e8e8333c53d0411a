"""What a state backend is told about the task that it works for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from holdfast.kernel.configuration import Configuration


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
