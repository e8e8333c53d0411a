"""The state machine of a dispatcher: events in, instructions out. No I/O, no threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from holdfast.ha.execution_plan_store import ExecutionPlan
from holdfast.ha.job_result_store import ApplicationStatus, FailureCause, JobResult
from holdfast.kernel.clock import Clock
from holdfast.kernel.failure_text import unknown_job
from holdfast.kernel.ids import JobID
from holdfast.kernel.restart_strategy import RestartStrategy

_RESULTS: Final = {
    "FINISHED": ApplicationStatus.SUCCEEDED,
    "SUSPENDED": ApplicationStatus.SUCCEEDED,
    "CANCELED": ApplicationStatus.CANCELED,
    "FAILED": ApplicationStatus.FAILED,
}
_NOT_LEADING: Final = "This job manager does not lead any more."


class Event:
    """Something that has happened, which the state machine handles."""


@dataclass(frozen=True)
class StoresRead(Event):
    """The stores were read: what earlier leaders have left.

    Attributes:
        plans: Jobs to run.
        results: Jobs that have ended and are not cleaned up.
        ended: Jobs that have ended and are cleaned up; the oldest first.
    """

    plans: tuple[ExecutionPlan, ...]
    results: tuple[JobResult, ...]
    ended: tuple[JobResult, ...] = ()


@dataclass(frozen=True)
class JobSubmitted(Event):
    """A client has submitted a job.

    Attributes:
        request: Id of the request, for its `Reply`.
    """

    plan: ExecutionPlan
    request: str


@dataclass(frozen=True)
class CancelRequested(Event):
    """A client has requested to cancel a job."""

    job_id: JobID
    request: str


@dataclass(frozen=True)
class ResultLookedUp(Event):
    """The result store was searched for a submitted job."""

    job_id: JobID
    is_there: bool


@dataclass(frozen=True)
class PlanStored(Event):
    """The plan of a submitted job is durable."""

    job_id: JobID


@dataclass(frozen=True)
class SubmissionFailed(Event):
    """The plan of a submitted job was not stored, or the outcome is unknown."""

    job_id: JobID
    message: str


@dataclass(frozen=True)
class JobLaunched(Event):
    """The program has called `execute`; the job restores its state now."""

    job_id: JobID
    start: int
    name: str


@dataclass(frozen=True)
class ProcessOutcome:
    """The outcome of a process of a job.

    Attributes:
        status: The status of the job that the process reported. Without a report None, but FAILED if the process exited
            by itself before it executed a job.
        has_run: Whether the job had started to run in the process.
        was_interrupted: Whether a signal stopped the process.
        was_fenced: Whether another process had raised the job's fencing token.
        failure: Why the job failed, or why the process died.
        name: The job's name, empty if unknown.
    """

    status: str | None
    has_run: bool = False
    was_interrupted: bool = False
    was_fenced: bool = False
    failure: FailureCause | None = None
    name: str = ""


@dataclass(frozen=True)
class ProcessEnded(Event):
    """A process of a job has ended.

    Attributes:
        start: The number of the start.
    """

    job_id: JobID
    start: int
    outcome: ProcessOutcome


@dataclass(frozen=True)
class WaitElapsed(Event):
    """A scheduled wait of a job is over."""

    job_id: JobID
    wait: int


@dataclass(frozen=True)
class ResultStored(Event):
    """The result of a job is durable."""

    job_id: JobID


@dataclass(frozen=True)
class CleanedUp(Event):
    """Everything of a job but its result was removed."""

    job_id: JobID


@dataclass(frozen=True)
class CleanUpFailed(Event):
    """Something of a job could not be removed."""

    job_id: JobID
    message: str


@dataclass(frozen=True)
class MarkedClean(Event):
    """The result of a job is marked as clean; if that failed, the next leader retries."""

    job_id: JobID


@dataclass(frozen=True)
class FatalFailure(Event):
    """A failure with which this process cannot lead."""

    message: str


@dataclass(frozen=True)
class TermEnded(Event):
    """This process does not lead any more, or is stopped.

    Attributes:
        at_once: Whether another process may lead already.
    """

    at_once: bool


class Instruction:
    """Something to do; most instructions are answered with an event, which their docstrings name."""


@dataclass(frozen=True)
class ReadStores(Instruction):
    """Read plans and results: `StoresRead` or `FatalFailure`."""


@dataclass(frozen=True)
class LookUpResult(Instruction):
    """Check whether a job has ended before: `ResultLookedUp` or `SubmissionFailed`."""

    job_id: JobID


@dataclass(frozen=True)
class StorePlan(Instruction):
    """Make a submitted job durable: `PlanStored` or `SubmissionFailed`."""

    plan: ExecutionPlan


@dataclass(frozen=True)
class StartProcess(Instruction):
    """Run a job in a process: `JobLaunched`, then `ProcessEnded`."""

    plan: ExecutionPlan
    start: int


@dataclass(frozen=True)
class CancelJob(Instruction):
    """Cancel a running job in its process: `ProcessEnded`."""

    job_id: JobID


@dataclass(frozen=True)
class EndProcess(Instruction):
    """End the process of a job: `ProcessEnded`.

    Attributes:
        at_once: Whether to kill it instead of waiting for the end of the epoch.
    """

    job_id: JobID
    at_once: bool


@dataclass(frozen=True)
class ScheduleWakeup(Instruction):
    """Send `WaitElapsed` after some seconds."""

    job_id: JobID
    wait: int
    seconds: float


@dataclass(frozen=True)
class StoreResult(Instruction):
    """Make the result of a job durable, as dirty until clean-up: `ResultStored` or `FatalFailure`."""

    result: JobResult


@dataclass(frozen=True)
class CleanUp(Instruction):
    """Remove a job's plan, then everything else of it but the result: `CleanedUp` or `CleanUpFailed`.

    Attributes:
        plan: The job's plan, None if only its result is known.
        was_accepted: Whether the job was accepted. If not, only the files of this submission are removed.
    """

    job_id: JobID
    plan: ExecutionPlan | None
    was_accepted: bool = True


@dataclass(frozen=True)
class MarkClean(Instruction):
    """Mark the result of a job as clean: `MarkedClean`."""

    result: JobResult


@dataclass(frozen=True)
class Reply(Instruction):
    """Answer the request of a client.

    Attributes:
        status: HTTP status: 202 accepted, 404 no such job, 409 not possible, 500 failed, 503 not at the moment.
    """

    request: str
    status: int
    message: str = ""


@dataclass(frozen=True)
class AbortProcess(Instruction):
    """End this process, so that another one leads."""

    message: str


@dataclass(frozen=True)
class TermFinished(Instruction):
    """No process of a job runs any more: another term may start."""


class Phase(Enum):
    """The phase of a job in the dispatcher, see `DispatcherMachine`."""

    CHECKING = "checking"
    STORING = "storing"
    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    RECORDING = "recording"
    CLEANING = "cleaning"
    WITHDRAWING = "withdrawing"
    ENDED = "ended"


_SHOWN: Final = {
    Phase.CHECKING: "INITIALIZING",
    Phase.STORING: "INITIALIZING",
    Phase.STARTING: "INITIALIZING",
    Phase.RUNNING: "RUNNING",
    Phase.WAITING: "RESTARTING",
    Phase.WITHDRAWING: "FAILED",
}


@dataclass
class JobEntry:
    """A job in one term.

    Attributes:
        job_id: The job.
        name: Its name.
        plan: The submitted plan; None if only the job's result is known.
        restarts: The restart strategy of its process.
        cleaning: The retry strategy of its clean-up.
        began: Time at which this term started with the job, in milliseconds since 1970.
        phase: Its phase.
        start: Number of starts of its process in this term.
        wait: Number of the current wait; timers of earlier waits are ignored.
        may_fail: Whether a failure before the job has run ends it, as it was submitted in this term.
        was_taken_over: Whether it was submitted to an earlier leader.
        is_cancel_requested: Whether a client has requested to cancel it.
        request: Id of the submission that has no `Reply` yet.
        failures: Number of its processes that have failed.
        last_failure: The failure of the last one.
        result: Its result, once it has ended.
        cleanup_error: The last error of the clean-up; None without one.
        waiters: Ids of cancel requests that have no `Reply` yet.
        previous: The ended job of the same id, until this one is accepted.
    """

    job_id: JobID
    name: str
    plan: ExecutionPlan | None
    restarts: RestartStrategy
    cleaning: RestartStrategy
    began: int
    phase: Phase
    start: int = 0
    wait: int = 0
    may_fail: bool = False
    was_taken_over: bool = False
    is_cancel_requested: bool = False
    request: str | None = None
    failures: int = 0
    last_failure: FailureCause | None = None
    result: JobResult | None = None
    cleanup_error: str | None = None
    waiters: list[str] = field(default_factory=list)
    previous: JobEntry | None = None

    @property
    def status(self) -> str:
        """Flink's status of the job."""
        if self.result is not None:
            return shown_status(self.result)
        if self.is_cancel_requested:
            return "CANCELLING"
        return _SHOWN[self.phase]

    @property
    def has_process(self) -> bool:
        return self.phase in (Phase.STARTING, Phase.RUNNING)

    def result_after(self, outcome: ProcessOutcome, now: int) -> JobResult | None:
        """Return the job's result if it has ended with its process; None if it will be restarted."""
        # A process that was told to end may fail because of that; this is not a failure of the job.
        has_failed = outcome.status == "FAILED" and not outcome.was_interrupted
        if self.is_cancel_requested and outcome.status != "FINISHED" and not has_failed:
            return self.result_of("CANCELED", None, now)
        if outcome.status is None or outcome.was_fenced or (outcome.was_interrupted and not self.is_cancel_requested):
            return None
        if outcome.status == "FAILED" and not outcome.has_run and not self.may_fail:
            return self.result_of("CANCELED", None, now) if self.is_cancel_requested else None
        return self.result_of(outcome.status, outcome.failure, now)

    def result_of(self, status: str, failure: FailureCause | None, now: int) -> JobResult:
        """Return the result of the job, which ends now.

        A job that was stopped, or whose trigger is exhausted, is SUSPENDED. For the dispatcher it has succeeded, and it
        may be submitted again.
        """
        return JobResult(
            self.job_id,
            self.name,
            _RESULTS[status],
            max(0, now - self.began),
            {"status": status},
            failure if status == "FAILED" else None,
            self.began,
            now,
        )


