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

import importlib
import re
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any, Final

from holdfast.checkpoint.options import CHECKPOINTS_HISTORY
from holdfast.checkpoint.retention import discard_all, discards_checkpoints
from holdfast.checkpoint.statistics import CheckpointStatsTracker
from holdfast.errors import (
    AlreadyExistError,
    ConfigurationError,
    ConflictError,
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
    StorageError,
    UnsharedStorageError,
    UserFunctionError,
)
from holdfast.ha.leader_election import LeaderElectionError
from holdfast.ha.options import HA_SUBMISSION
from holdfast.kernel.configuration import ConfigOption, Configuration
from holdfast.kernel.restart_strategy import RestartStrategy, restart_strategy_from
from holdfast.kernel.secret import get_logger, redacted_message
from holdfast.runtime.commit.commit_manager import SinkFailedError
from holdfast.runtime.commit.restore import is_chosen, restore
from holdfast.runtime.compaction import CompactionStatistics
from holdfast.runtime.job.control import JobControl, JobStatus
from holdfast.runtime.job.engine import (
    EngineAwayError,
    EngineError,
    EngineLostError,
    InputError,
    InputGoneError,
    Job,
    Outcome,
)
from holdfast.runtime.job.options import (
    ENABLE,
    EXCEPTION_HISTORY,
    IDENTICAL_FAILURES,
    IDENTICAL_UNKNOWN_FAILURES,
    OTLP_ENDPOINT,
    REST_ENABLE,
)
from holdfast.runtime.job.progress import JobHistory, ProgressReporter, first_line
from holdfast.runtime.job.recovery_proposal import add_recovery_proposal
from holdfast.runtime.master.attempt import JobAttempt, JobReports
from holdfast.runtime.master.job_metrics import JobFlow, JobMetrics
from holdfast.storage.file_system import join
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.register import CheckpointPointer, FileRegister, Lease, RegisterState

# Which failures end the job, and when:
#
# - `FATAL`: at once, because a new attempt in this process meets the same failure.
# - `PROGRAM_ERRORS`: after `restart-strategy.identical-failures` identical failures in a row.
# - Errors of an unknown kind, and `CODE_ERRORS` raised by a sink: after `restart-strategy.identical-unknown-failures`.
# - `INFRASTRUCTURE_ERRORS`: when the restart strategy gives up. Exception: storage that no worker has ever seen, in a
#   job without a checkpoint, counts as an unknown error.
#
# "In a row" means that no checkpoint completed in between.

FATAL: Final = (
    ConfigurationError,
    CorruptFileError,
    EngineLostError,
    FormatVersionError,
    InputGoneError,
    LeaderElectionError,
    RestoreError,
    StateMigrationError,
)
"""Failures that a new attempt in this process would meet again."""

PROGRAM_ERRORS: Final = (UserFunctionError, OutputTypeError, NullKeyError, StateError, InputError)
"""Failures that a new attempt will probably meet again, unless what a function calls, or reads, was down for a moment.
"""

INFRASTRUCTURE_ERRORS: Final = (
    EngineAwayError,
    StorageError,
    PossibleInconsistentStateError,
    ConflictError,
    ConnectionError,
    TimeoutError,
)
"""Failures, or causes of them, of what the job runs on: however long that is away, a new attempt is right."""

CODE_ERRORS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    SyntaxError,
    TypeError,
)
"""What Python raises where code is wrong. Clients of servers have errors of their own, or those of the system."""

_CHANGING: Final = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|holdfast-query-\w+|\d+")


