"""Drives the coordinator's state machine: brings it events, and carries out what it asks for, one thing at a time."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ParamSpec

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint, pointer_for
from holdfast.checkpoint.config import CheckpointConfig, CoordinatorConfiguration
from holdfast.checkpoint.failure_manager import CheckpointFailureManager
from holdfast.checkpoint.master_hook import MasterHooks
from holdfast.checkpoint.messages import CheckpointOptions, ExecutionVertex
from holdfast.checkpoint.metadata import CheckpointMetadata, OperatorMetadata, encode
from holdfast.checkpoint.options import CHECKPOINTS_HISTORY, CREATE_CHECKPOINT_SUBDIR, NUM_RETAINED, SAVEPOINT_DIRECTORY
from holdfast.checkpoint.pending_checkpoint import CheckpointTriggerRequest, PendingCheckpoint, Task
from holdfast.checkpoint.protocol import (
    CheckpointProtocol,
    DiscardLocation,
    Finalize,
    Instruction,
    Instructions,
    NotifyAborted,
    NotifyComplete,
    Reject,
    ReportFailure,
    ReportSuccess,
    Resolve,
    TriggerTasks,
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
from holdfast.checkpoint.store import (
    CheckpointIDCounter,
    CompletedCheckpointStore,
    RegisterCheckpointIDCounter,
    RegisterCompletedCheckpointStore,
)
from holdfast.errors import (
    AlreadyExistError,
    CheckpointError,
    CheckpointFailureReason,
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
from holdfast.storage.register import Lease

# Writing a checkpoint: its document, then its pointer, which is the commit point.


@dataclass(frozen=True)
class Completed:
    """A checkpoint that was written.

    Attributes:
        checkpoint: The checkpoint.
        subsumed: The newest one that it replaced, None if it replaced none.
    """

    checkpoint: CompletedCheckpoint
    subsumed: CompletedCheckpoint | None


class CompletionError(CheckpointError):
    """A checkpoint could not be written.

    Attributes:
        keep_files: Whether it may be complete after all, or is another leader's business by now: nothing that it may
            refer to is deleted.
    """

    def __init__(self, cause: BaseException, *, keep_files: bool) -> None:
        super().__init__(CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE, str(cause), cause)
        self.keep_files = keep_files


def write_checkpoint(
    pending: PendingCheckpoint,
    metadata: CheckpointMetadata,
    storage: CheckpointStorageAccess,
    store: CompletedCheckpointStore,
) -> Completed:
    """Write a checkpoint that everybody has acknowledged; savepoints get no pointer.

    Raises:
        CompletionError: It is not complete, or nobody knows whether it is.
    """
    location = pending.location
    if location is None:
        raise StateError(f"{pending!r} has no place.")
    try:
        data = _write_document(location, metadata)
    except (HoldfastError, TypeError, ValueError) as error:
        # A document that was there before is not ours to delete.
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
        return Completed(checkpoint, None)
    try:
        return Completed(checkpoint, store.add_checkpoint_and_subsume_oldest_one(checkpoint))
    except (StorageError, ConflictError, StateError) as error:
        # These three say that nothing happened; everything else leaves it open.
        raise CompletionError(error, keep_files=False) from error
    except HoldfastError as error:
        raise CompletionError(error, keep_files=True) from error


def _write_document(location: CheckpointStorageLocation, metadata: CheckpointMetadata) -> bytes:
    """Write the document; if the answer got lost, look whether it is there. Ids are unique, so it can only be ours."""
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


# What a coordinator works with: the job, its options, and the places where checkpoints go.

_log = get_logger(__name__)


@dataclass(frozen=True)
class Wiring:
    """What a coordinator works with.

    Attributes:
        job: The job.
        configuration: The options.
        counter: Hands out ids.
        store: Keeps completed checkpoints.
        storage: Where documents go.
        failures: Decides when failures fail the job.
        statistics: Where checkpoints are counted.
        clock: Time.
        executor: Where I/O is done; None for the thread that brings the event.
        hooks: The hooks of the job master's side.
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
        executor: Executor | None,
        failures: CheckpointFailureManager,
        clock: Clock | None,
    ) -> Wiring:
        """Return what a program's own coordinator works with; see there."""
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
    def of_lease(
        cls,
        lease: Lease,
        directory: JobDirectory,
        configuration: Configuration,
        failures: CheckpointFailureManager,
        recovered: Sequence[CompletedCheckpoint] = (),
        *,
        statistics: CheckpointStatsTracker | None = None,
        clock: Clock | None = None,
    ) -> Wiring:
        """Return what the checkpoints of one job attempt are made with: ids and pointers are in its register.

        Args:
            lease: The right to write the job's register, raised for this attempt.
            directory: The job's directory.
            configuration: The options.
            failures: Decides when failures fail the job.
            recovered: What the register names, as `recovery.recover_all` reads it.
            statistics: Where checkpoints are counted; of its own by default.
            clock: Time.
        """
        counter = RegisterCheckpointIDCounter(lease)
        return cls(
            job=directory.job_id,
            configuration=CoordinatorConfiguration.from_options(configuration),
            counter=counter,
            store=RegisterCompletedCheckpointStore(lease, _retained(configuration), list(recovered), counter),
            storage=FileCheckpointStorageAccess(directory, configuration.get(SAVEPOINT_DIRECTORY)),
            failures=failures,
            statistics=statistics or CheckpointStatsTracker(configuration.get(CHECKPOINTS_HISTORY)),
            clock=clock or SystemClock(),
        )


