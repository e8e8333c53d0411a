"""Bugs in what an epoch is, and in how its output leaves. `bugs` has them all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from holdfast.checkpoint.completed_checkpoint import RegisterCompletedCheckpointStore
from holdfast.datastream.sinks import output_directory, output_files
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.runtime import compaction
from holdfast.runtime import epoch as epoch_job
from holdfast.runtime import epoch as job_epochs
from holdfast.runtime.commit import checkpointing, commit_manager, uncommitted
from holdfast.runtime.exchange import task_report
from holdfast.state.version import StateVersion
from holdfast.storage import local

Patch = tuple[Any, str, Any]


# Epochs


def other_attempts_accepted() -> Iterator[Patch]:
    """An epoch is accepted although tasks of a stage have read different attempts of the stage before."""

    def first_of_each(current: Any, index: int) -> Any:
        above = {b.partition: b for report in reversed(current) for b in report.upstream}
        return tuple(above[partition] for partition in sorted(above))

    yield task_report, "_upstream_of", first_of_each


def digest_not_compared() -> Iterator[Patch]:
    """The reports of input that tasks send are not compared with the attempts whose reports arrived."""
    yield (
        task_report,
        "_upstream_of",
        lambda current, index: tuple(
            sorted((b for one in current for b in one.upstream), key=lambda b: (b.partition, b.attempt))
        ),
    )


def markers_without_attempt() -> Iterator[Patch]:
    """A marker does not contain the attempt of the task that wrote it."""
    real = task_report.marker_head
    yield task_report, "marker_head", lambda stage, partition, attempt: real(stage, partition, "any")


def marker_that_came_twice_counted_once() -> Iterator[Patch]:
    """A task that reads an input twice reports it once."""
    yield task_report.MarkerReader, "heads", lambda self: sorted({one[:24] for one in self._markers})
    real = task_report.MarkerReader.reports
    yield task_report.MarkerReader, "reports", lambda self: tuple(dict.fromkeys(real(self)))


def content_of_another_attempt_nested() -> Iterator[Patch]:
    """A task reports the attempt whose report arrived first as read, whichever rows it read."""
    take, accept = task_report.MarkerReader.add, epoch_job.check_epoch
    first: dict[bytes, bytes] = {}

    def taking(self: Any, row: bytes) -> None:
        take(self, first.setdefault(row[:8], row) if len(row) > self._form.length else row)

    def accepting(last_stage: Any, tasks: Any) -> Any:
        first.clear()
        return accept(last_stage, tasks)

    yield task_report.MarkerReader, "add", taking
    yield epoch_job, "check_epoch", accepting


def missing_tasks_accepted() -> Iterator[Patch]:
    """An epoch is accepted if a task is missing, or reported twice."""
    yield task_report, "_check_complete", lambda reports, index, expected: None


def state_moves_on_before_acceptance() -> Iterator[Patch]:
    """The state of a rejected attempt is kept."""
    real = epoch_job.check_epoch
    runners: list[Any] = []
    run = job_epochs.JobEpochs.run

    def running(self: Any, *arguments: Any, **named: Any) -> Any:
        runners.append(self)
        return run(self, *arguments, **named)

    def accept(last_stage: Any, tasks: Any) -> Any:
        for one in last_stage:
            for step in one.steps:
                if step.run is not None:
                    versions = runners[-1].versions
                    versions[step.uid] = versions[step.uid].plus(job_epochs.RunHandle.from_json(step.run))
        return real(last_stage, tasks)

    yield job_epochs.JobEpochs, "run", running
    yield epoch_job, "check_epoch", accept


def positions_run_ahead() -> Iterator[Patch]:
    """The source positions of a checkpoint include an epoch that is not in it."""
    real = checkpointing.EpochCheckpoints._metadata

    def metadata(self: Any, checkpoint_id: int, epochs: Any) -> Any:
        found = real(self, checkpoint_id, epochs)
        positions = found.source_positions
        return replace(found, source_positions={"next": positions["next"] + 1}) if positions else found

    yield checkpointing.EpochCheckpoints, "_metadata", metadata


def runs_of_half_a_range_forgotten() -> Iterator[Patch]:
    """After a rescale a task opens only the runs that lie completely within its key groups."""

    def for_range(self: Any, key_groups: KeyGroupRange) -> StateVersion:
        inside = [r for r in self.runs if key_groups.start <= r.range.start and r.range.end <= key_groups.end]
        return StateVersion(tuple(inside))

    yield StateVersion, "for_range", for_range


# Output


def nothing_is_compacted() -> Iterator[Patch]:
    """Runs are never merged."""
    yield compaction.Compaction, "_begin", lambda self, versions, plan, now: None


def commit_before_pointer() -> Iterator[Patch]:
    """Sinks commit before the checkpoint is complete."""
    real = checkpointing.EpochCheckpoints._complete

    def complete(self: Any, epochs: Any) -> Any:
        self._commit_manager.commit(0, self._staged, is_recovered=True)
        return real(self, epochs)

    yield checkpointing.EpochCheckpoints, "_complete", complete


def restored_output_not_committed() -> Iterator[Patch]:
    """The output that a restored checkpoint names is not committed again."""
    yield checkpointing.EpochCheckpoints, "commit_restored", lambda self: None


def notified_before_commit() -> Iterator[Patch]:
    """The register records a checkpoint as committed before its sinks have committed."""
    real = RegisterCompletedCheckpointStore._record

    def record(self: Any, checkpoint: Any, stay: Any) -> None:
        self.mark_committed(checkpoint.checkpoint_id)
        real(self, checkpoint, stay)

    yield RegisterCompletedCheckpointStore, "_record", record


def staged_output_of_failed_checkpoint_lost() -> Iterator[Patch]:
    """If a checkpoint fails and this is tolerated, the next one does not contain its output."""
    real = checkpointing.EpochCheckpoints._complete

    def complete(self: Any, epochs: Any) -> Any:
        completed = real(self, epochs)
        if completed is None:
            self._staged = {}
        return completed

    yield checkpointing.EpochCheckpoints, "_complete", complete


def failed_last_checkpoint_forgotten() -> Iterator[Patch]:
    """The job ends although its last checkpoint failed, because the failure is tolerated."""
    real = checkpointing.EpochCheckpoints._complete

    def complete(self: Any, epochs: Any) -> Any:
        completed = real(self, epochs)
        if completed is None:
            self._pending_result = None
        return completed

    yield checkpointing.EpochCheckpoints, "_complete", complete


def next_checkpoint_forgets_uncommitted_output() -> Iterator[Patch]:
    """A checkpoint names only its own output, also while older output is not committed yet."""
    yield (
        uncommitted.UncommittedOutput,
        "next_committables",
        lambda self, staged: {uid: list(entries) for uid, entries in staged.items()},
    )


def later_checkpoint_committed_first() -> Iterator[Patch]:
    """A sink commits two checkpoints at the same time."""

    def in_a_thread_of_its_own(self: Any, uid: str, call: Any) -> Any:
        future = commit_manager.Future()
        self._threads.setdefault(f"{uid} {len(self._threads)}", commit_manager.SinkCommitThread(uid)).submit(
            call, future
        )
        return future

    def begin(self: Any, checkpoint_id: int, entries: Any, is_recovered: bool, begun: Any, halted: Any) -> Any:
        return real(self, checkpoint_id, entries, is_recovered, {}, halted)

    real = commit_manager.CommitManager._begin
    yield commit_manager.CommitManager, "_submit", in_a_thread_of_its_own
    yield commit_manager.CommitManager, "_begin", begin


def any_number_of_checkpoints_waits() -> Iterator[Patch]:
    """The number of checkpoints that wait for sinks has no limit."""
    yield uncommitted.UncommittedOutput, "wait_for_capacity", lambda self: self.poll_completed()


def commits_past_a_failed_one() -> Iterator[Patch]:
    """After a sink failed to commit a checkpoint, it commits the next one."""
    real = commit_manager.CommitManager._commit_sink

    def commit(self: Any, uid: str, number: int, entries: Any, is_recovered: bool, before: Any, halted: Any) -> Any:
        return real(self, uid, number, entries, is_recovered, None, halted)

    yield commit_manager.CommitManager, "_commit_sink", commit


def one_sink_speaks_for_all() -> Iterator[Patch]:
    """A checkpoint counts as committed when one of its sinks has committed it."""
    under_way = commit_manager.PendingCommit

    def first_alone(self: Any, timeout: float | None = None) -> bool:
        for outcome in list(self._outcomes.values())[:1]:
            outcome.exception(timeout)
        self._outcomes = dict(list(self._outcomes.items())[:1])
        return not self.unfinished_sinks

    yield (
        under_way,
        "unfinished_sinks",
        property(lambda self: [u for u, one in [*self._outcomes.items()][:1] if not one.done()]),
    )
    yield under_way, "wait", first_alone


def other_sinks_go_unheard() -> Iterator[Patch]:
    """If one sink commits and another one fails, the failure is ignored."""
    real = commit_manager.PendingCommit.result

    def result(self: Any) -> Any:
        self.wait()
        self._outcomes = {u: one for u, one in self._outcomes.items() if one.exception() is None} or self._outcomes
        return real(self)

    yield commit_manager.PendingCommit, "result", result


def savepoint_beside_commits() -> Iterator[Patch]:
    """The request for a savepoint returns while sinks still commit."""
    real = checkpointing.EpochCheckpoints.on_checkpoint_completed

    def notify(self: Any, checkpoint_id: int, epochs: Any) -> None:
        wait_all_committed, self.commits.wait_all_committed = self.commits.wait_all_committed, lambda: None
        try:
            real(self, checkpoint_id, epochs)
        finally:
            self.commits.wait_all_committed = wait_all_committed

    yield checkpointing.EpochCheckpoints, "on_checkpoint_completed", notify


def job_ends_beside_commits() -> Iterator[Patch]:
    """A job ends while sinks still commit."""
    yield uncommitted.UncommittedOutput, "wait_all_committed", lambda self: None


def commits_without_intent() -> Iterator[Patch]:
    """Files are renamed without a written intent."""
    yield output_directory.CommitLedger, "begin", lambda self, epoch, moves: None


def done_before_moved() -> Iterator[Patch]:
    """An epoch is recorded as done before its files are renamed."""
    real = output_directory.OutputDirectory.move
    finish = output_directory.CommitLedger.finish
    waiting: list[Any] = []

    def move(self: Any, moves: Any) -> None:
        waiting.append((self, moves))

    def finished(self: Any, epoch: int) -> None:
        finish(self, epoch)
        directory, moves = waiting.pop()
        real(directory, moves)

    yield output_directory.OutputDirectory, "move", move
    yield output_directory.CommitLedger, "finish", finished


def moves_not_synced() -> Iterator[Patch]:
    """Output files are renamed, but their directories are not synced."""

    def move_all(self: Any, moves: Any) -> None:
        for source, target in moves:
            try:
                local.os.rename(source, target)
            except FileNotFoundError:
                continue

    yield local.LocalFileSystem, "move_all", move_all


def sink_sweeps_everything() -> Iterator[Patch]:
    """A sink deletes all staged files, also those that are needed."""
    real = output_files.ParquetFileSink.sweep
    yield output_files.ParquetFileSink, "sweep", lambda self, context, is_dead: real(self, context, lambda name: True)
