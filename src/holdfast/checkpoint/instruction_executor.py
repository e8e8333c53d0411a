"""Carries out the instructions of the coordinator's state machine: triggers tasks, writes documents and pointers.

`CoordinatorServices` has the parts of a coordinator: ids, store, storage, clock. `Vertices` are the tasks that it
triggers itself. `CheckpointFailureManager` decides when failed checkpoints fail the job.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, ParamSpec

from holdfast.checkpoint.checkpoint_machine import (
    UNKNOWN_CHECKPOINT_ID,
    CheckpointMachine,
    CheckpointParticipant,
    CheckpointTriggerRequest,
    DiscardLocation,
    Finalize,
    Instruction,
    Instructions,
    NotifyAborted,
    NotifyComplete,
    PendingCheckpoint,
    Reject,
    ReportFailure,
    ReportSuccess,
    Resolve,
    TriggerTasks,
)
from holdfast.checkpoint.completed_checkpoint import (
    CheckpointIDCounter,
    CompletedCheckpoint,
    CompletedCheckpointStore,
    RegisterCheckpointIDCounter,
    RegisterCompletedCheckpointStore,
    pointer_for,
)
from holdfast.checkpoint.config import UNLIMITED_TOLERABLE_FAILURE_NUMBER, CheckpointConfig, CoordinatorConfiguration
from holdfast.checkpoint.master_hook import MasterHooks
from holdfast.checkpoint.messages import CheckpointOptions, ExecutionVertex
from holdfast.checkpoint.metadata import CheckpointMetadata, OperatorMetadata, encode
from holdfast.checkpoint.options import (
    CHECKPOINTS_HISTORY,
    CREATE_CHECKPOINT_SUBDIR,
    NUM_RETAINED,
    SAVEPOINT_DIRECTORY,
    TOLERABLE_FAILED,
)
from holdfast.checkpoint.snapshot_type import CheckpointProperties, CheckpointType
from holdfast.checkpoint.statistics import CheckpointStatsTracker
from holdfast.checkpoint.storage import (
    CheckpointStorage,
    CheckpointStorageAccess,
    CheckpointStorageLocation,
    FileCheckpointLocation,
    FileCheckpointStorageAccess,
    FileSystemCheckpointStorage,
    JobManagerCheckpointStorage,
)
from holdfast.errors import (
    AlreadyExistError,
    CheckpointError,
    CheckpointFailureReason,
    ConfigurationError,
    ConflictError,
    HoldfastError,
    PossibleInconsistentStateError,
    RestoreError,
    StateError,
    StorageError,
)
from holdfast.kernel import fault
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID, new_nonce
from holdfast.kernel.secret import get_logger
from holdfast.state.hashmap.backend import FsStateBackend, MemoryStateBackend
from holdfast.storage.file_system import translate
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.register import RegisterWriter

logger = get_logger(__name__)

_RUNNING = "RUNNING"
_FINISHED = "FINISHED"
P = ParamSpec("P")


@dataclass(frozen=True)
class WrittenCheckpoint:
    """A checkpoint that was written.

    Attributes:
        checkpoint: The checkpoint.
        subsumed: The newest checkpoint that it replaced; None if it replaced none.
    """

    checkpoint: CompletedCheckpoint
    subsumed: CompletedCheckpoint | None


class CompletionError(CheckpointError):
    """A checkpoint could not be written.

    Attributes:
        keep_files: Whether to delete nothing, because the checkpoint may be complete after all or another leader took
            over.
    """

    def __init__(self, cause: BaseException, *, keep_files: bool) -> None:
        super().__init__(CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE, str(cause), cause)
        self.keep_files = keep_files


def write_checkpoint(
    pending: PendingCheckpoint,
    metadata: CheckpointMetadata,
    storage: CheckpointStorageAccess,
    store: CompletedCheckpointStore,
) -> WrittenCheckpoint:
    """Write the document of a checkpoint, then its pointer; a savepoint gets no pointer.

    Raises:
        CompletionError: The checkpoint is not complete, or it is not known whether it is.
    """
    location = pending.location
    if location is None:
        raise StateError(f"{pending!r} has no location.")
    try:
        data = _write_document(location, metadata)
    except (HoldfastError, TypeError, ValueError) as error:
        # A document that existed before is not ours to delete.
        raise CompletionError(error, keep_files=isinstance(error, AlreadyExistError)) from error
    path = _pointer_path(location, storage)
    checkpoint = CompletedCheckpoint(
        metadata,
        location.get_external_pointer(),
        pointer_for(metadata, data, path),
        properties=pending.properties,
        timestamp=pending.timestamp,
        fs=location.fs if isinstance(location, FileCheckpointLocation) else None,
    )
    if pending.properties.is_savepoint():
        return WrittenCheckpoint(checkpoint, None)
    try:
        return WrittenCheckpoint(checkpoint, store.add_checkpoint_and_subsume_oldest_one(checkpoint))
    except (StorageError, ConflictError, StateError) as error:
        # These three mean that nothing was written; any other leaves it open.
        raise CompletionError(error, keep_files=False) from error
    except HoldfastError as error:
        raise CompletionError(error, keep_files=True) from error


def _write_document(location: CheckpointStorageLocation, metadata: CheckpointMetadata) -> bytes:
    """Write the document. If no answer arrives, look for it: ids are unique, so a document there is our own."""
    try:
        with fault.point("metadata.write"):
            return location.write_metadata(metadata)
    except (fault.AnswerLostError, PossibleInconsistentStateError, AlreadyExistError):
        data = encode(metadata)
        if isinstance(location, FileCheckpointLocation) and location.holds(data):
            return data
        raise
    except OSError as error:
        raise translate(error, "write the document of", location.get_external_pointer()) from error


def _pointer_path(location: CheckpointStorageLocation, storage: CheckpointStorageAccess) -> str:
    if not isinstance(location, FileCheckpointLocation):
        return location.get_external_pointer()
    if isinstance(storage, FileCheckpointStorageAccess) and location.path.startswith(storage.directory.path + "/"):
        return storage.directory.relative(location.metadata_path)
    return location.metadata_path


@dataclass(frozen=True)
class CoordinatorServices:
    """Job, options and services of a coordinator.

    Attributes:
        job: The job.
        configuration: The options.
        counter: Counter of checkpoint ids.
        store: Store of completed checkpoints.
        storage: Storage of documents.
        failures: Decides when failed checkpoints fail the job.
        statistics: Statistics of checkpoints.
        clock: Time.
        executor: Runs the I/O; None for the thread that brings an event.
        hooks: The master hooks.
    """

    job: JobID
    configuration: CoordinatorConfiguration
    counter: CheckpointIDCounter
    store: CompletedCheckpointStore
    storage: CheckpointStorageAccess
    failures: CheckpointFailureManager
    statistics: CheckpointStatsTracker
    clock: Clock
    executor: Executor | None = None
    hooks: MasterHooks = field(default_factory=MasterHooks)

    @classmethod
    def of_program(
        cls,
        job: JobID,
        config: CheckpointConfig,
        counter: CheckpointIDCounter,
        store: CompletedCheckpointStore,
        state_backend: object,
        *,
        executor: Executor | None,
        failures: CheckpointFailureManager,
        clock: Clock | None,
    ) -> CoordinatorServices:
        """Return the services of a coordinator that a program makes by hand."""
        options = config.configuration
        subdirectory = options.get(CREATE_CHECKPOINT_SUBDIR)
        return cls(
            job=job,
            configuration=CoordinatorConfiguration.from_options(options),
            counter=counter,
            store=store,
            storage=_storage_of(state_backend, config).create_checkpoint_storage(job, create_subdir=subdirectory),
            failures=failures,
            statistics=CheckpointStatsTracker(options.get(CHECKPOINTS_HISTORY)),
            clock=clock or SystemClock(),
            executor=executor,
        )

    @classmethod
    def for_job_attempt(
        cls,
        writer: RegisterWriter,
        directory: JobDirectory,
        configuration: Configuration,
        failures: CheckpointFailureManager,
        recovered: Sequence[CompletedCheckpoint] = (),
        *,
        statistics: CheckpointStatsTracker | None = None,
        clock: Clock | None = None,
    ) -> CoordinatorServices:
        """Return the services of one job attempt, with ids and pointers in the job's register.

        Args:
            writer: The writer of the attempt.
            directory: The job's directory.
            configuration: The options.
            failures: Decides when failed checkpoints fail the job.
            recovered: The checkpoints that the register names, as `completed_checkpoint.read_retained` reads them.
            statistics: Statistics of checkpoints; None for new ones.
            clock: Time; None for the system's.
        """
        counter = RegisterCheckpointIDCounter(writer)
        return cls(
            job=directory.job_id,
            configuration=CoordinatorConfiguration.from_options(configuration),
            counter=counter,
            store=RegisterCompletedCheckpointStore(writer, _retained(configuration), list(recovered), counter),
            storage=FileCheckpointStorageAccess(directory, configuration.get(SAVEPOINT_DIRECTORY)),
            failures=failures,
            statistics=statistics or CheckpointStatsTracker(configuration.get(CHECKPOINTS_HISTORY)),
            clock=clock or SystemClock(),
        )


def _storage_of(backend: object, config: CheckpointConfig) -> CheckpointStorage:
    """Return the storage that a legacy state backend implies, else that of the program, else that of the options."""
    if isinstance(backend, FsStateBackend):
        return FileSystemCheckpointStorage(backend.get_checkpoint_path())
    if isinstance(backend, MemoryStateBackend):
        return JobManagerCheckpointStorage(max_state_size=backend.get_max_state_size())
    return config.resolve_checkpoint_storage()


def _retained(configuration: Configuration) -> int:
    """Return how many checkpoints to keep; as in Flink, an invalid number is replaced by the default."""
    retained, default = configuration.get(NUM_RETAINED), NUM_RETAINED.default
    if retained > 0:
        return retained
    logger.warning(
        "%s is %d, which is not possible; keeping the default of %d checkpoints.", NUM_RETAINED.key, retained, default
    )
    return default


class ExecutionJobVertex(ABC):
    """All subtasks of one vertex, as a restore sees them."""

    @abstractmethod
    def restore_state(self, checkpoint_id: int, states: Mapping[str, OperatorMetadata]) -> None:
        """Restore the state of the vertex's operators, by uid."""

    @abstractmethod
    def get_operator_uids(self) -> Sequence[str]:
        """Return the uids of its operators."""


