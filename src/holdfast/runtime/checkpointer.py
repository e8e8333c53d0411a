"""Completing checkpoints under one lease: id, document, pointer, and what may go afterwards."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.completed_store import RegisterCompletedCheckpointStore
from holdfast.checkpoint.id_counter import RegisterCheckpointIDCounter
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.checkpoint.options import NUM_RETAINED
from holdfast.checkpoint.sweeper import Sweeper
from holdfast.errors import HoldfastError
from holdfast.runtime.job import Job
from holdfast.storage.register import Lease

logger = logging.getLogger(__name__)

SWEEP_EVERY = 20
"""Checkpoints between two sweeps; a sweep lists directories, which costs more than an epoch should pay."""


class Checkpointer:
    """The checkpoints of one term of one leader.

    Args:
        job: The job.
        lease: The right to write its register.
        recovered: The checkpoints that the register names.
    """

    def __init__(self, job: Job, lease: Lease, recovered: list[CompletedCheckpoint]) -> None:
        self._job = job
        self._lease = lease
        self._counter = RegisterCheckpointIDCounter(lease)
        retained = job.configuration.get(NUM_RETAINED)
        self._store = RegisterCompletedCheckpointStore(lease, retained, recovered, self._counter)
        self._sweeper = Sweeper(job.directory, lease, job.configuration, job.clock)
        self._since_sweep = 0
        self._notified = 0
