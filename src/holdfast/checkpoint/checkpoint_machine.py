"""State machine of the checkpoint coordinator: events in, instructions out, no I/O.

::

    request --> [queue] --TriggerTasks--> prepared --> triggered --acknowledge*--> Finalize --> finalized
                   |                    |             |                           |           |
                   v                    +- timeout, decline, abort, failure at any of these   v
                 Reject                         |                                      Resolve, NotifyComplete
                                                v
                                  Reject, NotifyAborted, ReportFailure

One request is triggered at a time; acknowledgements of several checkpoints may be awaited. The machine takes no lock:
`holdfast.checkpoint.instruction_executor` serializes events and carries out the instructions in order.
"""

from __future__ import annotations

import bisect
import itertools
import random
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.config import NEVER, CoordinatorConfiguration
from holdfast.checkpoint.messages import (
    AcknowledgeCheckpoint,
    CheckpointMetrics,
    DeclineCheckpoint,
    OperatorSubtaskState,
)
from holdfast.checkpoint.metadata import CheckpointMetadata, OperatorMetadata
from holdfast.checkpoint.snapshot_type import CheckpointProperties
from holdfast.checkpoint.statistics import UNKNOWN, CheckpointStatsTracker
from holdfast.checkpoint.storage import CheckpointStorageLocation
from holdfast.errors import CheckpointError, CheckpointFailureReason, StateError
from holdfast.kernel.clock import Clock
from holdfast.kernel.ids import JobID, OperatorID
from holdfast.kernel.secret import redacted_message

_sequence = itertools.count()
UNKNOWN_CHECKPOINT_ID: Final = -1
_REMEMBERED_EXPIRED: Final = 16


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


@dataclass(frozen=True)
class TriggerTasks:
    """Begin a checkpoint: take an id, choose the location, trigger the master hooks, then the tasks.

    Events: `prepare_failed`, or else `prepared` and then `triggered` or `trigger_failed`.
    """

    request: CheckpointTriggerRequest


@dataclass(frozen=True)
class Finalize:
    """Write document and pointer. Events: `finalized` or `finalize_failed`."""

    pending: PendingCheckpoint


@dataclass(frozen=True)
class Resolve:
    """Complete the request's future with the checkpoint."""

    request: CheckpointTriggerRequest
    checkpoint: CompletedCheckpoint


@dataclass(frozen=True)
class Reject:
    """Fail the request's future."""

    request: CheckpointTriggerRequest
    error: CheckpointError


@dataclass(frozen=True)
class NotifyComplete:
    """Notify the tasks that a checkpoint is complete."""

    checkpoint_id: int
    timestamp: int
    subsumed_id: int


@dataclass(frozen=True)
class NotifyAborted:
    """Notify the tasks that a checkpoint was aborted."""

    checkpoint_id: int
    timestamp: int
    latest_completed_id: int


@dataclass(frozen=True)
class DiscardLocation:
    """Delete the files of a checkpoint that did not complete. Run files are left to the sweep."""

    pending: PendingCheckpoint


@dataclass(frozen=True)
class ReportFailure:
    """Report a failed checkpoint to the failure manager."""

    error: CheckpointError
    checkpoint_id: int
    properties: CheckpointProperties
    execution_id: str | None


@dataclass(frozen=True)
class ReportSuccess:
    """Report a completed checkpoint to the failure manager."""

    checkpoint_id: int


Instruction = (
    TriggerTasks
    | Finalize
    | Resolve
    | Reject
    | NotifyComplete
    | NotifyAborted
    | DiscardLocation
    | ReportFailure
    | ReportSuccess
)
Instructions = list[Instruction]