@dataclass(frozen=True)
class Vertices:
    """The tasks that a coordinator triggers itself; empty for a coordinator of epochs.

    Attributes:
        to_trigger: Tasks that are triggered.
        to_wait_for: Tasks that must acknowledge.
        to_commit_to: Tasks that are notified of the result.
    """

    to_trigger: tuple[ExecutionVertex, ...] = ()
    to_wait_for: tuple[ExecutionVertex, ...] = ()
    to_commit_to: tuple[ExecutionVertex, ...] = ()

    def plan(self) -> tuple[list[ExecutionVertex], list[CheckpointParticipant]]:
        """Return the tasks to trigger and the tasks that must acknowledge. Finished tasks do neither.

        Raises:
            CheckpointError: A task neither runs nor has finished, or all have finished.
        """
        for vertex in (*self.to_trigger, *self.to_wait_for):
            if vertex.get_execution_state() not in (_RUNNING, _FINISHED):
                raise CheckpointError(
                    CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING,
                    f"Subtask {vertex.get_parallel_subtask_index()} of {vertex.get_job_vertex_id()!r} is "
                    f"{vertex.get_execution_state()}.",
                )
        triggered = [vertex for vertex in self.to_trigger if vertex.get_execution_state() == _RUNNING]
        waited_for = [vertex for vertex in self.to_wait_for if vertex.get_execution_state() == _RUNNING]
        if self.to_wait_for and not waited_for:
            raise CheckpointError(CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING, "All tasks have finished.")
        return triggered, [task_of(vertex) for vertex in waited_for]

    def find(self, execution_id: str) -> CheckpointParticipant | None:
        """Return the task with an execution id; None if there is none."""
        return next((task for task in map(task_of, self.to_wait_for) if task.execution_id == execution_id), None)


