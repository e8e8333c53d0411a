"""How epochs become checkpoints: when one is due, what it names, and what happens after its pointer is written.

An epoch that completes no checkpoint keeps its versions in memory and its output staged; both go into the next
checkpoint, and a failure before that loses them together, as in Flink.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from holdfast.checkpoint.claim import adopt
from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint, pointer_for
from holdfast.checkpoint.coordinator import CheckpointCoordinator
from holdfast.checkpoint.failure_manager import CheckpointFailureManager, RememberedFailure
from holdfast.checkpoint.instruction_executor import Wiring
from holdfast.checkpoint.master_hook import MasterTriggerRestoreHook, WithMasterCheckpointHook
from holdfast.checkpoint.messages import CheckpointMetrics
from holdfast.checkpoint.metadata import CLAIMED, EVENT_TIME, PREVIOUS_EPOCH, TARGETS, CheckpointMetadata, encode
from holdfast.checkpoint.options import GRACE_PERIOD, SAVEPOINT_DIRECTORY, TOLERABLE_FAILED
from holdfast.checkpoint.pending_checkpoint import PendingCheckpoint, Task
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
from holdfast.runtime.commit.restore import Restored
from holdfast.runtime.commit.sink_numbers import SinkMeter
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
from holdfast.runtime.function.user_function import functions_of
from holdfast.runtime.graph.plan import JobPlan
from holdfast.runtime.graph.stream_graph import KeyedNode, NarrowNode, Node, SinkNode, StreamGraph
from holdfast.runtime.job.control import JobControl, SnapshotRequest
from holdfast.runtime.job.engine import EpochInput, Job
from holdfast.storage.file_system import join
from holdfast.storage.job_directory import TASK_OWNED, FileName, JobDirectory
from holdfast.storage.register import Lease

# What the coordinator is told of an epoch's tasks: who acknowledged, and what they measured.

NOTHING: Final = CheckpointMetrics()


@dataclass(frozen=True)
class AcknowledgedTask(Task):
    """A subtask that has acknowledged the last epoch of a checkpoint.

    Attributes:
        metrics: What state it has, how much of it is new, and how long it took to save it in that epoch.
    """

    metrics: CheckpointMetrics = NOTHING


@dataclass
class _Bytes:
    """Sizes of one subtask's state: what the checkpoint wrote, and all of it."""

    new: int = 0
    all: int = 0

    def add(self, size: int, is_new: bool) -> None:
        self.all += size
        self.new += size if is_new else 0


def acknowledged_tasks(result: EpochResult, epochs: JobEpochs, since: int) -> list[AcknowledgedTask]:
    """The subtasks that have acknowledged an epoch.

    Args:
        result: The epoch.
        epochs: What it left.
        since: The epoch of the checkpoint before: what was written after it is new.
    """
    sizes = _sizes(epochs, since)
    nothing = _Bytes()
    return [
        AcknowledgedTask(
            f"{barrier.attempt}/{step.uid}",
            step.uid,
            step.subtask,
            metrics=CheckpointMetrics(
                bytes_persisted=sizes.get((step.uid, step.subtask), nothing).new,
                total_bytes=sizes.get((step.uid, step.subtask), nothing).all,
                sync_duration=step.saving[0],
                async_duration=step.saving[1],
            ),
        )
        for stage in result.report.stages
        for barrier in stage
        for step in barrier.steps
    ]


def _sizes(epochs: JobEpochs, since: int) -> Mapping[tuple[str, int], _Bytes]:
    """The sizes by uid and subtask; those who share a run since a rescaling have their part of it."""
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


# Where a savepoint goes, and copies of all files that it names, so that it needs no other directory.

_PROBE: Final = ".holdfast-probe-"


def savepoint_directory(request: SnapshotRequest, configuration: Configuration) -> str:
    """The directory that a savepoint is to go to.

    Raises:
        ConfigurationError: No directory is given or configured.
    """
    directory = request.directory or configuration.get(SAVEPOINT_DIRECTORY)
    if directory is None:
        raise ConfigurationError(
            "no savepoint directory: pass one, or set execution.checkpointing.savepoint-dir to a directory that "
            "outlives the job"
        )
    return directory


