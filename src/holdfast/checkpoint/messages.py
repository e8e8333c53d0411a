"""Messages between the coordinator and its tasks, and the task's interface to the coordinator."""

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
    """Id and timestamp of a checkpoint, as in Flink. The content of its document is `CheckpointMetadata`."""

    checkpoint_id: int
    timestamp: int

    def get_checkpoint_id(self) -> int:
        """Return the id."""
        return self.checkpoint_id

    def get_timestamp(self) -> int:
        """Return the time of the trigger, in milliseconds since 1970."""
        return self.timestamp


@dataclass(frozen=True)
class CheckpointOptions:
    """Kind and location of a checkpoint."""

    checkpoint_type: CheckpointType
    target_location: CheckpointStorageLocationReference

    def get_checkpoint_type(self) -> CheckpointType:
        """Return the kind."""
        return self.checkpoint_type

    def get_target_location(self) -> CheckpointStorageLocationReference:
        """Return the location."""
        return self.target_location

    @staticmethod
    def for_checkpoint_with_default_location() -> CheckpointOptions:
        """Return the options of a checkpoint in the job's own directory."""
        return CheckpointOptions(CheckpointType.CHECKPOINT, CheckpointStorageLocationReference.get_default())

    @staticmethod
    def for_savepoint(location: CheckpointStorageLocationReference) -> CheckpointOptions:
        """Return the options of a savepoint at a location."""
        return CheckpointOptions(CheckpointType.SAVEPOINT, location)


@dataclass(frozen=True)
class OperatorSubtaskState:
    """State of one subtask of one operator in a checkpoint.

    Attributes:
        uid: The operator.
        runs: Keyed state, oldest run first.
        state: Operator state and progress, as JSON.
        committables: Staged output, by sink.
        parallelism: Number of subtasks.
        max_parallelism: Number of key groups.
        name: Display name.
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
        """Size of the runs in bytes."""
        return sum(run.size for run in self.runs)


@dataclass(frozen=True)
class CheckpointMetrics:
    """Measurements of one task's snapshot; times in milliseconds, sizes in bytes.

    Attributes:
        alignment_duration: Time from the first to the last arrival of the barrier, in a real-time job.
        sync_duration: Part of the snapshot for which elements waited.
    """

    bytes_persisted: int = 0
    total_bytes: int = 0
    sync_duration: int = 0
    async_duration: int = 0
    start_delay: int = 0
    processed: int = 0
    alignment_duration: int = 0


@dataclass(frozen=True)
class AcknowledgeCheckpoint:
    """A task's message that its part of a checkpoint is durable.

    Attributes:
        job: The job.
        task_execution_id: The attempt of the task.
        checkpoint_id: The checkpoint.
        checkpoint_metrics: Measurements of the snapshot.
        subtask_state: State, one entry for each operator of the task; None for no state.
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
        """Return the measurements of the snapshot."""
        return self.checkpoint_metrics

    def get_subtask_state(self) -> tuple[OperatorSubtaskState, ...] | None:
        """Return the state."""
        return self.subtask_state


@dataclass(frozen=True)
class DeclineCheckpoint:
    """A task's message that it declines a checkpoint.

    Attributes:
        job: The job.
        task_execution_id: The attempt of the task.
        checkpoint_id: The checkpoint.
        reason: An error with a `CheckpointFailureReason`, or the reason alone.
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
        """Return the reason as an error; CHECKPOINT_DECLINED if the task gave none."""
        if isinstance(self.reason, CheckpointFailureReason):
            return CheckpointError(self.reason)
        if self.reason.reason is None:
            return CheckpointError(CheckpointFailureReason.CHECKPOINT_DECLINED, str(self.reason), self.reason)
        return self.reason


class ExecutionVertex(ABC):
    """One subtask of a job vertex, as the coordinator sees it."""

    @abstractmethod
    def get_job_vertex_id(self) -> str:
        """Return the id of the vertex: the uid, or the operator's id in hexadecimal."""

    @abstractmethod
    def get_parallel_subtask_index(self) -> int:
        """Return the index of the subtask."""

    @abstractmethod
    def get_execution_id(self) -> str:
        """Return the id of the current attempt, under which it acknowledges."""

    @abstractmethod
    def get_execution_state(self) -> str:
        """Return RUNNING, FINISHED, or another of Flink's execution states."""

    @abstractmethod
    def trigger_checkpoint(self, checkpoint_id: int, timestamp: int, options: CheckpointOptions) -> None:
        """Trigger a checkpoint in the task. Must not block."""

    @abstractmethod
    def notify_checkpoint_complete(self, checkpoint_id: int, timestamp: int, subsumed_checkpoint_id: int) -> None:
        """Notify the task that a checkpoint is complete, and which one it subsumed (0 for none)."""

    def notify_checkpoint_subsumed(self, checkpoint_id: int) -> None:  # noqa: B027 - few have something to do
        """Notify the task that a checkpoint was subsumed; follows the completion of the newer one."""

    @abstractmethod
    def notify_checkpoint_aborted(self, checkpoint_id: int, latest_completed_id: int, timestamp: int) -> None:
        """Notify the task that a checkpoint was aborted."""
