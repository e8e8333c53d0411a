"""Checkpoints of a job attempt: when an epoch completes one, what its document names, what follows its pointer.

An epoch that completes no checkpoint keeps its state versions in memory and its output staged. Both become part of the
next checkpoint; a failure before that loses both, as in Flink.

`checkpoint/coordinator.py` writes document and pointer. In a real-time job the engine begins the checkpoint of each
epoch (`runtime/realtime/engine.py`), its tasks acknowledge it, and `on_epoch_accepted` completes it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from holdfast.checkpoint.checkpoint_machine import CheckpointParticipant, PendingCheckpoint
from holdfast.checkpoint.claim import import_snapshot
from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint, pointer_for
from holdfast.checkpoint.coordinator import CheckpointCoordinator
from holdfast.checkpoint.instruction_executor import CheckpointFailureManager, CoordinatorServices, RememberedFailure
from holdfast.checkpoint.master_hook import MasterTriggerRestoreHook, WithMasterCheckpointHook
from holdfast.checkpoint.messages import CheckpointMetrics, DeclineCheckpoint
from holdfast.checkpoint.metadata import CLAIMED, EVENT_TIME, PREVIOUS_EPOCH, TARGETS, CheckpointMetadata, encode
from holdfast.checkpoint.options import GRACE_PERIOD, SAVEPOINT_DIRECTORY, TOLERABLE_FAILED
from holdfast.checkpoint.retention import Sweeper
from holdfast.checkpoint.snapshot_type import CheckpointProperties
from holdfast.checkpoint.statistics import CheckpointStatsTracker
from holdfast.checkpoint.storage import FileCheckpointLocation, check_savepoint_directory
from holdfast.errors import (
    CheckpointError,
    CheckpointFailureReason,
    ConfigurationError,
    CorruptFileError,
    FencedError,
    HoldfastError,
    PossibleInconsistentStateError,
    RestoreError,
    StateError,
    StopWithSavepointStoppingError,
)
from holdfast.kernel import fault
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import new_nonce
from holdfast.kernel.key_group import subtask_of
from holdfast.kernel.secret import get_logger
from holdfast.runtime.commit.sink_metrics import SinkMeter
from holdfast.runtime.commit.uncommitted import (
    Output,
    UncommittedCheckpoint,
    UncommittedOutput,
    create_commit_manager,
    operator_metadata,
    output_to_commit,
    short_position,
    with_incarnation,
)
from holdfast.runtime.epoch import EpochResult, JobEpochs
from holdfast.runtime.exchange.stage_message import CheckpointNotifications
from holdfast.runtime.exchange.task_report import StepReport, TaskReport, execution_id
from holdfast.runtime.function.user_function import functions_of
from holdfast.runtime.graph.plan import JobPlan
from holdfast.runtime.graph.stream_graph import KeyedNode, Node, NonKeyedNode, SinkNode, StreamGraph
from holdfast.runtime.job.control import JobControl, SnapshotRequest
from holdfast.runtime.job.engine import BegunCheckpoint, EpochAbandonedError, EpochInput, Job
from holdfast.runtime.restore import AttemptStart
from holdfast.state.operator_snapshot import OperatorSnapshot
from holdfast.state.run_file import RunHandle
from holdfast.storage.file_system import join
from holdfast.storage.job_directory import TASK_OWNED, FileName, JobDirectory
from holdfast.storage.register import RegisterWriter

logger = get_logger(__name__)

NONCE_SUFFIX = ".nonce"
_PROBE: Final = ".holdfast-probe-"
SWEEP_EVERY: Final = 20
"""Checkpoints between two sweeps: a sweep lists directories, which is too slow for every epoch."""
_LONGEST_PAUSE: Final = 10.0  # seconds


class EpochCheckpoints:
    """The checkpoints of one job attempt.

    Args:
        job: The job.
        writer: The writer of the attempt.
        plan: The steps.
        restored: The start of the attempt.
        control: Requests of other threads.
        statistics: Statistics of checkpoints.
        sinks: Metrics of sinks.

    Attributes:
        uncommitted: Output of completed checkpoints that may not be committed yet.
        targets: Identities of the targets of sinks, by uid.
        nonce_file: File in the job directory that every worker must see.
    """

    def __init__(
        self,
        job: Job,
        writer: RegisterWriter,
        plan: JobPlan,
        restored: AttemptStart,
        control: JobControl,
        statistics: CheckpointStatsTracker,
        sinks: SinkMeter | None = None,
    ) -> None:
        self._job = job
        self._restored = restored
        self._output: Output = {}
        if not restored.is_committed:
            self._output = output_to_commit(
                plan, restored.operators, restored.source_incarnation, restored.allow_non_restored
            )
        self._control = control
        self._writer = writer
        self._fatal_failure = RememberedFailure()
        failures = CheckpointFailureManager(job.configuration.get(TOLERABLE_FAILED), self._fatal_failure)
        self._coordinator = CheckpointCoordinator.for_epochs(
            CoordinatorServices.for_job_attempt(
                writer,
                job.directory,
                job.configuration,
                failures,
                restored.retained,
                statistics=statistics,
                clock=job.clock,
            )
        )
        self._sweeper = PacedSweeper(job, writer)
        self._sinks = sinks or SinkMeter(job.clock)
        self._sinks.begin([step.uid for step in plan.sinks()])
        self._commit_manager = create_commit_manager(job, writer, plan, control, self._sinks)
        self.uncommitted = UncommittedOutput(self._commit_manager, job, self._on_committed)
        self.targets: Mapping[str, Any] = restored.targets
        self._claim = restored.claim
        self._staged: Output = {}
        self._stopping: list[tuple[SnapshotRequest, str]] = []
        self._positions: Mapping[str, Any] | None = restored.positions
        self._begun: deque[BarrierCheckpoint] = deque()
        # The newest accepted epoch until a checkpoint completes with it, and the epoch of the last checkpoint.
        self._pending_result: EpochResult | None = None
        self._last_result: EpochResult | None = None
        self._requests: tuple[SnapshotRequest, ...] = ()
        self._aborted: list[int] = []
        self._tolerated: CheckpointError | None = None
        self._newest_committed = 0
        self._previous_epoch = restored.epoch if restored.is_own else 0
        self._newest = self._newest_in_functions = restored.checkpoint_id
        if restored.source is not None:
            statistics.report_restored(restored.source)
        self.nonce_file = self._write_nonce()

    def _write_nonce(self) -> str:
        """Write a file that every worker must see; a worker that does not has another disk under the same path."""
        name = FileName.new(self._writer.token, self._restored.epoch, 0, "driver", 0).format(NONCE_SUFFIX)
        relative = f"{TASK_OWNED}/{name}"
        self._job.directory.fs.create_exclusive(self._job.directory.absolute(relative), b"seen\n")
        return relative

    def prepare_sinks(self) -> None:
        """Check that the targets of sinks are those of the restored checkpoint.

        Raises:
            StorageError: The target of a sink is missing, or is another one.
            RestoreError: A target has later epochs than the checkpoint.
        """
        restored = self._restored
        continues = restored.is_own and restored.incarnation == restored.source_incarnation
        self.targets = self._commit_manager.prepare(
            restored.targets, restored.epoch if continues else None, self._output
        )

    def restore_hooks(self) -> None:
        """Create the master hooks of the program and restore their state.

        Raises:
            ConfigurationError, RestoreError, CorruptFileError: They do not match the program or the checkpoint.
            StateError: A hook has failed.
        """
        add_hooks(self._job.graph, self._coordinator)
        restore_hooks(self._coordinator, self._restored)

    def commit_restored(self) -> None:
        """Commit the output of the restored checkpoint, because it is not known whether it was committed."""
        restored = self._restored
        self.uncommitted.recover(None if restored.is_committed else restored.checkpoint_id, self._output)
        if restored.is_own and restored.checkpoint_id is not None:
            self._mark_committed(restored.checkpoint_id)
            self._discard_claimed_snapshot()

    def reject_invalid_drains(self) -> None:
        """Reject drains whose savepoint cannot be written: advancing event time to its end cannot be undone."""
        for request in self._control.drain_requests():
            try:
                probe_savepoint_directory(savepoint_directory(request, self._job.configuration))
            except HoldfastError as error:
                logger.warning("rejected a drain, because its savepoint cannot be written: %s", error)
                self._control.reject(request, error)

    def begin(self, epoch: int, epochs: JobEpochs, tasks: Sequence[CheckpointParticipant]) -> BarrierCheckpoint:
        """Begin the checkpoint of an epoch before its tasks take their snapshots, in a real-time job.

        Several may be under way; they end in their order.

        Args:
            epoch: The epoch.
            epochs: The state as it is accepted.
            tasks: The subtasks that must acknowledge.

        Raises:
            FencedError: Another leader took over.
            PossibleInconsistentStateError: It is not known whether ids were reserved.
            CheckpointError: It could not be begun.
        """
        pending = self._coordinator.begin(epoch, tasks, force=True)
        assert pending is not None
        begun = BarrierCheckpoint(
            self._coordinator, epoch, pending, epochs, self._previous_epoch, requests=self._control.waiting
        )
        self._begun.append(begun)
        return begun

    def _pop_begun(self, epoch: int) -> BarrierCheckpoint | None:
        """Remove and return the checkpoint that was begun for an epoch; None if there is none."""
        return self._begun.popleft() if self._begun and self._begun[0].epoch == epoch else None

    def on_epoch_abandoned(self, error: EpochAbandonedError, epochs: JobEpochs) -> None:
        """Record that the checkpoint of an epoch has failed, whose changes belong to the next one.

        Raises:
            HoldfastError: More checkpoints have failed than execution.checkpointing.tolerable-failed-checkpoints.
        """
        begun = self._pop_begun(epochs.epoch)
        if begun is not None:
            self._aborted.append(begun.pending.checkpoint_id)
        if self._fatal_failure.cause is not None:
            raise self._fatal_failure.cause from error
        logger.warning(
            "the checkpoint of epoch %d failed and is tolerated; the next one replaces it: %s", epochs.epoch, error
        )

    def on_epoch_accepted(self, result: EpochResult, epochs: JobEpochs, epoch_input: EpochInput | None) -> int | None:
        """Record an accepted epoch, and complete its checkpoint if one is due.

        Returns:
            The id of the checkpoint, which `on_checkpoint_completed` must follow; None if none completed.

        Raises:
            FencedError: Another leader took over.
            CheckpointError: The checkpoint could not be completed.
            HoldfastError: The commit of an earlier checkpoint has failed; no checkpoint is completed then.
        """
        self.uncommitted.poll_completed()
        output = with_incarnation(result.committables(), self._restored.incarnation)
        self._sinks.staged(output)
        for uid, entries in output.items():
            self._staged.setdefault(uid, []).extend(entries)
        self._pending_result = result
        if epoch_input is not None:
            self._positions = epoch_input.positions()
        is_due = result.descriptor.is_last or self._control.snapshot_requested
        is_due |= epoch_input is not None and epoch_input.completes_checkpoint
        if is_due or self._coordinator.is_due(epochs.epoch):
            return self._complete(epochs)
        return None

    def on_checkpoint_completed(self, checkpoint_id: int, epochs: JobEpochs) -> None:
        """Do what follows the pointer write: begin commits, answer requests, sweep old files.

        Requests, and the end of the job, wait until everything is committed.
        """
        assert self._last_result is not None
        is_last = self._last_result.descriptor.is_last
        must_be_committed = bool(self._requests) or is_last
        if not must_be_committed:
            self._sweep(epochs)  # before commits begin, because a sweep waits for them
        with fault.point("notify"):
            staged, self._staged = self._staged, {}
            self.uncommitted.add(checkpoint_id, staged, self._positions)
            self.uncommitted.wait_for_capacity()
            if must_be_committed:
                self.uncommitted.wait_all_committed()
        self._discard_claimed_snapshot()
        while (request := self._control.next_request(among=self._requests, drained=is_last)) is not None:
            self._answer(request, checkpoint_id, epochs)
        if must_be_committed:
            self._sweep(epochs)

    def end(self, epochs: JobEpochs) -> None:
        """End the attempt: complete the last checkpoint and record that all sinks have committed.

        Raises:
            FencedError: Another leader took over.
            CheckpointError: The last checkpoint could not be completed; such a failure is not tolerated at the end.
        """
        epochs.drop_begun()
        if self._pending_result is not None:
            completed = self._complete(epochs)
            if completed is None:
                raise CheckpointError(
                    "The last checkpoint of the job failed. It is not tolerated, because no later one can replace it: "
                    f"{self._tolerated}",
                    self._tolerated,
                )
            self.on_checkpoint_completed(completed, epochs)
        self.uncommitted.wait_all_committed()
        committed = self._newest_committed
        self._writer.write(lambda state: replace(state, newest_committed=max(state.newest_committed, committed)))
        self._sweep(epochs, now=True)
        stopping, self._stopping = self._stopping, []
        for request, path in stopping:
            request.future.set_result(path)

    def notifications_of_functions(self) -> CheckpointNotifications:
        """Return the notifications of checkpoints for the functions in the next epoch, each once."""
        newest = self._newest
        completed = newest if newest != self._newest_in_functions else None
        self._newest_in_functions = newest
        aborted, self._aborted = tuple(self._aborted), []
        return CheckpointNotifications(self._coordinator.get_checkpoint_id_counter().get(), newest, completed, aborted)

    def position(self) -> str:
        return short_position(self._positions)

    def close(self) -> None:
        """Release committers and coordinator; requests to stop with a savepoint that still wait fail."""
        self._sinks.discarded(self._staged)
        for request, path in self._stopping:
            request.future.set_exception(StopWithSavepointStoppingError(path, str(self._job.job_id)))
        self._commit_manager.close()
        self._sweeper.close()
        try:
            self._coordinator.shutdown()
        except (FencedError, PossibleInconsistentStateError) as error:
            logger.debug("shutdown of the coordinator: %s", error)

    def _discard_claimed_snapshot(self) -> None:
        """Delete the claimed snapshot, because a checkpoint of the job itself has completed."""
        if self._claim is None:
            return
        try:
            self._claim.discard()
        except HoldfastError as error:
            logger.warning("could not delete the claimed snapshot; retrying after the next checkpoint: %s", error)
        else:
            logger.info("deleted the claimed snapshot %r: the job does not need it any more", self._claim.path)
            self._claim = None

    def _on_committed(self, committed: UncommittedCheckpoint) -> None:
        self._mark_committed(committed.checkpoint_id)
        if committed.positions is not None:
            self._job.engine.checkpoint_completed(committed.positions)

    def _mark_committed(self, checkpoint_id: int) -> None:
        """Note that all sinks have committed a checkpoint; the next pointer write records it."""
        self._coordinator.get_checkpoint_store().mark_committed(checkpoint_id)
        self._newest_committed = checkpoint_id

    def _complete(self, epochs: JobEpochs) -> int | None:
        """Complete the checkpoint of an epoch: its document, then its pointer, which is the commit point.

        Returns:
            Its id; None if it failed and execution.checkpointing.tolerable-failed-checkpoints tolerates that. Then the
            epoch becomes part of the next checkpoint.

        Raises:
            FencedError: Another leader took over; nothing became visible.
            PossibleInconsistentStateError: It is not known whether the pointer was written; nothing is discarded.
            CheckpointError: It could not be completed; nothing became visible.
        """
        assert self._pending_result is not None
        begun = self._pop_begun(epochs.epoch)
        self._requests = self._control.waiting if begun is None else begun.requests
        pending = None if begun is None else begun.pending
        tasks = [] if pending is not None else acknowledged_tasks(self._pending_result, epochs, self._previous_epoch)
        try:
            if pending is None:
                pending = self._coordinator.begin(epochs.epoch, tasks, force=True)
            assert pending is not None
            completed = self._finish(pending, tasks, self._metadata(pending.checkpoint_id, epochs))
        except CheckpointError as error:
            if self._fatal_failure.cause is not None:
                raise
            self._tolerated = error
            if pending is not None:
                self._aborted.append(pending.checkpoint_id)
            logger.warning(
                "the checkpoint of epoch %d failed and is tolerated; the next one replaces it: %s",
                epochs.epoch,
                error,
            )
            return None
        self._last_result, self._pending_result = self._pending_result, None
        self._newest = completed.checkpoint_id
        self._previous_epoch = epochs.epoch
        return completed.checkpoint_id

    def _finish(
        self, pending: PendingCheckpoint, tasks: Sequence[AcknowledgedTask], metadata: CheckpointMetadata
    ) -> CompletedCheckpoint:
        for task in tasks:
            self._coordinator.acknowledge(pending, task.execution_id, task.metrics)
        return self._coordinator.complete(pending, metadata)

    def _answer(self, request: SnapshotRequest, checkpoint_id: int, epochs: JobEpochs) -> None:
        """Answer one request at an epoch whose checkpoint is complete and whose output is committed."""
        if not request.is_savepoint:
            request.future.set_result(checkpoint_id)
            return
        try:
            savepoint = self._savepoint(request, epochs)
        except (CheckpointError, ConfigurationError) as error:
            logger.warning("the savepoint failed; the job goes on: %s", error)
            if request.drain:
                epochs.resume()
                error.add_note("The event-time timers have fired for it, which is not undone.")
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

    def _savepoint(self, request: SnapshotRequest, epochs: JobEpochs) -> CompletedCheckpoint:
        """Write a savepoint with the state of the epoch's checkpoint and copies of all its files. Blocks.

        Raises:
            ConfigurationError: No directory is given or configured.
            CheckpointError: It could not be written; the job goes on.
        """
        directory = savepoint_directory(request, self._job.configuration)
        if request.stop:
            properties = CheckpointProperties.for_sync_savepoint(True, request.drain, request.format_type)
        else:
            properties = CheckpointProperties.for_savepoint(True, request.format_type)
        assert self._last_result is not None
        tasks = acknowledged_tasks(self._last_result, epochs, 0)  # all files of a savepoint are new
        pending = self._coordinator.begin(epochs.epoch, tasks, properties=properties, external_location=directory)
        assert pending is not None
        try:
            metadata = copy_files(pending, self._metadata(pending.checkpoint_id, epochs), self._job.directory)
        except HoldfastError as error:
            failure = CheckpointError(CheckpointFailureReason.IO_EXCEPTION, str(error), error)
            self._coordinator.abort(pending, failure)
            raise failure from error
        return self._finish(pending, tasks, metadata)

    def _sweep(self, epochs: JobEpochs, *, now: bool = False) -> None:
        live = [*epochs.live_runs(), *epochs.operator_states.paths(), self.nonce_file]
        self._sweeper.sweep(live, self.uncommitted.sweep, now=now)

    def _metadata(self, checkpoint_id: int, epochs: JobEpochs) -> CheckpointMetadata:
        extra: dict[str, Any] = {TARGETS: self.targets} if self.targets else {}
        if epochs.event_time:
            extra[EVENT_TIME] = epochs.event_time
        if self._claim is not None:
            extra[CLAIMED] = self._claim.to_json()
        return CheckpointMetadata(
            job_id=str(self._job.job_id),
            job_name=self._job.name,
            checkpoint_id=checkpoint_id,
            epoch=epochs.epoch,
            token=self._writer.token,
            incarnation=self._restored.incarnation,
            completed_at=self._job.clock.now_ms(),
            processing_time=epochs.processing_time,
            operators=operator_metadata(epochs, self.uncommitted.next_committables(self._staged)),
            source_positions=self._positions,
            extra={PREVIOUS_EPOCH: self._previous_epoch, **extra},
        )


class BarrierCheckpoint(BegunCheckpoint):
    """The checkpoint of one epoch of a real-time job, from its barrier until its document is written.

    Args:
        coordinator: The coordinator of the job.
        epoch: The epoch.
        pending: The checkpoint.
        epochs: The state as it is accepted.
        since: Epoch of the checkpoint before; state of later epochs is new.
        requests: The requests that wait as it begins. Later ones wait for a later barrier.
    """

    def __init__(
        self,
        coordinator: CheckpointCoordinator,
        epoch: int,
        pending: PendingCheckpoint,
        epochs: JobEpochs,
        since: int,
        *,
        requests: tuple[SnapshotRequest, ...] = (),
    ) -> None:
        self._coordinator = coordinator
        self.epoch = epoch
        self.pending = pending
        self.requests = requests
        self._epochs = epochs
        self._since = since
        self._sizes = _sizes(epochs, since)

    def acknowledge(self, report: TaskReport) -> None:
        for step in report.steps:
            before = self._sizes.get((step.uid, step.subtask), _Bytes())
            size = _size_after(step, before, self._epochs, self._since)
            self._coordinator.acknowledge(self.pending, _execution_id(report, step), _metrics(report, step, size))

    def decline(self, execution_id: str, reason: CheckpointError) -> None:
        self._coordinator.receive_decline_message(
            DeclineCheckpoint(self._coordinator.job, execution_id, self.pending.checkpoint_id, reason)
        )

    @property
    def failure(self) -> CheckpointError | None:
        self._coordinator.poll()
        return self.pending.failure


NOTHING: Final = CheckpointMetrics()


@dataclass(frozen=True)
class AcknowledgedTask(CheckpointParticipant):
    """A subtask that has acknowledged the last epoch of a checkpoint.

    Attributes:
        metrics: Size of its state, how much of it is new, and how long it took to save it.
    """

    metrics: CheckpointMetrics = NOTHING


@dataclass
class _Bytes:
    """Size of one subtask's state: new since the last checkpoint, and in total."""

    new: int = 0
    all: int = 0

    def add(self, size: int, is_new: bool) -> None:
        self.all += size
        self.new += size if is_new else 0


