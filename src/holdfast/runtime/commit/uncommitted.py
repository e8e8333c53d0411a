"""The output of completed checkpoints that is not known to be committed: what the next checkpoint must name again.

Sinks commit checkpoint n in their lanes while the job runs the next epoch::

    pointer n -> add(n) -+-> epoch n+1 ... its document names the output of n as well -> pointer n+1 -> add(n+1)
                         |                                                                               |
                         +-> lanes: the sinks commit n ...................... done -> n is known, and the job goes on

So whatever checkpoint a recovery finds, it names all output that may not be committed, and what is committed again
comes in the order of epochs. Until `note` has found that a commit has ended well, nothing counts as committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.errors import ConfigurationError
from holdfast.kernel.secret import get_logger
from holdfast.runtime.commit.committing import COMMITTER_RETRIES, MAX_PENDING, Committing, CommitUnderWay
from holdfast.runtime.commit.output import Output
from holdfast.runtime.commit.sink_committing import Entry
from holdfast.runtime.commit.sink_numbers import SinkMeter
from holdfast.runtime.graph.plan import JobPlan
from holdfast.runtime.job.control import JobControl
from holdfast.runtime.job.job import Job
from holdfast.storage.job.naming import FileName
from holdfast.storage.register.fenced_register import Lease

logger = get_logger(__name__)

_PATIENCE: Final = 10.0
"""Seconds that a job waits for its sinks between two lines of the log that say so."""


def committing_of(job: Job, lease: Lease, plan: JobPlan, control: JobControl, meter: SinkMeter) -> Committing:
    """The committers of a job attempt."""
    return Committing(
        {step.uid: step.sink for step in plan.sinks()},
        job_id=str(job.job_id),
        staging_dir=job.directory.taskowned_dir,
        services=job.engine.services(),
        retries=job.configuration.get(COMMITTER_RETRIES),
        clock=job.clock,
        is_stopped=lambda: control.cancel_requested,
        incarnations=lease.state.incarnations,
        require_lead=lease.check,
        carried=job.engine.carried,
        meter=meter,
        has_lanes=most_pending(job) > 0 or None,
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
class Pending:
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
    commit: CommitUnderWay


class UncommittedOutput:
    """Completed checkpoints whose output is not known to be committed, in their order.

    One thread at a time may change it; `is_settled` and `has_news` may be asked from any.

    Args:
        committing: The committers.
        job: Says how many checkpoints may wait, and how long a wait takes.
        is_committed: Called with each checkpoint whose output is committed, in their order.
    """

    def __init__(self, committing: Committing, job: Job, is_committed: Callable[[Pending], None]) -> None:
        self._committing = committing
        self._clock = job.clock
        self._most = most_pending(job)
        self._is_committed = is_committed
        self._pending: tuple[Pending, ...] = ()
        self._has_begun = False

    @property
    def is_settled(self) -> bool:
        """Whether the output of all completed checkpoints, that of the restored one first, is known to be committed."""
        return self._has_begun and not self._pending

    @property
    def has_news(self) -> bool:
        """Whether the sinks have ended with the oldest checkpoint, so that `note` has something to do."""
        pending = self._pending
        return bool(pending) and not pending[0].commit.waits_for

    def and_staged(self, staged: Mapping[str, Sequence[Entry]]) -> Output:
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
        self._pending = (*self._pending, Pending(checkpoint_id, output, positions, commit))

    def note(self) -> None:
        """Finds out what is committed by now; does not block.

        Raises:
            HoldfastError: A commit has failed, as `CommitUnderWay.result` says; it does so each time.
        """
        while self.has_news:
            oldest = self._pending[0]
            oldest.commit.result()
            self._pending = self._pending[1:]
            self._is_committed(oldest)

    def make_room(self) -> None:
        """Blocks until so few checkpoints are not committed that another epoch may begin.

        Raises:
            HoldfastError: A commit has failed.
        """
        self._wait(self._most)

    def settle(self) -> None:
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
        self.settle()
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
        self.note()
        began = self._clock.monotonic()
        while len(self._pending) > most:
            oldest = self._pending[0]
            if not oldest.commit.wait(_PATIENCE):
                logger.warning(
                    "the job waits for the commit of checkpoint %d, for %.0f s now; these sinks have not ended: %s",
                    oldest.checkpoint_id,
                    self._clock.monotonic() - began,
                    ", ".join(repr(uid) for uid in oldest.commit.waits_for),
                )
            self.note()
