"""The output of completed checkpoints that is not known to be committed: what the next checkpoint must name again.

Sinks commit checkpoint n in their lanes while the job runs the next epoch::

    pointer n -> add(n) -+-> epoch n+1 ... its document names the output of n as well -> pointer n+1 -> add(n+1)
                         |                                                                               |
                         +-> lanes: the sinks commit n ...................... done -> n is known, and the job goes on

So whatever checkpoint a recovery finds, it names all output that may not be committed, and what is committed again
comes in the order of epochs. A commit counts only once `poll_completed` has seen it succeed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.checkpoint.metadata import WINDOWS, OperatorMetadata
from holdfast.errors import ConfigurationError, RestoreError
from holdfast.kernel.ids import OperatorID
from holdfast.kernel.secret import get_logger
from holdfast.runtime.commit.commit_manager import COMMITTER_RETRIES, MAX_PENDING, CommitManager, Entry, PendingCommit
from holdfast.runtime.commit.sink_numbers import SinkMeter
from holdfast.runtime.epoch import JobEpochs
from holdfast.runtime.graph.plan import JobPlan
from holdfast.runtime.job.control import JobControl
from holdfast.runtime.job.engine import Job
from holdfast.storage.job_directory import FileName
from holdfast.storage.register import Lease

# What the document of a checkpoint says of an epoch; no I/O.


def operator_metadata(epochs: JobEpochs, staged: Mapping[str, Sequence[Entry]]) -> tuple[OperatorMetadata, ...]:
    """All steps that have state or staged output.

    Args:
        epochs: What the epoch left.
        staged: The committables of the checkpoint, by sink uid.
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
        if step.kind != "pass"
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
    """The committables that a document names, by sink uid, epoch by epoch."""
    merged: dict[str, list[Entry]] = {}
    for operator in operators:
        for uid, entries in operator.committables.items():
            merged.setdefault(uid, []).extend(entries)
    return {uid: sorted(entries, key=lambda e: int(e["epoch"])) for uid, entries in merged.items() if entries}


def short_position(positions: Mapping[str, Any] | None) -> str:
    """Where the sources stand, as short text."""
    if not positions:
        return "no source position"
    streaming = positions.get("streaming")
    if streaming:
        return f"batch {streaming['batch_id']}"
    return ", ".join(f"{name} {value}" for name, value in positions.items() if not isinstance(value, dict | list))


# The staged output that a restored checkpoint names: who wrote it, and what becomes of it if its sink is gone; no I/O.
#
# An entry of a checkpoint says of itself which incarnation of the job, epoch and subtask wrote it. Whoever commits it
# again uses that, also another job that was started from the checkpoint. Entries of older versions of Holdfast lack the
# incarnation: it is the lineage of the checkpoint that names them.

logger = get_logger(__name__)

Output = dict[str, list[Entry]]
"""Committables by sink uid."""


def with_incarnation(committables: Mapping[str, Sequence[Entry]], incarnation: str) -> Output:
    """The same committables, each with the incarnation that wrote it where it does not say so itself."""
    return {uid: [{"incarnation": incarnation, **entry} for entry in entries] for uid, entries in committables.items()}


def output_to_commit(
    plan: JobPlan, operators: Sequence[OperatorMetadata], lineage: str, allow_non_restored: bool
) -> Output:
    """What a restored checkpoint names, as far as the job has the sinks.

    Args:
        plan: The job.
        operators: The operators of the checkpoint's document.
        lineage: Of the checkpoint.
        allow_non_restored: Whether output without a sink is dropped.

    Raises:
        RestoreError: There is output of sinks that the job has not; names them.
    """
    output = with_incarnation(merge_committables(operators), lineage)
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
    logger.warning(
        "output of sinks that the job does not have is dropped, as asked for, and never committed: %s", shown
    )
    return {uid: entries for uid, entries in output.items() if uid in sinks}


def _rows_of(entries: Sequence[Entry]) -> str:
    """How many rows that are, as text; what older versions of Holdfast wrote may not tell."""
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
        text = f"{f'{text} and ' if known else ''}{unknown} committables that do not say how many rows they have"
    return text


_PATIENCE: Final = 10.0
"""Seconds that a job waits for its sinks between two lines of the log that say so."""


def create_commit_manager(
    job: Job, lease: Lease, plan: JobPlan, control: JobControl, meter: SinkMeter
) -> CommitManager:
    """The committers of a job attempt."""
    return CommitManager(
        {step.uid: step.sink for step in plan.sinks()},
        job_id=str(job.job_id),
        staging_dir=job.directory.taskowned_dir,
        services=job.engine.services(),
        retries=job.configuration.get(COMMITTER_RETRIES),
        clock=job.clock,
        is_stopped=lambda: control.cancel_requested,
        incarnations=lease.state.incarnations,
        require_lead=lease.check,
        bind_session=job.engine.bind_session,
        meter=meter,
        has_threads=most_pending(job) > 0 or None,
    )


