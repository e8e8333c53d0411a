"""`CheckpointCoordinator`: triggers checkpoints, collects acknowledgements, completes.

Tasks are `ExecutionVertex` objects, which are triggered and acknowledge::

    coordinator = CheckpointCoordinator(job_id, config, tasks, tasks, tasks, None, counter, store, None, None, failures)
    coordinator.start_checkpoint_scheduler()
    future = coordinator.trigger_checkpoint(CheckpointProperties.for_checkpoint(policy), None, False)
    coordinator.receive_acknowledge_message(AcknowledgeCheckpoint(job_id, "task-0", 1))
    future.result().get_external_pointer()

A job master takes checkpoints at the ends of epochs, in its own thread::

    coordinator = CheckpointCoordinator.for_epochs(Wiring.of_lease(lease, directory, configuration, failures))
    if pending := coordinator.begin(epoch, tasks):              # None: no checkpoint is due
        for task in tasks:
            coordinator.acknowledge(pending, task.execution_id)
        completed = coordinator.complete(pending, metadata)     # document, then pointer: the commit point

A savepoint is begun in the same way (`properties=CheckpointProperties.for_savepoint()`). It is written to
`pending.location`, with paths relative to it, and gets no pointer.

`checkpoint/protocol.py` decides, `checkpoint/instruction_executor.py` does the I/O.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.config import CheckpointConfig
from holdfast.checkpoint.failure_manager import CheckpointFailureManager
from holdfast.checkpoint.instruction_executor import (
    ExecutionJobVertex,
    InstructionExecutor,
    Vertices,
    Wiring,
    restore_vertices,
)
from holdfast.checkpoint.master_hook import MasterTriggerRestoreHook
from holdfast.checkpoint.messages import AcknowledgeCheckpoint, CheckpointMetrics, DeclineCheckpoint, ExecutionVertex
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.checkpoint.pending_checkpoint import EpochEnd, PendingCheckpoint, Task, TaskAcknowledgeResult
from holdfast.checkpoint.protocol import CheckpointProtocol
from holdfast.checkpoint.snapshot_type import CheckpointProperties, SavepointFormatType
from holdfast.checkpoint.statistics import RestoredStats, StatsSnapshot
from holdfast.checkpoint.store import CheckpointIDCounter, CompletedCheckpointStore
from holdfast.errors import (
    CheckpointError,
    CheckpointFailureReason,
    FencedError,
    PossibleInconsistentStateError,
    StateError,
)
from holdfast.kernel.clock import Clock
from holdfast.kernel.ids import JobID
from holdfast.kernel.secret import get_logger

# The thread that wakes a coordinator nobody drives: for periodic checkpoints and for those that take too long.


class CoordinatorTimer:
    """Calls back when the next deadline has come.

    Args:
        clock: Time.
        next_deadline: Returns the next deadline in milliseconds of monotonic time, None for none.
        poll: Does what is due.
    """

    def __init__(self, clock: Clock, next_deadline: Callable[[], int | None], poll: Callable[[], None]) -> None:
        self._clock = clock
        self._next_deadline = next_deadline
        self._poll = poll
        self._wake = threading.Event()
        self._is_closed = False
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def notify(self) -> None:
        """The next deadline may have changed; starts the thread if there is one to wait for."""
        with self._starting:
            if self._thread is None and not self._is_closed and self._next_deadline() is not None:
                self._thread = threading.Thread(target=self._run, name="holdfast-checkpoint-timer", daemon=True)
                self._thread.start()
        self._wake.set()

    def close(self) -> None:
        """End the thread; does not wait for it."""
        self._is_closed = True
        self._wake.set()

    def _run(self) -> None:
        while not self._is_closed:
            self._wake.clear()
            deadline = self._next_deadline()
            if deadline is None:
                self._wake.wait()
            elif (left := deadline / 1000 - self._clock.monotonic()) > 0:
                self._clock.sleep(left, self._wake)
            elif not self._is_closed:
                # Only when something is due: polling notifies, and would wake this thread for ever.
                self._poll()


_log = get_logger(__name__)


class CheckpointCoordinator:
    """Coordinates the checkpoints of one job. Safe to use from several threads.

    Args:
        job: The job.
        chk_config: The options, and the storage if the program chose one.
        tasks_to_trigger: Tasks that are asked for a checkpoint.
        tasks_to_wait_for: Tasks that must acknowledge.
        tasks_to_commit_to: Tasks that are told what became of it.
        user_class_loader: Without meaning in Python; ignored.
        checkpoint_id_counter: Hands out ids.
        completed_checkpoint_store: Keeps completed checkpoints.
        checkpoint_state_backend: A backend, which may name the storage as older ones did; else it is ignored.
        executor: Where I/O is done; None for the thread that brings the event.
        failure_manager: Decides when failures fail the job.
        clock: Time.
    """

    def __init__(
        self,
        job: JobID,
        chk_config: CheckpointConfig,
        tasks_to_trigger: Sequence[ExecutionVertex],
        tasks_to_wait_for: Sequence[ExecutionVertex],
        tasks_to_commit_to: Sequence[ExecutionVertex],
        user_class_loader: object,
        checkpoint_id_counter: CheckpointIDCounter,
        completed_checkpoint_store: CompletedCheckpointStore,
        checkpoint_state_backend: object,
        executor: Executor | None,
        failure_manager: CheckpointFailureManager,
        *,
        clock: Clock | None = None,
    ) -> None:
        wiring = Wiring.of_program(
            job,
            chk_config,
            checkpoint_id_counter,
            completed_checkpoint_store,
            checkpoint_state_backend,
            executor,
            failure_manager,
            clock,
        )
        vertices = Vertices(tuple(tasks_to_trigger), tuple(tasks_to_wait_for), tuple(tasks_to_commit_to))
        self._assemble(wiring, vertices, for_epochs=False)

    @classmethod
    def for_epochs(cls, wiring: Wiring) -> CheckpointCoordinator:
        """Return the coordinator of a job attempt, which one thread calls at the ends of epochs.

        It triggers no tasks and has no thread: `begin` names the epoch that has ended and the tasks that must
        acknowledge. Requests of other threads wait in the job's `JobControl`.
        """
        coordinator = cls.__new__(cls)
        coordinator._assemble(wiring, Vertices(), for_epochs=True)
        return coordinator

    def _assemble(self, wiring: Wiring, vertices: Vertices, *, for_epochs: bool) -> None:
        self._wiring = wiring
        self._vertices = vertices
        self.job, self.master_hooks = wiring.job, wiring.hooks
        self.master_hooks.timeout = wiring.configuration.timeout / 1000
        self.statistics = wiring.statistics
        self._protocol = CheckpointProtocol(wiring.configuration, wiring.clock, wiring.statistics, is_on=for_epochs)
        self._protocol.latest_completed_id = wiring.store.get_latest_checkpoint_id()
        self._lock = threading.RLock()
        self._executor = InstructionExecutor(self._protocol, self._lock, wiring, vertices, self._notify_timer)
        self._timer = None if for_epochs else CoordinatorTimer(wiring.clock, self._next_deadline, self.poll)
        wiring.counter.start()

    # Asking for checkpoints

    def start_checkpoint_scheduler(self) -> None:
        """Begin to take periodic checkpoints."""
        self._require_own_tasks()
        if self._wiring.configuration.interval > 0:
            self._wiring.storage.initialize_base_locations_for_checkpoint()
        self._executor.handle_event(self._protocol.start_scheduler)

    def stop_checkpoint_scheduler(self) -> None:
        """End periodic checkpoints and give up those that are under way or wait."""
        self._executor.handle_event(self._protocol.stop_scheduler)

    def trigger_checkpoint(
        self,
        props: CheckpointProperties | None = None,
        external_savepoint_location: str | None = None,
        is_periodic: bool = False,
    ) -> Future[CompletedCheckpoint]:
        """Ask for a checkpoint or savepoint; does not block.

        Returns:
            A future of it; it fails with a `CheckpointError`.
        """
        self._require_own_tasks()
        request = self._protocol.new_request(props, external_savepoint_location, is_periodic=is_periodic)
        self._executor.handle_event(self._protocol.request, request)
        return request.future

    def trigger_savepoint(
        self, target_location: str | None, format_type: SavepointFormatType = SavepointFormatType.CANONICAL
    ) -> Future[CompletedCheckpoint]:
        """Ask for a savepoint, which nothing delays but another one that is being triggered."""
        return self.trigger_checkpoint(CheckpointProperties.for_savepoint(True, format_type), target_location)

    def trigger_synchronous_savepoint(
        self,
        terminate: bool,
        target_location: str | None,
        format_type: SavepointFormatType = SavepointFormatType.CANONICAL,
    ) -> Future[CompletedCheckpoint]:
        """Ask for the savepoint with which the job stops; `terminate` drains it first."""
        return self.trigger_checkpoint(
            CheckpointProperties.for_sync_savepoint(True, terminate, format_type), target_location
        )

    # Messages of tasks

    def receive_acknowledge_message(self, message: AcknowledgeCheckpoint) -> bool:
        """Take an acknowledgement.

        Returns:
            Whether it was for a checkpoint under way, or for one that expired lately; False for another job's.
        """
        if message.job != self.job:
            _log.warning("Acknowledgement of job %s came to job %s; ignored.", message.job, self.job)
            return False
        with self._lock:
            is_pending = message.checkpoint_id in self._protocol.pending
            result, instructions = self._protocol.acknowledge(message)
            self._executor.append(instructions)
            accepted = is_pending or self._protocol.late(message, self._vertices.find(message.task_execution_id))
        if result is not TaskAcknowledgeResult.SUCCESS:
            # Run files that nobody names are left to the sweep, which knows what else names them.
            _log.info(
                "Acknowledgement of task %r for checkpoint %d does not count: %s.",
                message.task_execution_id,
                message.checkpoint_id,
                result.value,
            )
        self._executor.drain()
        return accepted

    def receive_decline_message(self, message: DeclineCheckpoint) -> None:
        """Take a refusal: the checkpoint is given up.

        Raises:
            ValueError: It is another job's.
        """
        if message.job != self.job:
            raise ValueError(f"Received a decline of job {message.job} in the coordinator of job {self.job}.")
        self._executor.handle_event(self._protocol.decline, message)

    def fail_unacknowledged_pending_checkpoints_for(
        self, execution_id: str, cause: CheckpointError | None = None
    ) -> None:
        """Give up the checkpoints that wait for a task which has died.

        Args:
            execution_id: The attempt that died.
            cause: Why; by default that it died during the checkpoint, whatever it had written.
        """
        error = cause or CheckpointError(CheckpointFailureReason.TASK_FAILURE_DURING_CHECKPOINT)
        self._executor.handle_event(self._protocol.task_failed, execution_id, error)

    # The ends of epochs

    def is_due(self, epoch: int) -> bool:
        """Whether a periodic checkpoint is due at the end of an epoch."""
        with self._lock:
            return self._protocol.is_periodic_due(epoch)

    def begin(
        self,
        epoch: int,
        tasks: Iterable[Task] = (),
        *,
        force: bool = False,
        properties: CheckpointProperties | None = None,
        external_location: str | None = None,
    ) -> PendingCheckpoint | None:
        """Begin a snapshot at the end of an epoch. Blocks for I/O if ids must be reserved.

        Args:
            epoch: The epoch.
            tasks: The tasks that must acknowledge; may be empty.
            force: Whether to begin a checkpoint also if none is due.
            properties: What to begin; None for a checkpoint as configured, if one is due.
            external_location: Directory of a savepoint; None for the configured one.

        Returns:
            The checkpoint under way; None if none is due.

        Raises:
            FencedError: Another leader took over.
            PossibleInconsistentStateError: It is not known whether ids were reserved.
            CheckpointError: It could not be triggered.
        """
        self.poll()
        is_periodic = properties is None and not force
        if is_periodic and not self.is_due(epoch):
            return None
        end = EpochEnd(epoch, tuple(tasks))
        request = self._protocol.new_request(properties, external_location, is_periodic=is_periodic, epoch_end=end)
        self._executor.handle_event(self._protocol.trigger_at_epoch_end, request)
        if request.future.done():  # it failed at once
            error = request.future.exception()
            assert isinstance(error, CheckpointError)
            _raise_cause(error)
            raise error
        return next(pending for pending in self._protocol.pending.values() if pending.request is request)

    def acknowledge(
        self, pending: PendingCheckpoint, execution_id: str, metrics: CheckpointMetrics | None = None
    ) -> bool:
        """Take the acknowledgement of a task; returns whether the checkpoint is still under way or expired lately."""
        return self.receive_acknowledge_message(
            AcknowledgeCheckpoint(self.job, execution_id, pending.checkpoint_id, metrics or CheckpointMetrics())
        )

    def complete(self, pending: PendingCheckpoint, metadata: CheckpointMetadata) -> CompletedCheckpoint:
        """Write a checkpoint that all tasks have acknowledged: its document, then its pointer. Blocks.

        What the document says of its kind and of the master hooks is filled in.

        Raises:
            StateError: Not all tasks have acknowledged, or the document is another checkpoint's.
            FencedError: Another leader took over; the checkpoint is not complete.
            PossibleInconsistentStateError: It is not known whether it is complete; raise the token and look.
            CheckpointError: It is not complete: it took too long, was aborted, or could not be written.
        """
        self.poll()
        self._executor.handle_event(self._protocol.described, pending, metadata)
        try:
            return pending.request.future.result()
        except CheckpointError as error:
            _raise_cause(error)
            raise

    def abort(self, pending: PendingCheckpoint, error: CheckpointError) -> None:
        """Give up a checkpoint; nothing happens if it is not under way."""
        self._executor.handle_event(self._protocol.abort, pending.checkpoint_id, error)

    # What there is

    def restore_latest_checkpointed_state(
        self,
        tasks: Mapping[Any, ExecutionJobVertex],
        error_if_no_checkpoint: bool = False,
        all_or_nothing_state: bool = True,
    ) -> bool:
        """Give tasks and hooks the state of the newest completed checkpoint.

        Args:
            tasks: The vertices, by id.
            error_if_no_checkpoint: Whether it is an error if there is none.
            all_or_nothing_state: Whether it is an error if state of the checkpoint finds nobody to take it.

        Returns:
            Whether there was one.

        Raises:
            StateError: There is none, and that is an error.
            RestoreError: It holds state of operators that are not among the tasks, and that is not allowed.
        """
        checkpoint = self._wiring.store.get_latest_checkpoint()
        if checkpoint is None:
            if error_if_no_checkpoint:
                raise StateError("No completed checkpoint available, so there is nothing to restore.")
            self.master_hooks.reset()
            return False
        restore_vertices(checkpoint, tasks, allow_non_restored=not all_or_nothing_state)
        self.master_hooks.restore(
            checkpoint.checkpoint_id,
            checkpoint.metadata.master_states,
            allow_unmatched=not all_or_nothing_state,
            path=checkpoint.path,
        )
        self.statistics.report_restored(
            RestoredStats(checkpoint.checkpoint_id, checkpoint.properties, self._wiring.clock.now_ms(), checkpoint.path)
        )
        return True

    def add_master_hook(self, hook: MasterTriggerRestoreHook[Any]) -> bool:
        """Add a hook; returns False if there is one of that name."""
        return self.master_hooks.add(hook)

    def get_pending_checkpoints(self) -> dict[int, PendingCheckpoint]:
        """Return the checkpoints under way, by id."""
        with self._lock:
            return dict(self._protocol.pending)

    def get_number_of_pending_checkpoints(self) -> int:
        """Return how many checkpoints are under way."""
        return len(self._protocol.pending)

    def get_successful_checkpoints(self) -> list[CompletedCheckpoint]:
        """Return the retained checkpoints, the newest last."""
        return self._wiring.store.get_all_checkpoints()

    def get_checkpoint_store(self) -> CompletedCheckpointStore:
        """Return the store of completed checkpoints."""
        return self._wiring.store

    def get_checkpoint_id_counter(self) -> CheckpointIDCounter:
        """Return the counter of ids."""
        return self._wiring.counter

    def get_statistics(self) -> StatsSnapshot:
        """Return the statistics of this moment."""
        return self.statistics.create_snapshot()

    def poll(self) -> None:
        """Expire checkpoints and trigger the periodic one if it is due; called by the coordinator's own thread."""
        self._executor.handle_event(self._protocol.timer)

    def shutdown(self) -> None:
        """End everything: nothing is triggered any more, what is under way is given up."""
        if self._timer is not None:
            self._timer.close()
        self._executor.handle_event(self._protocol.shutdown)
        self.master_hooks.close()

    def _require_own_tasks(self) -> None:
        if self._timer is None:
            raise StateError("This coordinator takes snapshots at the ends of epochs: call begin(), or ask the job.")

    def _next_deadline(self) -> int | None:
        with self._lock:
            return self._protocol.next_deadline()

    def _notify_timer(self) -> None:
        if self._timer is not None:
            self._timer.notify()


def _raise_cause(error: CheckpointError) -> None:
    """Raise what made a checkpoint fail if it says something about the leader, and not only about the checkpoint."""
    cause = error.__cause__
    if isinstance(cause, FencedError | PossibleInconsistentStateError):
        raise cause from error
