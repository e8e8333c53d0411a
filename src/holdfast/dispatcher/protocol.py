"""What a dispatcher decides: events in, instructions out, no I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from holdfast.ha.execution_plan_store import ExecutionPlan
from holdfast.ha.job_result_store import ApplicationStatus, FailureCause, JobResult
from holdfast.kernel.clock import Clock
from holdfast.kernel.ids import JobID
from holdfast.kernel.restart_strategy import RestartStrategy

# What a dispatcher hears.


class Event:
    """Something that has happened."""


@dataclass(frozen=True)
class StoresRead(Event):
    """What the leaders before have left.

    Attributes:
        plans: Jobs that are to run.
        results: Jobs that have ended, and whose clean-up is owed.
        ended: Jobs that have ended, of which nothing else is left; the oldest first.
    """

    plans: tuple[ExecutionPlan, ...]
    results: tuple[JobResult, ...]
    ended: tuple[JobResult, ...] = ()


@dataclass(frozen=True)
class Submitted(Event):
    """Somebody wants a job to be run.

    Attributes:
        request: Who is told what becomes of it.
    """

    plan: ExecutionPlan
    request: str


@dataclass(frozen=True)
class CancelRequested(Event):
    """Somebody wants a job to end for good."""

    job_id: JobID
    request: str


@dataclass(frozen=True)
class ResultLookedUp(Event):
    """Whether there is a result of a job that was submitted."""

    job_id: JobID
    is_there: bool


@dataclass(frozen=True)
class PlanStored(Event):
    """The plan of a submitted job is durable."""

    job_id: JobID


@dataclass(frozen=True)
class SubmissionFailed(Event):
    """The plan of a submitted job could not be stored, or it is not known whether it was."""

    job_id: JobID
    message: str


@dataclass(frozen=True)
class JobLaunched(Event):
    """The program has executed its job, which restores its state now."""

    job_id: JobID
    start: int
    name: str


@dataclass(frozen=True)
class ProcessOutcome:
    """How the process of a job ended.

    Attributes:
        status: What it said of the job. None if it died without a word, FAILED if it then had not executed one and no
            signal had ended it.
        has_run: Whether the job had begun to run in it.
        was_interrupted: Whether a signal stopped it.
        was_fenced: Whether another process had raised the job's token.
        failure: Why the job failed; also why the process died.
        name: The job's name, empty if it is not known.
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
        start: Which start of the job it was.
    """

    job_id: JobID
    start: int
    outcome: ProcessOutcome


@dataclass(frozen=True)
class Due(Event):
    """The time that a job was to wait is over."""

    job_id: JobID
    wait: int


@dataclass(frozen=True)
class ResultStored(Event):
    """The result of a job is durable."""

    job_id: JobID


@dataclass(frozen=True)
class CleanedUp(Event):
    """Nothing of a job is left but its result."""

    job_id: JobID


@dataclass(frozen=True)
class CleanUpFailed(Event):
    """Something of a job is left."""

    job_id: JobID
    message: str


@dataclass(frozen=True)
class MarkedClean(Event):
    """The result of a job says that nothing is left of it; or that could not be written, and the next leader tries."""

    job_id: JobID


@dataclass(frozen=True)
class Broken(Event):
    """Something failed without which nobody can lead."""

    message: str


@dataclass(frozen=True)
class TermEnded(Event):
    """This process leads no more, or is to end.

    Attributes:
        at_once: Whether somebody else may lead already.
    """

    at_once: bool


# What a dispatcher wants to be done; most are answered with an event.


class Instruction:
    """Something to be done."""


@dataclass(frozen=True)
class ReadStores(Instruction):
    """Read plans and results; `StoresRead` or `Broken`."""


@dataclass(frozen=True)
class LookUpResult(Instruction):
    """Look whether a job has ended before; `ResultLookedUp` or `SubmissionFailed`."""

    job_id: JobID


@dataclass(frozen=True)
class StorePlan(Instruction):
    """Make a submitted job durable; `PlanStored` or `SubmissionFailed`."""

    plan: ExecutionPlan


@dataclass(frozen=True)
class StartProcess(Instruction):
    """Run a job; `JobLaunched`, then `ProcessEnded`."""

    plan: ExecutionPlan
    start: int


@dataclass(frozen=True)
class CancelJob(Instruction):
    """Have the process of a running job cancel it; `ProcessEnded` will tell."""

    job_id: JobID


@dataclass(frozen=True)
class EndProcess(Instruction):
    """End the process of a job; `ProcessEnded`.

    Attributes:
        at_once: Whether without waiting for the end of the epoch.
    """

    job_id: JobID
    at_once: bool


@dataclass(frozen=True)
class WakeAfter(Instruction):
    """`Due` after a while."""

    job_id: JobID
    wait: int
    seconds: float


@dataclass(frozen=True)
class StoreResult(Instruction):
    """Make the result of a job durable, its clean-up owed; `ResultStored` or `Broken`."""

    result: JobResult


@dataclass(frozen=True)
class CleanUp(Instruction):
    """Remove what is kept of a job: its plan, then the rest; `CleanedUp` or `CleanUpFailed`.

    Attributes:
        plan: The job's plan, None if only its result is known.
        was_accepted: Whether the job was durable; of one that was not only what its submission has put goes.
    """

    job_id: JobID
    plan: ExecutionPlan | None
    was_accepted: bool = True


@dataclass(frozen=True)
class MarkClean(Instruction):
    """Note that nothing is left of a job but how it has ended; `MarkedClean`."""

    result: JobResult


@dataclass(frozen=True)
class Reply(Instruction):
    """Tell whoever asked for something what becomes of it.

    Attributes:
        status: As of HTTP: 202 it is done or will be, 404 there is no such job, 409 it cannot be, 503 not now.
    """

    request: str
    status: int
    message: str = ""


@dataclass(frozen=True)
class GiveUp(Instruction):
    """End this process, so that another one leads."""

    message: str


@dataclass(frozen=True)
class TermOver(Instruction):
    """No process of a job runs any more: another term may begin."""


# What a dispatcher knows of one job in its term.


class Phase(Enum):
    """Where a job is in its life with the dispatcher."""

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
_RESULTS: Final = {
    "FINISHED": ApplicationStatus.SUCCEEDED,
    "SUSPENDED": ApplicationStatus.SUCCEEDED,
    "CANCELED": ApplicationStatus.CANCELED,
    "FAILED": ApplicationStatus.FAILED,
}


@dataclass
class JobEntry:
    """A job, as one term knows it.

    Attributes:
        plan: What was submitted; None if only the job's result is known.
        restarts: Decides after which pause its process is started again.
        phase: Where it is.
        start: How often its process was started in this term.
        wait: Which wait is the current one; timers of others are late.
        may_fail: Whether a failure before it has run is its end: it was submitted in this term and has not run yet.
        was_taken_over: Whether it was submitted to a leader before, and goes on under this one.
        cancel_wanted: Whether it is to be cancelled.
        request: Who is to be told what becomes of its submission; None once told.
        began: When this term took it up, in milliseconds since 1970.
        failures: How many of its processes have ended otherwise than they should.
        last_failure: Why the last one did.
        result: How it ended.
        cleaning: Decides after which pause the clean-up is tried again.
        left: What the clean-up could not do, None if it has not failed.
        before: How a job of this id had ended that was submitted again; None once this one is accepted.
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
    cancel_wanted: bool = False
    request: str | None = None
    failures: int = 0
    last_failure: FailureCause | None = None
    result: JobResult | None = None
    left: str | None = None
    waiters: list[str] = field(default_factory=list)
    before: JobEntry | None = None

    @property
    def status(self) -> str:
        """What people are shown: Flink's status of a job."""
        if self.result is not None:
            return result_shown(self.result)
        if self.cancel_wanted:
            return "CANCELLING"
        return _SHOWN[self.phase]

    @property
    def has_process(self) -> bool:
        """Whether a process of it runs."""
        return self.phase in (Phase.STARTING, Phase.RUNNING)

    def end_told_by(self, outcome: ProcessOutcome, now: int) -> JobResult | None:
        """The job's result, if the end of its process is its own end; None if the job goes on."""
        # One that fails because it was told to end has not failed.
        has_failed = outcome.status == "FAILED" and not outcome.was_interrupted
        if self.cancel_wanted and outcome.status != "FINISHED" and not has_failed:
            return self.result_of("CANCELED", None, now)
        if outcome.status is None or outcome.was_fenced or (outcome.was_interrupted and not self.cancel_wanted):
            return None
        if outcome.status == "FAILED" and not outcome.has_run and not self.may_fail:
            return self.result_of("CANCELED", None, now) if self.cancel_wanted else None
        return self.result_of(outcome.status, outcome.failure, now)

    def result_of(self, status: str, failure: FailureCause | None, now: int) -> JobResult:
        """The result of the job that ends now.

        A job that its user has stopped, or whose trigger is exhausted, is SUSPENDED by itself: for the dispatcher it
        has succeeded, and may be submitted again.
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


def result_shown(result: JobResult) -> str:
    """How a job ended, as people are shown it: also that it was stopped, to be resumed."""
    told = result.accumulator_results.get("status")
    return told if isinstance(told, str) else result.application_status.to_job_status() or "UNKNOWN"


# One term of a dispatcher as a state machine: events in, instructions out. No I/O, no threads.
#
# ::
#
#     submitted --> CHECKING --no result--> STORING --plan is durable--> STARTING --job launched--> RUNNING
#                      | has one               | failed: its submission          |  |                 |  |
#                      v refused               v is taken back                   |  |                 |  |
#                   (forgotten) <------- WITHDRAWING                             |  |                 |  |
#                                                                                |  v                 v  |
#     found in the plan store ------------------------> STARTING <--due-- WAITING <--its process died,   |
#                                                                                |  was fenced, or       |
#                                                                                |  could not begin a    |
#                                                                                |  job that had begun   |
#                                                                                v  before               v
#     found among dirty results ----> CLEANING <--result is durable-- RECORDING <--the job has ended for good
#                                       |  ^ failed: later again
#                                       v
#                                     ENDED, once its result is marked as clean
#
# Three orders make each crash harmless. A plan is durable before the job runs, so what was accepted is run by the next
# leader. The result is durable before anything is removed, so a job that has ended never runs again, and its clean-up
# is owed until somebody has done it. The plan goes before what it names.
#
# A term that ends keeps everything: processes are ended, nothing is written. Who leads without knowing better is held
# off by others: the plan store refuses whoever does not lead, and a job's register refuses the process of an older
# term.

Instructions = list[Instruction]


class DispatcherMachine:
    """Decides for one term.

    Args:
        clock: Time.
        restarts: Makes what decides when a process that died is started again; it always is.
        cleaning: Makes what decides when a clean-up that failed is tried again.
        most_ended: So many jobs that have ended are remembered.

    Attributes:
        jobs: The jobs of this term, those that have ended among them while they are remembered.
        is_ready: Whether what earlier terms have left is known; before that nothing is accepted.
        is_over: Whether the term has ended.
    """

    def __init__(
        self,
        clock: Clock,
        restarts: Callable[[], RestartStrategy],
        cleaning: Callable[[], RestartStrategy],
        most_ended: int = 100,
    ) -> None:
        self._clock = clock
        self._restarts = restarts
        self._cleaning = cleaning
        self._most_ended = most_ended
        self.jobs: dict[JobID, JobEntry] = {}
        self.is_ready = False
        self.is_over = False
        self._has_told = False

    def begin(self) -> Instructions:
        """The process has been elected."""
        return [ReadStores()]

    def handle(self, event: Event) -> Instructions:
        """Take note of an event; returns what is to be done."""
        if self.is_over and not isinstance(event, ProcessEnded):
            return self._after_the_end(event)
        match event:
            case StoresRead():
                return self._recover(event)
            case Submitted():
                return self._submit(event)
            case CancelRequested():
                return self._cancel(event)
            case Broken():
                return [GiveUp(event.message)]
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
                return [CancelJob(entry.job_id)] if entry.cancel_wanted else []
            case ProcessEnded(), Phase.STARTING | Phase.RUNNING if event.start == entry.start:
                return self._process_ended(entry, event.outcome)
            case Due(), Phase.WAITING if event.wait == entry.wait:
                return self._start(entry)
            case Due(), Phase.CLEANING | Phase.WITHDRAWING if event.wait == entry.wait:
                return [self._clean_up(entry)]
            case ResultStored(), Phase.RECORDING:
                entry.phase = Phase.CLEANING
                told = [Reply(waiter, 202) for waiter in entry.waiters]
                entry.waiters.clear()
                return [*told, self._clean_up(entry)]
            case CleanedUp(), Phase.CLEANING:
                entry.left = None
                assert entry.result is not None
                return [MarkClean(entry.result)]
            case CleanedUp(), Phase.WITHDRAWING:
                self._drop(entry)
                return []
            case CleanUpFailed(), Phase.CLEANING | Phase.WITHDRAWING:
                return self._clean_up_again(entry, event.message)
            case MarkedClean(), Phase.CLEANING:
                entry.phase, entry.plan = Phase.ENDED, None
                self._forget_old()
        return []

    # What begins.

    def _recover(self, event: StoresRead) -> Instructions:
        self.is_ready = True
        todo: Instructions = []
        for result in event.ended:
            entry = self._enter(result.job_id, result.job_name, None, Phase.ENDED)
            entry.result = result
        for result in event.results:
            entry = self._enter(result.job_id, result.job_name, None, Phase.CLEANING)
            entry.result = result
            entry.plan = next((plan for plan in event.plans if plan.job_id == result.job_id), None)
            todo.append(self._clean_up(entry))
        for plan in event.plans:
            known = self.jobs.get(plan.job_id)
            if known is None or known.phase is Phase.ENDED:  # it was submitted again
                entry = self._enter(plan.job_id, plan.job_name, plan, Phase.WAITING)
                entry.was_taken_over = True
                todo += self._start(entry)
        return todo

    def _submit(self, event: Submitted) -> Instructions:
        plan, known = event.plan, self.jobs.get(event.plan.job_id)
        if not self.is_ready:
            return [Reply(event.request, 503, "The dispatcher reads what was submitted before; try again.")]
        if known is not None and known.phase is not Phase.ENDED:
            return [Reply(event.request, 409, _duplicate(plan.job_id, known.status))]
        entry = self._enter(plan.job_id, plan.job_name, plan, Phase.CHECKING)
        entry.request, entry.may_fail, entry.before = event.request, True, known
        return [LookUpResult(plan.job_id)]

    def _looked_up(self, entry: JobEntry, is_there: bool) -> Instructions:
        if is_there:
            self._drop(entry)
            return self._tell(entry, 409, _duplicate(entry.job_id, "one that has ended"))
        assert entry.plan is not None
        entry.phase = Phase.STORING
        return [StorePlan(entry.plan)]

    def _accepted(self, entry: JobEntry) -> Instructions:
        entry.before = None
        told = self._tell(entry, 202)
        return [*told, *(self._record(entry, "CANCELED") if entry.cancel_wanted else self._start(entry))]

    def _withdraw(self, entry: JobEntry, message: str) -> Instructions:
        told = self._tell(entry, 500, message)
        if entry.phase is Phase.CHECKING:
            self._drop(entry)
            return told
        entry.phase = Phase.WITHDRAWING
        return [*told, self._clean_up(entry)]

    def _start(self, entry: JobEntry) -> Instructions:
        assert entry.plan is not None
        entry.phase = Phase.STARTING
        entry.start += 1
        return [StartProcess(entry.plan, entry.start)]

    # What ends.

    def _process_ended(self, entry: JobEntry, outcome: ProcessOutcome) -> Instructions:
        if self.is_over:
            entry.phase = Phase.WAITING
            return self._term_over()
        entry.name = outcome.name or entry.name
        if outcome.has_run:
            entry.may_fail = False
        result = entry.end_told_by(outcome, self._clock.now_ms())
        if result is not None:
            entry.result, entry.phase = result, Phase.RECORDING
            return [StoreResult(result)]
        entry.failures += 1
        entry.last_failure = outcome.failure or FailureCause("ProcessEnded", "The process was stopped from outside.")
        return self._wait(entry, Phase.WAITING, entry.restarts)

    def _cancel(self, event: CancelRequested) -> Instructions:
        entry = self.jobs.get(event.job_id)
        if not self.is_ready or entry is None or entry.phase is Phase.WITHDRAWING:
            status, reason = (404, f"There is no job {event.job_id}.") if self.is_ready else (503, "Try again.")
            return [Reply(event.request, status, reason)]
        if entry.result is not None and entry.status != "CANCELED":
            return [Reply(event.request, 409, f"Job {event.job_id} has ended {entry.status} already.")]
        todo: Instructions = [Reply(event.request, 202)]
        if entry.result is not None or entry.cancel_wanted:
            return todo
        entry.cancel_wanted = True
        if entry.phase is Phase.RUNNING:
            todo.append(CancelJob(entry.job_id))
        elif entry.phase is Phase.STARTING:
            todo.append(EndProcess(entry.job_id, at_once=False))
        elif entry.phase is Phase.WAITING:
            # Durable first: a cancellation that was acknowledged holds for the next leader, too.
            entry.waiters.append(event.request)
            return self._record(entry, "CANCELED")
        return todo

    def _record(self, entry: JobEntry, status: str) -> Instructions:
        entry.result, entry.phase = entry.result_of(status, None, self._clock.now_ms()), Phase.RECORDING
        entry.wait += 1  # a timer that is under way is late
        return [StoreResult(entry.result)]

    def _clean_up(self, entry: JobEntry) -> Instruction:
        return CleanUp(entry.job_id, entry.plan, entry.phase is not Phase.WITHDRAWING)

    def _clean_up_again(self, entry: JobEntry, message: str) -> Instructions:
        entry.left = message
        entry.cleaning.notify_failure()
        if entry.cleaning.can_restart():
            return self._wait(entry, entry.phase, entry.cleaning, notified=True)
        if entry.phase is Phase.WITHDRAWING:
            self._drop(entry)
        return []  # it stays dirty: the next leader tries

    def _wait(
        self, entry: JobEntry, phase: Phase, strategy: RestartStrategy, *, notified: bool = False
    ) -> Instructions:
        if not notified:
            strategy.notify_failure()
        entry.phase = phase
        entry.wait += 1
        return [WakeAfter(entry.job_id, entry.wait, strategy.get_backoff_time() / 1000)]

    # The end of the term.

    def _end_term(self, event: TermEnded) -> Instructions:
        self.is_over = True
        todo: Instructions = []
        for entry in self.jobs.values():
            todo += self._tell(
                entry, 503, "This job manager leads no more; whether the job was accepted, the next knows."
            )
            todo += [Reply(waiter, 503, "This job manager leads no more.") for waiter in entry.waiters]
            entry.waiters.clear()
            if entry.has_process:
                todo.append(EndProcess(entry.job_id, event.at_once))
        return [*todo, *self._term_over()]

    def _after_the_end(self, event: Event) -> Instructions:
        match event:
            case Submitted() | CancelRequested():
                return [Reply(event.request, 503, "This job manager leads no more.")]
            case TermEnded() if event.at_once:
                running = [entry.job_id for entry in self.jobs.values() if entry.has_process]
                return [EndProcess(job_id, at_once=True) for job_id in running]
        return []

    def _term_over(self) -> Instructions:
        if self._has_told or any(entry.has_process for entry in self.jobs.values()):
            return []
        self._has_told = True
        return [TermOver()]

    # What is kept in mind.

    def _enter(self, job_id: JobID, name: str, plan: ExecutionPlan | None, phase: Phase) -> JobEntry:
        now = self._clock.now_ms()
        entry = JobEntry(job_id, name, plan, self._restarts(), self._cleaning(), now, phase)
        self.jobs.pop(job_id, None)
        self.jobs[job_id] = entry
        return entry

    def _drop(self, entry: JobEntry) -> None:
        """What was submitted was not accepted: what is known of an earlier job of its id stays known."""
        del self.jobs[entry.job_id]
        if entry.before is not None:
            self.jobs[entry.job_id] = entry.before

    def _forget_old(self) -> None:
        ended = [entry for entry in self.jobs.values() if entry.phase is Phase.ENDED and entry.result is not None]
        ended.sort(key=lambda entry: entry.result.end_time if entry.result else 0)
        for entry in ended[: max(0, len(ended) - self._most_ended)]:
            del self.jobs[entry.job_id]

    @staticmethod
    def _tell(entry: JobEntry, status: int, message: str = "") -> Instructions:
        request, entry.request = entry.request, None
        return [] if request is None else [Reply(request, status, message)]


def _duplicate(job_id: JobID, status: str) -> str:
    return f"Job {job_id} was submitted before and is {status}. Another job needs another id (pipeline.job-id)."
