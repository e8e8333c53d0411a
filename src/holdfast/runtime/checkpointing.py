"""How epochs become checkpoints: when one is due, what it names, and what happens after its pointer is written.

An epoch that completes no checkpoint keeps its versions in memory and its output staged; both go into the next
checkpoint, and a failure before that loses them together, as in Flink.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from holdfast.checkpoint import recovery
from holdfast.checkpoint.adoption import adopt
from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.metadata import CheckpointMetadata, OperatorMetadata
from holdfast.checkpoint.options import (
    CHECKPOINTING_INTERVAL,
    IGNORE_UNCLAIMED_STATE,
    RECOVERY_PATH,
)
from holdfast.errors import HoldfastError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import OperatorID, new_nonce
from holdfast.runtime.checkpointer import Checkpointer
from holdfast.runtime.committing import COMMITTER_RETRIES, Committing, Entry
from holdfast.runtime.control import JobControl
from holdfast.runtime.engine import EpochInput
from holdfast.runtime.epoch import EpochResult, EpochRunner
from holdfast.runtime.job import Job
from holdfast.runtime.options import START_FRESH
from holdfast.runtime.plan import JobPlan
from holdfast.storage.job_directory import TASK_OWNED
from holdfast.storage.naming import FileName
from holdfast.storage.register import Lease

logger = logging.getLogger(__name__)

NONCE_SUFFIX = ".nonce"


@dataclass(frozen=True)
class Restored:
    """What an attempt starts from; the defaults are a fresh start.

    Attributes:
        checkpoint_id: The checkpoint, None for a fresh start.
        epoch: Its epoch, or the highest that is known to have completed: numbers never go back.
        is_committed: Whether all sinks are known to have committed what the checkpoint names.
        allow_non_restored: Whether state without an operator is dropped.
        retained: The checkpoints that the register names and that can be read.
    """

    checkpoint_id: int | None = None
    epoch: int = 0
    processing_time: int = 0
    lineage: str = ""
    operators: tuple[OperatorMetadata, ...] = ()
    positions: Mapping[str, Any] | None = None
    is_committed: bool = False
    allow_non_restored: bool = False
    retained: tuple[CompletedCheckpoint, ...] = ()


def is_fresh(configuration: Configuration) -> bool:
    """Whether the job is to start without state, whatever checkpoints there are."""
    return configuration.get(START_FRESH)


def restore(job: Job, lease: Lease, *, is_first: bool) -> Restored:
    """What the next attempt starts from: the newest completed checkpoint, or what the process was started with.

    Args:
        job: The job.
        lease: Raised before, so that nobody else can complete a checkpoint any more.
        is_first: Whether this is the first attempt of the process; a restart takes the newest checkpoint.

    Raises:
        CorruptFileError: The checkpoint is damaged; names it and proposes the one before.
        NotExistError: The checkpoint asked for is not there.
    """
    options, state = job.configuration, lease.state
    asked = options.get(RECOVERY_PATH) if is_first else None
    fresh = is_first and is_fresh(options)
    if asked or fresh:
        found = recovery.readable(job.directory, state)
        retained = tuple(item for _, item in found if isinstance(item, CompletedCheckpoint))
    else:
        retained = tuple(recovery.recover_all(job.directory, state))
    epoch = max((checkpoint.metadata.epoch for checkpoint in retained), default=0)
    processing_time = max((checkpoint.metadata.processing_time for checkpoint in retained), default=0)
    if asked:
        metadata = adopt(recovery.load(asked), job.directory, lease.token)
        start = _restored(metadata, options, new_nonce())
        return replace(
            start,
            epoch=max(epoch, start.epoch),
            processing_time=max(processing_time, start.processing_time),
            retained=retained,
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
        retained=retained,
    )


def _restored(metadata: CheckpointMetadata, options: Configuration, lineage: str) -> Restored:
    return Restored(
        checkpoint_id=metadata.checkpoint_id,
        epoch=metadata.epoch,
        processing_time=metadata.processing_time,
        lineage=lineage,
        operators=metadata.operators,
        positions=metadata.source_positions,
        allow_non_restored=options.get(IGNORE_UNCLAIMED_STATE),
    )


class EpochCheckpoints:
    """The checkpoints of one job attempt."""

    def __init__(self, job: Job, lease: Lease, plan: JobPlan, restored: Restored, control: JobControl) -> None:
        self._job = job
        self._plan = plan
        self._restored = restored
        self._control = control
        self._interval = job.configuration.get(CHECKPOINTING_INTERVAL) or 0
        self._lease = lease
        self._checkpointer = Checkpointer(job, lease, list(restored.retained))
        self._committing = Committing(
            {step.uid: step.sink for step in plan.sinks()},
            job_id=str(job.job_id),
            staging_dir=job.directory.taskowned_dir,
            services=job.engine.services(),
            retries=job.configuration.get(COMMITTER_RETRIES),
            clock=job.clock,
            is_stopped=lambda: control.cancel_requested,
        )
        self._staged: dict[str, list[dict[str, Any]]] = {}
        self._positions: Mapping[str, Any] | None = restored.positions
        self._last_completion = job.clock.now_ms()
        self._pending_epochs = 0
        self._notified = 0
        self.nonce_file = self._write_nonce()

    def _write_nonce(self) -> str:
        """A file that every worker must see; one that does not has another disk under the same path."""
        name = FileName.new(self._lease.token, self._restored.epoch, 0, "driver", 0).format(NONCE_SUFFIX)
        relative = f"{TASK_OWNED}/{name}"
        self._job.directory.fs.create_exclusive(self._job.directory.absolute(relative), b"seen\n")
        return relative

    def commit_restored(self) -> None:
        """Commits what the restored checkpoint names, because nobody knows whether it was committed."""
        checkpoint_id = self._restored.checkpoint_id
        if checkpoint_id is not None and not self._restored.is_committed:
            self._committing.commit(checkpoint_id, _committables(self._restored.operators))

    def take(self, result: EpochResult, epochs: EpochRunner, epoch_input: EpochInput | None) -> int | None:
        """Takes an accepted epoch; completes a checkpoint if one is due and returns its id.

        Raises:
            FencedError: Another leader took over.
            CheckpointError: It could not be completed.
        """
        for uid, entries in result.committables().items():
            self._staged.setdefault(uid, []).extend(entries)
        self._pending_epochs += 1
        if epoch_input is not None:
            self._positions = epoch_input.positions()
        requests = self._control.take_checkpoint_requests()
        if not (requests or self._is_due(epoch_input)):
            return None
        return self._complete(epochs, requests)

    def notify(self, checkpoint_id: int, epochs: EpochRunner) -> None:
        """Everything that follows the pointer write: sinks commit, what no checkpoint needs any more goes."""
        staged, self._staged = self._staged, {}
        self._committing.commit(checkpoint_id, staged)
        self._checkpointer.notified(checkpoint_id)
        self._notified = checkpoint_id
        self._sweep(epochs)

    def end(self, epochs: EpochRunner) -> None:
        """Ends the attempt: what is pending completes, and the register learns that all sinks have been told."""
        if self._pending_epochs:
            self.notify(self._complete(epochs, []), epochs)
        notified = self._notified
        if notified:
            self._lease.write(lambda state: replace(state, notified=max(state.notified, notified)))
            self._sweep(epochs, now=True)

    def _sweep(self, epochs: EpochRunner, *, now: bool = False) -> None:
        live = [run.path for version in epochs.versions.values() for run in version.runs]
        self._checkpointer.sweep([*live, self.nonce_file], self._committing.sweep, now=now)

    def position(self) -> str:
        """Where the sources stand, as short text."""
        return _short(self._positions)

    def close(self) -> None:
        """Releases the committers."""
        self._committing.close()

    def _is_due(self, epoch_input: EpochInput | None) -> bool:
        if epoch_input is not None and epoch_input.is_last:
            return True
        return self._job.clock.now_ms() - self._last_completion >= self._interval

    def _complete(self, epochs: EpochRunner, requests: list[Future[int]]) -> int:
        try:
            checkpoint_id = self._checkpointer.complete(lambda number: self._metadata(number, epochs))
        except HoldfastError as error:
            for future in requests:
                future.set_exception(error)
            raise
        for future in requests:
            future.set_result(checkpoint_id)
        self._last_completion = self._job.clock.now_ms()
        self._pending_epochs = 0
        return checkpoint_id

    def _metadata(self, checkpoint_id: int, epochs: EpochRunner) -> CheckpointMetadata:
        operators = [
            OperatorMetadata(
                uid=step.uid,
                operator_id=OperatorID.from_uid(step.uid).to_hex(),
                name=step.name,
                parallelism=step.parallelism,
                max_parallelism=step.max_parallelism,
                key=step.codec.to_json() if step.codec else None,
                runs=epochs.versions[step.uid].runs,
            )
            for step in self._plan.keyed_steps()
        ]
        operators += [
            OperatorMetadata(
                uid=step.uid,
                operator_id=OperatorID.from_uid(step.uid).to_hex(),
                name=step.name,
                parallelism=1,
                max_parallelism=1,
                committables={step.uid: self._staged.get(step.uid, [])},
            )
            for step in self._plan.sinks()
        ]
        return CheckpointMetadata(
            job_id=str(self._job.job_id),
            job_name=self._job.name,
            checkpoint_id=checkpoint_id,
            epoch=epochs.epoch,
            token=self._checkpointer.token,
            lineage=self._restored.lineage,
            completed_at=self._job.clock.now_ms(),
            processing_time=epochs.processing_time,
            operators=tuple(operators),
            source_positions=self._positions,
        )


def _committables(operators: tuple[OperatorMetadata, ...]) -> dict[str, list[Entry]]:
    merged: dict[str, list[Entry]] = {}
    for operator in operators:
        for uid, entries in operator.committables.items():
            merged.setdefault(uid, []).extend(entries)
    return {uid: sorted(entries, key=lambda e: int(e["epoch"])) for uid, entries in merged.items() if entries}


def _short(positions: Mapping[str, Any] | None) -> str:
    if not positions:
        return "no source position"
    streaming = positions.get("streaming")
    if streaming:
        return f"batch {streaming['batch_id']}"
    return ", ".join(f"{name} {value}" for name, value in positions.items() if not isinstance(value, dict | list))