def most_pending(job: Job) -> int:
    """How many completed checkpoints may wait for their commits while an epoch runs.

    Raises:
        ConfigurationError: The option is no such number.
    """
    most = job.configuration.get(MAX_PENDING)
    if most < 0:
        raise ConfigurationError(
            f"{MAX_PENDING.key} is a number of checkpoints, or 0 for an epoch to begin when the output of the one "
            f"before is committed, not {most}"
        )
    return most


@dataclass(frozen=True)
class UncommittedCheckpoint:
    """A completed checkpoint whose output is being committed.

    Attributes:
        checkpoint_id: The checkpoint.
        output: What it names that none before it has named.
        positions: Where the sources stand in it, None if there are none yet.
        commit: How far the sinks are.
    """

    checkpoint_id: int
    output: Output
    positions: Mapping[str, Any] | None
    commit: PendingCommit


class UncommittedOutput:
    """Completed checkpoints whose output is not known to be committed, in their order.

    One thread at a time may change it; `is_all_committed` and `has_finished_commits` may be asked from any.

    Args:
        committing: The committers.
        job: Says how many checkpoints may wait, and how long a wait takes.
        is_committed: Called with each checkpoint whose output is committed, in their order.
    """

    def __init__(
        self, committing: CommitManager, job: Job, is_committed: Callable[[UncommittedCheckpoint], None]
    ) -> None:
        self._committing = committing
        self._clock = job.clock
        self._most = most_pending(job)
        self._is_committed = is_committed
        self._pending: tuple[UncommittedCheckpoint, ...] = ()
        self._has_begun = False

    @property
    def is_all_committed(self) -> bool:
        """Whether the output of all completed checkpoints, that of the restored one first, is known to be committed."""
        return self._has_begun and not self._pending

    @property
    def has_finished_commits(self) -> bool:
        """Whether the sinks have ended with the oldest checkpoint, so that `poll_completed` has something to do."""
        pending = self._pending
        return bool(pending) and not pending[0].commit.unfinished_sinks

    def next_committables(self, staged: Mapping[str, Sequence[Entry]]) -> Output:
        """What the document of the next checkpoint names: all this, and what was staged since, by sink uid."""
        named: Output = {}
        for output in (*(one.output for one in self._pending), staged):
            for uid, entries in output.items():
                named.setdefault(uid, []).extend(entries)
        return named

    def recover(self, checkpoint_id: int | None, output: Output) -> None:
        """Commits what the restored checkpoint names, if there is one, before anything else. Blocks.

        Raises:
            HoldfastError: A commit has failed.
        """
        if checkpoint_id is not None:
            self._committing.commit(checkpoint_id, output, is_recovered=True)
        self._has_begun = True

    def add(self, checkpoint_id: int, output: Output, positions: Mapping[str, Any] | None) -> None:
        """Takes a completed checkpoint, whose output the sinks begin to commit."""
        commit = self._committing.begin(checkpoint_id, output)
        self._pending = (*self._pending, UncommittedCheckpoint(checkpoint_id, output, positions, commit))

    def poll_completed(self) -> None:
        """Finds out what is committed by now; does not block.

        Raises:
            HoldfastError: A commit has failed, as `PendingCommit.result` says; it does so each time.
        """
        while self.has_finished_commits:
            oldest = self._pending[0]
            oldest.commit.result()
            self._pending = self._pending[1:]
            self._is_committed(oldest)

    def wait_for_capacity(self) -> None:
        """Blocks until so few checkpoints are not committed that another epoch may begin.

        Raises:
            HoldfastError: A commit has failed.
        """
        self._wait(self._most)

    def wait_all_committed(self) -> None:
        """Blocks until everything is committed.

        Raises:
            HoldfastError: A commit has failed.
        """
        self._wait(0)

    def sweep(self, is_dead: Callable[[FileName], bool]) -> int:
        """Lets sinks remove the staged files of dead attempts, which none does while it commits; returns how many.

        Raises:
            HoldfastError: A commit has failed.
        """
        self.wait_all_committed()
        return self._committing.sweep(is_dead)

    def halt(self) -> None:
        """Lets sinks begin nothing more, because another leader commits."""
        self._committing.halt()

    def finish(self) -> None:
        """Blocks until the sinks have ended with what was begun, for which each has one try now.

        So a job that fails leaves nothing staged of checkpoints that are complete, unless a sink fails as well.
        """
        self._committing.finish()

    def _wait(self, most: int) -> None:
        self.poll_completed()
        began = self._clock.monotonic()
        while len(self._pending) > most:
            oldest = self._pending[0]
            if not oldest.commit.wait(_PATIENCE):
                logger.warning(
                    "the job waits for the commit of checkpoint %d, for %.0f s now; these sinks have not ended: %s",
                    oldest.checkpoint_id,
                    self._clock.monotonic() - began,
                    ", ".join(repr(uid) for uid in oldest.commit.unfinished_sinks),
                )
            self.poll_completed()
