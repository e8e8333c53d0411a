"""Operators and output of sinks as a checkpoint's document has them, and output that may not be committed yet.

Sinks commit checkpoint n in their threads while the job runs the next epoch::

    pointer n -> add(n) -+-> epoch n+1: its document names the output of n as well -> pointer n+1 -> add(n+1)
                         |                                                                               |
                         +-> sinks commit n ............ done -> poll_completed() removes n, and the job goes on

So each checkpoint names all output that may not be committed yet, and a recovery commits it in the order of epochs.

A committable names the incarnation, epoch and subtask that wrote it, and is committed under that identity, also by
another job that was started from the checkpoint. Committables of older versions of Holdfast have no incarnation: it is
that of their checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.checkpoint.metadata import WINDOWS, OperatorMetadata
from holdfast.errors import ConfigurationError, RestoreError
from holdfast.kernel.ids import OperatorID
from holdfast.kernel.secret import get_logger
from holdfast.runtime.commit.commit_manager import (
    COMMITTER_RETRIES,
    MAX_PENDING,
    CommitManager,
    CommitSettings,
    CommittingJob,
    Entry,
    PendingCommit,
)
from holdfast.runtime.commit.sink_metrics import SinkMeter
from holdfast.runtime.epoch import JobEpochs
from holdfast.runtime.graph.plan import JobPlan
from holdfast.runtime.job.control import JobControl
from holdfast.runtime.job.engine import Job
from holdfast.storage.job_directory import FileName
from holdfast.storage.register import RegisterWriter

logger = get_logger(__name__)

_LOG_SECONDS: Final = 10.0
"""Seconds between two log lines while the job waits for its sinks."""


@dataclass(frozen=True)
class UncommittedCheckpoint:
    """A completed checkpoint whose output is being committed.

    Attributes:
        checkpoint_id: The checkpoint.
        output: Its output, without that of earlier checkpoints.
        positions: Source positions; None if there are none yet.
        commit: The commit in progress.
    """

    checkpoint_id: int
    output: Output
    positions: Mapping[str, Any] | None
    commit: PendingCommit


class UncommittedOutput:
    """Completed checkpoints that may not be committed yet, in their order.

    One thread at a time changes it. `is_all_committed` and `has_finished_commits` are safe from any thread.

    Args:
        commit_manager: The committers.
        job: Its options and its clock.
        on_committed: Called with each checkpoint that is committed, in their order.
    """

    def __init__(
        self, commit_manager: CommitManager, job: Job, on_committed: Callable[[UncommittedCheckpoint], None]
    ) -> None:
        self._commit_manager = commit_manager
        self._clock = job.clock
        self._most = most_pending(job)
        self._on_committed = on_committed
        self._pending: tuple[UncommittedCheckpoint, ...] = ()
        self._has_begun = False

    @property
    def is_all_committed(self) -> bool:
        """Whether the output of all completed checkpoints, including the restored one, is committed."""
        return self._has_begun and not self._pending

    @property
    def has_finished_commits(self) -> bool:
        """Whether the commit of the oldest checkpoint has ended, so that `poll_completed` has something to do."""
        pending = self._pending
        return bool(pending) and not pending[0].commit.unfinished_sinks

    def next_committables(self, staged: Mapping[str, Sequence[Entry]]) -> Output:
        """Return the committables of the next checkpoint, by sink uid: uncommitted and newly staged ones."""
        named: Output = {}
        for output in (*(one.output for one in self._pending), staged):
            for uid, entries in output.items():
                named.setdefault(uid, []).extend(entries)
        return named

    def recover(self, checkpoint_id: int | None, output: Output) -> None:
        """Commit the output of the restored checkpoint, if there is one. Blocks.

        Raises:
            HoldfastError: A commit has failed.
        """
        if checkpoint_id is not None:
            self._commit_manager.commit(checkpoint_id, output, is_recovered=True)
        self._has_begun = True

    def add(self, checkpoint_id: int, output: Output, positions: Mapping[str, Any] | None) -> None:
        """Add a completed checkpoint and begin its commit."""
        commit = self._commit_manager.begin(checkpoint_id, output)
        self._pending = (*self._pending, UncommittedCheckpoint(checkpoint_id, output, positions, commit))

    def poll_completed(self) -> None:
        """Remove the checkpoints whose commit has succeeded. Does not block.

        Raises:
            HoldfastError: A commit has failed; raised at each call.
        """
        while self.has_finished_commits:
            oldest = self._pending[0]
            oldest.commit.result()
            self._pending = self._pending[1:]
            self._on_committed(oldest)

    def wait_for_capacity(self) -> None:
        """Block until few enough checkpoints are uncommitted to begin another epoch.

        Raises:
            HoldfastError: A commit has failed.
        """
        self._wait(self._most)

    def wait_all_committed(self) -> None:
        """Block until everything is committed.

        Raises:
            HoldfastError: A commit has failed.
        """
        self._wait(0)

    def sweep(self, is_dead: Callable[[FileName], bool]) -> int:
        """Remove the staged files of dead attempts; returns their number. Blocks until no sink commits.

        Raises:
            HoldfastError: A commit has failed.
        """
        self.wait_all_committed()
        return self._commit_manager.sweep(is_dead)

    def halt(self) -> None:
        """Let no sink begin another epoch, because another leader commits."""
        self._commit_manager.halt()

    def finish(self) -> None:
        """Block until the sinks have finished all that was begun; each retries nothing any more.

        So a job that fails leaves no output of completed checkpoints uncommitted, unless a sink fails as well.
        """
        self._commit_manager.finish()

    def _wait(self, most: int) -> None:
        self.poll_completed()
        began = self._clock.monotonic()
        while len(self._pending) > most:
            oldest = self._pending[0]
            if not oldest.commit.wait(_LOG_SECONDS):
                logger.warning(
                    "waiting for the commit of checkpoint %d for %.0f s; sinks that have not finished: %s",
                    oldest.checkpoint_id,
                    self._clock.monotonic() - began,
                    ", ".join(repr(uid) for uid in oldest.commit.unfinished_sinks),
                )
            self.poll_completed()


def create_commit_manager(
    job: Job, writer: RegisterWriter, plan: JobPlan, control: JobControl, meter: SinkMeter
) -> CommitManager:
    return CommitManager(
        {step.uid: step.sink for step in plan.sinks()},
        CommittingJob(
            str(job.job_id),
            job.directory.taskowned_dir,
            job.engine.services(),
            writer.state.incarnations,
            writer.check,
        ),
        CommitSettings(
            retries=job.configuration.get(COMMITTER_RETRIES),
            clock=job.clock,
            is_stopped=lambda: control.cancel_requested,
            bind_session=job.engine.bind_session,
            has_threads=most_pending(job) > 0 or None,
        ),
        meter,
    )


def most_pending(job: Job) -> int:
    """Return how many completed checkpoints may wait for their commits while an epoch runs.

    Raises:
        ConfigurationError: The option is negative.
    """
    most = job.configuration.get(MAX_PENDING)
    if most < 0:
        raise ConfigurationError(
            f"{MAX_PENDING.key} must be a number of checkpoints, or 0 to begin an epoch after the output of the epoch "
            f"before is committed, not {most}"
        )
    return most


Output = dict[str, list[Entry]]
"""Committables by sink uid."""


def operator_metadata(epochs: JobEpochs, staged: Mapping[str, Sequence[Entry]]) -> tuple[OperatorMetadata, ...]:
    """Return all steps that have state or staged output, as a checkpoint's document describes them.

    Args:
        epochs: State after the epoch.
        staged: Committables of the checkpoint, by sink uid.
    """
    operators = [
        OperatorMetadata(
            uid=step.uid,
            operator_id=OperatorID.from_uid(step.uid).to_hex(),
            name=step.name,
            parallelism=step.parallelism,
            max_parallelism=step.max_parallelism,
            key=step.codec.to_json() if step.codec else None,
            runs=epochs.versions[step.uid].runs if step.codec else (),
            states={WINDOWS: dict(step.windows)} if step.windows else {},
            subtasks=epochs.operator_states.to_json(step.uid),
        )
        for step in epochs.plan.stateful_steps()
        if step.kind != "forward"
    ]
    operators += [
        OperatorMetadata(
            uid=step.uid,
            operator_id=OperatorID.from_uid(step.uid).to_hex(),
            name=step.name,
            parallelism=1,
            max_parallelism=1,
            committables={step.uid: list(staged.get(step.uid, ()))},
        )
        for step in epochs.plan.sinks()
    ]
    return tuple(operators)


def merge_committables(operators: Sequence[OperatorMetadata]) -> dict[str, list[Entry]]:
    """Return the committables of a document by sink uid, in the order of epochs."""
    merged: dict[str, list[Entry]] = {}
    for operator in operators:
        for uid, entries in operator.committables.items():
            merged.setdefault(uid, []).extend(entries)
    return {uid: sorted(entries, key=lambda e: int(e["epoch"])) for uid, entries in merged.items() if entries}


def short_position(positions: Mapping[str, Any] | None) -> str:
    """Return the source positions as short text."""
    if not positions:
        return "no source position"
    streaming = positions.get("streaming")
    if streaming:
        return f"batch {streaming['batch_id']}"
    splits = positions.get("splits")
    if splits and positions.get("static_consumed"):
        return f"positions of {len(splits)} {'input' if len(splits) == 1 else 'inputs'}"
    if "static_consumed" in positions:
        return "all static inputs read" if positions["static_consumed"] else "static inputs not read to their end"
    return ", ".join(f"{name} {value}" for name, value in positions.items() if not isinstance(value, dict | list))


def with_incarnation(committables: Mapping[str, Sequence[Entry]], incarnation: str) -> Output:
    """Add the incarnation to the committables that do not have one."""
    return {uid: [{"incarnation": incarnation, **entry} for entry in entries] for uid, entries in committables.items()}


def output_to_commit(
    plan: JobPlan, operators: Sequence[OperatorMetadata], incarnation: str, allow_non_restored: bool
) -> Output:
    """Return the committables of a restored checkpoint for the sinks that the job has.

    Args:
        plan: The job.
        operators: The operators of the checkpoint's document.
        incarnation: Incarnation of the job that wrote the checkpoint.
        allow_non_restored: Whether to drop output without a sink.

    Raises:
        RestoreError: The checkpoint has output of sinks that the job does not have.
    """
    output = with_incarnation(merge_committables(operators), incarnation)
    sinks = {step.uid for step in plan.sinks()}
    missing = sorted(set(output) - sinks)
    if not missing:
        return output
    shown = ", ".join(f"{_rows_of(output[uid])} of {uid!r}" for uid in missing)
    if not allow_non_restored:
        new = sorted(sinks - {uid for operator in operators for uid in operator.committables})
        raise RestoreError(
            missing,
            new,
            f"the checkpoint names output of sinks that this job does not have: {missing}, namely {shown}, which may "
            f"not be committed yet; new in this job: {new or 'none'}. Give the sinks their old uids, so that it is "
            "committed, or drop that output with -n (execution.state-recovery.ignore-unclaimed-state)",
        )
    logger.warning("dropped output of sinks that the job does not have (-n), which is never committed: %s", shown)
    return {uid: entries for uid, entries in output.items() if uid in sinks}


def _rows_of(entries: Sequence[Entry]) -> str:
    """Describe the number of rows; older versions of Holdfast did not record it."""
    known: dict[tuple[int, int], int] = {}
    unknown = 0
    for entry in entries:
        value = entry["value"]
        rows = entry.get("rows", value.get("rows") if isinstance(value, Mapping) else None)
        place = int(entry["epoch"]), int(entry["subtask"])
        if not isinstance(rows, int):
            unknown += 1
        elif "rows" in entry:  # of all that the subtask wrote in the epoch
            known[place] = rows
        else:
            known[place] = known.get(place, 0) + rows
    total = sum(known.values())
    text = f"{total} {'row' if total == 1 else 'rows'}"
    if unknown:
        text = f"{f'{text} and ' if known else ''}{unknown} committables without a number of rows"
    return text
