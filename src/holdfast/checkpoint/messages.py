"""What tasks are told when a checkpoint is triggered, and what they answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.checkpoint.snapshot_type import CheckpointType
from holdfast.checkpoint.storage import CheckpointStorageLocationReference
from holdfast.errors import CheckpointError, CheckpointFailureReason
from holdfast.kernel.ids import JobID
from holdfast.state.run_file import RunHandle


@dataclass(frozen=True)
class CheckpointMetaData:
    """Id and time of a checkpoint; not to be confused with its document, `metadata.CheckpointMetadata`."""

    checkpoint_id: int
    timestamp: int

    def get_checkpoint_id(self) -> int:
        """Return the id."""
        return self.checkpoint_id

    def get_timestamp(self) -> int:
        """Return when it was triggered, in milliseconds since 1970."""
        return self.timestamp


@dataclass(frozen=True)
class CheckpointOptions:
    """Kind and place of a checkpoint."""

    checkpoint_type: CheckpointType
    target_location: CheckpointStorageLocationReference

    def get_checkpoint_type(self) -> CheckpointType:
        """Return the kind."""
        return self.checkpoint_type

    def get_target_location(self) -> CheckpointStorageLocationReference:
        """Return the place."""
        return self.target_location

    @staticmethod
    def for_checkpoint_with_default_location() -> CheckpointOptions:
        """Return those of a checkpoint in the job's own directory."""
        return CheckpointOptions(CheckpointType.CHECKPOINT, CheckpointStorageLocationReference.get_default())

    @staticmethod
    def for_savepoint(location: CheckpointStorageLocationReference) -> CheckpointOptions:
        """Return those of a savepoint in a given directory."""
        return CheckpointOptions(CheckpointType.SAVEPOINT, location)


@dataclass(frozen=True)
class OperatorSubtaskState:
    """What one subtask of one operator hands to a checkpoint.

    Attributes:
        uid: The operator.
        runs: Its keyed state, oldest run first.
        state: Operator state and progress, as JSON.
        committables: Staged output by sink.
        parallelism: Number of its subtasks.
        max_parallelism: Number of its key groups.
        name: For people.
    """

    uid: str
    runs: tuple[RunHandle, ...] = ()
    state: Any = None
    committables: Mapping[str, list[Any]] = field(default_factory=dict)
    parallelism: int = 1
    max_parallelism: int = 128
    name: str = ""

    @property
    def state_size(self) -> int:
        """Bytes in its runs."""
        return sum(run.size for run in self.runs)


@dataclass(frozen=True)
class CheckpointMetrics:
    """What a task measured while it took its snapshot; times in milliseconds, sizes in bytes."""

    bytes_persisted: int = 0
    total_bytes: int = 0
    sync_duration: int = 0
    async_duration: int = 0
    start_delay: int = 0
    processed: int = 0


@dataclass(frozen=True)
class AcknowledgeCheckpoint:
    """A task's message that its part of a checkpoint is durable.

    Attributes:
        job: The job.
        task_execution_id: The attempt of the task that says so.
        checkpoint_id: The checkpoint.
        checkpoint_metrics: What it measured.
        subtask_state: Its state, one entry for each operator in the task; None if it has none.
    """

    job: JobID
    task_execution_id: str
    checkpoint_id: int
    checkpoint_metrics: CheckpointMetrics = CheckpointMetrics()
    subtask_state: tuple[OperatorSubtaskState, ...] | None = None

    def get_job(self) -> JobID:
        """Return the job."""
        return self.job

    def get_task_execution_id(self) -> str:
        """Return the attempt of the task."""
        return self.task_execution_id

    def get_checkpoint_id(self) -> int:
        """Return the checkpoint."""
        return self.checkpoint_id

    def get_checkpoint_metrics(self) -> CheckpointMetrics:
        """Return what the task measured."""
        return self.checkpoint_metrics

    def get_subtask_state(self) -> tuple[OperatorSubtaskState, ...] | None:
        """Return the state."""
        return self.subtask_state


@dataclass(frozen=True)
class DeclineCheckpoint:
    """A task's message that it takes no part in a checkpoint.

    Attributes:
        job: The job.
        task_execution_id: The attempt of the task that says so.
        checkpoint_id: The checkpoint.
        reason: Why; an error with a `CheckpointFailureReason`, or the reason alone.
    """

    job: JobID
    task_execution_id: str
    checkpoint_id: int
    reason: CheckpointError | CheckpointFailureReason = CheckpointFailureReason.CHECKPOINT_DECLINED

    def get_job(self) -> JobID:
        """Return the job."""
        return self.job

    def get_task_execution_id(self) -> str:
        """Return the attempt of the task."""
        return self.task_execution_id

    def get_checkpoint_id(self) -> int:
        """Return the checkpoint."""
        return self.checkpoint_id

    def get_reason(self) -> CheckpointError:
        """Return why, as an error; CHECKPOINT_DECLINED if the task gave no reason."""
        if isinstance(self.reason, CheckpointFailureReason):
            return CheckpointError(self.reason)
        if self.reason.reason is None:
            return CheckpointError(CheckpointFailureReason.CHECKPOINT_DECLINED, str(self.reason), self.reason)
        return self.reason


class ExecutionVertex(ABC):
    """One subtask of a job vertex, as the coordinator talks to it."""

    @abstractmethod
    def get_job_vertex_id(self) -> str:
        """Return the vertex: the uid, or the hexadecimal id of the operator."""

    @abstractmethod
    def get_parallel_subtask_index(self) -> int:
        """Return the index of the subtask."""

    @abstractmethod
    def get_execution_id(self) -> str:
        """Return the id of its current attempt, which acknowledges."""

    @abstractmethod
    def get_execution_state(self) -> str:
        """Return RUNNING, FINISHED, or another name of Flink's execution states."""

    @abstractmethod
    def trigger_checkpoint(self, checkpoint_id: int, timestamp: int, options: CheckpointOptions) -> None:
        """Ask the task for a checkpoint; must not block."""

    @abstractmethod
    def notify_checkpoint_complete(self, checkpoint_id: int, timestamp: int, subsumed_checkpoint_id: int) -> None:
        """Tell the task that a checkpoint is complete, and which one was subsumed by it (0 for none)."""

    def notify_checkpoint_subsumed(self, checkpoint_id: int) -> None:  # noqa: B027 - few have something to do
        """Tell the task that a checkpoint was replaced and its files may go; follows the newer one's completion."""

    @abstractmethod
    def notify_checkpoint_aborted(self, checkpoint_id: int, latest_completed_id: int, timestamp: int) -> None:
        """Tell the task that a checkpoint will not complete."""
