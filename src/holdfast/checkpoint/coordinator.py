"""`CheckpointCoordinator`: triggers checkpoints, collects acknowledgements, completes.

Tasks are `ExecutionVertex` objects, which are triggered and acknowledge::

    coordinator = CheckpointCoordinator(job_id, config, tasks, tasks, tasks, None, counter, store, None, None, failures)
    coordinator.start_checkpoint_scheduler()
    future = coordinator.trigger_checkpoint(CheckpointProperties.for_checkpoint(policy), None, False)
    coordinator.receive_acknowledge_message(AcknowledgeCheckpoint(job_id, "task-0", 1))
    future.result().get_external_pointer()

A job attempt takes checkpoints at the ends of epochs, in its own thread; `EpochCheckpoints` calls the coordinator
(`runtime/commit/checkpointing.py`)::

    services = CoordinatorServices.for_job_attempt(writer, directory, configuration, failures)
    coordinator = CheckpointCoordinator.for_epochs(services)
    if pending := coordinator.begin(epoch, tasks):              # None: no checkpoint is due
        for task in tasks:
            coordinator.acknowledge(pending, task.execution_id)
        completed = coordinator.complete(pending, metadata)     # document, then pointer: the commit point

In a real-time job `begin` is called before the barrier that ends the epoch is sent, and the tasks acknowledge before
the epoch is accepted. The real-time engine triggers by the interval itself, so `is_due` is only for jobs by epochs.

A savepoint is begun in the same way (`properties=CheckpointProperties.for_savepoint()`). It is written to
`pending.location`, with paths relative to it, and gets no pointer.

`checkpoint/checkpoint_machine.py` decides, `checkpoint/instruction_executor.py` does the I/O: its `write_checkpoint`
writes the document, and the store in `checkpoint/completed_checkpoint.py` the pointer into the job's register
(`storage/register.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from holdfast.checkpoint.checkpoint_machine import (
    CheckpointMachine,
    CheckpointParticipant,
    EpochEnd,
    PendingCheckpoint,
    TaskAcknowledgeResult,
)
from holdfast.checkpoint.completed_checkpoint import CheckpointIDCounter, CompletedCheckpoint, CompletedCheckpointStore
from holdfast.checkpoint.config import CheckpointConfig
from holdfast.checkpoint.instruction_executor import (
    CheckpointFailureManager,
    CoordinatorServices,
    ExecutionJobVertex,
    InstructionExecutor,
    Vertices,
    restore_vertices,
)
from holdfast.checkpoint.master_hook import MasterTriggerRestoreHook
from holdfast.checkpoint.messages import AcknowledgeCheckpoint, CheckpointMetrics, DeclineCheckpoint, ExecutionVertex
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.checkpoint.snapshot_type import CheckpointProperties, SavepointFormatType
from holdfast.checkpoint.statistics import RestoredStats, StatsSnapshot
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

logger = get_logger(__name__)


class CoordinatorTimer:
    """Thread of a coordinator that triggers its own tasks: wakes it for periodic checkpoints and for timeouts.

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
        """Look at the deadlines again; starts the thread if there is something to wait for."""
        with self._starting:
            if self._thread is None and not self._is_closed and self._next_deadline() is not None:
                self._thread = threading.Thread(target=self._run, name="holdfast-checkpoint-timer", daemon=True)
                self._thread.start()
        self._wake.set()

    def close(self) -> None:
        """End the thread without waiting for it."""
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


