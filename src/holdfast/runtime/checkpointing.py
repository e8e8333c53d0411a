"""How epochs become checkpoints: when one is due, what it names, and what happens after its pointer is written.

An epoch that completes no checkpoint keeps its versions in memory and its output staged; both go into the next
checkpoint, and a failure before that loses them together, as in Flink.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.checkpoint.metadata import PREVIOUS_EPOCH, CheckpointMetadata, OperatorMetadata
from holdfast.checkpoint.statistics import CheckpointStatsTracker
from holdfast.errors import (
    CheckpointError,
    CheckpointFailureReason,
    ConfigurationError,
    HoldfastError,
    StopWithSavepointStoppingError,
)
from holdfast.kernel import fault
from holdfast.kernel.ids import OperatorID
from holdfast.runtime.acknowledgement import tasks_of
from holdfast.runtime.checkpointer import Checkpointer
from holdfast.runtime.committing import COMMITTER_RETRIES, Committing, Entry
from holdfast.runtime.control import JobControl, SnapshotRequest
from holdfast.runtime.descriptor import CheckpointNews
from holdfast.runtime.engine import EpochInput
from holdfast.runtime.epoch import EpochResult, EpochRunner
from holdfast.runtime.job import Job
from holdfast.runtime.master_hooks import add_hooks, restore_hooks
from holdfast.runtime.plan import JobPlan
from holdfast.runtime.starting_point import Restored
from holdfast.storage.job_directory import TASK_OWNED
from holdfast.storage.naming import FileName
from holdfast.storage.register import Lease

logger = logging.getLogger(__name__)

NONCE_SUFFIX = ".nonce"


class EpochCheckpoints:
    """The checkpoints of one job attempt."""

    def __init__(
        self,
        job: Job,
        lease: Lease,
        plan: JobPlan,
        restored: Restored,
        control: JobControl,
        statistics: CheckpointStatsTracker,
    ) -> None:
        self._job = job
        self._restored = restored
        self._control = control
        self._lease = lease
        self._checkpointer = Checkpointer(job, lease, restored.retained, restored.lineage, statistics)
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
        self._stopping: list[tuple[SnapshotRequest, str]] = []
        self._positions: Mapping[str, Any] | None = restored.positions
        self._pending: EpochResult | None = None
        self._asked: tuple[SnapshotRequest, ...] = ()
        self._notified = 0
        self._previous_epoch = restored.epoch if restored.is_own else 0
        self._newest = self._told = restored.checkpoint_id
        if restored.source is not None:
            statistics.report_restored(restored.source)
        self.nonce_file = self._write_nonce()

    def _write_nonce(self) -> str:
        """A file that every worker must see; one that does not has another disk under the same path."""
        name = FileName.new(self._lease.token, self._restored.epoch, 0, "driver", 0).format(NONCE_SUFFIX)
        relative = f"{TASK_OWNED}/{name}"
        self._job.directory.fs.create_exclusive(self._job.directory.absolute(relative), b"seen\n")
        return relative

    def restore_hooks(self) -> None:
        """Makes the hooks that the program brings and gives them their state in the restored checkpoint.

        Raises:
            ConfigurationError, RestoreError, CorruptFileError: They do not fit, or not the checkpoint.
            StateError: One has failed.
        """
        add_hooks(self._job.graph, self._checkpointer.coordinator)
        restore_hooks(self._checkpointer.coordinator, self._restored)

    def commit_restored(self) -> None:
        """Commits what the restored checkpoint names, because nobody knows whether it was committed."""
        checkpoint_id = self._restored.checkpoint_id
        if checkpoint_id is not None and not self._restored.is_committed:
            self._committing.commit(checkpoint_id, _committables(self._restored.operators), is_recovered=True)
            if self._restored.is_own:
                self._checkpointer.notified(checkpoint_id)
                self._notified = checkpoint_id

    def refuse_vain_drains(self) -> None:
        """Refuses to bring event time to its end for a savepoint that cannot be written: that cannot be taken back."""
        for request in self._control.waiting_drains():
            try:
                self._checkpointer.try_place(request)
            except HoldfastError as error:
                logger.warning("the savepoint cannot be written, so the job is not drained for it: %s", error)
                self._control.refuse(request, error)

    def take(self, result: EpochResult, epochs: EpochRunner, epoch_input: EpochInput | None) -> int | None:
        """Takes an accepted epoch; completes the checkpoint and the savepoints that are due.

        Returns:
            The id of the checkpoint, which is then pending notification; None if none completed.

        Raises:
            FencedError: Another leader took over.
            CheckpointError: It could not be completed.
        """
        for uid, entries in result.committables().items():
            self._staged.setdefault(uid, []).extend(entries)
        self._pending = result
        if epoch_input is not None:
            self._positions = epoch_input.positions()
        is_due = result.descriptor.is_last or self._control.snapshot_requested
        if is_due or self._checkpointer.is_due(epochs.epoch):
            return self._complete(epochs)
        return None

    def notify(self, checkpoint_id: int, epochs: EpochRunner) -> None:
        """Everything that follows the pointer write: sinks commit, requests are answered, old files go."""
        with fault.point("notify"):
            staged, self._staged = self._staged, {}
            self._committing.commit(checkpoint_id, staged)
            self._checkpointer.notified(checkpoint_id)
            self._notified = checkpoint_id
        drained = self._last_result.descriptor.is_last
        for request in self._control.take_requests(among=self._asked, drained=drained):
            self._answer(request, checkpoint_id, epochs)
        self._sweep(epochs)

    def end(self, epochs: EpochRunner) -> None:
        """Ends the attempt: what is pending completes, and the register learns that all sinks have been told.

        Raises:
            FencedError: Another leader took over.
            CheckpointError: What is pending could not be completed; a failure that would be tolerated before the end.
        """
        if self._pending is not None:
            completed = self._complete(epochs)
            if completed is None:
                raise CheckpointError(
                    CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE,
                    "It was the last of the job: no later one can take its place, so it is not tolerated: "
                    f"{self._checkpointer.tolerated}",
                ) from self._checkpointer.tolerated
            self.notify(completed, epochs)
        notified = self._notified
        self._lease.write(lambda state: replace(state, notified=max(state.notified, notified)))
        self._sweep(epochs, now=True)
        stopping, self._stopping = self._stopping, []
        for request, path in stopping:
            request.future.set_result(path)

    def news(self) -> CheckpointNews:
        """What functions are told of checkpoints in the next epoch, once."""
        newest = self._newest
        completed = newest if newest != self._told else None
        self._told = newest
        return CheckpointNews(self._checkpointer.next_id, newest, completed, self._checkpointer.take_aborted())

    def position(self) -> str:
        """Where the sources stand, as short text."""
        return _short(self._positions)

    def close(self) -> None:
        """Releases the committers and the coordinator; who wished to stop with a savepoint and waits is told."""
        for request, path in self._stopping:
            request.future.set_exception(StopWithSavepointStoppingError(path, str(self._job.job_id)))
        self._committing.close()
        self._checkpointer.close()

    def _complete(self, epochs: EpochRunner) -> int | None:
        assert self._pending is not None
        self._asked = self._control.waiting
        completed = self._checkpointer.complete(
            epochs.epoch,
            tasks_of(self._pending, epochs, self._previous_epoch),
            lambda number: self._metadata(number, epochs),
        )
        if completed is None:
            return None
        self._last_result, self._pending = self._pending, None
        self._newest = completed.checkpoint_id
        self._previous_epoch = epochs.epoch
        return completed.checkpoint_id

    def _answer(self, request: SnapshotRequest, checkpoint_id: int, epochs: EpochRunner) -> None:
        """Answers one request at the boundary whose checkpoint is complete and whose output is committed."""
        if not request.is_savepoint:
            request.future.set_result(checkpoint_id)
            return
        try:
            tasks = tasks_of(self._last_result, epochs, 0)  # all that a savepoint holds is new
            savepoint = self._checkpointer.savepoint(request, epochs.epoch, tasks, lambda n: self._metadata(n, epochs))
        except (CheckpointError, ConfigurationError) as error:
            logger.warning("the savepoint failed, the job goes on: %s", error)
            if request.drain:
                epochs.go_on()
                error.add_note("The event-time timers have fired for it; what they have done is not taken back.")
            request.future.set_exception(error)
        except HoldfastError as error:
            request.future.set_exception(error)
            raise
        else:
            path = savepoint.get_external_pointer()
            if request.stop:
                self._stopping.append((request, path))
                self._control.stop()
            else:
                request.future.set_result(path)

    def _sweep(self, epochs: EpochRunner, *, now: bool = False) -> None:
        live = [*epochs.live_runs(), *epochs.operator_states.paths(), self.nonce_file]
        self._checkpointer.sweep(live, self._committing.sweep, now=now)

    def _metadata(self, checkpoint_id: int, epochs: EpochRunner) -> CheckpointMetadata:
        operators = [
            OperatorMetadata(
                uid=step.uid,
                operator_id=OperatorID.from_uid(step.uid).to_hex(),
                name=step.name,
                parallelism=step.parallelism,
                max_parallelism=step.max_parallelism,
                key=step.codec.to_json() if step.codec else None,
                runs=epochs.versions[step.uid].runs if step.codec else (),
                subtasks=epochs.operator_states.to_json(step.uid),
            )
            for step in epochs.plan.stateful_steps()
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
            for step in epochs.plan.sinks()
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
            extra={PREVIOUS_EPOCH: self._previous_epoch},
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