class RepeatedFailures:
    """Remembers the last failure of a job in this process; used by one thread, but for `tries`.

    Args:
        configuration: The options of the job.
    """

    def __init__(self, configuration: Configuration) -> None:
        self._of_the_program = IDENTICAL_FAILURES, configuration.get(IDENTICAL_FAILURES)
        self._unknown = IDENTICAL_UNKNOWN_FAILURES, configuration.get(IDENTICAL_UNKNOWN_FAILURES)
        self._last: tuple[Any, ...] | None = None
        self._identical = 0
        self._failures = 0
        self._newest: object = None

    def tries(self, newest: object) -> int:
        """How many attempts have failed in a row.

        Args:
            newest: The newest completed checkpoint by now.
        """
        return self._failures if newest == self._newest else 0

    def give_up_reason(self, error: HoldfastError, newest: object) -> str | None:
        """Take note of a failure after which the strategy would restart.

        Args:
            error: The failure.
            newest: The newest completed checkpoint.

        Returns:
            Why no restart will help, None if one may.
        """
        self._failures = self.tries(newest) + 1
        self._newest = newest
        cause, (option, limit) = self._kind_of(error, has_run=newest is not None)
        identity = None if cause is None else (*cause, newest)
        self._identical = self._identical + 1 if identity is not None and identity == self._last else 1
        self._last = identity
        if identity is None or not limit or self._identical < limit:
            return None
        return f"{self._identical} times in a row in the same way, so no restart will help ({option.key})"

    def _kind_of(
        self, error: HoldfastError, *, has_run: bool
    ) -> tuple[tuple[Any, ...] | None, tuple[ConfigOption[int], int]]:
        if isinstance(error, PROGRAM_ERRORS):
            return (type(error), getattr(error, "uid", None)), self._of_the_program
        if isinstance(error, SinkFailedError) and (code_error := _code_error_of(error)) is not None:
            return (type(error), error.uid, *code_error), self._unknown
        # A mount of one host may go away and come back; where no epoch ever completed it was never there.
        if not has_run and any(isinstance(cause, UnsharedStorageError) for cause in _causes(error)):
            return (UnsharedStorageError,), self._unknown
        if any(isinstance(cause, INFRASTRUCTURE_ERRORS) for cause in _causes(error)):
            return None, self._unknown
        return (type(error), getattr(error, "uid", None), _unchanging(error)), self._unknown


def _code_error_of(error: SinkFailedError) -> tuple[Any, ...] | None:
    """What is wrong in the code of a sink, and the line where; None if its target may be away.

    It may be wherever anything but a code_error is involved: a `finally` that closes a connection which was never made
    raises an AttributeError, while a server is away for an hour. A reason that was never raised is not a code_error.
    """
    causes = [cause for cause in _involved(error) if not isinstance(cause, HoldfastError)]
    if not causes or causes[0].__traceback__ is None or not all(isinstance(cause, CODE_ERRORS) for cause in causes):
        return None
    place = traceback.extract_tb(causes[0].__traceback__)[-1]
    return type(causes[0]), _unchanging(causes[0]), place.filename, place.lineno


def _unchanging(error: BaseException) -> str:
    return _CHANGING.sub("#", first_line(str(error)))


def _involved(error: BaseException) -> Iterator[BaseException]:
    """The error, what it came of, and what was being handled when it came, also where `from None` hides that."""
    seen: list[BaseException] = []
    ahead: list[BaseException | None] = [error]
    while ahead:
        cause = ahead.pop(0)
        if cause is not None and not any(cause is each for each in seen):
            seen.append(cause)
            yield cause
            ahead += [cause.__cause__, cause.__context__]


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and not any(cause is each for each in seen):
        seen.append(cause)
        yield cause
        cause = cause.__cause__


# A register of files of which nothing is left while a process leads its job, or stands by: its disk is away.
#
# The path of a mount that is away is an empty directory. A job that began in it would read all of its inputs once more,
# and so would one that ended as if another leader had fenced it, and was started again. So it waits until the register
# is there again, as it waits for any other storage. Who finds no register at its very start cannot tell, and begins.