def acknowledged_tasks(result: EpochResult, epochs: JobEpochs, since: int) -> list[AcknowledgedTask]:
    """Return the subtasks that have acknowledged an epoch, with their metrics.

    Args:
        result: The epoch.
        epochs: State after the epoch.
        since: Epoch of the checkpoint before; state of later epochs is new.
    """
    sizes = _sizes(epochs, since)
    nothing = _Bytes()
    return [
        AcknowledgedTask(
            _execution_id(report, step),
            step.uid,
            step.subtask,
            metrics=_metrics(report, step, sizes.get((step.uid, step.subtask), nothing)),
        )
        for stage in result.report.stages
        for report in stage
        for step in report.steps
    ]


def _execution_id(report: TaskReport, step: StepReport) -> str:
    return execution_id(report.attempt, step.uid)


def _metrics(report: TaskReport, step: StepReport, size: _Bytes) -> CheckpointMetrics:
    return CheckpointMetrics(bytes_persisted=size.new, total_bytes=size.all, **_durations(report, step))


def _durations(report: TaskReport, step: StepReport) -> dict[str, int]:
    """Return the milliseconds of a snapshot. A real-time task has them as a whole, as Flink's tasks do."""
    if report.barrier is None:
        return {"sync_duration": step.saving[0], "async_duration": step.saving[1]}
    names = "start_delay", "alignment_duration", "sync_duration", "async_duration"
    return {name: round(time / 1000) for name, time in zip(names, report.barrier, strict=True)}