def probe_savepoint_directory(directory: str) -> None:
    """Makes sure that something can be written where a savepoint is to go. Blocks.

    Raises:
        HoldfastError: Nothing can be written there, or it is no place for a savepoint.
    """
    fs = check_savepoint_directory(directory)
    fs.write_atomic(join(directory, f"{_PROBE}{new_nonce()}"), b"")
    for name in fs.list_names(directory):
        if name.startswith(_PROBE):  # also those of others who died here
            fs.delete_in(fs.resolved(directory), name)


def copy_files(pending: PendingCheckpoint, metadata: CheckpointMetadata, own: JobDirectory) -> CheckpointMetadata:
    """The document with all runs and source entries copied to the savepoint.

    Staged output is left out: the checkpoint of the same epoch has named it, and it is committed.

    Args:
        pending: The savepoint.
        metadata: What it names in the job's directory.
        own: That directory.

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
    return adopt(source, target, metadata.token)


# Hooks that steps of a program bring into the job master's side of checkpoints.
#
# A function or a sink that is a `WithMasterCheckpointHook` makes one in each job attempt, in the driver. Hooks are
# triggered between two epochs, when all tasks have answered: what they return is the state of that boundary.


def add_hooks(graph: StreamGraph, coordinator: CheckpointCoordinator) -> None:
    """Make the hooks of a program and let them take part in checkpoints.

    Raises:
        ConfigurationError: A step makes something else, or two hooks have one name.
        StateError: A step could not make its hook, or not name it.
    """
    owners: dict[str, str] = {}
    for node in graph.nodes:
        for hook in _hooks_of(node):
            try:
                identifier = hook.get_identifier()
            except Exception as error:
                raise StateError(
                    f"the step {node.identity!r} could not name its master hook: {type(error).__name__}: {error}"
                ) from error
            try:
                is_new = coordinator.add_master_hook(hook)
            except ValueError as error:
                raise ConfigurationError(f"the step {node.identity!r}: {error}") from error
            if not is_new:
                raise ConfigurationError(
                    f"the steps {owners[identifier]!r} and {node.identity!r} both have a master hook {identifier!r}; "
                    "give each a name of its own, by which its state is found"
                )
            owners[identifier] = node.identity


def restore_hooks(coordinator: CheckpointCoordinator, restored: Restored) -> None:
    """Give hooks their state in the checkpoint that an attempt starts from; without one they begin anew.

    Raises:
        RestoreError: The checkpoint has state of hooks that the program has not, and that is not allowed.
        CorruptFileError: What the checkpoint holds of a hook cannot be read.
        StateError: A hook has failed.
    """
    hooks = coordinator.master_hooks
    states: Mapping[str, Any] = restored.master_states
    unmatched = sorted(set(states) - set(hooks.identifiers))
    if unmatched and not restored.allow_non_restored:
        raise RestoreError(
            (),
            (),
            f"the checkpoint holds state of the master hooks {unmatched}, which this program does not have. Add the "
            "functions or sinks that bring them, or drop that state with -n "
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
        what = "could not begin anew" if checkpoint_id is None else f"could not restore checkpoint {checkpoint_id}"
        raise StateError(f"a master hook {what}: {type(error).__name__}: {error}") from error


def _hooks_of(node: Node) -> Iterator[MasterTriggerRestoreHook[Any]]:
    if isinstance(node, KeyedNode | NarrowNode):
        brought = list(functions_of(node.operator.function))
    else:
        brought = [node.sink] if isinstance(node, SinkNode) else []
    for one in brought:
        if isinstance(one, WithMasterCheckpointHook):
            yield _hook_of(node, one)


def _hook_of(node: Node, brought: WithMasterCheckpointHook[Any]) -> MasterTriggerRestoreHook[Any]:
    try:
        hook = brought.create_master_trigger_restore_hook()
    except Exception as error:
        raise StateError(
            f"the step {node.identity!r} could not make its master hook: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(hook, MasterTriggerRestoreHook):
        raise ConfigurationError(
            f"the step {node.identity!r}: create_master_trigger_restore_hook() returned {hook!r}, which is no "
            "MasterTriggerRestoreHook"
        )
    return hook


# When a job attempt sweeps: deleting what no checkpoint needs, but not in each epoch.

SWEEP_EVERY: Final = 20
"""Checkpoints between two sweeps: a sweep lists directories, which costs more than every epoch should pay."""
_LONGEST_PAUSE: Final = 10.0  # seconds


class PacedSweeper:
    """Sweeps once in a while.

    Args:
        job: The job.
        lease: The right to write its register.
    """

    def __init__(self, job: Job, lease: Lease) -> None:
        self._clock = job.clock
        self._sweeper = Sweeper(job.directory, lease, job.configuration, job.clock)
        # A sweep looks at each file that waits for its grace period, so fast epochs must not make it more often than
        # this period can notice.
        self._pause = min(_LONGEST_PAUSE, job.configuration.get(GRACE_PERIOD) / 60_000)
        self._swept_at = -math.inf
        self._until_next = 0

    def sweep(
        self, live: Iterable[str], elsewhere: Callable[[Callable[[FileName], bool]], object], *, now: bool = False
    ) -> None:
        """Called after each checkpoint; sweeps after each 20th of them, and at most every ten seconds.

        Args:
            live: Paths of the runs of the current versions.
            elsewhere: Sweeps files outside of the job directory.
            now: Whether it is done in any case, and waited for; otherwise files are deleted beside the epochs.

        Raises:
            FencedError: Another leader took over; nothing was deleted.
        """
        self._until_next -= 1
        started = self._clock.monotonic()
        if now or (self._until_next <= 0 and started - self._swept_at >= self._pause):
            self._until_next, self._swept_at = SWEEP_EVERY, started
            self._sweeper.sweep(live, is_dead_elsewhere=elsewhere, wait=now)

    def close(self) -> None:
        """Ends what an earlier sweep still deletes."""
        self._sweeper.close()


logger = get_logger(__name__)

NONCE_SUFFIX = ".nonce"


class EpochCheckpoints:
    """The checkpoints of one job attempt.

    Args:
        job: The job.
        lease: The right to write its register, raised for this attempt.
        plan: The steps, whose sinks commit.
        restored: What the attempt starts from.
        control: Requests of other threads.
        statistics: Where checkpoints are counted.
        sinks: Where what sinks commit is counted.

    Attributes:
        commits: The output of completed checkpoints that is not known to be committed.
    """

    def __init__(
        self,
        job: Job,
        lease: Lease,
        plan: JobPlan,
        restored: Restored,
        control: JobControl,
        statistics: CheckpointStatsTracker,
        sinks: SinkMeter | None = None,
    ) -> None:
        self._job = job
        self._restored = restored
        self._output: Output = {}
        if not restored.is_committed:
            self._output = output_to_commit(
                plan, restored.operators, restored.restored_lineage, restored.allow_non_restored
            )
        self._control = control
        self._lease = lease
        self._failures = RememberedFailure()
        failures = CheckpointFailureManager(job.configuration.get(TOLERABLE_FAILED), self._failures)
        self._coordinator = CheckpointCoordinator.for_epochs(
            Wiring.of_lease(
                lease,
                job.directory,
                job.configuration,
                failures,
                restored.retained,
                statistics=statistics,
                clock=job.clock,
            )
        )
        self._sweeper = PacedSweeper(job, lease)
        self._sinks = sinks or SinkMeter(job.clock)
        self._sinks.begin([step.uid for step in plan.sinks()])
        self._sinks.staged(self._output)
        self._committing = create_commit_manager(job, lease, plan, control, self._sinks)
        self.commits = UncommittedOutput(self._committing, job, self._is_committed)
        self.targets: Mapping[str, Any] = restored.targets
        self._claim = restored.claim
        self._staged: Output = {}
        self._stopping: list[tuple[SnapshotRequest, str]] = []
        self._positions: Mapping[str, Any] | None = restored.positions
        self._pending: EpochResult | None = None
        self._asked: tuple[SnapshotRequest, ...] = ()
        self._aborted: list[int] = []
        self._tolerated: CheckpointError | None = None
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

    def prepare_sinks(self) -> None:
        """Makes sure that output goes where it went when the restored checkpoint was written.

        Raises:
            StorageError: The target of a sink is not there, or is another one.
            RestoreError: One knows of later epochs than the checkpoint.
        """
        restored = self._restored
        goes_on = restored.is_own and restored.lineage == restored.restored_lineage
        self.targets = self._committing.prepare(restored.targets, restored.epoch if goes_on else None)

    def restore_hooks(self) -> None:
        """Makes the hooks that the program brings and gives them their state in the restored checkpoint.

        Raises:
            ConfigurationError, RestoreError, CorruptFileError: They do not fit, or not the checkpoint.
            StateError: One has failed.
        """
        add_hooks(self._job.graph, self._coordinator)
        restore_hooks(self._coordinator, self._restored)

    def commit_restored(self) -> None:
        """Commits what the restored checkpoint names, because nobody knows whether it was committed."""
        restored = self._restored
        self.commits.recover(None if restored.is_committed else restored.checkpoint_id, self._output)
        if restored.is_own and restored.checkpoint_id is not None:
            self._mark_notified(restored.checkpoint_id)
            self._discard_claimed_snapshot()

    def reject_invalid_drains(self) -> None:
        """Refuses to bring event time to its end for a savepoint that cannot be written: that cannot be taken back."""
        for request in self._control.drain_requests():
            try:
                probe_savepoint_directory(savepoint_directory(request, self._job.configuration))
            except HoldfastError as error:
                logger.warning("the savepoint cannot be written, so the job is not drained for it: %s", error)
                self._control.refuse(request, error)

    def on_epoch_accepted(self, result: EpochResult, epochs: JobEpochs, epoch_input: EpochInput | None) -> int | None:
        """Takes an accepted epoch; completes the checkpoint and the savepoints that are due.

        Returns:
            The id of the checkpoint, which is then pending notification; None if none completed.

        Raises:
            FencedError: Another leader took over.
            CheckpointError: It could not be completed.
            HoldfastError: The commit of an earlier checkpoint has failed; this epoch completes none then.
        """
        self.commits.poll_completed()
        output = with_incarnation(result.committables(), self._restored.lineage)
        self._sinks.staged(output)
        for uid, entries in output.items():
            self._staged.setdefault(uid, []).extend(entries)
        self._pending = result
        if epoch_input is not None:
            self._positions = epoch_input.positions()
        is_due = result.descriptor.is_last or self._control.snapshot_requested
        if is_due or self._coordinator.is_due(epochs.epoch):
            return self._complete(epochs)
        return None

    def notify(self, checkpoint_id: int, epochs: JobEpochs) -> None:
        """Everything that follows the pointer write: sinks begin to commit, requests are answered, old files go.

        Whoever has asked for a checkpoint or savepoint, and the end of the job, find everything committed.
        """
        is_last = self._last_result.descriptor.is_last
        is_promised = bool(self._asked) or is_last
        if not is_promised:
            self._sweep(epochs)  # before sinks have something to do, which they would have to end first
        with fault.point("notify"):
            staged, self._staged = self._staged, {}
            self.commits.add(checkpoint_id, staged, self._positions)
            self.commits.wait_for_capacity()
            if is_promised:
                self.commits.wait_all_committed()
        self._discard_claimed_snapshot()
        while (request := self._control.next_request(among=self._asked, drained=is_last)) is not None:
            self._answer(request, checkpoint_id, epochs)
        if is_promised:
            self._sweep(epochs)

    def end(self, epochs: JobEpochs) -> None:
        """Ends the attempt: what is pending completes, and the register learns that all sinks have been told.

        Raises:
            FencedError: Another leader took over.
            CheckpointError: What is pending could not be completed; a failure that would be tolerated before the end.
        """
        if self._pending is not None:
            completed = self._complete(epochs)
            if completed is None:
                raise CheckpointError(
                    "A checkpoint failed that was the last of the job: no later one can take its place, so it is not "
                    f"tolerated: {self._tolerated}",
                    self._tolerated,
                )
            self.notify(completed, epochs)
        self.commits.wait_all_committed()
        notified = self._notified
        self._lease.write(lambda state: replace(state, notified=max(state.notified, notified)))
        self._sweep(epochs, now=True)
        stopping, self._stopping = self._stopping, []
        for request, path in stopping:
            request.future.set_result(path)

    def notifications(self) -> CheckpointNotifications:
        """What functions are told of checkpoints in the next epoch, once."""
        newest = self._newest
        completed = newest if newest != self._told else None
        self._told = newest
        aborted, self._aborted = tuple(self._aborted), []
        return CheckpointNotifications(self._coordinator.get_checkpoint_id_counter().get(), newest, completed, aborted)

    def position(self) -> str:
        """Where the sources stand, as short text."""
        return short_position(self._positions)

    def close(self) -> None:
        """Releases the committers and the coordinator; who wished to stop with a savepoint and waits is told."""
        for request, path in self._stopping:
            request.future.set_exception(StopWithSavepointStoppingError(path, str(self._job.job_id)))
        self._committing.close()
        self._sweeper.close()
        try:
            self._coordinator.shutdown()
        except (FencedError, PossibleInconsistentStateError) as error:
            logger.debug("the coordinator's end: %s", error)

    def _discard_claimed_snapshot(self) -> None:
        """Deletes the snapshot that the job has claimed, since a checkpoint of its own has completed."""
        if self._claim is None:
            return
        try:
            self._claim.discard()
        except HoldfastError as error:
            logger.warning("the claimed snapshot could not be deleted, which is tried again: %s", error)
        else:
            logger.info("the claimed snapshot %r is not needed any more", self._claim.path)
            self._claim = None

    def _is_committed(self, pending: UncommittedCheckpoint) -> None:
        self._mark_notified(pending.checkpoint_id)
        if pending.positions is not None:
            self._job.engine.checkpoint_completed(pending.positions)

    def _mark_notified(self, checkpoint_id: int) -> None:
        """All sinks have committed what a checkpoint names; the register learns of it with the next pointer."""
        self._coordinator.get_checkpoint_store().mark_notified(checkpoint_id)
        self._notified = checkpoint_id

    def _complete(self, epochs: JobEpochs) -> int | None:
        """Completes the checkpoint of an epoch: its document, then its pointer, which is the commit point.

        Returns:
            Its id; None if it failed and execution.checkpointing.tolerable-failed-checkpoints tolerates that: the epoch
            then belongs to the next one.

        Raises:
            FencedError: Another leader took over; nothing became visible.
            PossibleInconsistentStateError: It is not known whether the pointer was written; nothing is discarded.
            CheckpointError: It could not be completed; nothing became visible.
        """
        assert self._pending is not None
        self._asked = self._control.waiting
        tasks = acknowledged_tasks(self._pending, epochs, self._previous_epoch)
        pending = None
        try:
            pending = self._coordinator.begin(epochs.epoch, tasks, force=True)
            assert pending is not None
            completed = self._finish(pending, tasks, self._metadata(pending.checkpoint_id, epochs))
        except CheckpointError as error:
            if self._failures.cause is not None:
                raise
            self._tolerated = error
            if pending is not None:
                self._aborted.append(pending.checkpoint_id)
            logger.warning(
                "a checkpoint of epoch %d failed and is tolerated; the next one takes its place: %s",
                epochs.epoch,
                error,
            )
            return None
        self._last_result, self._pending = self._pending, None
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
        """Answers one request at the boundary whose checkpoint is complete and whose output is committed."""
        if not request.is_savepoint:
            request.future.set_result(checkpoint_id)
            return
        try:
            savepoint = self._savepoint(request, epochs)
        except (CheckpointError, ConfigurationError) as error:
            logger.warning("the savepoint failed, the job goes on: %s", error)
            if request.drain:
                epochs.resume()
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

    def _savepoint(self, request: SnapshotRequest, epochs: JobEpochs) -> CompletedCheckpoint:
        """Writes a savepoint of what the epoch's checkpoint holds, with copies of all its files. Blocks.

        Raises:
            ConfigurationError: No directory is given or configured.
            CheckpointError: It could not be written; the job goes on.
        """
        directory = savepoint_directory(request, self._job.configuration)
        if request.stop:
            properties = CheckpointProperties.for_sync_savepoint(True, request.drain, request.format_type)
        else:
            properties = CheckpointProperties.for_savepoint(True, request.format_type)
        tasks = acknowledged_tasks(self._last_result, epochs, 0)  # all that a savepoint holds is new
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
        self._sweeper.sweep(live, self.commits.sweep, now=now)

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
            token=self._lease.token,
            lineage=self._restored.lineage,
            completed_at=self._job.clock.now_ms(),
            processing_time=epochs.processing_time,
            operators=operator_metadata(epochs, self.commits.next_committables(self._staged)),
            source_positions=self._positions,
            extra={PREVIOUS_EPOCH: self._previous_epoch, **extra},
        )