class CheckpointCoordinator:
    """Coordinates the checkpoints of one job. Safe to use from several threads.

    Args:
        job: The job.
        chk_config: The options, and the storage if the program chose one.
        tasks_to_trigger: Tasks that are triggered.
        tasks_to_wait_for: Tasks that must acknowledge.
        tasks_to_commit_to: Tasks that are notified of the result.
        user_class_loader: Without meaning in Python; ignored.
        checkpoint_id_counter: Counter of checkpoint ids.
        completed_checkpoint_store: Store of completed checkpoints.
        checkpoint_state_backend: A legacy backend chooses the storage; any other is ignored.
        executor: Runs the I/O; None for the thread that brings an event.
        failure_manager: Decides when failed checkpoints fail the job.
        clock: Time.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the parameters of Flink's constructor
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
        services = CoordinatorServices.of_program(
            job,
            chk_config,
            checkpoint_id_counter,
            completed_checkpoint_store,
            checkpoint_state_backend,
            executor=executor,
            failures=failure_manager,
            clock=clock,
        )
        vertices = Vertices(tuple(tasks_to_trigger), tuple(tasks_to_wait_for), tuple(tasks_to_commit_to))
        self._assemble(services, vertices, for_epochs=False)

    @classmethod
    def for_epochs(cls, services: CoordinatorServices) -> CheckpointCoordinator:
        """Return the coordinator of a job attempt, which one thread calls.

        It triggers no tasks and has no thread: `begin` names the epoch and the tasks that must acknowledge. Requests of
        other threads wait in the job's `JobControl`.
        """
        coordinator = cls.__new__(cls)
        coordinator._assemble(services, Vertices(), for_epochs=True)
        return coordinator

    def _assemble(self, services: CoordinatorServices, vertices: Vertices, *, for_epochs: bool) -> None:
        self._services = services
        self._vertices = vertices
        self.job, self.master_hooks = services.job, services.hooks
        self.master_hooks.timeout = services.configuration.timeout / 1000
        self.statistics = services.statistics
        self._machine = CheckpointMachine(services.configuration, services.clock, services.statistics, is_on=for_epochs)
        self._machine.latest_completed_id = services.store.get_latest_checkpoint_id()
        self._lock = threading.RLock()
        self._instructions = InstructionExecutor(self._machine, self._lock, services, vertices, self._notify_timer)
        self._timer = None if for_epochs else CoordinatorTimer(services.clock, self._next_deadline, self.poll)
        services.counter.start()

    # Requests

    def start_checkpoint_scheduler(self) -> None:
        """Begin to take periodic checkpoints.

        Raises:
            CheckpointError: The coordinator was shut down.
            StateError: The coordinator takes checkpoints at the ends of epochs.
            StorageError: The directories of checkpoints cannot be made.
        """
        self._require_own_tasks()
        if self._services.configuration.interval > 0:
            self._services.storage.initialize_base_locations_for_checkpoint()
        self._instructions.handle_event(self._machine.start_scheduler)

    def stop_checkpoint_scheduler(self) -> None:
        """Stop periodic checkpoints and abort the ones that are pending or queued."""
        self._instructions.handle_event(self._machine.stop_scheduler)

    def trigger_checkpoint(
        self,
        props: CheckpointProperties | None = None,
        external_savepoint_location: str | None = None,
        is_periodic: bool = False,
    ) -> Future[CompletedCheckpoint]:
        """Request a checkpoint or savepoint. Does not block.

        Args:
            props: Kind of the snapshot; None for a checkpoint as configured.
            external_savepoint_location: Directory of a savepoint; None for the configured one.
            is_periodic: Whether the scheduler requests it; such a request respects the minimum pause.

        Returns:
            A future of the completed checkpoint; it fails with a `CheckpointError`.

        Raises:
            StateError: The coordinator takes checkpoints at the ends of epochs.
        """
        self._require_own_tasks()
        request = self._machine.new_request(props, external_savepoint_location, is_periodic=is_periodic)
        self._instructions.handle_event(self._machine.request, request)
        return request.future

    def trigger_savepoint(
        self, target_location: str | None, format_type: SavepointFormatType = SavepointFormatType.CANONICAL
    ) -> Future[CompletedCheckpoint]:
        """Request a savepoint, which waits only for another one that is being triggered. Does not block.

        Args:
            target_location: Directory of the savepoint; None for the configured one.
            format_type: Format that the savepoint's document states.

        Returns:
            A future of the completed savepoint; it fails with a `CheckpointError`.
        """
        return self.trigger_checkpoint(CheckpointProperties.for_savepoint(True, format_type), target_location)

    def trigger_synchronous_savepoint(
        self,
        terminate: bool,
        target_location: str | None,
        format_type: SavepointFormatType = SavepointFormatType.CANONICAL,
    ) -> Future[CompletedCheckpoint]:
        """Request the savepoint with which the job stops. Does not block.

        Args:
            terminate: Whether sources and timers are drained first.
            target_location: Directory of the savepoint; None for the configured one.
            format_type: Format that the savepoint's document states.

        Returns:
            A future of the completed savepoint; it fails with a `CheckpointError`.
        """
        return self.trigger_checkpoint(
            CheckpointProperties.for_sync_savepoint(True, terminate, format_type), target_location
        )

    # Messages of tasks

    def receive_acknowledge_message(self, message: AcknowledgeCheckpoint) -> bool:
        """Count the acknowledgement of a task.

        Returns:
            Whether the checkpoint is pending or has expired recently; False for a message of another job.
        """
        if message.job != self.job:
            logger.warning("Ignored an acknowledgement of job %s in the coordinator of job %s.", message.job, self.job)
            return False
        with self._lock:
            is_pending = message.checkpoint_id in self._machine.pending
            result, instructions = self._machine.acknowledge(message)
            self._instructions.append(instructions)
            accepted = is_pending or self._machine.acknowledge_late(
                message, self._vertices.find(message.task_execution_id)
            )
        if result is not TaskAcknowledgeResult.SUCCESS:
            # Its run files are left to the sweep, which knows what else refers to them.
            logger.info(
                "Ignored the acknowledgement of task %r for checkpoint %d: %s.",
                message.task_execution_id,
                message.checkpoint_id,
                result.value,
            )
        self._instructions.drain()
        return accepted

    def receive_decline_message(self, message: DeclineCheckpoint) -> None:
        """Abort the checkpoint that a task declines.

        Raises:
            ValueError: The message belongs to another job.
        """
        if message.job != self.job:
            raise ValueError(f"Received a decline of job {message.job} in the coordinator of job {self.job}.")
        self._instructions.handle_event(self._machine.decline, message)

    def fail_unacknowledged_pending_checkpoints_for(
        self, execution_id: str, cause: CheckpointError | None = None
    ) -> None:
        """Abort the checkpoints that wait for a failed task.

        Args:
            execution_id: The attempt that failed.
            cause: The reason; None for TASK_FAILURE_DURING_CHECKPOINT.
        """
        error = cause or CheckpointError(CheckpointFailureReason.TASK_FAILURE_DURING_CHECKPOINT)
        self._instructions.handle_event(self._machine.task_failed, execution_id, error)

    # The ends of epochs

    def is_due(self, epoch: int) -> bool:
        """Return whether a periodic checkpoint is due at the end of an epoch, in a job by epochs."""
        with self._lock:
            return self._machine.is_periodic_due(epoch)

    def begin(
        self,
        epoch: int,
        tasks: Iterable[CheckpointParticipant] = (),
        *,
        force: bool = False,
        properties: CheckpointProperties | None = None,
        external_location: str | None = None,
    ) -> PendingCheckpoint | None:
        """Begin the snapshot of an epoch. Blocks for I/O if ids must be reserved.

        Args:
            epoch: The epoch.
            tasks: The tasks that must acknowledge; may be empty.
            force: Whether to begin a checkpoint also if none is due.
            properties: The kind of snapshot; None for a checkpoint as configured, if one is due.
            external_location: Directory of a savepoint; None for the configured one.

        Returns:
            The pending checkpoint; None if none is due.

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
        request = self._machine.new_request(properties, external_location, is_periodic=is_periodic, epoch_end=end)
        self._instructions.handle_event(self._machine.trigger_at_epoch_end, request)
        if request.future.done():  # it failed at once
            error = request.future.exception()
            assert isinstance(error, CheckpointError)
            _raise_cause(error)
            raise error
        return next(pending for pending in self._machine.pending.values() if pending.request is request)

    def acknowledge(
        self, pending: PendingCheckpoint, execution_id: str, metrics: CheckpointMetrics | None = None
    ) -> bool:
        """Count the acknowledgement of a task; returns whether the checkpoint is pending or has expired recently."""
        return self.receive_acknowledge_message(
            AcknowledgeCheckpoint(self.job, execution_id, pending.checkpoint_id, metrics or CheckpointMetrics())
        )

    def complete(self, pending: PendingCheckpoint, metadata: CheckpointMetadata) -> CompletedCheckpoint:
        """Write a checkpoint that all tasks have acknowledged: its document, then its pointer. Blocks.

        The kind of snapshot and the state of master hooks are added to the document.

        Raises:
            StateError: An acknowledgement is missing, or the document belongs to another checkpoint.
            FencedError: Another leader took over; the checkpoint is not complete.
            PossibleInconsistentStateError: It is not known whether it is complete; raise the token and read the
                register.
            CheckpointError: It is not complete: it expired, was aborted, or could not be written.
        """
        self.poll()
        self._instructions.handle_event(self._machine.document_ready, pending, metadata)
        try:
            return pending.request.future.result()
        except CheckpointError as error:
            _raise_cause(error)
            raise

    def abort(self, pending: PendingCheckpoint, error: CheckpointError) -> None:
        """Abort a pending checkpoint; does nothing if it is not pending."""
        self._instructions.handle_event(self._machine.abort, pending.checkpoint_id, error)

    # State

    def restore_latest_checkpointed_state(
        self,
        tasks: Mapping[Any, ExecutionJobVertex],
        error_if_no_checkpoint: bool = False,
        all_or_nothing_state: bool = True,
    ) -> bool:
        """Restore tasks and hooks from the newest completed checkpoint.

        Args:
            tasks: The vertices, by id.
            error_if_no_checkpoint: Whether to raise if there is no checkpoint.
            all_or_nothing_state: Whether to raise if state of the checkpoint has no vertex.

        Returns:
            Whether there was a checkpoint.

        Raises:
            StateError: There is no checkpoint, and `error_if_no_checkpoint` is set.
            RestoreError: The checkpoint has state of operators that are not among the tasks, and that is not allowed.
        """
        checkpoint = self._services.store.get_latest_checkpoint()
        if checkpoint is None:
            if error_if_no_checkpoint:
                raise StateError("There is no completed checkpoint to restore from.")
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
            RestoredStats(
                checkpoint.checkpoint_id, checkpoint.properties, self._services.clock.now_ms(), checkpoint.path
            )
        )
        return True

    def add_master_hook(self, hook: MasterTriggerRestoreHook[Any]) -> bool:
        """Add a hook; returns False if another hook has its name."""
        return self.master_hooks.add(hook)

    def get_pending_checkpoints(self) -> dict[int, PendingCheckpoint]:
        """Return the pending checkpoints, by id."""
        with self._lock:
            return dict(self._machine.pending)

    def get_number_of_pending_checkpoints(self) -> int:
        """Return the number of pending checkpoints."""
        return len(self._machine.pending)

    def get_successful_checkpoints(self) -> list[CompletedCheckpoint]:
        """Return the retained checkpoints, the newest last."""
        return self._services.store.get_all_checkpoints()

    def get_checkpoint_store(self) -> CompletedCheckpointStore:
        """Return the store of completed checkpoints."""
        return self._services.store

    def get_checkpoint_id_counter(self) -> CheckpointIDCounter:
        """Return the counter of ids."""
        return self._services.counter

    def get_statistics(self) -> StatsSnapshot:
        """Return a snapshot of the statistics."""
        return self.statistics.create_snapshot()

    def poll(self) -> None:
        """Expire checkpoints and trigger the periodic one if it is due; called by the coordinator's own thread."""
        self._instructions.handle_event(self._machine.on_timer)

    def shutdown(self) -> None:
        """Trigger nothing more and abort the pending checkpoints."""
        if self._timer is not None:
            self._timer.close()
        self._instructions.handle_event(self._machine.shutdown)
        self.master_hooks.close()

    def _require_own_tasks(self) -> None:
        if self._timer is None:
            raise StateError(
                "This coordinator takes snapshots at the ends of epochs: call begin(), or request a "
                "checkpoint from the job."
            )

    def _next_deadline(self) -> int | None:
        with self._lock:
            return self._machine.next_deadline()

    def _notify_timer(self) -> None:
        if self._timer is not None:
            self._timer.notify()


def _raise_cause(error: CheckpointError) -> None:
    """Raise the cause of a failed checkpoint if it is about the leader and not only about this checkpoint."""
    cause = error.__cause__
    if isinstance(cause, FencedError | PossibleInconsistentStateError):
        raise cause from error