def _size_after(step: StepReport, before: _Bytes, epochs: JobEpochs, since: int) -> _Bytes:
    """Return the size of a subtask's state with what it reports; `epochs` does not know its report yet."""
    after = _Bytes(before.new, before.all)
    for run in step.runs:
        after.add(RunHandle.from_json(run).size, is_new=True)
    if step.operator_state is not None:
        known = epochs.operator_states.for_epoch().get(step.uid)
        replaced = known[step.subtask] if known else None
        state = OperatorSnapshot.from_json(step.operator_state)
        after.all += state.size() - (0 if replaced is None else replaced.size())
        after.new += state.new_size(since)
    return after


def _sizes(epochs: JobEpochs, since: int) -> Mapping[tuple[str, int], _Bytes]:
    """Return the sizes by uid and subtask. After a rescaling, subtasks that share a run have a part of it each."""
    sizes: dict[tuple[str, int], _Bytes] = {}
    for step in epochs.plan.stateful_steps():
        for run in epochs.versions[step.uid].runs if step.codec else ():
            first, last = (subtask_of(group, step.max_parallelism, step.parallelism) for group in run.key_groups)
            each, rest = divmod(run.size, last - first + 1)
            for subtask in range(first, last + 1):
                size = each + (rest if subtask == first else 0)
                sizes.setdefault((step.uid, subtask), _Bytes()).add(size, run.epoch > since)
    for uid, snapshots in epochs.operator_states.for_epoch().items():
        for subtask, snapshot in enumerate(snapshots):
            if snapshot is not None:
                found = sizes.setdefault((uid, subtask), _Bytes())
                found.all += snapshot.size()
                found.new += snapshot.new_size(since)
    return sizes