def missing_register_error(job: Job, seen: RegisterState | None) -> StorageError | None:
    """Return what is to be told if nothing is left of a job's register. Blocks; never raises.

    Args:
        job: The job.
        seen: What the register said to this process when it looked last; None if it has not looked.

    Returns:
        None if it is there; or cannot be read, which says so itself; or was never there; or is in a store, where it is
        removed when the job is over.
    """
    if seen is None or not seen.version or not isinstance(job.register, FileRegister):
        return None
    try:
        if job.register.read().version:
            return None
    except HoldfastError:
        return None
    return StorageError(
        f"{job.directory.register_dir!r} is empty, and this process has seen the register of job {job.name!r} in it. "
        f"Probably {job.directory.root!r} is not mounted any more. Nothing is run or written until the register is "
        "there again. If it was deleted on purpose, stop this process."
    )


# Those who accompany a job without being part of it: the servers of queries of its state and of REST.
#
# They live in layers above this one, so the launcher names them and they are loaded by name.

_log = get_logger(__name__)
_QUERY_SERVER: Final = "holdfast.queryable.server.server:EmbeddedQueryServer"
_REST_SERVER: Final = "holdfast.rest.server:EmbeddedRestServer"
_REPORTER: Final = "holdfast.rest.otlp:EmbeddedOtlpReporter"


class JobObserver(ABC):
    """Accompanies one job; what goes wrong here never harms the job."""

    def check(self, configuration: Configuration) -> None:  # noqa: B027 - some have no options
        """The job is about to begin; nothing listens yet.

        Raises:
            ConfigurationError: An option does not fit.
        """

    @abstractmethod
    def started(self, master: JobMaster) -> None:
        """The job begins in this process."""

    def leads(self, token: int) -> None:  # noqa: B027 - most have nothing to do
        """The process has become the leader with this token, at the beginning of each attempt."""

    @abstractmethod
    def ended(self) -> None:
        """The job has ended in this process, however it did."""


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
        """Let the observers know that the job runs for as long as the block does.

        Raises:
            ConfigurationError: An option of one does not fit.
        """
        observers = observers_for(self._master.job.configuration)
        for observer in observers:
            observer.check(self._master.job.configuration)
        for observer in observers:
            try:
                observer.started(self._master)
                self._begun.append(observer)
            except HoldfastError as error:
                _log.error("Job %r runs without %s: %s", self._master.job.name, type(observer).__name__, error)
        try:
            yield
        finally:
            for observer in self._begun:
                try:
                    observer.ended()
                except Exception:
                    _log.exception("%s of job %r could not be ended", type(observer).__name__, self._master.job.name)

    def leads(self, token: int) -> None:
        """Let the observers know that the process leads."""
        for observer in self._begun:
            try:
                observer.leads(token)
            except HoldfastError as error:
                _log.warning("%s of job %r: %s", type(observer).__name__, self._master.job.name, error)


def observers_for(configuration: Configuration) -> list[JobObserver]:
    """Return the observers that a configuration asks for."""
    names = [_QUERY_SERVER] if configuration.get(ENABLE) else []
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


# What became of a job since it was submitted to a job manager, as its directory says.
#
# A job that has ended and is submitted again runs again. So its register, which may say that it was cancelled, does not
# tell whether that was before the submission or since; two files do::
#
#     <job directory>/submission-<name>            it has begun to run: what the register says now is since then
#     <job directory>/submission-<name>.stopped    it was stopped, or its trigger is exhausted
#
# The first is made once the register says that the job runs, and before anything can end it; the second when it has
# ended. The next submission that begins removes those before it.

_NAME: Final = re.compile("[0-9a-f]{32}")
_FILE: Final = re.compile(r"submission-([0-9a-f]{32})(\.stopped)?")
_STOPPED: Final = ".stopped"


