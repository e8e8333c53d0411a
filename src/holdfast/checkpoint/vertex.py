"""What the coordinator knows of a job's tasks when nobody drives it epoch by epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.metadata import OperatorMetadata
from holdfast.checkpoint.pending_checkpoint import Task
from holdfast.checkpoint.trigger import ExecutionVertex
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


def plan(
    to_trigger: Sequence[ExecutionVertex], to_wait_for: Sequence[ExecutionVertex]
) -> tuple[list[ExecutionVertex], list[Task]]:
    """Return the tasks to trigger and those that must acknowledge; tasks that have finished do neither.

    Raises:
        CheckpointError: A task neither runs nor has finished, or none runs any more.
    """
    for vertex in (*to_trigger, *to_wait_for):
        if vertex.get_execution_state() not in (_TAKES_PART, _ENDED):
            raise CheckpointError(
                CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING,
                f"Subtask {vertex.get_parallel_subtask_index()} of {vertex.get_job_vertex_id()!r} is "
                f"{vertex.get_execution_state()}.",
            )
    triggered = [vertex for vertex in to_trigger if vertex.get_execution_state() == _TAKES_PART]
    waited_for = [vertex for vertex in to_wait_for if vertex.get_execution_state() == _TAKES_PART]
    if to_wait_for and not waited_for:
        raise CheckpointError(CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING, "All tasks have finished.")
    return triggered, [
        Task(vertex.get_execution_id(), vertex.get_job_vertex_id(), vertex.get_parallel_subtask_index())
        for vertex in waited_for
    ]


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