class Schedule:
    """Time of periodic triggers and timeouts, in whole milliseconds of the clock's monotonic time.

    Args:
        configuration: The options.
        clock: Time.
        is_on: Whether periodic checkpoints are on from the beginning.

    Attributes:
        is_on: Whether periodic checkpoints are taken.
    """

    def __init__(self, configuration: CoordinatorConfiguration, clock: Clock, *, is_on: bool) -> None:
        self._configuration = configuration
        self._clock = clock
        self._next: int | None = None
        self._last_trigger = self.now()
        self._last_epoch: int | None = None
        self._last_completion: int | None = None
        self._deadlines: dict[int, int] = {}
        self.is_on = is_on

    def now(self) -> int:
        return round(self._clock.monotonic() * 1000)

    def start(self) -> None:
        """Turn periodic checkpoints on; the first trigger comes at a random time within the interval."""
        self.is_on = True
        if 0 < self._configuration.interval < NEVER:
            shortest = self._configuration.min_pause
            self._next = self.now() + random.randint(shortest, self._configuration.interval)  # noqa: S311 - spreads jobs

    def stop(self) -> None:
        self.is_on = False
        self._next = None

    def next_deadline(self) -> int | None:
        """Return the next time at which something is due; None for never."""
        times = [*self._deadlines.values()]
        if self._next is not None:
            times.append(self._next)
        return min(times, default=None)

    def poll_periodic(self) -> bool:
        """Return whether a periodic trigger is due, and schedule the next one if so."""
        if self._next is None or self._next > self.now():
            return False
        self._next = self.now() + self._configuration.interval
        return True

    def delay_periodic(self, ms: int) -> None:
        """Postpone the next periodic trigger."""
        if self._next is not None:
            self._next = self.now() + ms

    def is_due_at(self, epoch: int) -> bool:
        """Return whether a periodic checkpoint is due at the end of an epoch; at most once for each epoch."""
        if epoch == self._last_epoch or not self.is_on:
            return False
        pause = self.since_last_completion()
        if pause is not None and pause < self._configuration.min_pause:
            return False
        return self.now() - self._last_trigger >= self._configuration.interval

    def triggered_at(self, epoch: int) -> None:
        """Note that a checkpoint is triggered at the end of an epoch."""
        self._last_trigger = self.now()
        self._last_epoch = epoch

    def begin(self, checkpoint_id: int) -> None:
        """Start the timeout of a checkpoint."""
        self._deadlines[checkpoint_id] = self.now() + self._configuration.timeout

    def end(self, checkpoint_id: int) -> None:
        """Cancel the timeout of a checkpoint."""
        self._deadlines.pop(checkpoint_id, None)

    def expired(self) -> list[int]:
        """Return the checkpoints whose timeout has passed."""
        now = self.now()
        return [checkpoint_id for checkpoint_id, deadline in self._deadlines.items() if deadline <= now]

    def completed(self) -> None:
        """Note the completion of a checkpoint or savepoint, from which the minimum pause counts."""
        self._last_completion = self.now()

    def since_last_completion(self) -> int | None:
        """Return the time since the last completion; None before the first."""
        return None if self._last_completion is None else self.now() - self._last_completion


