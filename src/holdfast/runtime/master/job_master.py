"""The master of one job: runs attempts, restarts after failures, and ends the job.

::

    CREATED --> RUNNING ---> FINISHED     bounded inputs have ended
       ^         |   ^  |--> SUSPENDED    trigger exhausted, stopped, or fenced by another leader: everything is kept
       |         v   |  '--> CANCELED     cancel() was called
       '----- RESTARTING --> FAILED       the restart strategy gave up, or a new attempt cannot help

A failure in an epoch starts a new attempt in the same process. It raises the token and restores the newest completed
checkpoint, exactly as another process would. With high availability a process stands by (CREATED) until it is elected,
and again after it was deposed.
"""

from __future__ import annotations

import importlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Final, NoReturn

from holdfast.checkpoint.options import CHECKPOINTS_HISTORY
from holdfast.checkpoint.retention import discard_all, discards_checkpoints
from holdfast.checkpoint.statistics import CheckpointStatsTracker
from holdfast.errors import (
    CorruptFileError,
    EngineError,
    EngineLostError,
    FencedError,
    HoldfastError,
    InputError,
    JobExecutionError,
    PossibleInconsistentStateError,
    StorageError,
    UserFunctionError,
)
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.restart_strategy import RestartStrategy, restart_strategy_from
from holdfast.kernel.secret import get_logger, redacted_message
from holdfast.runtime.compaction import CompactionStatistics
from holdfast.runtime.job.control import JobControl, JobStatus
from holdfast.runtime.job.engine import Job, Outcome
from holdfast.runtime.job.options import (
    EXCEPTION_HISTORY,
    OTLP_ENDPOINT,
    QUERY_ENABLE,
    REST_ENABLE,
)
from holdfast.runtime.job.progress import JobHistory, ProgressReporter
from holdfast.runtime.job.recovery_proposal import add_recovery_proposal
from holdfast.runtime.job.requested_parallelism import forget_requested_parallelism
from holdfast.runtime.master.attempt import JobAttempt, JobReports
from holdfast.runtime.master.failure_policy import FATAL, RepeatedFailures
from holdfast.runtime.master.failure_report import FailureReports
from holdfast.runtime.master.job_metrics import JobFlow, JobMetrics
from holdfast.runtime.master.submission import submission_of
from holdfast.runtime.restore import is_start_requested, restore
from holdfast.storage.register import CheckpointPointer, FileRegister, RegisterState, RegisterWriter

logger = get_logger(__name__)

_EXHAUSTED: Final = "all available input is processed; run the job again to process more"
_STOPPED: Final = "it was stopped; run the job again to resume it"
_SIGNAL_SECONDS: Final = 2.0
"""How much earlier than this process its engine may receive a signal to both."""


