"""Carries out what the coordinator's state machine asks for, in order, one thing at a time."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass

from holdfast.checkpoint.completed_store import CompletedCheckpointStore
from holdfast.checkpoint.completion import CompletionError, write_checkpoint
from holdfast.checkpoint.failure import CheckpointFailureManager
from holdfast.checkpoint.id_counter import CheckpointIDCounter
from holdfast.checkpoint.instruction import (
    DiscardLocation,
    Finalize,
    Instruction,
    NotifyAborted,
    NotifyComplete,
    Prepare,
    Reject,
    ReportFailure,
    ReportSuccess,
    Resolve,
    Trigger,
)
from holdfast.checkpoint.master_hook import MasterHooks
from holdfast.checkpoint.pending_checkpoint import PendingCheckpoint, Task
from holdfast.checkpoint.protocol import CheckpointProtocol
from holdfast.checkpoint.snapshot_type import CheckpointProperties, CheckpointType
from holdfast.checkpoint.storage import CheckpointStorageAccess
from holdfast.checkpoint.trigger import CheckpointOptions, ExecutionVertex
from holdfast.errors import CheckpointError, CheckpointFailureReason, StorageError
from holdfast.kernel.clock import Clock
from holdfast.kernel.ids import JobID

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """Who takes part in a checkpoint.

    Attributes:
        to_trigger: Tasks that are asked for it.
        to_wait_for: Tasks that must acknowledge.
        epoch: The epoch whose end it covers, if a job master drives.
    """

    to_trigger: Sequence[ExecutionVertex]
    to_wait_for: Sequence[Task]
    epoch: int | None = None


@dataclass(frozen=True)
class Surroundings:
    """What a checkpoint is made with.

    Attributes:
        token: The leader's fencing token.
        timeout: How long a master hook may take, in milliseconds.
    """

    job: JobID
    job_name: str
    token: int
    lineage: str
    timeout: int
    counter: CheckpointIDCounter
    store: CompletedCheckpointStore
    storage: CheckpointStorageAccess
    hooks: MasterHooks
    failures: CheckpointFailureManager
    clock: Clock
    executor: Executor | None


class Performer:
    """Carries out instructions and brings the state machine the events that follow.

    Whatever is appended while another thread is at it is done by that thread.

    Args:
        protocol: The state machine.
        lock: Guards the state machine; not held while I/O is done.
        surroundings: What checkpoints are made with.
        plan: Says who takes part in the next checkpoint.
        to_commit_to: Tasks that are told what became of it.
        drained: Called, by whichever thread it was, when what was to be done is done.
    """

    def __init__(
        self,
        protocol: CheckpointProtocol,
        lock: threading.RLock,
        surroundings: Surroundings,
        plan: Callable[[], Plan],
        to_commit_to: Sequence[ExecutionVertex],
        drained: Callable[[], None],
    ) -> None:
        self._protocol = protocol
        self._lock = lock
        self._with = surroundings
        self._plan = plan
        self._to_commit_to = list(to_commit_to)
        self._drained = drained
        self._instructions: deque[Instruction] = deque()
        self._is_draining = False

    def append(self, instructions: Sequence[Instruction]) -> None:
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
            case Prepare(request):
                self._prepare(instruction)
            case Trigger(pending):
                self._trigger(pending)
            case Finalize(pending):
                self._finalize(pending)
            case Resolve(request, checkpoint):
                request.future.set_result(checkpoint)
            case Reject(request, error):
                request.future.set_exception(error)
            case NotifyComplete(checkpoint_id, timestamp, subsumed_id):
                for vertex in self._to_commit_to:
                    with _others_are_told(vertex):
                        vertex.notify_checkpoint_complete(checkpoint_id, timestamp, subsumed_id)
                        if subsumed_id:
                            vertex.notify_checkpoint_subsumed(subsumed_id)
            case NotifyAborted(checkpoint_id, timestamp, latest_id):
                for vertex in self._to_commit_to:
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

    def _prepare(self, instruction: Prepare) -> None:
        request = instruction.request
        try:
            plan = self._plan()
            pending = PendingCheckpoint(
                self._with.job,
                self._with.counter.get_and_increment(),
                self._with.clock.now_ms(),
                request,
                self._properties(request.properties),
                plan.to_wait_for,
                self._with.hooks.identifiers,
                plan.epoch,
            )
        except Exception as error:  # the counter and the tasks may be anybody's
            with self._lock:
                self.append(self._protocol.prepare_failed(request, _as_trigger_failure(error)))
            return
        with self._lock:
            self.append(self._protocol.prepared(pending))

    def _properties(self, properties: CheckpointProperties) -> CheckpointProperties:
        """A checkpoint after the restore of a snapshot that belongs to the user must not refer to its files."""
        latest = self._with.store.get_latest_checkpoint()
        if latest is not None and latest.properties.is_unclaimed() and not properties.is_savepoint():
            return properties.as_full_checkpoint()
        return properties

    def _trigger(self, pending: PendingCheckpoint) -> None:
        try:
            if pending.properties.is_savepoint():
                pending.location = self._with.storage.initialize_location_for_savepoint(
                    pending.checkpoint_id, pending.request.external_location
                )
            else:
                pending.location = self._with.storage.initialize_location_for_checkpoint(pending.checkpoint_id)
            timeout = self._with.timeout / 1000
            for identifier in self._with.hooks.identifiers:
                state = self._with.hooks.trigger(
                    identifier, pending.checkpoint_id, pending.timestamp, self._with.executor, timeout
                )
                with self._lock:
                    pending.acknowledge_master_state(identifier, state)
            kind = CheckpointType.SAVEPOINT if pending.properties.is_savepoint() else CheckpointType.CHECKPOINT
            options = CheckpointOptions(kind, pending.location.get_location_reference())
            if not pending.is_disposed:
                for vertex in self._plan().to_trigger:
                    vertex.trigger_checkpoint(pending.checkpoint_id, pending.timestamp, options)
        except Exception as error:
            with self._lock:
                self.append(self._protocol.trigger_failed(pending, _as_trigger_failure(error)))
            return
        with self._lock:
            self.append(self._protocol.triggered(pending))

    def _finalize(self, pending: PendingCheckpoint) -> None:
        with self._lock:
            is_needed = self._protocol.is_still_needed(pending)
            if not is_needed:
                self.append(self._protocol.finalize_not_needed(pending))
        if not is_needed:
            return
        try:
            metadata = pending.finalize_checkpoint(
                self._with.token, self._with.lineage, self._with.clock.now_ms(), self._with.job_name
            )
            written = write_checkpoint(pending, metadata, self._with.storage, self._with.store)
        except Exception as error:
            failure = error if isinstance(error, CompletionError) else CompletionError(error, keep_files=True)
            with self._lock:
                self.append(self._protocol.finalize_failed(pending, failure, keep_files=failure.keep_files))
            return
        with self._lock:
            self.append(self._protocol.finalized(pending, written.checkpoint, written.subsumed))


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
