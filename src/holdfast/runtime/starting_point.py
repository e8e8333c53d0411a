"""Where a job attempt starts: the newest completed checkpoint, one that was asked for, or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.checkpoint import recovery
from holdfast.checkpoint.adoption import adopt
from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.metadata import CheckpointMetadata, OperatorMetadata
from holdfast.checkpoint.options import IGNORE_UNCLAIMED_STATE, RECOVERY_PATH
from holdfast.checkpoint.statistics import RestoredStats
from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import new_nonce
from holdfast.runtime.job import Job
from holdfast.runtime.options import START_FRESH
from holdfast.storage.register import Lease


@dataclass(frozen=True)
class Restored:
    """What an attempt starts from; the defaults are a fresh start.

    Attributes:
        checkpoint_id: The checkpoint, None for a fresh start.
        epoch: Its epoch, or the highest that is known to have completed: numbers never go back.
        master_states: What the hooks of the job master's side have given to it, by name.
        is_committed: Whether all sinks are known to have committed what the checkpoint names.
        is_own: Whether it is one that the job's register names; the ids of others say nothing here.
        allow_non_restored: Whether state without an operator is dropped.
        retained: The checkpoints that the register names and that can be read.
        source: What the statistics say of the checkpoint, None for a fresh start.
    """

    checkpoint_id: int | None = None
    epoch: int = 0
    processing_time: int = 0
    lineage: str = ""
    operators: tuple[OperatorMetadata, ...] = ()
    positions: Mapping[str, Any] | None = None
    master_states: Mapping[str, Any] = field(default_factory=dict)
    is_committed: bool = False
    is_own: bool = False
    allow_non_restored: bool = False
    retained: tuple[CompletedCheckpoint, ...] = ()
    source: RestoredStats | None = None


def is_fresh(configuration: Configuration) -> bool:
    """Whether the job is to start without state, whatever checkpoints there are."""
    return configuration.get(START_FRESH)


def is_chosen(configuration: Configuration) -> bool:
    """Whether the program or the command line says where to start, instead of at the newest completed checkpoint."""
    return is_fresh(configuration) or configuration.get(RECOVERY_PATH) is not None


def restore(job: Job, lease: Lease, *, is_first: bool) -> Restored:
    """What the next attempt starts from: the newest completed checkpoint, or what the process was started with.

    Args:
        job: The job.
        lease: Raised before, so that nobody else can complete a checkpoint any more.
        is_first: Whether no checkpoint of this process has completed; only then it counts what it was started with.

    Raises:
        CorruptFileError: The checkpoint is damaged; names it and proposes the one before.
        NotExistError: The checkpoint asked for is not there.
        ConfigurationError: The directory belongs to another job.
    """
    options, state = job.configuration, lease.state
    asked = options.get(RECOVERY_PATH) if is_first else None
    fresh = is_first and is_fresh(options)
    if asked or fresh:
        found = recovery.readable(job.directory, state)
        retained = tuple(item for _, item in found if isinstance(item, CompletedCheckpoint))
    else:
        retained = tuple(recovery.recover_all(job.directory, state))
    _require_own(job, retained)
    epoch = max((checkpoint.metadata.epoch for checkpoint in retained), default=0)
    processing_time = max((checkpoint.metadata.processing_time for checkpoint in retained), default=0)
    if asked:
        found_there = recovery.load(asked)
        metadata = adopt(found_there, job.directory, lease.token)
        start = _restored(metadata, options, new_nonce())
        return replace(
            start,
            epoch=max(epoch, start.epoch),
            processing_time=max(processing_time, start.processing_time),
            retained=retained,
            source=_statistics(found_there, job),
        )
    if fresh or not retained:
        return Restored(epoch=epoch, processing_time=processing_time, lineage=new_nonce(), retained=retained)
    metadata = retained[-1].metadata
    start = _restored(metadata, options, metadata.lineage)
    return replace(
        start,
        epoch=max(epoch, start.epoch),
        processing_time=max(processing_time, start.processing_time),
        is_committed=state.notified >= metadata.checkpoint_id,
        is_own=True,
        retained=retained,
        source=_statistics(retained[-1], job),
    )


def _require_own(job: Job, retained: Sequence[CompletedCheckpoint]) -> None:
    """Without a directory of its own a job might take another's checkpoints for its own."""
    others = {checkpoint.get_job_id() for checkpoint in retained} - {str(job.job_id)}
    if others and job.directory.path == job.directory.root:
        raise ConfigurationError(
            f"{job.directory.path!r} holds the checkpoints of job {min(others)}, not of {job.job_id}: with "
            "execution.checkpointing.create-subdir off each job needs an execution.checkpointing.dir of its own."
        )


def _statistics(checkpoint: CompletedCheckpoint, job: Job) -> RestoredStats:
    return RestoredStats(checkpoint.checkpoint_id, checkpoint.properties, job.clock.now_ms(), checkpoint.path)


def _restored(metadata: CheckpointMetadata, options: Configuration, lineage: str) -> Restored:
    return Restored(
        checkpoint_id=metadata.checkpoint_id,
        epoch=metadata.epoch,
        processing_time=metadata.processing_time,
        lineage=lineage,
        operators=metadata.operators,
        positions=metadata.source_positions,
        master_states=metadata.master_states,
        allow_non_restored=options.get(IGNORE_UNCLAIMED_STATE),
    )