class JobMaster:
    """Runs a job in the calling thread.

    Args:
        job: The job.
        progress: Reports epochs; None for the default.

    Attributes:
        control: Requests of other threads.
        history: Status and failures of the job in this process.
        statistics: Statistics of its checkpoints in this process.
        metrics: Metrics of its epochs in this process.
        flow: Metrics of its subtasks and edges in this process.
        attempt: The newest attempt; None before the first.
        failure: The error that ended the job; None while it runs and if it ended well.
        ending: Why it has ended SUSPENDED, in words.
        ended: Set when `run` is about to return.
        rest_url: URL of its REST interface; None if there is none.
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
        self.ending = ""
        self.ended = threading.Event()
        self._newest_at_start: CheckpointPointer | None = None
        self._has_begun = False
        self._seen: RegisterState | None = None
        self._writer: RegisterWriter | None = None
        self._submission = submission_of(job)
        self._compacted = CompactionStatistics()
        self._reports = FailureReports(job.graph)
        self._repeated_failures = RepeatedFailures(job.configuration)
        self._restart: RestartStrategy = restart_strategy_from(job.configuration, job.clock)

    @property
    def status(self) -> JobStatus:
        """Status of the job."""
        return self._status

    @status.setter
    def status(self, status: JobStatus) -> None:
        self._status = status
        self.history.enter(status)

    @property
    def failures_in_a_row(self) -> int:
        """Failed attempts of this process since the last completed checkpoint."""
        return self._repeated_failures.failures_in_a_row(self._newest)

    @property
    def fencing_token(self) -> int | None:
        """Token of the newest term of this process; None before the first."""
        return None if self._writer is None else self._writer.token

    @property
    def compaction(self) -> CompactionStatistics:
        """Statistics of compaction over all attempts of this process."""
        attempt = self.attempt
        return self._compacted if attempt is None else self._compacted.plus(attempt.compaction)

    @property
    def _newest(self) -> CheckpointPointer | None:
        return None if self._writer is None else self._writer.state.newest

    def run(self) -> JobStatus:
        """Run the job to its end and return its status. Blocks.

        Raises:
            FencedError: Another leader took over; the job goes on there.
            JobExecutionError: The job FAILED; its cause is the last failure.
            ConfigurationError, RestoreError, StateMigrationError, CorruptFileError, FormatVersionError: The job cannot
            run as it is; a new attempt would fail in the same way.
        """
        try:
            with self._observers.observing(), self._campaigning(), self._ending():
                self.status = self._run_attempts()
        except FencedError:
            raise
        except HoldfastError as error:
            if self.failure is None:  # it has not begun: an option of an observer is invalid
                self.status, self.failure = JobStatus.FAILED, error
            if isinstance(error, (JobExecutionError, *FATAL)):
                raise
            raise JobExecutionError(f"job {self.job.name!r} failed: {error}") from error
        finally:
            if not self.status.is_terminal_state():
                self.status = JobStatus.SUSPENDED
            self.control.end(self.failure)
            self.progress.close()
            self.ended.set()
        words = f": {self.ending}" if self.ending else ""
        logger.info("job %r ended %s%s", self.job.name, self.status.value, words)
        return self.status

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Record how the job has ended while this process still leads and observers run."""
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
            self.control.end(self.failure)

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
                if not leadership.wait_until_leading(self.control):
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
        """Run one attempt; returns None if another one must follow."""
        self.job.engine.failed_at = None
        try:
            writer = self._raise_token()
            ended = self._begin_term(writer)
            if ended is not None:
                return ended
            status = self._run_attempt(writer, number)
            return None if status is JobStatus.SUSPENDED and self.control.is_deposed else status
        except Exception as failure:
            error = self._root_failure(_named(failure))
            self._reports.complete(error)
            self.history.failed(error)
            self._require_leadership(error)
            if self.control.is_deposed:
                logger.warning("the term of this process has ended; a failure meanwhile: %s", redacted_message(error))
                return None
            if self._is_stopped_with_its_engine(error):
                logger.warning(
                    "the engine ended with the job; its last completed checkpoint is kept: %s", redacted_message(error)
                )
                if self.control.cancel_requested and self._writer is not None:
                    return self._terminal(self._writer, JobStatus.CANCELED)
                return JobStatus.SUSPENDED
            if isinstance(error, CorruptFileError):
                proposed = add_recovery_proposal(self.job.directory, self.job.register, error)
                raise proposed from (error if proposed is not error else error.__cause__)
            if isinstance(error, FATAL):
                raise
            self._wait_for_restart(error, number + 1)
            self._require_leadership(error)
            return None

    def _is_stopped_with_its_engine(self, error: HoldfastError) -> bool:
        """Return whether the engine failed because the job is being stopped; then the job counts as stopped.

        A signal to the process group, or to all processes of a service, also reaches the driver's JVM and the workers,
        which may end before this process handles it. PySpark may handle an interrupt from the keyboard first, and
        cancel its jobs.
        """
        if not isinstance(error, EngineError) or isinstance(error, InputError):
            return False
        if isinstance(error, EngineLostError) and not self.control.is_stopping:
            self.control.pause(_SIGNAL_SECONDS)
        return self.control.is_ending

    def _begin_term(self, writer: RegisterWriter) -> JobStatus | None:
        """Compare the register with what was read before; return how the job ended for good, None if it must run."""
        seen, self._seen = self._seen, writer.state
        others_led = seen is not None and writer.token > seen.token + 1
        if not self._has_begun:
            self._has_begun = True
            has_moved = others_led or (seen is not None and writer.state.newest != seen.newest)
            self._newest_at_start = self._newest_at_requested_start(writer.state.newest, has_moved)
        terminal = writer.state.terminal
        if self._submission is not None:
            ended = self._submission.ended(terminal)
            if ended is not None:
                logger.info(
                    "job %r has ended %s since it was submitted; not running it again", self.job.name, ended.value
                )
                return ended
        has_ended = terminal is not None and seen is not None and (others_led or seen.terminal is None)
        if has_ended and self.job.leadership is not None:
            logger.info("job %r ended %s while this process stood by", self.job.name, terminal)
            return JobStatus(terminal)
        if terminal == JobStatus.FINISHED.value and not is_start_requested(self.job.configuration):
            return self._already_finished()
        return None

    def _newest_at_requested_start(self, newest: CheckpointPointer | None, has_moved: bool) -> CheckpointPointer | None:
        """Return the newest checkpoint, which a requested start replaces; None if another leader goes on."""
        leadership = self.job.leadership
        is_late = has_moved or (leadership is not None and leadership.has_waited)
        if newest is None or not is_late or not is_start_requested(self.job.configuration):
            return newest
        logger.warning(
            "job %r was led by another process when this one started, so it goes on from checkpoint %d: --fresh and "
            "-s only apply to a process that leads at once",
            self.job.name,
            newest.checkpoint_id,
        )
        return None

    def _root_failure(self, error: HoldfastError) -> HoldfastError:
        """Return the root failure: if the register has disappeared, any error may follow, also a FencedError."""
        gone = missing_register_error(self.job, self._seen)
        if gone is not None:
            gone.__cause__ = error
        elif isinstance(error, FencedError):
            raise error
        return gone or error

    def _raise_token(self) -> RegisterWriter:
        gone = missing_register_error(self.job, self._seen)
        if gone is not None:
            raise gone
        try:
            self._writer = self.job.register.raise_token(self.job.owner)
        except PossibleInconsistentStateError:
            self._writer = None  # the newest token may be our own
            raise
        self._observers.leads(self._writer.token)
        return self._writer

    def _require_leadership(self, error: HoldfastError) -> None:
        """Raise FencedError if the failure is that of a deposed leader, whose files may be deleted for instance.

        A deposed leader must not fail the job, and must not raise the token again: that would fence the new leader.

        Raises:
            FencedError: Another leader took over.
        """
        if self._writer is None:
            return
        try:
            newest = self.job.register.read()
        except HoldfastError:
            return
        if newest.token != self._writer.token and not missing_register_error(self.job, self._seen):
            raise FencedError(
                f"Leader {self.job.owner!r} with token {self._writer.token} is fenced: {newest.owner!r} leads with "
                f"token {newest.token}. This process stops; its failure does not affect the job: {error}"
            ) from error

    def _run_attempt(self, writer: RegisterWriter, number: int) -> JobStatus:
        # Until a checkpoint of this process completes, each restart uses the requested start.
        restored = restore(self.job, writer, is_first=writer.state.newest == self._newest_at_start)
        # Before anything is written under this incarnation, so that the next process finds it if this one dies.
        incarnation = restored.incarnation, restored.requested_start
        writer.write(lambda state: replace(state.with_incarnation(*incarnation), terminal=None))
        if self._submission is not None:
            self._submission.begin()
        self._compacted = self.compaction
        reports = JobReports(self.progress, self.statistics, self.metrics, self.flow, self.history)
        self.attempt = JobAttempt(self.job, writer, number, restored, self.control, reports)
        self.status = JobStatus.RUNNING
        outcome = self.attempt.run()
        if self.control.cancel_requested:
            return self._terminal(writer, JobStatus.CANCELED)
        if outcome is Outcome.ENDED:
            return self._terminal(writer, JobStatus.FINISHED)
        self.ending = _EXHAUSTED if outcome is Outcome.EXHAUSTED else _STOPPED
        if not self.control.is_deposed:
            writer.write(lambda state: replace(state, requested_start=""))
            if self._submission is not None and not self.control.is_interrupted:
                self._submission.stop()
        return JobStatus.SUSPENDED

    def _wait_for_restart(self, error: HoldfastError, attempt: int) -> None:
        self._restart.notify_failure(error)
        reason = self._repeated_failures.give_up_reason(error, self._newest)
        if reason is not None:
            self._fail(reason, error)
        if self.control.is_ending:
            logger.warning(
                "the job failed while it was being stopped; its last completed checkpoint is kept: %s",
                redacted_message(error),
            )
            self._fail("while it was being stopped", error)
        if not self._restart.can_restart():
            self._fail(f"and {self._restart} allows no further restart", error)
        self.status = JobStatus.RESTARTING
        pause = self._restart.get_backoff_time()
        failed_at = self.job.engine.failed_at
        if failed_at is not None:
            pause = max(0, pause - round(1000 * (time.monotonic() - failed_at)))
        logger.warning(
            "job %r restarts in %d ms from its last completed checkpoint, after %d failure(s) in a row: %s",
            self.job.name,
            pause,
            self.failures_in_a_row,
            self._reports.described(error, attempt),
        )
        logger.debug("the failure in full", exc_info=error)
        self.control.pause(pause / 1000)

    def _fail(self, reason: str, error: HoldfastError) -> NoReturn:
        text = str(error)
        if isinstance(error, UserFunctionError):
            newest = self._newest
            again = "starts from the beginning" if newest is None else f"resumes from checkpoint {newest.checkpoint_id}"
            text = f"{error.headline.rstrip('.')}. Fix the function and run the job again: it {again}."
            self._reports.mark_repeated(error)
        raise JobExecutionError(f"job {self.job.name!r} failed {reason}: {text}") from error

    def _terminal(self, writer: RegisterWriter, status: JobStatus) -> JobStatus:
        ended = self._end_for_good(writer, status)
        forget_requested_parallelism(self.job.directory, writer.token)
        return ended

    def _end_for_good(self, writer: RegisterWriter, status: JobStatus) -> JobStatus:
        if not discards_checkpoints(self.job.configuration, status.value):
            writer.write(lambda state: replace(state, terminal=status.value, requested_start=""))
            return status
        writer.write(lambda state: replace(state, terminal=status.value, requested_start="", checkpoints=()))
        logger.info(
            "job %r ended %s: deleting its checkpoints (externalized-checkpoint-retention)", self.job.name, status.value
        )
        discard_all(self.job.directory, writer)
        return status

    def _discard_if_failed_for_good(self) -> None:
        """Delete the checkpoints of a FAILED job if the options require it; a failure here is only logged."""
        if self._writer is None or not discards_checkpoints(self.job.configuration, JobStatus.FAILED.value):
            return
        try:
            self._terminal(self._writer, JobStatus.FAILED)
        except HoldfastError as error:
            logger.warning("could not delete the checkpoints of job %r: %s", self.job.name, error)

    def _already_finished(self) -> JobStatus:
        logger.warning(
            "job %r has already FINISHED, so it is not run, even if its program or its input has changed. To run it "
            "again, start it with --fresh. If this is another job, pass another name to execute()",
            self.job.name,
        )
        return JobStatus.FINISHED


