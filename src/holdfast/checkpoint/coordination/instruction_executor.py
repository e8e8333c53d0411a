"""Drives the coordinator's state machine: brings it events, and carries out what it asks for, one thing at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec

from holdfast.checkpoint.coordination.completion import CompletionError, write_checkpoint
from holdfast.checkpoint.coordination.vertex import Vertices
from holdfast.checkpoint.coordination.wiring import Wiring
from holdfast.checkpoint.document.snapshot_type import CheckpointProperties, CheckpointType
from holdfast.checkpoint.message.trigger import CheckpointOptions, ExecutionVertex
from holdfast.checkpoint.protocol.instruction import (
    DiscardLocation,
    Finalize,
    Instruction,
    NotifyAborted,
    NotifyComplete,
    Reject,
    ReportFailure,
    ReportSuccess,
    Resolve,
    TriggerTasks,
)
from holdfast.checkpoint.protocol.pending_checkpoint import PendingCheckpoint
from holdfast.checkpoint.protocol.state_machine import CheckpointProtocol, Instructions
from holdfast.errors import CheckpointError, CheckpointFailureReason, StorageError
from holdfast.kernel.ids import new_nonce
from holdfast.kernel.secret import get_logger

P = ParamSpec("P")
_log = get_logger(__name__)


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

    def bring(self, event: Callable[P, Instructions], *args: P.args, **kwargs: P.kwargs) -> Instructions:
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
            case TriggerTasks():
                self._begin(instruction)
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

    def _begin(self, instruction: TriggerTasks) -> None:
        """Begin a checkpoint, and hand it to whoever triggered it, whatever happens."""
        pending = None
        try:
            pending = self._trigger(instruction)
        finally:
            instruction.pending.set_result(pending)

    def _trigger(self, instruction: TriggerTasks) -> PendingCheckpoint | None:
        request, end = instruction.request, instruction.end
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
                None if end is None else end.epoch,
            )
        except Exception as error:  # the counter and the tasks may be anybody's
            self._take(self._protocol.prepare_failed, request, _as_trigger_failure(error))
            return None
        with self._lock:
            self.append(self._protocol.prepared(pending))
            if pending.is_disposed:
                return None
        try:
            self._ask(pending, to_trigger)
        except Exception as error:
            self._take(self._protocol.trigger_failed, pending, _as_trigger_failure(error))
            return None
        self._take(self._protocol.triggered, pending)
        return pending

    def _ask(self, pending: PendingCheckpoint, to_trigger: list[ExecutionVertex]) -> None:
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