def savepoint_directory(request: SnapshotRequest, configuration: Configuration) -> str:
    """Return the directory of a savepoint.

    Raises:
        ConfigurationError: No directory is given or configured.
    """
    directory = request.directory or configuration.get(SAVEPOINT_DIRECTORY)
    if directory is None:
        raise ConfigurationError(
            "No savepoint directory: pass one, or set execution.checkpointing.savepoint-dir to a directory that "
            "outlives the job."
        )
    return directory


def probe_savepoint_directory(directory: str) -> None:
    """Check that a savepoint can be written to a directory, by writing a file. Blocks.

    Raises:
        HoldfastError: Nothing can be written there, or savepoints are not allowed there.
    """
    fs = check_savepoint_directory(directory)
    fs.write_atomic(join(directory, f"{_PROBE}{new_nonce()}"), b"")
    for name in fs.list_names(directory):
        if name.startswith(_PROBE):  # also those of processes that died here
            fs.delete_in(fs.resolved(directory), name)


def copy_files(pending: PendingCheckpoint, metadata: CheckpointMetadata, own: JobDirectory) -> CheckpointMetadata:
    """Copy all runs and source entries of a savepoint, and return its document with the new paths.

    Staged output is left out: the checkpoint of the same epoch has named it, and it is committed.

    Args:
        pending: The savepoint.
        metadata: The document with paths in the job's directory.
        own: The job's directory.

    Raises:
        HoldfastError: A file could not be copied.
    """
    location = pending.location
    assert isinstance(location, FileCheckpointLocation)
    target = JobDirectory(location.fs, location.path, own.job_id, create_subdir=False)
    without_output = tuple(replace(operator, committables={}) for operator in metadata.operators)
    # All files are copied, so all of them are new.
    extra = {name: value for name, value in metadata.extra.items() if name != CLAIMED}
    checkpoint = replace(metadata, operators=without_output, extra={**extra, PREVIOUS_EPOCH: 0})
    pointer = pointer_for(checkpoint, encode(checkpoint), own.metadata_path(metadata.checkpoint_id))
    source = CompletedCheckpoint(checkpoint, own.chk_dir(metadata.checkpoint_id), pointer, fs=own.fs)
    return import_snapshot(source, target, metadata.token)