def shown_status(result: JobResult) -> str:
    """Return the status of an ended job to show, which is SUSPENDED for one that was stopped."""
    status = result.accumulator_results.get("status")
    return status if isinstance(status, str) else result.application_status.to_job_status() or "UNKNOWN"


Instructions = list[Instruction]


class DispatcherMachine:
    """The state machine of one term.

    ::

        submitted --> CHECKING --no result--> STORING --plan is durable--> STARTING --job launched--> RUNNING
                         | has a result          | failed: the submission        |  |                 |  |
                         v refused               v is withdrawn                  |  |                 |  |
                      (forgotten) <------- WITHDRAWING                           |  |                 |  |
                                                                                 |  v                 v  |
        found in the plan store ---------------------> STARTING <--waited-- WAITING <-- process died or  |
                                                                                 |  was fenced, or failed|
                                                                                 |  before the restored  |
                                                                                 |  job ran              |
                                                                                 v                       v
        found among dirty results ----> CLEANING <--result is durable-- RECORDING <------ the job has ended
                                          |  ^ failed: retried later
                                          v
                                        ENDED, once its result is marked as clean

    Three orders make every crash harmless. The plan is durable before the job runs, so the next leader runs every
    accepted job. The result is durable before anything is removed, so a job that has ended never runs again, and its
    clean-up is repeated until it is complete. The plan is removed before the files that it names.

    A term that ends keeps everything: its processes are ended, and nothing is written. A process that does not know
    that it lost the leadership is stopped by others: the plan store accepts writes of the leader only, and a job's
    register rejects processes of older terms.

    Args:
        clock: Time.
        restarts: Makes the restart strategy of a job's process; a process that died is always restarted.
        cleaning: Makes the retry strategy of a job's clean-up.
        max_ended: Number of ended jobs that are remembered.

    Attributes:
        jobs: The jobs of this term, including remembered ended ones.
        is_ready: Whether the stores were read; before that no job is accepted.
        is_over: Whether the term has ended.
    """

    def __init__(
        self,
        clock: Clock,
        restarts: Callable[[], RestartStrategy],
        cleaning: Callable[[], RestartStrategy],
        max_ended: int = 100,
    ) -> None:
        self._clock = clock
        self._restarts = restarts
        self._cleaning = cleaning
        self._max_ended = max_ended
        self.jobs: dict[JobID, JobEntry] = {}
        self.is_ready = False
        self.is_over = False
        self._is_finish_reported = False

    def begin(self) -> Instructions:
        return [ReadStores()]

    def handle(self, event: Event) -> Instructions:
        """Handle an event and return what to do."""
        if self.is_over and not isinstance(event, ProcessEnded):
            return self._handle_after_end(event)
        match event:
            case StoresRead():
                return self._recover(event)
            case JobSubmitted():
                return self._submit(event)
            case CancelRequested():
                return self._cancel(event)
            case FatalFailure():
                return [AbortProcess(event.message)]
            case TermEnded():
                return self._end_term(event)
        entry = self.jobs.get(getattr(event, "job_id"))  # noqa: B009 - every other event has one
        return [] if entry is None else self._advance(entry, event)

    def _advance(self, entry: JobEntry, event: Event) -> Instructions:
        match event, entry.phase:
            case ResultLookedUp(), Phase.CHECKING:
                return self._looked_up(entry, event.is_there)
            case PlanStored(), Phase.STORING:
                return self._accepted(entry)
            case SubmissionFailed(), Phase.CHECKING | Phase.STORING:
                return self._withdraw(entry, event.message)
            case JobLaunched(), Phase.STARTING if event.start == entry.start:
                entry.phase, entry.name = Phase.RUNNING, event.name or entry.name
                return [CancelJob(entry.job_id)] if entry.is_cancel_requested else []
            case ProcessEnded(), Phase.STARTING | Phase.RUNNING if event.start == entry.start:
                return self._process_ended(entry, event.outcome)
            case WaitElapsed(), Phase.WAITING if event.wait == entry.wait:
                return self._start(entry)
            case WaitElapsed(), Phase.CLEANING | Phase.WITHDRAWING if event.wait == entry.wait:
                return [self._clean_up(entry)]
            case ResultStored(), Phase.RECORDING:
                entry.phase = Phase.CLEANING
                replies: Instructions = [Reply(waiter, 202) for waiter in entry.waiters]
                entry.waiters.clear()
                return [*replies, self._clean_up(entry)]
            case CleanedUp(), Phase.CLEANING:
                entry.cleanup_error = None
                assert entry.result is not None
                return [MarkClean(entry.result)]
            case CleanedUp(), Phase.WITHDRAWING:
                self._remove_entry(entry)
                return []
            case CleanUpFailed(), Phase.CLEANING | Phase.WITHDRAWING:
                return self._clean_up_again(entry, event.message)
            case MarkedClean(), Phase.CLEANING:
                entry.phase, entry.plan = Phase.ENDED, None
                self._limit_ended()
        return []

    def _recover(self, event: StoresRead) -> Instructions:
        self.is_ready = True
        todo: Instructions = []
        for result in event.ended:
            entry = self._add_entry(result.job_id, result.job_name, None, Phase.ENDED)
            entry.result = result
        for result in event.results:
            entry = self._add_entry(result.job_id, result.job_name, None, Phase.CLEANING)
            entry.result = result
            entry.plan = next((plan for plan in event.plans if plan.job_id == result.job_id), None)
            todo.append(self._clean_up(entry))
        for plan in event.plans:
            known = self.jobs.get(plan.job_id)
            if known is None or known.phase is Phase.ENDED:  # a job of the same id was submitted again
                entry = self._add_entry(plan.job_id, plan.job_name, plan, Phase.WAITING)
                entry.was_taken_over = True
                todo += self._start(entry)
        return todo

    def _submit(self, event: JobSubmitted) -> Instructions:
        plan, known = event.plan, self.jobs.get(event.plan.job_id)
        if not self.is_ready:
            return [Reply(event.request, 503, "The dispatcher is recovering jobs. Try again.")]
        if known is not None and known.phase is not Phase.ENDED:
            return [Reply(event.request, 409, _duplicate(plan.job_id, known.status))]
        entry = self._add_entry(plan.job_id, plan.job_name, plan, Phase.CHECKING)
        entry.request, entry.may_fail, entry.previous = event.request, True, known
        return [LookUpResult(plan.job_id)]

    def _looked_up(self, entry: JobEntry, is_there: bool) -> Instructions:
        if is_there:
            self._remove_entry(entry)
            return self._reply(entry, 409, _duplicate(entry.job_id, "ended"))
        assert entry.plan is not None
        entry.phase = Phase.STORING
        return [StorePlan(entry.plan)]

    def _accepted(self, entry: JobEntry) -> Instructions:
        entry.previous = None
        replies = self._reply(entry, 202)
        return [*replies, *(self._record(entry, "CANCELED") if entry.is_cancel_requested else self._start(entry))]

    def _withdraw(self, entry: JobEntry, message: str) -> Instructions:
        replies = self._reply(entry, 500, message)
        if entry.phase is Phase.CHECKING:
            self._remove_entry(entry)
            return replies
        entry.phase = Phase.WITHDRAWING
        return [*replies, self._clean_up(entry)]

    def _start(self, entry: JobEntry) -> Instructions:
        assert entry.plan is not None
        entry.phase = Phase.STARTING
        entry.start += 1
        return [StartProcess(entry.plan, entry.start)]

    def _process_ended(self, entry: JobEntry, outcome: ProcessOutcome) -> Instructions:
        if self.is_over:
            entry.phase = Phase.WAITING
            return self._term_over()
        entry.name = outcome.name or entry.name
        if outcome.has_run:
            entry.may_fail = False
        result = entry.result_after(outcome, self._clock.now_ms())
        if result is not None:
            entry.result, entry.phase = result, Phase.RECORDING
            return [StoreResult(result)]
        entry.failures += 1
        entry.last_failure = outcome.failure or FailureCause("ProcessEnded", "The process was stopped by a signal.")
        return self._wait(entry, Phase.WAITING, entry.restarts)

    def _unknown(self, job_id: JobID) -> str:
        return unknown_job(str(job_id), [(str(entry.job_id), entry.name) for entry in self.jobs.values()])

    def _cancel(self, event: CancelRequested) -> Instructions:
        entry = self.jobs.get(event.job_id)
        if not self.is_ready or entry is None or entry.phase is Phase.WITHDRAWING:
            status, reason = (404, self._unknown(event.job_id)) if self.is_ready else (503, "Try again.")
            return [Reply(event.request, status, reason)]
        if entry.result is not None and entry.status != "CANCELED":
            return [Reply(event.request, 409, f"Job {event.job_id} has already ended with status {entry.status}.")]
        todo: Instructions = [Reply(event.request, 202)]
        if entry.result is not None or entry.is_cancel_requested:
            return todo
        entry.is_cancel_requested = True
        if entry.phase is Phase.RUNNING:
            todo.append(CancelJob(entry.job_id))
        elif entry.phase is Phase.STARTING:
            todo.append(EndProcess(entry.job_id, at_once=False))
        elif entry.phase is Phase.WAITING:
            # Durable first: an acknowledged cancellation must hold for the next leader too.
            entry.waiters.append(event.request)
            return self._record(entry, "CANCELED")
        return todo

    def _record(self, entry: JobEntry, status: str) -> Instructions:
        entry.result, entry.phase = entry.result_of(status, None, self._clock.now_ms()), Phase.RECORDING
        entry.wait += 1  # ignore the timer of the current wait
        return [StoreResult(entry.result)]

    def _clean_up(self, entry: JobEntry) -> Instruction:
        return CleanUp(entry.job_id, entry.plan, entry.phase is not Phase.WITHDRAWING)

    def _clean_up_again(self, entry: JobEntry, message: str) -> Instructions:
        entry.cleanup_error = message
        entry.cleaning.notify_failure()
        if entry.cleaning.can_restart():
            return self._wait(entry, entry.phase, entry.cleaning, notified=True)
        if entry.phase is Phase.WITHDRAWING:
            self._remove_entry(entry)
        return []  # the result stays dirty: the next leader retries

    def _wait(
        self, entry: JobEntry, phase: Phase, strategy: RestartStrategy, *, notified: bool = False
    ) -> Instructions:
        if not notified:
            strategy.notify_failure()
        entry.phase = phase
        entry.wait += 1
        return [ScheduleWakeup(entry.job_id, entry.wait, strategy.get_backoff_time() / 1000)]

    def _end_term(self, event: TermEnded) -> Instructions:
        self.is_over = True
        todo: Instructions = []
        for entry in self.jobs.values():
            todo += self._reply(
                entry,
                503,
                f"{_NOT_LEADING} Check with `holdfast list` whether the next leader has the job.",
            )
            todo += [Reply(waiter, 503, f"{_NOT_LEADING} Try again.") for waiter in entry.waiters]
            entry.waiters.clear()
            if entry.has_process:
                todo.append(EndProcess(entry.job_id, event.at_once))
        return [*todo, *self._term_over()]

    def _handle_after_end(self, event: Event) -> Instructions:
        match event:
            case JobSubmitted() | CancelRequested():
                return [Reply(event.request, 503, f"{_NOT_LEADING} Try again.")]
            case TermEnded() if event.at_once:
                running = [entry.job_id for entry in self.jobs.values() if entry.has_process]
                return [EndProcess(job_id, at_once=True) for job_id in running]
        return []

    def _term_over(self) -> Instructions:
        if self._is_finish_reported or any(entry.has_process for entry in self.jobs.values()):
            return []
        self._is_finish_reported = True
        return [TermFinished()]

    def _add_entry(self, job_id: JobID, name: str, plan: ExecutionPlan | None, phase: Phase) -> JobEntry:
        now = self._clock.now_ms()
        entry = JobEntry(job_id, name, plan, self._restarts(), self._cleaning(), now, phase)
        self.jobs.pop(job_id, None)
        self.jobs[job_id] = entry
        return entry

    def _remove_entry(self, entry: JobEntry) -> None:
        """Remove a job that was not accepted; an ended job of the same id is remembered again."""
        del self.jobs[entry.job_id]
        if entry.previous is not None:
            self.jobs[entry.job_id] = entry.previous

    def _limit_ended(self) -> None:
        ended = [entry for entry in self.jobs.values() if entry.phase is Phase.ENDED and entry.result is not None]
        ended.sort(key=lambda entry: entry.result.end_time if entry.result else 0)
        for entry in ended[: max(0, len(ended) - self._max_ended)]:
            del self.jobs[entry.job_id]

    @staticmethod
    def _reply(entry: JobEntry, status: int, message: str = "") -> Instructions:
        request, entry.request = entry.request, None
        return [] if request is None else [Reply(request, status, message)]


def _duplicate(job_id: JobID, status: str) -> str:
    return f"Job {job_id} was submitted before and is {status}. Submit another job under another id (pipeline.job-id)."
