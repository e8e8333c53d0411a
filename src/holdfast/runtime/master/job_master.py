"""The leader of one job: attempts, restarts, and how the job ends.

::

    CREATED -> RUNNING -> FINISHED     bounded inputs have ended
      ^           |  ^ -> SUSPENDED    trigger exhausted, stopped, or fenced by another leader: everything is kept
      |           v  |  -> CANCELED    cancel() was called
      +------ RESTARTING -> FAILED     the restart strategy gave up, or a new attempt cannot help

A failure in an epoch starts a new attempt in the same process: the token is raised again and the newest completed
checkpoint is restored, so what a restart does is what another process would do. With high availability a process
stands by (CREATED) until it is elected, and again once it was deposed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Final

from holdfast.checkpoint.config.options import CHECKPOINTS_HISTORY
from holdfast.checkpoint.retention.discard import discard_all, goes_with_the_job
from holdfast.checkpoint.statistics.tracker import CheckpointStatsTracker
from holdfast.errors import (
    CorruptFileError,
    FencedError,
    HoldfastError,
    JobExecutionError,
    PossibleInconsistentStateError,
)
from holdfast.kernel.backoff import RestartStrategy, restart_strategy_from
from holdfast.kernel.secret import get_logger, shown_error
from holdfast.runtime.commit.starting_point import is_chosen, restore
from holdfast.runtime.compaction.background import CompactionStatistics
from holdfast.runtime.job.control import JobControl
from holdfast.runtime.job.engine import EngineError, EngineLostError, InputError, Outcome
from holdfast.runtime.job.history import JobHistory, first_line
from holdfast.runtime.job.job import Job
from holdfast.runtime.job.progress import ProgressReporter
from holdfast.runtime.job.recovery_proposal import with_proposal
from holdfast.runtime.job.rest_options import EXCEPTION_HISTORY
from holdfast.runtime.job.status import JobStatus
from holdfast.runtime.master.attempt import JobAttempt
from holdfast.runtime.master.job_flow import JobFlow
from holdfast.runtime.master.job_metrics import JobMetrics
from holdfast.runtime.master.job_observer import JobObservers
from holdfast.runtime.master.recurrence import FATAL, Recurrence
from holdfast.runtime.master.register_gone import register_gone
from holdfast.runtime.master.submission import submission_of
from holdfast.storage.register.fenced_register import CheckpointPointer, Lease, RegisterState

logger = get_logger(__name__)
_SIGNAL_SECONDS: Final = 2.0
"""How much earlier than this process its engine may learn of a signal to both."""


class JobMaster:
    """Runs a job in the calling thread.

    Args:
        job: The job.
        progress: Where epochs are reported.

    Attributes:
        control: Takes requests of other threads.
        history: What has happened to the job in this process.
        statistics: What is known of its checkpoints since this process runs it.
        metrics: What it has done since this process runs it.
        flow: How elements have flowed through it since then.
        attempt: The newest attempt, None before the first.
        failure: What ended the job, None while it runs and if it ended well.
        ended: Set when `run` is about to return.
        rest_url: Where its REST interface is served; None if it is not.
    """

    def __init__(self, job: Job, progress: ProgressReporter | None = None) -> None:
        self.job = job
        self.control = JobControl()
        self.progress = progress or ProgressReporter(job.name)
        self.history = JobHistory(job.clock, job.configuration.get(EXCEPTION_HISTORY))
        self.statistics = CheckpointStatsTracker(job.configuration.get(CHECKPOINTS_HISTORY))
        self.metrics = JobMetrics(job.clock)
        self.flow = JobFlow()
        self.attempt: JobAttempt | None = None
        self.rest_url: str | None = None
        self.status = JobStatus.CREATED
        self._observers = JobObservers(self)
        self.failure: HoldfastError | None = None
        self.ended = threading.Event()
        self._newest_at_start: CheckpointPointer | None = None
        self._has_begun = False
        self._seen: RegisterState | None = None
        self._lease: Lease | None = None
        self._submission = submission_of(job)
        self._compacted = CompactionStatistics()
        self._recurrence = Recurrence(job.configuration)
        self._restart: RestartStrategy = restart_strategy_from(job.configuration, job.clock)

    @property
    def status(self) -> JobStatus:
        """Where the job is in its life."""
        return self._status

    @status.setter
    def status(self, status: JobStatus) -> None:
        self._status = status
        self.history.enter(status)

    @property
    def tries(self) -> int:
        """How many attempts of this process have failed since a checkpoint completed."""
        return self._recurrence.tries(self._newest)

    @property
    def fencing_token(self) -> int | None:
        """The token of the newest term of this process, None before the first."""
        return None if self._lease is None else self._lease.token

    @property
    def compaction(self) -> CompactionStatistics:
        """What compaction has done in all attempts of this process."""
        attempt = self.attempt
        return self._compacted if attempt is None else self._compacted.plus(attempt.compaction)

    @property
    def _newest(self) -> CheckpointPointer | None:
        return None if self._lease is None else self._lease.state.newest

    def run(self) -> JobStatus:
        """Runs the job to its end and returns how it ended. Blocks.

        Raises:
            FencedError: Another leader took over; the job itself goes on there.
            JobExecutionError: The job FAILED; its cause is the last failure.
            ConfigurationError, RestoreError, StateMigrationError, CorruptFileError, FormatVersionError: The job cannot
                run as it is; a new attempt would meet the same.
        """
        try:
            with self._observers.observing(), self._campaigning(), self._ending():
                self.status = self._run_attempts()
        except FencedError:
            raise
        except HoldfastError as error:
            if self.failure is None:  # it has not begun: an option of an observer does not fit
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

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Notes how the job has ended while this process still leads and observers are there to tell of it."""
        try:
            yield
        except FencedError as error:
            self.status, self.failure = JobStatus.SUSPENDED, error
            raise
        except HoldfastError as error:
            self.status, self.failure = JobStatus.FAILED, error
            if isinstance(error, JobExecutionError):
                self._discard_if_failed_for_good()
            raise
        finally:
            self.control.end()

    def _campaigning(self) -> AbstractContextManager[None]:
        leadership = self.job.leadership
        return nullcontext() if leadership is None else leadership.campaigning(self.control)

    def _run_attempts(self) -> JobStatus:
        leadership, number = self.job.leadership, 0
        if leadership is not None:
            self._seen = self.job.register.read()
        while True:
            if leadership is not None:
                self.status = JobStatus.CREATED
                if not leadership.lead(self.control):
                    return JobStatus.SUSPENDED
            try:
                status = self._try_attempt(number)
            except FencedError as error:
                if leadership is None:
                    raise
                leadership.stand_by(error, self.control)
            else:
                if status is not None:
                    return status
            number += 1

    def _try_attempt(self, number: int) -> JobStatus | None:
        """One attempt; returns None if there is to be another one."""
        try:
            lease = self._raise_token()
            ended = self._begin_term(lease)
            if ended is not None:
                return ended
            status = self._run_attempt(lease, number)
            return None if status is JobStatus.SUSPENDED and self.control.is_deposed else status
        except HoldfastError as met:
            error = self._explained(met)
            self.history.failed(error)
            self._require_leadership(error)
            if self.control.is_deposed:
                logger.warning("the term of this process has ended; what failed meanwhile: %s", shown_error(error))
                return None
            if self._is_stopped_with_its_engine(error):
                logger.warning(
                    "the engine ended with the job; its last completed checkpoint stands: %s", shown_error(error)
                )
                if self.control.cancel_requested and self._lease is not None:
                    return self._terminal(self._lease, JobStatus.CANCELED)
                return JobStatus.SUSPENDED
            if isinstance(error, CorruptFileError):
                told = with_proposal(self.job.directory, self.job.register, error)
                raise told from (error if told is not error else error.__cause__)
            if isinstance(error, FATAL):
                raise
            self._wait_for_restart(error)
            self._require_leadership(error)
            return None

    def _is_stopped_with_its_engine(self, error: HoldfastError) -> bool:
        """Whether what failed is the engine, while the job is being stopped: then it is stopped, and nothing is lost.

        A signal to the process group, or to all processes of a service, reaches the driver's JVM and the workers as
        well, and they may end before this process has been told. Of an interrupt from the keyboard PySpark may learn
        first, which cancels what Spark does.
        """
        if not isinstance(error, EngineError) or isinstance(error, InputError):
            return False
        if isinstance(error, EngineLostError) and not self.control.stopping:
            self.control.wait(_SIGNAL_SECONDS)
        return self.control.ending

    def _begin_term(self, lease: Lease) -> JobStatus | None:
        """Looks at what the register says; returns how the job ended for good, None if it is to run."""
        seen, self._seen = self._seen, lease.state
        others_led = seen is not None and lease.token > seen.token + 1
        if not self._has_begun:
            self._has_begun = True
            has_moved = others_led or (seen is not None and lease.state.newest != seen.newest)
            self._newest_at_start = self._newest_to_replace(lease.state.newest, has_moved)
        terminal = lease.state.terminal
        if self._submission is not None:
            ended = self._submission.ended(terminal)
            if ended is not None:
                logger.info("job %r has ended %s since it was submitted: nothing is run", self.job.name, ended.value)
                return ended
        has_ended = terminal is not None and seen is not None and (others_led or seen.terminal is None)
        if has_ended and self.job.leadership is not None:
            logger.info("job %r ended %s while this process stood by", self.job.name, terminal)
            return JobStatus(terminal)
        if terminal == JobStatus.FINISHED.value and not is_chosen(self.job.configuration):
            return self._already_finished()
        return None

    def _newest_to_replace(self, newest: CheckpointPointer | None, has_moved: bool) -> CheckpointPointer | None:
        """The checkpoint in whose place a chosen start is made; None if the job has gone on with another leader."""
        leadership = self.job.leadership
        is_late = has_moved or (leadership is not None and leadership.has_waited)
        if newest is None or not is_late or not is_chosen(self.job.configuration):
            return newest
        logger.warning(
            "job %r was led by another process when this one was started, so it goes on from checkpoint %d: --fresh "
            "and -s count for a process that leads at once",
            self.job.name,
            newest.checkpoint_id,
        )
        return None

    def _explained(self, error: HoldfastError) -> HoldfastError:
        """What a failure comes of: if the register is gone, anything may have failed, as if another leader wrote."""
        gone = register_gone(self.job, self._seen)
        if gone is not None:
            gone.__cause__ = error
        elif isinstance(error, FencedError):
            raise error
        return gone or error

    def _raise_token(self) -> Lease:
        gone = register_gone(self.job, self._seen)
        if gone is not None:
            raise gone
        try:
            self._lease = self.job.register.raise_token(self.job.owner)
        except PossibleInconsistentStateError:
            self._lease = None  # the newest token may be our own
            raise
        self._observers.leads(self._lease.token)
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
        if newest.token != self._lease.token and not register_gone(self.job, self._seen):
            raise FencedError(
                f"Leader {self.job.owner!r} with token {self._lease.token} is fenced: {newest.owner!r} leads with "
                f"token {newest.token}. This process stops; what failed here is of no consequence to the job: {error}"
            ) from error

    def _run_attempt(self, lease: Lease, number: int) -> JobStatus:
        # Until a checkpoint of this process completes, a restart starts where the process was told to start.
        restored = restore(self.job, lease, is_first=lease.state.newest == self._newest_at_start)
        # Before anything can leave under it, so that a process that dies now finds it again.
        lease.write(lambda state: replace(state.begun(restored.lineage, restored.request), terminal=None))
        if self._submission is not None:
            self._submission.begin()
        self._compacted = self.compaction
        self.attempt = JobAttempt(
            self.job, lease, number, restored, self.control, self.progress, self.statistics, self.metrics, self.flow
        )
        self.status = JobStatus.RUNNING
        outcome = self.attempt.run()
        if self.control.cancel_requested:
            return self._terminal(lease, JobStatus.CANCELED)
        if outcome is Outcome.ENDED:
            return self._terminal(lease, JobStatus.FINISHED)
        if not self.control.is_deposed:
            lease.write(lambda state: replace(state, request=""))
            if self._submission is not None and not self.control.is_interrupted:
                self._submission.stop()
        return JobStatus.SUSPENDED

    def _wait_for_restart(self, error: HoldfastError) -> None:
        self._restart.notify_failure(error)
        reason = self._recurrence.hopeless(error, self._newest)
        if reason is not None:
            raise JobExecutionError(f"job {self.job.name!r} failed {reason}: {error}") from error
        if self.control.ending:
            logger.warning(
                "the job failed while it was being stopped; its last completed checkpoint stands: %s",
                shown_error(error),
            )
            raise JobExecutionError(f"job {self.job.name!r} failed while it was being stopped: {error}") from error
        if not self._restart.can_restart():
            raise JobExecutionError(
                f"job {self.job.name!r} failed, and {self._restart} allows no further restart: {error}"
            ) from error
        self.status = JobStatus.RESTARTING
        pause = self._restart.get_backoff_time()
        logger.warning(
            "job %r restarts in %d ms from its last completed checkpoint, after %d failure(s) in a row: %s",
            self.job.name,
            pause,
            self.tries,
            f"{type(error).__name__}: {first_line(shown_error(error))}",
        )
        logger.debug("the failure in full", exc_info=error)
        self.control.wait(pause / 1000)

    def _terminal(self, lease: Lease, status: JobStatus) -> JobStatus:
        if not goes_with_the_job(self.job.configuration, status.value):
            lease.write(lambda state: replace(state, terminal=status.value, request=""))
            return status
        lease.write(lambda state: replace(state, terminal=status.value, request="", checkpoints=()))
        logger.info("job %r ended %s: its checkpoints are deleted, as asked for", self.job.name, status.value)
        discard_all(self.job.directory, lease)
        return status

    def _discard_if_failed_for_good(self) -> None:
        """Deletes the checkpoints of a job that FAILED if the options say so; a failure here is not the job's."""
        if self._lease is None or not goes_with_the_job(self.job.configuration, JobStatus.FAILED.value):
            return
        try:
            self._terminal(self._lease, JobStatus.FAILED)
        except HoldfastError as error:
            logger.warning("the checkpoints of job %r were not deleted: %s", self.job.name, error)

    def _already_finished(self) -> JobStatus:
        logger.warning(
            "job %r has already FINISHED: nothing is run; start it with --fresh to run it again, or give execute() "
            "another name if this is another job",
            self.job.name,
        )
        return JobStatus.FINISHED