def add_hooks(graph: StreamGraph, coordinator: CheckpointCoordinator) -> None:
    """Create the master hooks of a program and add them to the coordinator.

    Raises:
        ConfigurationError: A step returned something else, or two hooks have one name.
        StateError: A step could not create its hook, or a hook has no name.
    """
    owners: dict[str, str] = {}
    for node in graph.nodes:
        for hook in _hooks_of(node):
            try:
                identifier = hook.get_identifier()
            except Exception as error:
                raise StateError(
                    f"The step {node.identity!r} could not name its master hook: {type(error).__name__}: {error}"
                ) from error
            try:
                is_new = coordinator.add_master_hook(hook)
            except ValueError as error:
                raise ConfigurationError(f"The step {node.identity!r}: {error}") from error
            if not is_new:
                raise ConfigurationError(
                    f"The steps {owners[identifier]!r} and {node.identity!r} both have a master hook {identifier!r}; "
                    "give each its own name, by which its state is restored."
                )
            owners[identifier] = node.identity


def restore_hooks(coordinator: CheckpointCoordinator, restored: AttemptStart) -> None:
    """Restore the state of master hooks; without a checkpoint they are reset.

    Raises:
        RestoreError: The checkpoint has state of hooks that the program does not have, and that is not allowed.
        CorruptFileError: The state of a hook cannot be read.
        StateError: A hook has failed.
    """
    hooks = coordinator.master_hooks
    states: Mapping[str, Any] = restored.master_states
    unmatched = sorted(set(states) - set(hooks.identifiers))
    if unmatched and not restored.allow_non_restored:
        raise RestoreError(
            (),
            (),
            f"the checkpoint has state of the master hooks {unmatched}, which this program does not have. Add the "
            "functions or sinks that create them, or drop that state with -n "
            "(execution.state-recovery.ignore-unclaimed-state)",
        )
    checkpoint_id = restored.checkpoint_id
    path = "" if restored.source is None else restored.source.external_path
    try:
        if checkpoint_id is None:
            hooks.reset()
        else:
            hooks.restore(checkpoint_id, states, allow_unmatched=True, path=path)
    except CorruptFileError:
        raise
    except Exception as error:
        what = "could not be reset" if checkpoint_id is None else f"could not restore checkpoint {checkpoint_id}"
        raise StateError(f"A master hook {what}: {type(error).__name__}: {error}") from error