class CheckpointMachine:
    """State machine of one coordinator.

    Args:
        configuration: The options.
        clock: Time; decisions use its monotonic time, time stamps its wall-clock time.
        statistics: Statistics of checkpoints.
        is_on: Whether periodic checkpoints are on from the beginning, as in a job that takes them at the ends of its
            epochs.

    Attributes:
        pending: Pending checkpoints, by id.
        latest_completed_id: Newest completed checkpoint that is no plain savepoint; 0 if there is none.
    """

    def __init__(
        self,
        configuration: CoordinatorConfiguration,
        clock: Clock,
        statistics: CheckpointStatsTracker,
        *,
        is_on: bool = False,
    ) -> None:
        self._configuration = configuration
        self._clock = clock
        self._statistics = statistics
        self._decider = CheckpointRequestDecider(configuration.max_concurrent, configuration.min_pause)
        self._is_triggering = False
        self._is_shut_down = False
        self._schedule = Schedule(configuration, clock, is_on=is_on)
        self._expired: deque[int] = deque(maxlen=_REMEMBERED_EXPIRED)
        self.pending: dict[int, PendingCheckpoint] = {}
        self.latest_completed_id = 0
        self._newest_written = 0

    # Requests

    def request(self, request: CheckpointTriggerRequest) -> Instructions:
        """Handle a request for a checkpoint."""
        refusal = self._rejection_reason(request)
        if refusal is not None:
            return self._reject(request, refusal)
        return self._choose(request)

    def start_scheduler(self) -> Instructions:
        """Turn periodic checkpoints on."""
        if self._is_shut_down:
            raise CheckpointError(CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN)
        instructions = self.stop_scheduler() if self._schedule.is_on else []
        self._schedule.start()
        return instructions

    def stop_scheduler(self) -> Instructions:
        """Turn periodic checkpoints off and abort everything that is pending or queued."""
        self._schedule.stop()
        return self.abort_all(CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND)

    def shutdown(self) -> Instructions:
        """Abort everything and refuse later requests."""
        if self._is_shut_down:
            return []
        self._is_shut_down = True
        self._schedule.stop()
        return self.abort_all(CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN)

    def next_deadline(self) -> int | None:
        """Return when `timer` has something to do, in milliseconds of monotonic time; None for never."""
        return self._schedule.next_deadline()

    def on_timer(self) -> Instructions:
        """Expire checkpoints and trigger the periodic one if it is due."""
        instructions: Instructions = []
        for checkpoint_id in self._schedule.expired():
            self._expired.append(checkpoint_id)
            error = CheckpointError(CheckpointFailureReason.CHECKPOINT_EXPIRED)
            instructions += self._abort_unless_finalizing(checkpoint_id, error, None)
        if instructions:
            instructions += self._choose(None)
        if self._schedule.poll_periodic():
            instructions += self.request(self.new_request(is_periodic=True))
        return instructions

    def new_request(
        self,
        properties: CheckpointProperties | None = None,
        external_location: str | None = None,
        *,
        is_periodic: bool = False,
        epoch_end: EpochEnd | None = None,
    ) -> CheckpointTriggerRequest:
        """Return a request with the present time; by default for a checkpoint as configured."""
        chosen = properties or CheckpointProperties.for_checkpoint(self._configuration.policy)
        return CheckpointTriggerRequest(chosen, external_location, is_periodic, self._clock.now_ms(), epoch_end)

    def trigger_at_epoch_end(self, request: CheckpointTriggerRequest) -> Instructions:
        """Trigger the snapshot of an epoch, without a queue. In a real-time job its tasks take it afterwards."""
        refusal = self._rejection_reason(request)
        if refusal is not None:
            return self._reject(request, refusal)
        if request.epoch_end is not None and not request.properties.is_savepoint():
            self._schedule.triggered_at(request.epoch_end.epoch)
        self._is_triggering = True
        return [TriggerTasks(request)]

    def is_periodic_due(self, epoch: int) -> bool:
        return self._schedule.is_due_at(epoch)

    # Triggering

    def prepared(self, pending: PendingCheckpoint) -> Instructions:
        """Register a checkpoint that has its id and its tasks, and start its timeout."""
        if self._is_shut_down:
            self._is_triggering = False
            pending.is_disposed = True
            return self._reject(pending.request, CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN)
        self.pending[pending.checkpoint_id] = pending
        self._schedule.begin(pending.checkpoint_id)
        parallelism: dict[str, int] = {}
        for task in pending.tasks.values():
            parallelism[task.vertex] = parallelism.get(task.vertex, 0) + 1
        self._statistics.report_pending(pending.checkpoint_id, pending.timestamp, pending.properties, parallelism)
        return []

    def prepare_failed(self, request: CheckpointTriggerRequest, error: CheckpointError) -> Instructions:
        """Reject a request: there is no id, or a required task does not run."""
        self._is_triggering = False
        self._statistics.report_failed_without_in_progress(_name(error))
        report = ReportFailure(error, UNKNOWN_CHECKPOINT_ID, request.properties, None)
        return [Reject(request, error), report, *self._choose(None)]

    def triggered(self, pending: PendingCheckpoint) -> Instructions:
        """All tasks are triggered; choose the next request."""
        self._is_triggering = False
        pending.is_triggered = True
        return [*self._finalize_if_complete(pending), *self._choose(None)]

    def trigger_failed(self, pending: PendingCheckpoint, error: CheckpointError) -> Instructions:
        """Abort a checkpoint: the location could not be made, or a hook or a task failed."""
        self._is_triggering = False
        if pending.is_disposed:
            return self._choose(None)
        return [*self._abort(pending, error, None), *self._choose(None)]

    # Acknowledgements and failures

    def acknowledge(self, message: AcknowledgeCheckpoint) -> tuple[TaskAcknowledgeResult, Instructions]:
        """Count the acknowledgement of a task."""
        pending = self.pending.get(message.checkpoint_id)
        if pending is None:
            return TaskAcknowledgeResult.DISCARDED, []
        result = pending.acknowledge_task(message.task_execution_id, message.subtask_state)
        if result is not TaskAcknowledgeResult.SUCCESS:
            return result, []
        task = pending.tasks[message.task_execution_id]
        self._report_subtask(message.checkpoint_id, task.vertex, task.subtask, message.checkpoint_metrics)
        return result, self._finalize_if_complete(pending)

    def acknowledge_late(self, message: AcknowledgeCheckpoint, task: CheckpointParticipant | None) -> bool:
        """Keep the metrics of a late acknowledgement, if a known task sent it.

        Returns:
            Whether the checkpoint is one of the last 16 that expired.
        """
        if task is not None:
            self._report_subtask(message.checkpoint_id, task.vertex, task.subtask, message.checkpoint_metrics)
        return message.checkpoint_id in self._expired

    def decline(self, message: DeclineCheckpoint) -> Instructions:
        """Abort the checkpoint that a task declines."""
        if message.checkpoint_id not in self.pending:
            return []
        given_up = self._abort_unless_finalizing(message.checkpoint_id, message.get_reason(), message.task_execution_id)
        return [*given_up, *self._choose(None)]

    def task_failed(self, execution_id: str, error: CheckpointError) -> Instructions:
        """Abort the checkpoints that wait for a failed task."""
        instructions: Instructions = []
        for pending in list(self.pending.values()):
            if any(task.execution_id == execution_id for task in pending.missing_tasks()):
                instructions += self._abort_unless_finalizing(pending.checkpoint_id, error, execution_id)
        return [*instructions, *self._choose(None)]

    def abort(self, checkpoint_id: int, error: CheckpointError) -> Instructions:
        """Abort a checkpoint; does nothing if it is not pending."""
        return [*self._abort_unless_finalizing(checkpoint_id, error, None), *self._choose(None)]

    def abort_all(self, reason: CheckpointFailureReason) -> Instructions:
        """Abort everything that is pending or queued."""
        instructions: Instructions = []
        for request in self._decider.drain():
            instructions += self._reject(request, reason)
        for checkpoint_id in list(self.pending):
            instructions += self._abort_unless_finalizing(checkpoint_id, CheckpointError(reason), None)
        return instructions

    # Completion

    def document_ready(self, pending: PendingCheckpoint, metadata: CheckpointMetadata) -> Instructions:
        """Set the document of a checkpoint that all tasks have acknowledged, as the job master made it."""
        pending.set_document(metadata)
        return self._finalize_if_complete(pending)

    def is_still_needed(self, pending: PendingCheckpoint) -> bool:
        """Return whether an acknowledged checkpoint must still be written: no newer one has completed."""
        return not pending.can_be_subsumed() or pending.checkpoint_id > self._newest_written

    def finalize_not_needed(self, pending: PendingCheckpoint) -> Instructions:
        """Abort a checkpoint because a newer one has completed before it was written."""
        error = CheckpointError(CheckpointFailureReason.CHECKPOINT_SUBSUMED)
        return [*self._abort(pending, error, None), *self._choose(None)]

    def finalized(
        self, pending: PendingCheckpoint, checkpoint: CompletedCheckpoint, subsumed: CompletedCheckpoint | None
    ) -> Instructions:
        """Complete a checkpoint whose document and pointer are written."""
        now = self._clock.now_ms()
        self._forget(pending)
        pending.is_disposed = True
        self._schedule.completed()
        self._statistics.report_completed(
            pending.checkpoint_id,
            now,
            path=checkpoint.path,
            state_size=checkpoint.metadata.state_size,
            new_size=checkpoint.metadata.new_size,
            metadata_size=checkpoint.get_metadata_size(),
        )
        instructions: Instructions = [ReportSuccess(pending.checkpoint_id), Resolve(pending.request, checkpoint)]
        if not pending.properties.is_savepoint() or pending.properties.is_synchronous():
            self.latest_completed_id = max(self.latest_completed_id, pending.checkpoint_id)
            self._newest_written = max(self._newest_written, pending.checkpoint_id)
            instructions += self._subsume_pending(pending.checkpoint_id)
            discarded = subsumed is not None and subsumed.should_be_discarded_on_subsume()
            subsumed_id = subsumed.checkpoint_id if subsumed is not None and discarded else 0
            if subsumed_id:
                self._statistics.report_discarded(subsumed_id)
            instructions.append(NotifyComplete(pending.checkpoint_id, pending.timestamp, subsumed_id))
        return [*instructions, *self._choose(None)]

    def finalize_failed(self, pending: PendingCheckpoint, error: CheckpointError, *, keep_files: bool) -> Instructions:
        """Abort a checkpoint whose document or pointer could not be written.

        Args:
            pending: The checkpoint.
            error: The failure.
            keep_files: Whether it may be complete after all, or another leader took over.
        """
        return [*self._abort(pending, error, None, keep_files=keep_files), *self._choose(None)]

    def _rejection_reason(self, request: CheckpointTriggerRequest) -> CheckpointFailureReason | None:
        if self._is_shut_down:
            return CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN
        if request.is_periodic and not self._schedule.is_on:
            return CheckpointFailureReason.PERIODIC_SCHEDULER_SHUTDOWN
        return None

    def _reject(self, request: CheckpointTriggerRequest, reason: CheckpointFailureReason) -> Instructions:
        error = CheckpointError(reason)
        self._statistics.report_failed_without_in_progress(_name(error))
        return [Reject(request, error), ReportFailure(error, UNKNOWN_CHECKPOINT_ID, request.properties, None)]

    def _choose(self, new: CheckpointTriggerRequest | None) -> Instructions:
        decision = self._decider.choose(
            new,
            is_triggering=self._is_triggering,
            pending=len(self.pending),
            since_last_completion=self._schedule.since_last_completion(),
        )
        instructions: Instructions = []
        for request, reason in decision.rejected:
            instructions += self._reject(request, reason)
        if decision.retry_periodic_after is not None:
            self._schedule.delay_periodic(decision.retry_periodic_after)
        if decision.chosen is None:
            return instructions
        refusal = self._rejection_reason(decision.chosen)
        if refusal is not None:
            return [*instructions, *self._reject(decision.chosen, refusal), *self._choose(None)]
        self._is_triggering = True
        return [*instructions, TriggerTasks(decision.chosen)]

    def _finalize_if_complete(self, pending: PendingCheckpoint) -> Instructions:
        awaits_document = pending.request.epoch_end is not None and pending.metadata is None
        is_ready = pending.is_triggered and pending.is_fully_acknowledged() and not awaits_document
        if is_ready and not pending.is_finalizing:
            pending.is_finalizing = True
            self._schedule.end(pending.checkpoint_id)
            return [Finalize(pending)]
        return []

    def _subsume_pending(self, checkpoint_id: int) -> Instructions:
        instructions: Instructions = []
        for pending in list(self.pending.values()):
            if pending.checkpoint_id < checkpoint_id and pending.can_be_subsumed():
                error = CheckpointError(CheckpointFailureReason.CHECKPOINT_SUBSUMED)
                instructions += self._abort_unless_finalizing(pending.checkpoint_id, error, None)
        return instructions

    def _abort_unless_finalizing(
        self, checkpoint_id: int, error: CheckpointError, execution_id: str | None
    ) -> Instructions:
        """Abort a checkpoint, unless it is being written: then the result of the write decides."""
        pending = self.pending.get(checkpoint_id)
        return [] if pending is None or pending.is_finalizing else self._abort(pending, error, execution_id)

    def _abort(
        self, pending: PendingCheckpoint, error: CheckpointError, execution_id: str | None, *, keep_files: bool = False
    ) -> Instructions:
        pending.abort(error)
        self._forget(pending)
        self._statistics.report_failed(
            pending.checkpoint_id, self._clock.now_ms(), redacted_message(error), _name(error)
        )
        instructions: Instructions = [] if keep_files else [DiscardLocation(pending)]
        return [
            *instructions,
            Reject(pending.request, error),
            ReportFailure(error, pending.checkpoint_id, pending.properties, execution_id),
            NotifyAborted(pending.checkpoint_id, pending.timestamp, self.latest_completed_id),
        ]

    def _forget(self, pending: PendingCheckpoint) -> None:
        self.pending.pop(pending.checkpoint_id, None)
        self._schedule.end(pending.checkpoint_id)

    def _report_subtask(self, checkpoint_id: int, vertex: str, subtask: int, metrics: CheckpointMetrics) -> None:
        self._statistics.report_subtask(checkpoint_id, vertex, subtask, metrics, self._clock.now_ms())


def _name(error: CheckpointError) -> str:
    return UNKNOWN if error.reason is None else error.reason.name