def task_of(vertex: ExecutionVertex) -> CheckpointParticipant:
    return CheckpointParticipant(
        vertex.get_execution_id(), vertex.get_job_vertex_id(), vertex.get_parallel_subtask_index()
    )


def restore_vertices(
    checkpoint: CompletedCheckpoint, vertices: Mapping[object, ExecutionJobVertex], *, allow_non_restored: bool
) -> None:
    """Restore the state of each vertex.

    Raises:
        RestoreError: The checkpoint has state of operators that no vertex has, and that is not allowed.
    """
    states = checkpoint.get_operator_states()
    known = {uid for vertex in vertices.values() for uid in vertex.get_operator_uids()}
    missing = sorted(set(states) - known)
    if missing and not allow_non_restored:
        raise RestoreError(missing, sorted(known - set(states)))
    for vertex in vertices.values():
        mine = {uid: states[uid] for uid in vertex.get_operator_uids() if uid in states}
        vertex.restore_state(checkpoint.checkpoint_id, mine)


class InstructionExecutor:
    """Passes events to the state machine and carries out the resulting instructions, which may cause further events.

    Only one thread at a time carries out instructions; other threads leave theirs in its queue.

    Args:
        machine: The state machine.
        lock: Guards the state machine; not held during I/O.
        services: Job, options and services.
        vertices: The tasks that are triggered and notified.
        on_idle: Called when the queue is empty, in the thread that emptied it.
    """

    def __init__(
        self,
        machine: CheckpointMachine,
        lock: threading.RLock,
        services: CoordinatorServices,
        vertices: Vertices,
        on_idle: Callable[[], None],
    ) -> None:
        self._machine = machine
        self._lock = lock
        self._services = services
        self._vertices = vertices
        self._on_idle = on_idle
        self._incarnation = new_nonce()  # of documents that are made from acknowledgements
        self._instructions: deque[Instruction] = deque()
        self._is_draining = False

    def handle_event(self, event: Callable[P, Instructions], *args: P.args, **kwargs: P.kwargs) -> Instructions:
        """Pass an event to the state machine and carry out the instructions, here or in the executor."""
        instructions = self._apply(event, *args, **kwargs)
        self.drain()
        return instructions

    def append(self, instructions: Instructions) -> None:
        """Queue instructions. Called under the lock; call `drain` after releasing it."""
        self._instructions.extend(instructions)

    def drain(self) -> None:
        """Carry out the queued instructions, here or in the executor."""
        if self._services.executor is not None:
            try:
                self._services.executor.submit(self._drain_here)
                return
            except RuntimeError:
                pass  # it was shut down: carry out the rest here
        self._drain_here()

    def _apply(self, event: Callable[P, Instructions], *args: P.args, **kwargs: P.kwargs) -> Instructions:
        with self._lock:
            instructions = event(*args, **kwargs)
            self.append(instructions)
        return instructions

    def _drain_here(self) -> None:
        while True:
            with self._lock:
                if self._is_draining or not self._instructions:
                    break
                self._is_draining = True
                instruction = self._instructions.popleft()
            try:
                self._perform(instruction)
            except Exception:
                logger.exception("%s could not be carried out.", type(instruction).__name__)
            finally:
                with self._lock:
                    self._is_draining = False
        self._on_idle()

    def _perform(self, instruction: Instruction) -> None:
        match instruction:
            case TriggerTasks(request):
                self._trigger(request)
            case Finalize(pending):
                self._finalize(pending)
            case Resolve(request, checkpoint):
                request.future.set_result(checkpoint)
            case Reject(request, error):
                request.future.set_exception(error)
            case NotifyComplete(checkpoint_id, timestamp, subsumed_id):
                for vertex in self._vertices.to_commit_to:
                    with _log_failure(vertex):
                        vertex.notify_checkpoint_complete(checkpoint_id, timestamp, subsumed_id)
                        if subsumed_id:
                            vertex.notify_checkpoint_subsumed(subsumed_id)
            case NotifyAborted(checkpoint_id, timestamp, latest_id):
                for vertex in self._vertices.to_commit_to:
                    with _log_failure(vertex):
                        vertex.notify_checkpoint_aborted(checkpoint_id, latest_id, timestamp)
            case DiscardLocation(pending):
                if pending.location is not None:
                    pending.location.dispose_on_failure()
            case ReportSuccess(checkpoint_id):
                self._services.failures.handle_checkpoint_success(checkpoint_id)
            case ReportFailure(error, checkpoint_id, properties, execution_id):
                self._services.failures.handle_checkpoint_exception(
                    error,
                    checkpoint_id=checkpoint_id,
                    is_savepoint=properties.is_savepoint(),
                    is_synchronous=properties.is_synchronous(),
                    execution_id=execution_id,
                )

    def _trigger(self, request: CheckpointTriggerRequest) -> None:
        end = request.epoch_end
        try:
            to_trigger, tasks = self._vertices.plan() if end is None else ([], end.tasks)
            pending = PendingCheckpoint(
                self._services.job,
                self._services.counter.get_and_increment(),
                self._services.clock.now_ms(),
                request,
                self._properties(request.properties),
                tasks,
                self._services.hooks.identifiers,
            )
        except Exception as error:  # noqa: BLE001 - counter and tasks may be user code
            self._apply(self._machine.prepare_failed, request, _as_trigger_failure(error))
            return
        with self._lock:
            self.append(self._machine.prepared(pending))
            if pending.is_disposed:
                return
        try:
            self._trigger_tasks(pending, to_trigger)
        except Exception as error:  # noqa: BLE001 - tasks may be user code; the checkpoint fails
            self._apply(self._machine.trigger_failed, pending, _as_trigger_failure(error))
            return
        self._apply(self._machine.triggered, pending)

    def _trigger_tasks(self, pending: PendingCheckpoint, to_trigger: list[ExecutionVertex]) -> None:
        """Choose the location, then trigger the hooks, then the tasks."""
        is_savepoint = pending.properties.is_savepoint()
        if is_savepoint:
            pending.location = self._services.storage.initialize_location_for_savepoint(
                pending.checkpoint_id, pending.request.external_location
            )
        else:
            pending.location = self._services.storage.initialize_location_for_checkpoint(pending.checkpoint_id)
        timeout = self._services.configuration.timeout / 1000
        for identifier in self._services.hooks.identifiers:
            state = self._services.hooks.trigger(
                identifier, pending.checkpoint_id, pending.timestamp, self._services.executor, timeout
            )
            with self._lock:
                pending.acknowledge_master_state(identifier, state)
        kind = CheckpointType.SAVEPOINT if is_savepoint else CheckpointType.CHECKPOINT
        options = CheckpointOptions(kind, pending.location.get_location_reference())
        if not pending.is_disposed:
            for vertex in to_trigger:
                vertex.trigger_checkpoint(pending.checkpoint_id, pending.timestamp, options)

    def _properties(self, properties: CheckpointProperties) -> CheckpointProperties:
        """Return the kind of snapshot: a full one, which shares no files, after a restore from a user's snapshot."""
        latest = self._services.store.get_latest_checkpoint()
        if latest is not None and latest.properties.is_unclaimed() and not properties.is_savepoint():
            return properties.as_full_checkpoint()
        return properties

    def _finalize(self, pending: PendingCheckpoint) -> None:
        """Write document and pointer, unless a newer checkpoint has completed meanwhile."""
        with self._lock:
            if not self._machine.is_still_needed(pending):
                self.append(self._machine.finalize_not_needed(pending))
                return
        try:
            metadata = pending.finalize_checkpoint(self._incarnation, self._services.clock.now_ms())
            written = write_checkpoint(pending, metadata, self._services.storage, self._services.store)
        except Exception as error:  # noqa: BLE001 - the checkpoint fails, not its thread
            failure = error if isinstance(error, CompletionError) else CompletionError(error, keep_files=True)
            self._apply(self._machine.finalize_failed, pending, failure, keep_files=failure.keep_files)
            return
        self._apply(self._machine.finalized, pending, written.checkpoint, written.subsumed)


