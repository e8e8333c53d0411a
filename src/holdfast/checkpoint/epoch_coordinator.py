"""The coordinator as a job master drives it: epoch by epoch, everything in the calling thread.

::

    coordinator = EpochCheckpointCoordinator.create(directory, lease, configuration, failures, recovered, clock=clock)
    ...
    while pending := coordinator.begin(epoch, tasks):              # None: nothing is due (any more)
        for task in tasks:
            coordinator.acknowledge(pending, task.execution_id)
        completed = coordinator.complete(pending, metadata)         # document, then pointer: the commit point
        ...                                                         # notify: sinks commit what it names
        coordinator.mark_notified(completed.checkpoint_id)

Requests of other threads (`trigger_checkpoint`, `trigger_savepoint`) wait for the next `begin`; `wants_epoch` tells
whether there are any, so that an epoch without input can be run for them. A savepoint is written where
`pending.location` says, with paths relative to it, and gets no pointer; after it `begin` may return the epoch's own
checkpoint as well, hence the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.completed_store import RegisterCompletedCheckpointStore
from holdfast.checkpoint.config import CheckpointConfig
from holdfast.checkpoint.coordinator import CheckpointCoordinator
from holdfast.checkpoint.failure import CheckpointFailureManager
from holdfast.checkpoint.id_counter import RegisterCheckpointIDCounter
from holdfast.checkpoint.instruction import Prepare
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.checkpoint.options import NUM_RETAINED, SAVEPOINT_DIRECTORY
from holdfast.checkpoint.pending_checkpoint import PendingCheckpoint, Task
from holdfast.checkpoint.performer import Plan
from holdfast.checkpoint.statistics import CheckpointStatsTracker
from holdfast.checkpoint.storage import FileCheckpointStorageAccess
from holdfast.checkpoint.trigger import AcknowledgeCheckpoint, CheckpointMetrics, OperatorSubtaskState
from holdfast.errors import (
    CheckpointError,
    CheckpointFailureReason,
    FencedError,
    PossibleInconsistentStateError,
    StateError,
)
from holdfast.kernel.clock import Clock
from holdfast.kernel.configuration import Configuration
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.register import Lease

_log = logging.getLogger(__name__)


class EpochCheckpointCoordinator(CheckpointCoordinator):
    """A coordinator whose checkpoints are taken at the ends of epochs; one thread drives it, others may ask."""

    _register_store: RegisterCompletedCheckpointStore
    _epoch: tuple[int, tuple[Task, ...]] | None = None

    @classmethod
    def create(
        cls,
        directory: JobDirectory,
        lease: Lease,
        configuration: Configuration,
        failure_manager: CheckpointFailureManager,
        recovered: Sequence[CompletedCheckpoint] = (),
        *,
        clock: Clock | None = None,
        lineage: str | None = None,
        job_name: str = "",
        statistics: CheckpointStatsTracker | None = None,
    ) -> EpochCheckpointCoordinator:
        """Return the coordinator of one job attempt.

        Args:
            directory: The job's directory.
            lease: The right to write the job's register, raised for this attempt.
            configuration: The options.
            failure_manager: Decides when failures fail the job.
            recovered: What the register names, as `recovery.recover_all` reads it.
            clock: Time.
            lineage: For the documents: that of the restored checkpoint if it goes on, a new one by default.
            job_name: For the documents.
            statistics: Where checkpoints are counted; of its own by default.
        """
        counter = RegisterCheckpointIDCounter(lease)
        store = RegisterCompletedCheckpointStore(lease, _retained(configuration), list(recovered), counter)
        coordinator = cls(
            directory.job_id,
            CheckpointConfig(configuration),
            (),
            (),
            (),
            None,
            counter,
            store,
            None,
            None,
            failure_manager,
            clock=clock,
            token=lease.token,
            lineage=lineage,
            job_name=job_name,
            storage=FileCheckpointStorageAccess(directory, configuration.get(SAVEPOINT_DIRECTORY)),
            is_driven=True,
            statistics=statistics,
        )
        coordinator._register_store = store
        return coordinator

    def wants_epoch(self) -> bool:
        """Whether somebody asked for a checkpoint or savepoint and waits for the end of an epoch."""
        with self._lock:
            return self._protocol.has_waiting_requests

    def is_due(self, epoch: int) -> bool:
        """Whether the end of an epoch is to complete a checkpoint."""
        with self._lock:
            return self._protocol.has_waiting_requests or self._protocol.is_periodic_due(epoch)

    def begin(self, epoch: int, tasks: Iterable[Task] = (), *, force: bool = False) -> PendingCheckpoint | None:
        """Trigger a checkpoint for the end of an epoch, if one is due; blocks for I/O if ids must be reserved.

        Args:
            epoch: The epoch.
            tasks: Those who must acknowledge; may be none.
            force: Take a checkpoint, due or not.

        Raises:
            FencedError: Another leader took over.
            CheckpointError: It could not be triggered.
        """
        while True:
            known = set(self.get_pending_checkpoints())
            with self._lock:
                self._epoch = (epoch, tuple(tasks))
                self._performer.append(self._protocol.timer())
                instructions = self._protocol.epoch(epoch, force=force)
                self._performer.append(instructions)
                own = self._protocol.epoch_request
            self._drain()
            new = [pending for number, pending in self.get_pending_checkpoints().items() if number not in known]
            if new:
                return new[0]
            chosen = next((item.request for item in instructions if isinstance(item, Prepare)), None)
            if chosen is None:
                return None
            # It failed at once, and whoever asked for it was told. Another one may be due.
            error = chosen.future.exception()
            if isinstance(error, CheckpointError):
                _raise_cause(error)
                if chosen is own:
                    raise error

    def acknowledge(
        self,
        pending: PendingCheckpoint,
        execution_id: str,
        metrics: CheckpointMetrics | None = None,
        state: tuple[OperatorSubtaskState, ...] | None = None,
    ) -> bool:
        """Take the acknowledgement of a task; returns whether the checkpoint is still under way or expired lately."""
        return self.receive_acknowledge_message(
            AcknowledgeCheckpoint(self.job, execution_id, pending.checkpoint_id, metrics or CheckpointMetrics(), state)
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
        if metadata.checkpoint_id != pending.checkpoint_id:
            raise StateError(f"The document is that of checkpoint {metadata.checkpoint_id}, not of {pending!r}.")
        with self._lock:
            self._performer.append(self._protocol.timer())
            if not pending.is_disposed:
                if not pending.is_fully_acknowledged():
                    missing = [task.execution_id for task in pending.missing_tasks()]
                    raise StateError(f"{pending!r} cannot complete; missing: {missing[:10]!r}.")
                pending.metadata = replace(
                    metadata, properties=pending.properties.to_json(), master_states=dict(pending.master_states)
                )
                self._performer.append(self._protocol.complete_with_metadata(pending))
        self._drain()
        return self._result(pending)

    def abort(self, pending: PendingCheckpoint, error: CheckpointError | CheckpointFailureReason) -> None:
        """Give up a checkpoint; nothing happens if it is not under way."""
        cause = CheckpointError(error) if isinstance(error, CheckpointFailureReason) else error
        with self._lock:
            self._performer.append(self._protocol.abort(pending.checkpoint_id, cause))
        self._drain()

    def mark_notified(self, checkpoint_id: int) -> None:
        """Note that all sinks were told of a checkpoint; recorded along with the next pointer."""
        self._register_store.mark_notified(checkpoint_id)

    def adopt(self, checkpoint: CompletedCheckpoint) -> None:
        """Make a restored checkpoint or savepoint the one from which a recovery starts, and count ids on from it.

        Raises:
            FencedError: Another leader took over.
        """
        self._store.add_checkpoint_and_subsume_oldest_one(checkpoint)
        if self._counter.get() <= checkpoint.checkpoint_id:
            self._counter.set_count(checkpoint.checkpoint_id + 1)

    def _plan(self) -> Plan:
        if self._epoch is None:
            raise StateError("A driven coordinator triggers checkpoints at the end of an epoch: call begin().")
        return Plan((), self._epoch[1], self._epoch[0])

    def _result(self, pending: PendingCheckpoint) -> CompletedCheckpoint:
        try:
            return pending.request.future.result()
        except CheckpointError as error:
            _raise_cause(error)
            raise


def _raise_cause(error: CheckpointError) -> None:
    """Raise what made a checkpoint fail if it says something about the leader, and not only about the checkpoint."""
    cause = error.__cause__
    if isinstance(cause, FencedError | PossibleInconsistentStateError):
        raise cause from error


def _retained(configuration: Configuration) -> int:
    """How many checkpoints are kept; as in Flink, a number that cannot be is replaced."""
    retained, default = configuration.get(NUM_RETAINED), NUM_RETAINED.default
    if retained > 0:
        return retained
    _log.warning("%s is %d, but at least one is kept: it is taken to be %d.", NUM_RETAINED.key, retained, default)
    return default