def _hooks_of(node: Node) -> Iterator[MasterTriggerRestoreHook[Any]]:
    if isinstance(node, KeyedNode | NonKeyedNode):
        owners = list(functions_of(node.operator.function))
    else:
        owners = [node.sink] if isinstance(node, SinkNode) else []
    for owner in owners:
        if isinstance(owner, WithMasterCheckpointHook):
            yield _create_hook(node, owner)


def _create_hook(node: Node, owner: WithMasterCheckpointHook[Any]) -> MasterTriggerRestoreHook[Any]:
    try:
        hook = owner.create_master_trigger_restore_hook()
    except Exception as error:
        raise StateError(
            f"The step {node.identity!r} could not create its master hook: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(hook, MasterTriggerRestoreHook):
        raise ConfigurationError(
            f"The step {node.identity!r}: create_master_trigger_restore_hook() returned {hook!r}, not a "
            "MasterTriggerRestoreHook."
        )
    return hook


class PacedSweeper:
    """Sweeps after every 20th checkpoint, at most every ten seconds.

    Args:
        job: The job.
        writer: The writer of the attempt.
    """

    def __init__(self, job: Job, writer: RegisterWriter) -> None:
        self._clock = job.clock
        self._sweeper = Sweeper(job.directory, writer, job.configuration, job.clock)
        # A sweep checks each file in its grace period, so with fast epochs it runs no more often than that period
        # requires.
        self._pause = min(_LONGEST_PAUSE, job.configuration.get(GRACE_PERIOD) / 60_000)
        self._swept_at = -math.inf
        self._until_next = 0

    def sweep(
        self, live: Iterable[str], elsewhere: Callable[[Callable[[FileName], bool]], object], *, now: bool = False
    ) -> None:
        """Sweep if it is due. Called after each checkpoint.

        Args:
            live: Paths of the runs of the current versions.
            elsewhere: Sweeps files outside of the job directory.
            now: Whether to sweep in any case and wait; otherwise files are deleted beside the epochs.

        Raises:
            FencedError: Another leader took over; nothing was deleted.
        """
        self._until_next -= 1
        started = self._clock.monotonic()
        if now or (self._until_next <= 0 and started - self._swept_at >= self._pause):
            self._until_next, self._swept_at = SWEEP_EVERY, started
            self._sweeper.sweep(live, is_dead_elsewhere=elsewhere, wait=now)

    def close(self) -> None:
        self._sweeper.close()