@contextmanager
def _log_failure(vertex: ExecutionVertex) -> Iterator[None]:
    """Log the failure of one task's notification, so that the others are still notified."""
    try:
        yield
    except Exception:
        logger.exception("Task %r could not be notified of a checkpoint.", vertex.get_execution_id())


def _as_trigger_failure(error: BaseException) -> CheckpointError:
    """Return the `CheckpointError` in the chain of causes; else IO_EXCEPTION if I/O failed anywhere in it."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    for each in chain:
        if isinstance(each, CheckpointError) and each.reason is not None:
            return each
    is_io = any(isinstance(each, StorageError | OSError) for each in chain)
    reason = CheckpointFailureReason.IO_EXCEPTION if is_io else CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE
    return CheckpointError(reason, str(error), error)


class FailJobCallback(ABC):
    """Fails the job."""

    @abstractmethod
    def fail_job(self, cause: HoldfastError) -> None:
        """Fail the job."""

    @abstractmethod
    def fail_job_due_to_task_failure(self, cause: HoldfastError, execution_id: str) -> None:
        """Fail the job because of one task."""


class RememberedFailure(FailJobCallback):
    """Remembers that too many checkpoints have failed; `cause` is None until then."""

    def __init__(self) -> None:
        self.cause: HoldfastError | None = None

    def fail_job(self, cause: HoldfastError) -> None:
        self.cause = cause

    def fail_job_due_to_task_failure(self, cause: HoldfastError, execution_id: str) -> None:
        self.cause = cause


class CheckpointFailureManager:
    """Counts failed checkpoints in a row and fails the job when there are more than it tolerates.

    Only failures that concern the job's health count (`CheckpointFailureReason.counts_as_failure`): those that count in
    Flink, and hooks of the driver that fail or do not answer. Each checkpoint counts once; one older than the last
    completed one does not count. A completed checkpoint or savepoint resets the count. Safe to use from several
    threads.

    Args:
        tolerable_failures: Tolerated failures in a row; `UNLIMITED_TOLERABLE_FAILURE_NUMBER` for any number.
        callback: Called when the job must fail.

    Raises:
        ConfigurationError: The number is negative.
    """

    MESSAGE: Final = "Exceeded checkpoint tolerable failure threshold."

    def __init__(self, tolerable_failures: int, callback: FailJobCallback) -> None:
        if tolerable_failures < 0:
            raise ConfigurationError(f"{TOLERABLE_FAILED.key} must be 0 or more, not {tolerable_failures!r}.")
        self._tolerable = tolerable_failures
        self._callback = callback
        self._lock = threading.Lock()
        self._count = 0
        self._counted: set[int] = set()
        self._last_succeeded = UNKNOWN_CHECKPOINT_ID

    @property
    def count(self) -> int:
        """Failures counted since the last success."""
        return self._count

    def handle_checkpoint_exception(
        self,
        error: CheckpointError,
        *,
        checkpoint_id: int = UNKNOWN_CHECKPOINT_ID,
        is_savepoint: bool = False,
        is_synchronous: bool = False,
        execution_id: str | None = None,
    ) -> None:
        """Count a failure.

        Args:
            error: The failure.
            checkpoint_id: The checkpoint; -1 if it had no id yet.
            is_savepoint: Whether it was a savepoint.
            is_synchronous: Whether the job was to stop with it.
            execution_id: The task that caused it; None for the coordinator.
        """
        pre_flight = error.reason is not None and error.reason.is_pre_flight
        if pre_flight or execution_id is None:
            if not is_savepoint:
                self._count_failure(error, checkpoint_id, None)
        elif is_synchronous:
            self._callback.fail_job_due_to_task_failure(error, execution_id)
        else:
            self._count_failure(error, checkpoint_id, execution_id)

    def handle_checkpoint_success(self, checkpoint_id: int) -> None:
        """Reset the count after a completed checkpoint or savepoint."""
        with self._lock:
            if checkpoint_id > self._last_succeeded:
                self._last_succeeded = checkpoint_id
                self._reset()

    def _count_failure(self, error: CheckpointError, checkpoint_id: int, execution_id: str | None) -> None:
        with self._lock:
            if self._tolerable == UNLIMITED_TOLERABLE_FAILURE_NUMBER or not self._counts(error.reason, checkpoint_id):
                return
            self._count += 1
            if self._count <= self._tolerable:
                return
            self._reset()
        failure = CheckpointError(f"{self.MESSAGE} The latest checkpoint failed due to: {error}", error)
        if execution_id is None:
            self._callback.fail_job(failure)
        else:
            self._callback.fail_job_due_to_task_failure(failure, execution_id)

    def _counts(self, reason: CheckpointFailureReason | None, checkpoint_id: int) -> bool:
        if reason is None or not reason.counts_as_failure:
            return False
        if checkpoint_id == UNKNOWN_CHECKPOINT_ID:
            return True
        if checkpoint_id <= self._last_succeeded or checkpoint_id in self._counted:
            return False
        self._counted.add(checkpoint_id)
        return True

    def _reset(self) -> None:
        self._count = 0
        self._counted.clear()
