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

import random
from collections import deque
from dataclasses import dataclass
from typing import Final

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.config import NEVER, CoordinatorConfiguration
from holdfast.checkpoint.messages import AcknowledgeCheckpoint, CheckpointMetrics, DeclineCheckpoint
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.checkpoint.pending_checkpoint import (
    CheckpointParticipant,
    CheckpointRequestDecider,
    CheckpointTriggerRequest,
    EpochEnd,
    PendingCheckpoint,
    TaskAcknowledgeResult,
)
from holdfast.checkpoint.snapshot_type import CheckpointProperties
from holdfast.checkpoint.statistics import UNKNOWN, CheckpointStatsTracker
from holdfast.errors import CheckpointError, CheckpointFailureReason
from holdfast.kernel.clock import Clock
from holdfast.kernel.secret import redacted_message

UNKNOWN_CHECKPOINT_ID: Final = -1
_REMEMBERED_EXPIRED: Final = 16


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


Instructions = list[Instruction]


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
