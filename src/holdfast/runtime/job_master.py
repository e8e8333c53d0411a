"""The leader of one job: attempts, restarts, and how the job ends.

::

    CREATED -> RUNNING -> FINISHED     bounded inputs have ended
                  |  ^ -> SUSPENDED    trigger exhausted, stopped, or fenced by another leader: everything is kept
                  v  |  -> CANCELED    cancel() was called
             RESTARTING -> FAILED      the restart strategy gave up, or a new attempt cannot help

A failure in an epoch starts a new attempt in the same process: the token is raised again and the newest completed
checkpoint is restored, so what a restart does is what another process would do.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

from holdfast.errors import (
    ConfigurationError,
    CorruptFileError,
    FencedError,
    FormatVersionError,
    HoldfastError,
    JobExecutionError,
    NullKeyError,
    OutputTypeError,
    PossibleInconsistentStateError,
    RestoreError,
    StateError,
    StateMigrationError,
    UserFunctionError,
)
from holdfast.kernel.backoff import RestartStrategy, restart_strategy_from
from holdfast.runtime.attempt import JobAttempt
from holdfast.runtime.control import JobControl
from holdfast.runtime.damage import with_proposal
from holdfast.runtime.engine import EngineLostError, Outcome
from holdfast.runtime.job import Job
from holdfast.runtime.job_observer import observing
from holdfast.runtime.options import IDENTICAL_FAILURES
from holdfast.runtime.progress import ProgressReporter
from holdfast.runtime.starting_point import is_chosen, restore
from holdfast.runtime.status import JobStatus
from holdfast.storage.register import CheckpointPointer, Lease

logger = logging.getLogger(__name__)

FATAL = (
    ConfigurationError,
    CorruptFileError,
    EngineLostError,
    FormatVersionError,
    RestoreError,
    StateMigrationError,
)
"""Failures that a new attempt in this process would meet again."""

OF_THE_PROGRAM = (UserFunctionError, OutputTypeError, NullKeyError, StateError)
"""Failures that a new attempt will probably meet again, unless what a function calls was down for a moment."""


class JobMaster:
    """Runs a job in the calling thread.

    Args:
        job: The job.
        progress: Where epochs are reported.
    """

    def __init__(self, job: Job, progress: ProgressReporter | None = None) -> None:
        self.job = job
        self.control = JobControl()
        self.progress = progress or ProgressReporter(job.name)
        self.status = JobStatus.CREATED
        self.failure: HoldfastError | None = None
        self.ended = threading.Event()
        self._newest_at_start: CheckpointPointer | None = None
        self._lease: Lease | None = None
        self._last_cause: tuple[type[HoldfastError], str | None, CheckpointPointer | None] | None = None
        self._identical = 0
        self._restart: RestartStrategy = restart_strategy_from(job.configuration, job.clock)

    def run(self) -> JobStatus:
        """Runs the job to its end and returns how it ended. Blocks.

        Raises:
            FencedError: Another leader took over; the job itself goes on there.
            JobExecutionError: The job FAILED; its cause is the last failure.
            ConfigurationError, RestoreError, StateMigrationError, CorruptFileError, FormatVersionError: The job cannot
                run as it is; a new attempt would meet the same.
        """
        try:
            with observing(self.job, self.progress):
                self.status = self._run_attempts()
        except FencedError as error:
            self.status, self.failure = JobStatus.SUSPENDED, error
            raise
        except HoldfastError as error:
            self.status, self.failure = JobStatus.FAILED, error
            if isinstance(error, (JobExecutionError, *FATAL)):
                raise
            raise JobExecutionError(f"job {self.job.name!r} failed: {error}") from error
        finally:
            if not self.status.is_terminal_state():
                self.status = JobStatus.SUSPENDED
            self.control.end()
            self.progress.close()
            self.ended.set()
        logger.info("job %r ended %s", self.job.name, self.status.value)
        return self.status

    def _run_attempts(self) -> JobStatus:
        number = 0
        while True:
            try:
                lease = self._raise_token()
                if number == 0:
                    self._newest_at_start = lease.state.newest
                if lease.state.terminal == JobStatus.FINISHED.value and not is_chosen(self.job.configuration):
                    return self._already_finished()
                return self._run_attempt(lease, number)
            except FencedError:
                raise
            except HoldfastError as error:
                self._require_leadership(error)
                if isinstance(error, CorruptFileError):
                    raise with_proposal(self.job, error) from error
                if isinstance(error, FATAL):
                    raise
                self._wait_for_restart(error)
                self._require_leadership(error)
                number += 1

    def _raise_token(self) -> Lease:
        try:
            self._lease = self.job.register.raise_token(self.job.owner)
        except PossibleInconsistentStateError:
            self._lease = None  # the newest token may be our own
            raise
        return self._lease

    def _require_leadership(self, error: HoldfastError) -> None:
        """Tells the failure of a job from that of a leader who was deposed, whose files are gone for instance.

        Such a leader must not fail the job, and above all not raise the token again: that would fence his successor.

        Raises:
            FencedError: Another leader took over.
        """
        if self._lease is None:
            return
        try:
            newest = self.job.register.read()
        except HoldfastError:
            return
        if newest.token != self._lease.token:
            raise FencedError(
                f"Leader {self.job.owner!r} with token {self._lease.token} is fenced: {newest.owner!r} leads with "
                f"token {newest.token}. This process stops; what failed here is of no consequence to the job: {error}"
            ) from error

    def _run_attempt(self, lease: Lease, number: int) -> JobStatus:
        if lease.state.terminal is not None:
            lease.write(lambda state: replace(state, terminal=None))
        # Until a checkpoint of this process completes, a restart starts where the process was told to start.
        restored = restore(self.job, lease, is_first=lease.state.newest == self._newest_at_start)
        attempt = JobAttempt(self.job, lease, number, restored, self.control, self.progress)
        self.status = JobStatus.RUNNING
        outcome = attempt.run()
        if self.control.cancel_requested:
            return self._terminal(lease, JobStatus.CANCELED)
        if outcome is Outcome.ENDED:
            return self._terminal(lease, JobStatus.FINISHED)
        return JobStatus.SUSPENDED

    def _wait_for_restart(self, error: HoldfastError) -> None:
        self._restart.notify_failure(error)
        self._give_up_if_it_comes_again(error)
        if self.control.stopping:
            logger.warning("the job failed while it was being stopped; its last completed checkpoint stands: %s", error)
            raise JobExecutionError(f"job {self.job.name!r} failed while it was being stopped: {error}") from error
        if not self._restart.can_restart():
            raise JobExecutionError(
                f"job {self.job.name!r} failed, and {self._restart} allows no further restart: {error}"
            ) from error
        self.status = JobStatus.RESTARTING
        pause = self._restart.get_backoff_time()
        logger.warning("job %r restarts in %d ms from its last completed checkpoint: %s", self.job.name, pause, error)
        self.control.wait(pause / 1000)

    def _give_up_if_it_comes_again(self, error: HoldfastError) -> None:
        """A program that fails in the same way again and again, without a checkpoint between, needs its author."""
        cause = None
        if isinstance(error, OF_THE_PROGRAM):
            newest = None if self._lease is None else self._lease.state.newest
            cause = (type(error), getattr(error, "uid", None), newest)
        self._identical = self._identical + 1 if cause is not None and cause == self._last_cause else 1
        self._last_cause = cause
        limit = self.job.configuration.get(IDENTICAL_FAILURES)
        if cause is not None and limit and self._identical >= limit:
            raise JobExecutionError(
                f"job {self.job.name!r} failed {self._identical} times in a row in the same way, so no restart will "
                "help "
                f"(restart-strategy.identical-failures): {error}"
            ) from error

    def _terminal(self, lease: Lease, status: JobStatus) -> JobStatus:
        lease.write(lambda state: replace(state, terminal=status.value))
        return status

    def _already_finished(self) -> JobStatus:
        logger.warning(
            "job %r has already FINISHED: nothing is run; start it with --fresh to run it again", self.job.name
        )
        return JobStatus.FINISHED