# If the register disappears while a process leads or stands by, its disk is probably not mounted: the mount point of a
# missing mount is an empty directory. A job that starts there would read all of its inputs again. So the process waits
# until the register is back, as for any other unavailable storage. A process that finds no register at its very start
# cannot tell the difference, and begins.
def _named(failure: Exception) -> HoldfastError:
    """Return the failure of an attempt: an exception that nobody expected here is one of the driver."""
    if isinstance(failure, HoldfastError):
        return failure
    error = EngineError(f"the driver failed: {type(failure).__name__}: {failure}")
    error.__cause__ = failure
    return error


def missing_register_error(job: Job, seen: RegisterState | None) -> StorageError | None:
    """Return the error to report if a job's register has disappeared. Blocks; never raises.

    Args:
        job: The job.
        seen: The register's state that this process has read last; None if it has read none.

    Returns:
        None if the register exists, cannot be read, never existed, or is in a store, which removes it at the end of a
        job.
    """
    if seen is None or not seen.version or not isinstance(job.register, FileRegister):
        return None
    try:
        if job.register.read().version:
            return None
    except HoldfastError:
        return None
    return StorageError(
        f"{job.directory.register_dir!r} is empty, but this process has read the register of job {job.name!r} there "
        f"before. Probably {job.directory.root!r} is not mounted any more. The job waits until the register is back. "
        "If it was deleted on purpose, stop this process."
    )


