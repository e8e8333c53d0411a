"""Completing checkpoints under one lease: id, document, pointer, and what may go afterwards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint, pointer_for
from holdfast.checkpoint.completed_store import RegisterCompletedCheckpointStore
from holdfast.checkpoint.id_counter import RegisterCheckpointIDCounter
from holdfast.checkpoint.metadata import CheckpointMetadata, encode
from holdfast.checkpoint.options import NUM_RETAINED
from holdfast.checkpoint.sweeper import Sweeper
from holdfast.kernel import fault
from holdfast.runtime.job import Job
from holdfast.storage.naming import FileName
from holdfast.storage.os_error import translate
from holdfast.storage.register import Lease

logger = logging.getLogger(__name__)

SWEEP_EVERY = 20
"""Checkpoints between two sweeps: a sweep lists directories, which costs more than every epoch should pay."""


class Checkpointer:
    """The checkpoints of one term of one leader.

    Args:
        job: The job.
        lease: The right to write its register.
        recovered: The checkpoints that the register names and that can be read.
    """

    def __init__(self, job: Job, lease: Lease, recovered: list[CompletedCheckpoint]) -> None:
        self._job = job
        self._lease = lease
        self._counter = RegisterCheckpointIDCounter(lease)
        retained = job.configuration.get(NUM_RETAINED)
        self._store = RegisterCompletedCheckpointStore(lease, retained, recovered, self._counter)
        self._sweeper = Sweeper(job.directory, lease, job.configuration, job.clock)
        self._until_sweep = 0

    @property
    def token(self) -> int:
        """The token of the term."""
        return self._lease.token

    def complete(self, describe: Callable[[int], CheckpointMetadata]) -> int:
        """Writes the document, then its pointer, which is the commit point; returns the checkpoint's id.

        Raises:
            FencedError: Another leader took over; nothing became visible.
            PossibleInconsistentStateError: It is not known whether the pointer was written; nothing is discarded.
            StorageError: It could not be written; nothing became visible.
        """
        directory = self._job.directory
        metadata = describe(self._counter.get_and_increment())
        data, path = encode(metadata), directory.metadata_path(metadata.checkpoint_id)
        try:
            with fault.point("metadata.write"):
                directory.fs.create_exclusive(path, data)
        except OSError as error:
            raise translate(error, "write", path) from error
        pointer = pointer_for(metadata, data, directory.relative(path))
        checkpoint = CompletedCheckpoint(metadata, directory.chk_dir(metadata.checkpoint_id), pointer, fs=directory.fs)
        self._store.add_checkpoint_and_subsume_oldest_one(checkpoint)
        return metadata.checkpoint_id

    def notified(self, checkpoint_id: int) -> None:
        """All sinks have committed what a checkpoint names; the register learns of it with the next pointer."""
        self._store.mark_notified(checkpoint_id)

    def sweep(
        self, live: Iterable[str], elsewhere: Callable[[Callable[[FileName], bool]], object], *, now: bool = False
    ) -> None:
        """Deletes what no checkpoint needs, once in a while.

        Args:
            live: Paths of the runs of the current versions.
            elsewhere: Sweeps files outside of the job directory.
            now: Whether it is done in any case.

        Raises:
            FencedError: Another leader took over; nothing was deleted.
        """
        self._until_sweep -= 1
        if now or self._until_sweep <= 0:
            self._until_sweep = SWEEP_EVERY
            self._sweeper.sweep(live, is_dead_elsewhere=elsewhere)
