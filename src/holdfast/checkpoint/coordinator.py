"""`CheckpointCoordinator`: triggers checkpoints, collects acknowledgements, completes.

Tasks are `ExecutionVertex` objects, which are triggered and acknowledge::

    coordinator = CheckpointCoordinator(job_id, config, tasks, tasks, tasks, None, counter, store, None, None, failures)
    coordinator.start_checkpoint_scheduler()
    future = coordinator.trigger_checkpoint(CheckpointProperties.for_checkpoint(policy), None, False)
    coordinator.receive_acknowledge_message(AcknowledgeCheckpoint(job_id, "task-0", 1))
    future.result().get_external_pointer()

A job master drives one epoch by epoch: `holdfast.checkpoint.epoch_coordinator`. The state machine is
`holdfast.checkpoint.protocol`; what it asks for is carried out by `holdfast.checkpoint.performer`.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.completed_store import CompletedCheckpointStore
from holdfast.checkpoint.config import CheckpointConfig, CoordinatorConfiguration
from holdfast.checkpoint.failure import CheckpointFailureManager
from holdfast.checkpoint.id_counter import CheckpointIDCounter
from holdfast.checkpoint.master_hook import MasterHooks, MasterTriggerRestoreHook
from holdfast.checkpoint.options import CHECKPOINTS_HISTORY, CREATE_CHECKPOINT_SUBDIR
from holdfast.checkpoint.pending_checkpoint import PendingCheckpoint, TaskAcknowledgeResult
from holdfast.checkpoint.performer import Performer, Plan, Surroundings
from holdfast.checkpoint.protocol import CheckpointProtocol
from holdfast.checkpoint.snapshot_type import CheckpointProperties, SavepointFormatType
from holdfast.checkpoint.statistics import CheckpointStatsTracker, RestoredStats, StatsSnapshot
from holdfast.checkpoint.storage import (
    CheckpointStorage,
    CheckpointStorageAccess,
    FileSystemCheckpointStorage,
    JobManagerCheckpointStorage,
)
from holdfast.checkpoint.timer import CoordinatorTimer
from holdfast.checkpoint.trigger import AcknowledgeCheckpoint, DeclineCheckpoint, ExecutionVertex
from holdfast.checkpoint.vertex import ExecutionJobVertex, hand_out, plan
from holdfast.errors import CheckpointError, CheckpointFailureReason, StateError
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.ids import JobID, new_nonce
from holdfast.state.hashmap.state_backend import FsStateBackend, MemoryStateBackend

_log = logging.getLogger(__name__)


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
        token: The leader's fencing token, for the documents.
        lineage: For the documents; a new one by default.
        job_name: For the documents.
        storage: Where checkpoints go, instead of what `chk_config` says.
        rng: Draws the time of the first periodic checkpoint.
        is_driven: Whether a job master says when an epoch ends; nothing is then triggered by time alone.
        statistics: Where checkpoints are counted; of its own by default.
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
        token: int = 0,
        lineage: str | None = None,
        job_name: str = "",
        storage: CheckpointStorageAccess | None = None,
        rng: random.Random | None = None,
        is_driven: bool = False,
        statistics: CheckpointStatsTracker | None = None,
    ) -> None:
        options = chk_config.configuration
        self.job = job
        self.master_hooks = MasterHooks()
        self.statistics = statistics or CheckpointStatsTracker(options.get(CHECKPOINTS_HISTORY))
        self._configuration = CoordinatorConfiguration.from_options(options)
        self._to_trigger = list(tasks_to_trigger)
        self._to_wait_for = list(tasks_to_wait_for)
        self._counter = checkpoint_id_counter
        self._store = completed_checkpoint_store
        self._clock = clock or SystemClock()
        self._storage = storage or _storage_of(checkpoint_state_backend, chk_config).create_checkpoint_storage(
            job, create_subdir=options.get(CREATE_CHECKPOINT_SUBDIR)
        )
        self._protocol = CheckpointProtocol(self._configuration, self._clock, self.statistics, rng, is_driven=is_driven)
        self._protocol.latest_completed_id = completed_checkpoint_store.get_latest_checkpoint_id()
        self._lock = threading.RLock()
        self._performer = Performer(
            self._protocol,
            self._lock,
            Surroundings(
                job=job,
                job_name=job_name or str(job),
                token=token,
                lineage=lineage or new_nonce(),
                timeout=self._configuration.timeout,
                counter=checkpoint_id_counter,
                store=completed_checkpoint_store,
                storage=self._storage,
                hooks=self.master_hooks,
                failures=failure_manager,
                clock=self._clock,
                executor=executor,
            ),
            self._plan,
            tasks_to_commit_to,
            self._notify_timer,
        )
        self._timer = None if is_driven else CoordinatorTimer(self._clock, self._next_deadline, self.poll)
        self._counter.start()

    # What users and the job call

    def start_checkpoint_scheduler(self) -> None:
        """Begin to take periodic checkpoints."""
        if self._configuration.interval > 0:
            self._storage.initialize_base_locations_for_checkpoint()
        with self._lock:
            self._performer.append(self._protocol.start_scheduler())
        self._drain()

    def stop_checkpoint_scheduler(self) -> None:
        """End periodic checkpoints and give up those that are under way or wait."""
        with self._lock:
            self._performer.append(self._protocol.stop_scheduler())
        self._drain()

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
        request = self._protocol.new_request(props, external_savepoint_location, is_periodic=is_periodic)
        with self._lock:
            self._performer.append(self._protocol.request(request))
        self._drain()
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
            self._performer.append(instructions)
            accepted = is_pending or self._late(message)
        if result is not TaskAcknowledgeResult.SUCCESS:
            # Run files that nobody names are left to the sweep, which knows what else names them.
            _log.info(
                "Acknowledgement of task %r for checkpoint %d does not count: %s.",
                message.task_execution_id,
                message.checkpoint_id,
                result.value,
            )
        self._drain()
        return accepted

    def receive_decline_message(self, message: DeclineCheckpoint) -> None:
        """Take a refusal: the checkpoint is given up.

        Raises:
            ValueError: It is another job's.
        """
        if message.job != self.job:
            raise ValueError(f"Received a decline of job {message.job} in the coordinator of job {self.job}.")
        with self._lock:
            self._performer.append(self._protocol.decline(message))
        self._drain()

    def fail_unacknowledged_pending_checkpoints_for(
        self, execution_id: str, cause: CheckpointError | None = None
    ) -> None:
        """Give up the checkpoints that wait for a task which has died.

        Args:
            execution_id: The attempt that died.
            cause: Why; by default that it died during the checkpoint, whatever it had written.
        """
        error = cause or CheckpointError(CheckpointFailureReason.TASK_FAILURE_DURING_CHECKPOINT)
        with self._lock:
            self._performer.append(self._protocol.task_failed(execution_id, error))
        self._drain()

    def abort_pending_checkpoints(self, reason: CheckpointFailureReason) -> None:
        """Give up everything that is under way or waits."""
        with self._lock:
            self._performer.append(self._protocol.abort_all(reason))
        self._drain()

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
        checkpoint = self._store.get_latest_checkpoint()
        if checkpoint is None:
            if error_if_no_checkpoint:
                raise StateError("No completed checkpoint available, so there is nothing to restore.")
            self.master_hooks.reset()
            return False
        hand_out(checkpoint, tasks, allow_non_restored=not all_or_nothing_state)
        self.master_hooks.restore(
            checkpoint.checkpoint_id,
            checkpoint.metadata.master_states,
            allow_unmatched=not all_or_nothing_state,
            path=checkpoint.path,
        )
        self.statistics.report_restored(
            RestoredStats(checkpoint.checkpoint_id, checkpoint.properties, self._clock.now_ms(), checkpoint.path)
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
        return self._store.get_all_checkpoints()

    def get_checkpoint_store(self) -> CompletedCheckpointStore:
        """Return the store of completed checkpoints."""
        return self._store

    def get_checkpoint_id_counter(self) -> CheckpointIDCounter:
        """Return the counter of ids."""
        return self._counter

    def get_statistics(self) -> StatsSnapshot:
        """Return the statistics of this moment."""
        return self.statistics.create_snapshot()

    def poll(self) -> None:
        """Do what time has made due; called by the coordinator's own thread, or by hand in tests."""
        with self._lock:
            self._performer.append(self._protocol.timer())
        self._drain()

    def shutdown(self) -> None:
        """End everything: nothing is triggered any more, what is under way is given up."""
        if self._timer is not None:
            self._timer.close()
        with self._lock:
            self._performer.append(self._protocol.shutdown())
        self._drain()
        self.master_hooks.close()

    # Inside

    def _late(self, message: AcknowledgeCheckpoint) -> bool:
        vertices = {vertex.get_execution_id(): vertex for vertex in self._to_wait_for}
        vertex = vertices.get(message.task_execution_id)
        if vertex is None:
            return self._protocol.has_expired(message.checkpoint_id)
        return self._protocol.late(message, vertex.get_job_vertex_id(), vertex.get_parallel_subtask_index())

    def _next_deadline(self) -> int | None:
        with self._lock:
            return self._protocol.next_deadline()

    def _drain(self) -> None:
        self._performer.drain()

    def _notify_timer(self) -> None:
        if self._timer is not None:
            self._timer.notify()

    def _plan(self) -> Plan:
        triggered, tasks = plan(self._to_trigger, self._to_wait_for)
        return Plan(triggered, tasks)


def _storage_of(backend: object, config: CheckpointConfig) -> CheckpointStorage:
    """Return the storage that an older kind of backend stands for, else the program's, else the options'."""
    if isinstance(backend, FsStateBackend):
        return FileSystemCheckpointStorage(backend.get_checkpoint_path())
    if isinstance(backend, MemoryStateBackend):
        return JobManagerCheckpointStorage(backend.get_max_state_size())
    return config.resolve_checkpoint_storage()
