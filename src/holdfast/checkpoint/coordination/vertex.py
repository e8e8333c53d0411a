"""What the coordinator knows of a job's tasks when nobody drives it epoch by epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.checkpoint.document.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.document.metadata import OperatorMetadata
from holdfast.checkpoint.message.trigger import ExecutionVertex
from holdfast.checkpoint.protocol.pending_checkpoint import Task
from holdfast.errors import CheckpointError, CheckpointFailureReason, RestoreError

_TAKES_PART = "RUNNING"
_ENDED = "FINISHED"


class ExecutionJobVertex(ABC):
    """All subtasks of one vertex, as a restore talks to them."""

    @abstractmethod
    def restore_state(self, checkpoint_id: int, states: Mapping[str, OperatorMetadata]) -> None:
        """Give the subtasks what the checkpoint holds of the vertex's operators, by uid."""

    @abstractmethod
    def get_operator_uids(self) -> Sequence[str]:
        """Return the uids of its operators."""


@dataclass(frozen=True)
class Vertices:
    """The tasks of a job that nobody drives epoch by epoch; without any for one that somebody does.

    Attributes:
        to_trigger: Tasks that are asked for a checkpoint.
        to_wait_for: Tasks that must acknowledge.
        to_commit_to: Tasks that are told what became of it.
    """

    to_trigger: tuple[ExecutionVertex, ...] = ()
    to_wait_for: tuple[ExecutionVertex, ...] = ()
    to_commit_to: tuple[ExecutionVertex, ...] = ()

    def plan(self) -> tuple[list[ExecutionVertex], list[Task]]:
        """Return the tasks to trigger and those that must acknowledge; tasks that have finished do neither.

        Raises:
            CheckpointError: A task neither runs nor has finished, or none runs any more.
        """
        for vertex in (*self.to_trigger, *self.to_wait_for):
            if vertex.get_execution_state() not in (_TAKES_PART, _ENDED):
                raise CheckpointError(
                    CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING,
                    f"Subtask {vertex.get_parallel_subtask_index()} of {vertex.get_job_vertex_id()!r} is "
                    f"{vertex.get_execution_state()}.",
                )
        triggered = [vertex for vertex in self.to_trigger if vertex.get_execution_state() == _TAKES_PART]
        waited_for = [vertex for vertex in self.to_wait_for if vertex.get_execution_state() == _TAKES_PART]
        if self.to_wait_for and not waited_for:
            raise CheckpointError(CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING, "All tasks have finished.")
        return triggered, [task_of(vertex) for vertex in waited_for]

    def find(self, execution_id: str) -> Task | None:
        """Return the task that must acknowledge under an id, None for a stranger."""
        return next((task for task in map(task_of, self.to_wait_for) if task.execution_id == execution_id), None)


def task_of(vertex: ExecutionVertex) -> Task:
    """Return a vertex as a checkpoint knows it."""
    return Task(vertex.get_execution_id(), vertex.get_job_vertex_id(), vertex.get_parallel_subtask_index())


def hand_out(
    checkpoint: CompletedCheckpoint, vertices: Mapping[object, ExecutionJobVertex], *, allow_non_restored: bool
) -> None:
    """Give each vertex its state.

    Raises:
        RestoreError: The checkpoint holds state of operators that no vertex has, and that is not allowed.
    """
    states = checkpoint.get_operator_states()
    known = {uid for vertex in vertices.values() for uid in vertex.get_operator_uids()}
    missing = sorted(set(states) - known)
    if missing and not allow_non_restored:
        raise RestoreError(missing, sorted(known - set(states)))
    for vertex in vertices.values():
        mine = {uid: states[uid] for uid in vertex.get_operator_uids() if uid in states}
        vertex.restore_state(checkpoint.checkpoint_id, mine)
