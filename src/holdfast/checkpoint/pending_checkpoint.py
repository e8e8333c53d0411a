"""Requests for checkpoints, their order, and pending checkpoints.

::

    triggered --acknowledge_task, acknowledge_master_state--> fully acknowledged --finalized--> completed
        |                                                         |
        +------------------------- abort ------------------------+--> disposed
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.messages import CheckpointMetrics, OperatorSubtaskState
from holdfast.checkpoint.metadata import CheckpointMetadata, OperatorMetadata
from holdfast.checkpoint.snapshot_type import CheckpointProperties
from holdfast.checkpoint.storage import CheckpointStorageLocation
from holdfast.errors import CheckpointError, CheckpointFailureReason, StateError
from holdfast.kernel.ids import JobID, OperatorID

_sequence = itertools.count()


@dataclass(frozen=True)
class CheckpointParticipant:
    """One subtask that takes part in a checkpoint.

    Attributes:
        execution_id: Its current attempt, which acknowledges under this id.
        vertex: Its vertex: a uid, or an id.
        subtask: Its index.
        parallelism: Number of subtasks of the vertex.
    """

    execution_id: str
    vertex: str
    subtask: int
    parallelism: int = 1


@dataclass(frozen=True)
class EpochEnd:
    """The end of an epoch, at which a job takes checkpoints: past, or in a real-time job the next barrier.

    Attributes:
        epoch: The epoch.
        tasks: The tasks that must acknowledge.
    """

    epoch: int
    tasks: tuple[CheckpointParticipant, ...] = ()


@dataclass(eq=False)
class CheckpointTriggerRequest:
    """Request for a checkpoint.

    Attributes:
        properties: Kind of the snapshot.
        external_location: Directory of a savepoint; None for the configured one.
        is_periodic: Whether the scheduler made it.
        timestamp: Time of the request, in milliseconds since 1970.
        epoch_end: The end of an epoch that it covers; None if the coordinator triggers the tasks itself.
        future: Gets the completed checkpoint, or the error.
        sequence: Order of requests with the same timestamp.
    """

    properties: CheckpointProperties
    external_location: str | None = None
    is_periodic: bool = False
    timestamp: int = 0
    epoch_end: EpochEnd | None = None
    future: Future[CompletedCheckpoint] = field(default_factory=Future)
    sequence: int = field(default_factory=lambda: next(_sequence))

    @property
    def is_forced(self) -> bool:
        """Whether it is triggered however many checkpoints are pending."""
        return self.properties.force_checkpoint()

    @property
    def order(self) -> tuple[Any, ...]:
        """Sort key: savepoints first, then forced requests, then those of users, then older ones."""
        return (
            not self.properties.is_savepoint(),
            not self.is_forced,
            self.is_periodic,
            self.timestamp,
            self.sequence,
        )


@dataclass(frozen=True)
class Decision:
    """Result of the decider.

    Attributes:
        chosen: The request to trigger now.
        rejected: Requests that are dropped, with the reason.
        retry_periodic_after: Milliseconds until a periodic request that came too early is worth another try.
    """

    chosen: CheckpointTriggerRequest | None = None
    rejected: tuple[tuple[CheckpointTriggerRequest, CheckpointFailureReason], ...] = ()
    retry_periodic_after: int | None = None


class CheckpointRequestDecider:
    """Priority queue of requests.

    In Flink requests also wait while too many checkpoints are being deleted. Here the completion of a checkpoint
    deletes the ones that it replaced, so there is nothing to wait for.

    Args:
        max_concurrent: Largest number of pending checkpoints.
        min_pause: Milliseconds from the end of a checkpoint to the start of the next periodic one.
        capacity: Largest number of queued requests.

    Raises:
        ValueError: The capacity is below 1.
    """

    CAPACITY: Final = 1000

    def __init__(self, max_concurrent: int, min_pause: int, capacity: int = CAPACITY) -> None:
        if capacity < 1:
            raise ValueError(f"The capacity of the queue must be at least 1, not {capacity!r}.")
        self._max_concurrent = max_concurrent
        self._min_pause = min_pause
        self._capacity = capacity
        self._queue: list[CheckpointTriggerRequest] = []

    def __len__(self) -> int:
        return len(self._queue)

    def choose(
        self,
        new: CheckpointTriggerRequest | None,
        *,
        is_triggering: bool,
        pending: int,
        since_last_completion: float | None,
    ) -> Decision:
        """Queue a new request, if there is one, and decide what to trigger.

        Args:
            new: The new request.
            is_triggering: Whether another request is being triggered.
            pending: Number of pending checkpoints.
            since_last_completion: Milliseconds since the last completion; None before the first.
        """
        rejected: list[tuple[CheckpointTriggerRequest, CheckpointFailureReason]] = []
        if new is not None:
            loser = self._enqueue(new)
            if loser is not None:
                rejected.append((loser, CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS))
        if is_triggering or not self._queue:
            return Decision(None, tuple(rejected))
        first = self._queue[0]
        if pending >= self._max_concurrent and not first.is_forced:
            return Decision(None, tuple(rejected))
        if first.is_periodic and not first.is_forced and since_last_completion is not None:
            missing = self._min_pause - since_last_completion
            if missing > 0:
                self._queue.pop(0)
                rejected.append((first, CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS))
                return Decision(None, tuple(rejected), max(1, round(missing)))
        return Decision(self._queue.pop(0), tuple(rejected))

    def drain(self) -> Collection[CheckpointTriggerRequest]:
        """Remove and return all queued requests."""
        waiting, self._queue = self._queue, []
        return waiting

    def _enqueue(self, new: CheckpointTriggerRequest) -> CheckpointTriggerRequest | None:
        """Insert a request; returns the one that is evicted."""
        evicted = None
        if len(self._queue) >= self._capacity:
            if not self._queue[-1].is_periodic:
                return new
            evicted = self._queue.pop()
        bisect.insort(self._queue, new, key=lambda request: request.order)
        return evicted


class TaskAcknowledgeResult(Enum):
    """Result of an acknowledgement."""

    SUCCESS = "counted"
    DUPLICATE = "the task had acknowledged before"
    UNKNOWN = "the task does not take part in the checkpoint"
    DISCARDED = "the checkpoint was aborted or completed before"


class PendingCheckpoint:
    """A checkpoint that is triggered and not complete. Used only under the coordinator's lock.

    Attributes:
        job_id: The job.
        checkpoint_id: The checkpoint.
        timestamp: Time of the trigger, in milliseconds since 1970.
        properties: Kind of the snapshot.
        request: The request.
        tasks: All tasks that take part, by execution id.
        metadata: The document, if the job master made it; else it is made from the acknowledgements.
        location: Where it is written; None until that is decided.
        master_states: State of the master hooks that have answered.
        failure: Why it was aborted.
        is_disposed: Whether it was aborted or has completed.
        is_triggered: Whether all tasks are triggered.
        is_finalizing: Whether document and pointer are being written; from then on it cannot be aborted.
    """

    def __init__(
        self,
        job_id: JobID,
        checkpoint_id: int,
        timestamp: int,
        request: CheckpointTriggerRequest,
        properties: CheckpointProperties,
        tasks: Iterable[CheckpointParticipant],
        master_hooks: Iterable[str] = (),
    ) -> None:
        self.job_id = job_id
        self.checkpoint_id = checkpoint_id
        self.timestamp = timestamp
        self.request = request
        self.properties = properties
        self.tasks = {task.execution_id: task for task in tasks}
        self.metadata: CheckpointMetadata | None = None
        self.location: CheckpointStorageLocation | None = None
        self.master_states: dict[str, Any] = {}
        self.failure: CheckpointError | None = None
        self.is_disposed = False
        self.is_triggered = False
        self.is_finalizing = False
        self._missing = dict.fromkeys(self.tasks)
        self._missing_hooks = set(master_hooks)
        self._states: dict[str, dict[int, OperatorSubtaskState]] = {}

    def __repr__(self) -> str:
        missing = f"{len(self._missing)} of {len(self.tasks)} acknowledgements missing"
        return f"PendingCheckpoint({self.checkpoint_id}, {self.properties.snapshot_type.name}, {missing})"

    def get_checkpoint_id(self) -> int:
        """Return the id."""
        return self.checkpoint_id

    def get_number_of_non_acknowledged_tasks(self) -> int:
        """Return the number of tasks that have not acknowledged."""
        return len(self._missing)

    def get_number_of_acknowledged_tasks(self) -> int:
        """Return the number of tasks that have acknowledged."""
        return len(self.tasks) - len(self._missing)

    def missing_tasks(self) -> list[CheckpointParticipant]:
        """Return the tasks that have not acknowledged."""
        return [self.tasks[execution_id] for execution_id in self._missing]

    def is_fully_acknowledged(self) -> bool:
        """Return whether all tasks and hooks have acknowledged, and it was not aborted."""
        return not self.is_disposed and not self._missing and not self._missing_hooks

    def can_be_subsumed(self) -> bool:
        """Return whether a newer checkpoint may replace it; savepoints are never replaced."""
        return not self.properties.is_savepoint()

    def acknowledge_task(
        self,
        execution_id: str,
        subtask_state: tuple[OperatorSubtaskState, ...] | None,
        metrics: CheckpointMetrics | None = None,
    ) -> TaskAcknowledgeResult:
        """Count the acknowledgement of a task and keep its state."""
        if self.is_disposed:
            return TaskAcknowledgeResult.DISCARDED
        if execution_id not in self._missing:
            return TaskAcknowledgeResult.DUPLICATE if execution_id in self.tasks else TaskAcknowledgeResult.UNKNOWN
        del self._missing[execution_id]
        subtask = self.tasks[execution_id].subtask
        for state in subtask_state or ():
            self._states.setdefault(state.uid, {})[subtask] = state
        return TaskAcknowledgeResult.SUCCESS

    def acknowledge_master_state(self, identifier: str, state: Any) -> TaskAcknowledgeResult:
        """Count the acknowledgement of a master hook and keep its state; None for no state."""
        if self.is_disposed:
            return TaskAcknowledgeResult.DISCARDED
        if identifier not in self._missing_hooks:
            known = identifier in self.master_states
            return TaskAcknowledgeResult.DUPLICATE if known else TaskAcknowledgeResult.UNKNOWN
        self._missing_hooks.discard(identifier)
        if state is not None:
            self.master_states[identifier] = state
        return TaskAcknowledgeResult.SUCCESS

    def abort(self, error: CheckpointError) -> None:
        """Mark it as aborted. The coordinator fails the request.

        Raises:
            StateError: It is a savepoint, and the reason is CHECKPOINT_SUBSUMED.
        """
        if error.reason is CheckpointFailureReason.CHECKPOINT_SUBSUMED and not self.can_be_subsumed():
            raise StateError("Savepoints are never subsumed by newer checkpoints.")
        self.failure = error
        self.is_disposed = True

    def set_document(self, metadata: CheckpointMetadata) -> None:
        """Set the document; the kind of snapshot and the state of hooks are filled in.

        Raises:
            StateError: The document belongs to another checkpoint, or an acknowledgement is missing.
        """
        if metadata.checkpoint_id != self.checkpoint_id:
            raise StateError(f"The document belongs to checkpoint {metadata.checkpoint_id}, not to {self!r}.")
        if self.is_disposed:
            return
        if not self.is_fully_acknowledged():
            missing = [task.execution_id for task in self.missing_tasks()]
            raise StateError(f"{self!r} cannot complete; tasks that have not acknowledged: {missing[:10]!r}.")
        self.metadata = replace(metadata, properties=self.properties.to_json(), master_states=dict(self.master_states))

    def finalize_checkpoint(self, incarnation: str, completed_at: int) -> CheckpointMetadata:
        """Return the document: the one that was set, or one made from the acknowledgements.

        Args:
            incarnation: Incarnation in a document that is made from the acknowledgements.
            completed_at: Completion time of such a document, in milliseconds since 1970.

        Raises:
            StateError: An acknowledgement is missing.
        """
        if not self.is_fully_acknowledged():
            raise StateError(f"Checkpoint {self.checkpoint_id} is not fully acknowledged: {self!r}.")
        if self.metadata is not None:
            return self.metadata
        return CheckpointMetadata(
            job_id=str(self.job_id),
            job_name=str(self.job_id),
            checkpoint_id=self.checkpoint_id,
            epoch=self.checkpoint_id,
            token=0,
            incarnation=incarnation,
            completed_at=completed_at,
            processing_time=self.timestamp,
            operators=tuple(_operator(uid, states) for uid, states in sorted(self._states.items())),
            properties=self.properties.to_json(),
            master_states=dict(self.master_states),
        )


def _operator(uid: str, states: Mapping[int, OperatorSubtaskState]) -> OperatorMetadata:
    first = next(iter(states.values()))
    committables: dict[str, list[Any]] = {}
    for _, state in sorted(states.items()):
        for sink, entries in state.committables.items():
            committables.setdefault(sink, []).extend(entries)
    return OperatorMetadata(
        uid=uid,
        operator_id=str(OperatorID.from_uid(uid)),
        name=first.name or uid,
        parallelism=first.parallelism,
        max_parallelism=first.max_parallelism,
        runs=tuple(run for _, state in sorted(states.items()) for run in state.runs),
        subtasks=tuple(
            {"subtask": subtask, "state": state.state}
            for subtask, state in sorted(states.items())
            if state.state is not None
        ),
        committables=committables,
    )