class Submission:
    """One submission of a job.

    Args:
        directory: The job's directory.
        name: The submission.
    """

    def __init__(self, directory: JobDirectory, name: str) -> None:
        self._directory = directory
        self._name = name

    def ended(self, terminal: str | None) -> JobStatus | None:
        """How the job has ended since it was submitted, None if it is to run.

        Args:
            terminal: What the register says.
        """
        if self._exists(_STOPPED):
            return JobStatus.SUSPENDED
        return JobStatus(terminal) if terminal is not None and self._exists() else None

    def begin(self) -> None:
        """The register says that the job runs."""
        self._create()
        fs, path = self._directory.fs, self._directory.path
        for name in fs.list_names(path):
            match = _FILE.fullmatch(name)
            if match and match[1] != self._name:
                fs.delete_in(path, name)

    def stop(self) -> None:
        """The job has ended, and can be resumed by another submission."""
        self._create(_STOPPED)

    def _exists(self, suffix: str = "") -> bool:
        return self._directory.fs.exists(self._path(suffix))

    def _create(self, suffix: str = "") -> None:
        with suppress(AlreadyExistError):
            self._directory.fs.create_exclusive(self._path(suffix), b"")

    def _path(self, suffix: str) -> str:
        return join(self._directory.path, f"submission-{self._name}{suffix}")


def submission_of(job: Job) -> Submission | None:
    """The submission of a job; None if no job manager runs it.

    Raises:
        ConfigurationError: It has a name that no job manager gives.
    """
    name = job.configuration.get(HA_SUBMISSION)
    if name is None:
        return None
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"Option {HA_SUBMISSION.key!r} is set by job managers only, not to {name!r}.")
    return Submission(job.directory, name)


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
        self._repeated_failures = RepeatedFailures(job.configuration)
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
        return self._repeated_failures.tries(self._newest)

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
            error = self._root_failure(met)
            self.history.failed(error)
            self._require_leadership(error)
            if self.control.is_deposed:
                logger.warning("the term of this process has ended; what failed meanwhile: %s", redacted_message(error))
                return None
            if self._is_stopped_with_its_engine(error):
                logger.warning(
                    "the engine ended with the job; its last completed checkpoint stands: %s", redacted_message(error)
                )
                if self.control.cancel_requested and self._lease is not None:
                    return self._terminal(self._lease, JobStatus.CANCELED)
                return JobStatus.SUSPENDED
            if isinstance(error, CorruptFileError):
                told = add_recovery_proposal(self.job.directory, self.job.register, error)
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
        if isinstance(error, EngineLostError) and not self.control.is_stopping:
            self.control.wait(_SIGNAL_SECONDS)
        return self.control.is_ending

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

    def _root_failure(self, error: HoldfastError) -> HoldfastError:
        """What a failure comes of: if the register is gone, anything may have failed, as if another leader wrote."""
        gone = missing_register_error(self.job, self._seen)
        if gone is not None:
            gone.__cause__ = error
        elif isinstance(error, FencedError):
            raise error
        return gone or error

    def _raise_token(self) -> Lease:
        gone = missing_register_error(self.job, self._seen)
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
        if newest.token != self._lease.token and not missing_register_error(self.job, self._seen):
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
        reports = JobReports(self.progress, self.statistics, self.metrics, self.flow)
        self.attempt = JobAttempt(self.job, lease, number, restored, self.control, reports)
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
        reason = self._repeated_failures.give_up_reason(error, self._newest)
        if reason is not None:
            raise JobExecutionError(f"job {self.job.name!r} failed {reason}: {error}") from error
        if self.control.is_ending:
            logger.warning(
                "the job failed while it was being stopped; its last completed checkpoint stands: %s",
                redacted_message(error),
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
            f"{type(error).__name__}: {first_line(redacted_message(error))}",
        )
        logger.debug("the failure in full", exc_info=error)
        self.control.wait(pause / 1000)

    def _terminal(self, lease: Lease, status: JobStatus) -> JobStatus:
        if not discards_checkpoints(self.job.configuration, status.value):
            lease.write(lambda state: replace(state, terminal=status.value, request=""))
            return status
        lease.write(lambda state: replace(state, terminal=status.value, request="", checkpoints=()))
        logger.info("job %r ended %s: its checkpoints are deleted, as asked for", self.job.name, status.value)
        discard_all(self.job.directory, lease)
        return status

    def _discard_if_failed_for_good(self) -> None:
        """Deletes the checkpoints of a job that FAILED if the options say so; a failure here is not the job's."""
        if self._lease is None or not discards_checkpoints(self.job.configuration, JobStatus.FAILED.value):
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