def _storage_of(backend: object, config: CheckpointConfig) -> CheckpointStorage:
    """Return the storage that an older kind of backend stands for, else the program's, else the options'."""
    if isinstance(backend, FsStateBackend):
        return FileSystemCheckpointStorage(backend.get_checkpoint_path())
    if isinstance(backend, MemoryStateBackend):
        return JobManagerCheckpointStorage(max_state_size=backend.get_max_state_size())
    return config.resolve_checkpoint_storage()


def _retained(configuration: Configuration) -> int:
    """How many checkpoints are kept; as in Flink, a number that cannot be is replaced."""
    retained, default = configuration.get(NUM_RETAINED), NUM_RETAINED.default
    if retained > 0:
        return retained
    _log.warning("%s is %d, but at least one is kept: it is taken to be %d.", NUM_RETAINED.key, retained, default)
    return default


# What the coordinator knows of a job's tasks when nobody drives it epoch by epoch.

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


def restore_vertices(
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


P = ParamSpec("P")


class InstructionExecutor:
    """Brings events to the state machine and carries out the instructions that follow, which may be further events.

    Whatever is to be done while another thread is at it is done by that thread.

    Args:
        protocol: The state machine.
        lock: Guards the state machine; not held while I/O is done.
        wiring: What checkpoints are made with.
        vertices: Tasks that are triggered, and told what became of it.
        drained: Called, by whichever thread it was, when what was to be done is done.
    """

    def __init__(
        self,
        protocol: CheckpointProtocol,
        lock: threading.RLock,
        wiring: Wiring,
        vertices: Vertices,
        drained: Callable[[], None],
    ) -> None:
        self._protocol = protocol
        self._lock = lock
        self._with = wiring
        self._vertices = vertices
        self._drained = drained
        self._lineage = new_nonce()  # of documents that are made from acknowledgements
        self._instructions: deque[Instruction] = deque()
        self._is_draining = False

    def handle_event(self, event: Callable[P, Instructions], *args: P.args, **kwargs: P.kwargs) -> Instructions:
        """Bring the state machine an event, do what it asks for, here or in the executor, and return what that was."""
        instructions = self._take(event, *args, **kwargs)
        self.drain()
        return instructions

    def append(self, instructions: Instructions) -> None:
        """Append to what is to be done; called under the lock, and `drain` after it was given up."""
        self._instructions.extend(instructions)

    def drain(self) -> None:
        """Do what is to be done, here or in the executor."""
        if self._with.executor is not None:
            try:
                self._with.executor.submit(self._drain_here)
                return
            except RuntimeError:
                pass  # it was shut down; what is left is done here
        self._drain_here()

    def _take(self, event: Callable[P, Instructions], *args: P.args, **kwargs: P.kwargs) -> Instructions:
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
                _log.exception("%s could not be carried out.", type(instruction).__name__)
            finally:
                with self._lock:
                    self._is_draining = False
        self._drained()

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
                    with _others_are_told(vertex):
                        vertex.notify_checkpoint_complete(checkpoint_id, timestamp, subsumed_id)
                        if subsumed_id:
                            vertex.notify_checkpoint_subsumed(subsumed_id)
            case NotifyAborted(checkpoint_id, timestamp, latest_id):
                for vertex in self._vertices.to_commit_to:
                    with _others_are_told(vertex):
                        vertex.notify_checkpoint_aborted(checkpoint_id, latest_id, timestamp)
            case DiscardLocation(pending):
                if pending.location is not None:
                    pending.location.dispose_on_failure()
            case ReportSuccess(checkpoint_id):
                self._with.failures.handle_checkpoint_success(checkpoint_id)
            case ReportFailure(error, checkpoint_id, properties, execution_id):
                self._with.failures.handle_checkpoint_exception(
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
                self._with.job,
                self._with.counter.get_and_increment(),
                self._with.clock.now_ms(),
                request,
                self._properties(request.properties),
                tasks,
                self._with.hooks.identifiers,
            )
        except Exception as error:  # the counter and the tasks may be anybody's
            self._take(self._protocol.prepare_failed, request, _as_trigger_failure(error))
            return
        with self._lock:
            self.append(self._protocol.prepared(pending))
            if pending.is_disposed:
                return
        try:
            self._trigger_tasks(pending, to_trigger)
        except Exception as error:
            self._take(self._protocol.trigger_failed, pending, _as_trigger_failure(error))
            return
        self._take(self._protocol.triggered, pending)

    def _trigger_tasks(self, pending: PendingCheckpoint, to_trigger: list[ExecutionVertex]) -> None:
        """Decide on the place, then ask the hooks, then the tasks."""
        is_savepoint = pending.properties.is_savepoint()
        if is_savepoint:
            pending.location = self._with.storage.initialize_location_for_savepoint(
                pending.checkpoint_id, pending.request.external_location
            )
        else:
            pending.location = self._with.storage.initialize_location_for_checkpoint(pending.checkpoint_id)
        timeout = self._with.configuration.timeout / 1000
        for identifier in self._with.hooks.identifiers:
            state = self._with.hooks.trigger(
                identifier, pending.checkpoint_id, pending.timestamp, self._with.executor, timeout
            )
            with self._lock:
                pending.acknowledge_master_state(identifier, state)
        kind = CheckpointType.SAVEPOINT if is_savepoint else CheckpointType.CHECKPOINT
        options = CheckpointOptions(kind, pending.location.get_location_reference())
        if not pending.is_disposed:
            for vertex in to_trigger:
                vertex.trigger_checkpoint(pending.checkpoint_id, pending.timestamp, options)

    def _properties(self, properties: CheckpointProperties) -> CheckpointProperties:
        """A checkpoint after the restore of a snapshot that belongs to the user must not refer to its files."""
        latest = self._with.store.get_latest_checkpoint()
        if latest is not None and latest.properties.is_unclaimed() and not properties.is_savepoint():
            return properties.as_full_checkpoint()
        return properties

    def _finalize(self, pending: PendingCheckpoint) -> None:
        """Write document and pointer, unless a newer checkpoint has completed meanwhile."""
        with self._lock:
            if not self._protocol.is_still_needed(pending):
                self.append(self._protocol.finalize_not_needed(pending))
                return
        try:
            metadata = pending.finalize_checkpoint(self._lineage, self._with.clock.now_ms())
            written = write_checkpoint(pending, metadata, self._with.storage, self._with.store)
        except Exception as error:
            failure = error if isinstance(error, CompletionError) else CompletionError(error, keep_files=True)
            self._take(self._protocol.finalize_failed, pending, failure, keep_files=failure.keep_files)
            return
        self._take(self._protocol.finalized, pending, written.checkpoint, written.subsumed)


@contextmanager
def _others_are_told(vertex: ExecutionVertex) -> Iterator[None]:
    """A task that cannot be told of a checkpoint keeps no other from being told."""
    try:
        yield
    except Exception:
        _log.exception("Task %r could not be told what became of a checkpoint.", vertex.get_execution_id())


def _as_trigger_failure(error: BaseException) -> CheckpointError:
    """A failure with a reason of its own keeps it; otherwise it is one of I/O if that was the cause, however deep."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    for each in chain:
        if isinstance(each, CheckpointError) and each.reason is not None:
            return each
    is_io = any(isinstance(each, StorageError | OSError) for each in chain)
    reason = CheckpointFailureReason.IO_EXCEPTION if is_io else CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE
    return CheckpointError(reason, str(error), error)