# Observers of a job: the servers of queryable state, REST and metrics. They are in layers above this one, so they are
# loaded by name.
_QUERY_SERVER: Final = "holdfast.queryable.server.server:EmbeddedQueryServer"

_REST_SERVER: Final = "holdfast.rest.server:EmbeddedRestServer"

_REPORTER: Final = "holdfast.rest.otlp:EmbeddedOtlpReporter"


class JobObserver(ABC):
    """Accompanies one job; its failures never affect the job."""

    def check(self, configuration: Configuration) -> None:  # noqa: B027 - some have no options
        """Check the options before the job begins.

        Raises:
            ConfigurationError: An option is invalid.
        """

    @abstractmethod
    def started(self, master: JobMaster) -> None:
        """Called when the job begins in this process."""

    def leads(self, token: int) -> None:  # noqa: B027 - most have nothing to do
        """Called when the process has become the leader with this token, at the beginning of each attempt."""

    @abstractmethod
    def ended(self) -> None:
        """Called when the job has ended in this process."""


class JobObservers:
    """The observers of one job.

    Args:
        master: The job's master.
    """

    def __init__(self, master: JobMaster) -> None:
        self._master = master
        self._begun: list[JobObserver] = []

    @contextmanager
    def observing(self) -> Iterator[None]:
        """Run the observers for the time of the block.

        Raises:
            ConfigurationError: An option of an observer is invalid.
        """
        observers = observers_for(self._master.job.configuration)
        for observer in observers:
            observer.check(self._master.job.configuration)
        for observer in observers:
            try:
                observer.started(self._master)
                self._begun.append(observer)
            except HoldfastError as error:
                logger.error(  # noqa: TRY400 - the message says what to do; a stack adds nothing
                    "Job %r runs without %s: %s", self._master.job.name, type(observer).__name__, error
                )
        try:
            yield
        finally:
            for observer in self._begun:
                try:
                    observer.ended()
                except Exception:
                    logger.exception("could not close %s of job %r", type(observer).__name__, self._master.job.name)

    def leads(self, token: int) -> None:
        """Notify the observers that the process leads."""
        for observer in self._begun:
            try:
                observer.leads(token)
            except HoldfastError as error:
                logger.warning("%s of job %r: %s", type(observer).__name__, self._master.job.name, error)


def observers_for(configuration: Configuration) -> list[JobObserver]:
    """Return the observers that a configuration enables."""
    names = [_QUERY_SERVER] if configuration.get(QUERY_ENABLE) else []
    if configuration.get(REST_ENABLE):
        names.append(_REST_SERVER)
    if configuration.get(OTLP_ENDPOINT) is not None:
        names.append(_REPORTER)
    return [_load(name) for name in names]


def _load(path: str) -> JobObserver:
    module, _, name = path.partition(":")
    observer = getattr(importlib.import_module(module), name)()
    assert isinstance(observer, JobObserver)
    return observer
