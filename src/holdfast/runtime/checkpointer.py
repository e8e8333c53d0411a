"""The coordinator of a job attempt, as the job master drives it: checkpoints, savepoints, sweeps."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from holdfast.checkpoint.adoption import adopt
from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint, pointer_for
from holdfast.checkpoint.epoch_coordinator import EpochCheckpointCoordinator
from holdfast.checkpoint.failure import CheckpointFailureManager, FailJobCallback
from holdfast.checkpoint.location import FileCheckpointLocation
from holdfast.checkpoint.metadata import PREVIOUS_EPOCH, CheckpointMetadata, encode
from holdfast.checkpoint.options import GRACE_PERIOD, SAVEPOINT_DIRECTORY, TOLERABLE_FAILED
from holdfast.checkpoint.pending_checkpoint import PendingCheckpoint
from holdfast.checkpoint.statistics import CheckpointStatsTracker
from holdfast.checkpoint.sweeper import Sweeper
from holdfast.errors import (
    CheckpointError,
    CheckpointFailureReason,
    ConfigurationError,
    FencedError,
    HoldfastError,
    PossibleInconsistentStateError,
)
from holdfast.kernel.ids import new_nonce
from holdfast.runtime.acknowledgement import AcknowledgedTask
from holdfast.runtime.control import SnapshotRequest
from holdfast.runtime.job import Job
from holdfast.storage.file_system import file_system_for, join
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.naming import FileName
from holdfast.storage.register import Lease

logger = logging.getLogger(__name__)

SWEEP_EVERY = 20
_LONGEST_SWEEP_PAUSE = 10.0  # seconds
"""Checkpoints between two sweeps: a sweep lists directories, which costs more than every epoch should pay."""

Describe = Callable[[int], CheckpointMetadata]

_PROBE: Final = ".holdfast-probe-"


class Checkpointer:
    """The checkpoints of one term of one leader.

    Args:
        job: The job.
        lease: The right to write its register.
        recovered: The checkpoints that the register names and that can be read.
        lineage: Of the documents.
        statistics: Where checkpoints are counted.
    """

    def __init__(
        self,
        job: Job,
        lease: Lease,
        recovered: Sequence[CompletedCheckpoint],
        lineage: str,
        statistics: CheckpointStatsTracker,
    ) -> None:
        self._job = job
        self._lease = lease
        self._failures = _JobFailure()
        self.coordinator = EpochCheckpointCoordinator.create(
            job.directory,
            lease,
            job.configuration,
            CheckpointFailureManager(job.configuration.get(TOLERABLE_FAILED), self._failures),
            recovered,
            clock=job.clock,
            lineage=lineage,
            job_name=job.name,
            statistics=statistics,
        )
        self._sweeper = Sweeper(job.directory, lease, job.configuration, job.clock)
        # A sweep looks at each file that waits for its grace period, so fast epochs must not make it more often than
        # this period can notice.
        self._sweep_pause = min(_LONGEST_SWEEP_PAUSE, job.configuration.get(GRACE_PERIOD) / 60_000)
        self._swept_at = -math.inf
        self._until_sweep = 0
        self._aborted: list[int] = []
        self.tolerated: CheckpointError | None = None
        """The newest failure of a checkpoint that was tolerated."""

    @property
    def next_id(self) -> int:
        """The id that the next checkpoint is expected to get."""
        return self.coordinator.get_checkpoint_id_counter().get()

    def take_aborted(self) -> tuple[int, ...]:
        """Returns the ids of the checkpoints that have failed since the last call."""
        taken, self._aborted = tuple(self._aborted), []
        return taken

    @property
    def token(self) -> int:
        """The token of the term."""
        return self._lease.token

    def is_due(self, epoch: int) -> bool:
        """Whether the end of an epoch is to complete a checkpoint."""
        return self.coordinator.is_due(epoch)

    def complete(self, epoch: int, tasks: Sequence[AcknowledgedTask], describe: Describe) -> CompletedCheckpoint | None:
        """Completes the checkpoint of an epoch: its document, then its pointer, which is the commit point.

        Returns:
            The checkpoint; None if it failed and execution.checkpointing.tolerable-failed-checkpoints tolerates that:
            the epoch then belongs to the next one.

        Raises:
            FencedError: Another leader took over; nothing became visible.
            PossibleInconsistentStateError: It is not known whether the pointer was written; nothing is discarded.
            CheckpointError: It could not be completed; nothing became visible.
        """
        pending = None
        try:
            pending = self.coordinator.begin(epoch, tasks, force=True)
            if pending is None:
                raise CheckpointError(CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE)
            return self._finish(pending, tasks, describe(pending.checkpoint_id))
        except CheckpointError as error:
            if self._failures.cause is not None:
                raise
            self.tolerated = error
            if pending is not None:
                self._aborted.append(pending.checkpoint_id)
            logger.warning(
                "a checkpoint of epoch %d failed and is tolerated; the next one takes its place: %s", epoch, error
            )
            return None

    def savepoint(
        self, request: SnapshotRequest, epoch: int, tasks: Sequence[AcknowledgedTask], describe: Describe
    ) -> CompletedCheckpoint:
        """Writes a savepoint of what the epoch's checkpoint holds, with copies of all its files. Blocks.

        Raises:
            ConfigurationError: No directory is given or configured.
            CheckpointError: It could not be written; the job goes on.
        """
        directory = self._place_of(request)
        if request.stop:
            future = self.coordinator.trigger_synchronous_savepoint(request.drain, directory, request.format_type)
        else:
            future = self.coordinator.trigger_savepoint(directory, request.format_type)
        pending = self.coordinator.begin(epoch, tasks)
        if pending is None:
            return future.result(timeout=0)
        try:
            copied = self._copied(pending, describe(pending.checkpoint_id))
        except HoldfastError as error:
            reason = CheckpointFailureReason.IO_EXCEPTION
            self.coordinator.abort(pending, CheckpointError(reason, error))
            raise CheckpointError(reason, error) from error
        return self._finish(pending, tasks, copied)

    def try_place(self, request: SnapshotRequest) -> None:
        """Makes sure that something can be written where a savepoint is to go. Blocks.

        Raises:
            ConfigurationError: No directory is given or configured.
            HoldfastError: Nothing can be written there.
        """
        directory = self._place_of(request)
        fs = file_system_for(directory)
        fs.write_atomic(join(directory, f"{_PROBE}{new_nonce()}"), b"")
        for name in fs.list_names(directory):
            if name.startswith(_PROBE):  # also those of others who died here
                fs.delete(join(directory, name))

    def _place_of(self, request: SnapshotRequest) -> str:
        directory = request.directory or self._job.configuration.get(SAVEPOINT_DIRECTORY)
        if directory is None:
            raise ConfigurationError(
                "no savepoint directory: pass one, or set execution.checkpointing.savepoint-dir to a directory that "
                "outlives the job"
            )
        return directory

    def notified(self, checkpoint_id: int) -> None:
        """All sinks have committed what a checkpoint names; the register learns of it with the next pointer."""
        self.coordinator.mark_notified(checkpoint_id)

    def sweep(
        self, live: Iterable[str], elsewhere: Callable[[Callable[[FileName], bool]], object], *, now: bool = False
    ) -> None:
        """Deletes what no checkpoint needs, once in a while: not in each epoch, and at most every ten seconds.

        Args:
            live: Paths of the runs of the current versions.
            elsewhere: Sweeps files outside of the job directory.
            now: Whether it is done in any case, and waited for; otherwise files are deleted beside the epochs.

        Raises:
            FencedError: Another leader took over; nothing was deleted.
        """
        self._until_sweep -= 1
        started = self._job.clock.monotonic()
        if now or (self._until_sweep <= 0 and started - self._swept_at >= self._sweep_pause):
            self._until_sweep, self._swept_at = SWEEP_EVERY, started
            self._sweeper.sweep(live, is_dead_elsewhere=elsewhere, wait=now)

    def close(self) -> None:
        """Nothing is triggered any more; what is under way is given up."""
        self._sweeper.close()
        try:
            self.coordinator.shutdown()
        except (FencedError, PossibleInconsistentStateError) as error:
            logger.debug("the coordinator's end: %s", error)

    def _finish(
        self, pending: PendingCheckpoint, tasks: Sequence[AcknowledgedTask], metadata: CheckpointMetadata
    ) -> CompletedCheckpoint:
        for task in tasks:
            self.coordinator.acknowledge(pending, task.execution_id, task.metrics)
        described = replace(metadata, properties=pending.properties.to_json())
        return self.coordinator.complete(pending, described)

    def _copied(self, pending: PendingCheckpoint, metadata: CheckpointMetadata) -> CheckpointMetadata:
        """The document with all runs and source entries copied to the savepoint, which then needs no other directory.

        Staged output is left out: the checkpoint of the same epoch has named it, and it is committed.
        """
        location, own = pending.location, self._job.directory
        assert isinstance(location, FileCheckpointLocation)
        target = JobDirectory(location.fs, location.path, own.job_id, create_subdir=False)
        without_output = tuple(replace(operator, committables={}) for operator in metadata.operators)
        # All files are copied, so all of them are new.
        checkpoint = replace(metadata, operators=without_output, extra={**metadata.extra, PREVIOUS_EPOCH: 0})
        data = encode(checkpoint)
        path = own.metadata_path(metadata.checkpoint_id)
        source = CompletedCheckpoint(
            checkpoint, own.chk_dir(metadata.checkpoint_id), pointer_for(checkpoint, data, path), fs=own.fs
        )
        return adopt(source, target, self._lease.token)


class _JobFailure(FailJobCallback):
    """Remembers that the failures of checkpoints have become too many."""

    def __init__(self) -> None:
        self.cause: HoldfastError | None = None

    def fail_job(self, cause: HoldfastError) -> None:
        self.cause = cause

    def fail_job_due_to_task_failure(self, cause: HoldfastError, execution_id: str) -> None:
        self.cause = cause
