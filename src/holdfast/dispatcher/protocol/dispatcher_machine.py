"""One term of a dispatcher as a state machine: events in, instructions out. No I/O, no threads.

::

    submitted --> CHECKING --no result--> STORING --plan is durable--> STARTING --job launched--> RUNNING
                     | has one               | failed: its submission          |  |                 |  |
                     v refused               v is taken back                   |  |                 |  |
                  (forgotten) <------- WITHDRAWING                             |  |                 |  |
                                                                               |  v                 v  |
    found in the plan store ------------------------> STARTING <--due-- WAITING <--its process died,   |
                                                                               |  was fenced, or       |
                                                                               |  could not begin a    |
                                                                               |  job that had begun   |
                                                                               v  before               v
    found among dirty results ----> CLEANING <--result is durable-- RECORDING <--the job has ended for good
                                      |  ^ failed: later again
                                      v
                                    ENDED, once its result is marked as clean

Three orders make each crash harmless. A plan is durable before the job runs, so what was accepted is run by the next
leader. The result is durable before anything is removed, so a job that has ended never runs again, and its clean-up is
owed until somebody has done it. The plan goes before what it names.

A term that ends keeps everything: processes are ended, nothing is written. Who leads without knowing better is held
off by others: the plan store refuses whoever does not lead, and a job's register refuses the process of an older term.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.dispatcher.protocol import event as events
from holdfast.dispatcher.protocol import instruction as instructions
from holdfast.dispatcher.protocol.job_entry import JobEntry, Phase
from holdfast.ha.job_manager_store.execution_plan import ExecutionPlan
from holdfast.ha.job_manager_store.job_result import FailureCause
from holdfast.kernel.backoff import RestartStrategy
from holdfast.kernel.clock import Clock
from holdfast.kernel.ids import JobID

Instructions = list[instructions.Instruction]


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
        return [instructions.ReadStores()]

    def handle(self, event: events.Event) -> Instructions:
        """Take note of an event; returns what is to be done."""
        if self.is_over and not isinstance(event, events.ProcessEnded):
            return self._after_the_end(event)
        match event:
            case events.StoresRead():
                return self._recover(event)
            case events.Submitted():
                return self._submit(event)
            case events.CancelRequested():
                return self._cancel(event)
            case events.Broken():
                return [instructions.GiveUp(event.message)]
            case events.TermEnded():
                return self._end_term(event)
        entry = self.jobs.get(getattr(event, "job_id"))  # noqa: B009 - every other event has one
        return [] if entry is None else self._advance(entry, event)

    def _advance(self, entry: JobEntry, event: events.Event) -> Instructions:
        match event, entry.phase:
            case events.ResultLookedUp(), Phase.CHECKING:
                return self._looked_up(entry, event.is_there)
            case events.PlanStored(), Phase.STORING:
                return self._accepted(entry)
            case events.SubmissionFailed(), Phase.CHECKING | Phase.STORING:
                return self._withdraw(entry, event.message)
            case events.JobLaunched(), Phase.STARTING if event.start == entry.start:
                entry.phase, entry.name = Phase.RUNNING, event.name or entry.name
                return [instructions.CancelJob(entry.job_id)] if entry.cancel_wanted else []
            case events.ProcessEnded(), Phase.STARTING | Phase.RUNNING if event.start == entry.start:
                return self._process_ended(entry, event.outcome)
            case events.Due(), Phase.WAITING if event.wait == entry.wait:
                return self._start(entry)
            case events.Due(), Phase.CLEANING | Phase.WITHDRAWING if event.wait == entry.wait:
                return [self._clean_up(entry)]
            case events.ResultStored(), Phase.RECORDING:
                entry.phase = Phase.CLEANING
                told = [instructions.Reply(waiter, 202) for waiter in entry.waiters]
                entry.waiters.clear()
                return [*told, self._clean_up(entry)]
            case events.CleanedUp(), Phase.CLEANING:
                entry.left = None
                assert entry.result is not None
                return [instructions.MarkClean(entry.result)]
            case events.CleanedUp(), Phase.WITHDRAWING:
                self._drop(entry)
                return []
            case events.CleanUpFailed(), Phase.CLEANING | Phase.WITHDRAWING:
                return self._clean_up_again(entry, event.message)
            case events.MarkedClean(), Phase.CLEANING:
                entry.phase, entry.plan = Phase.ENDED, None
                self._forget_old()
        return []

    # What begins.

    def _recover(self, event: events.StoresRead) -> Instructions:
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

    def _submit(self, event: events.Submitted) -> Instructions:
        plan, known = event.plan, self.jobs.get(event.plan.job_id)
        if not self.is_ready:
            return [
                instructions.Reply(event.request, 503, "The dispatcher reads what was submitted before; try again.")
            ]
        if known is not None and known.phase is not Phase.ENDED:
            return [instructions.Reply(event.request, 409, _duplicate(plan.job_id, known.status))]
        entry = self._enter(plan.job_id, plan.job_name, plan, Phase.CHECKING)
        entry.request, entry.may_fail, entry.before = event.request, True, known
        return [instructions.LookUpResult(plan.job_id)]

    def _looked_up(self, entry: JobEntry, is_there: bool) -> Instructions:
        if is_there:
            self._drop(entry)
            return self._tell(entry, 409, _duplicate(entry.job_id, "one that has ended"))
        assert entry.plan is not None
        entry.phase = Phase.STORING
        return [instructions.StorePlan(entry.plan)]

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
        return [instructions.StartProcess(entry.plan, entry.start)]

    # What ends.

    def _process_ended(self, entry: JobEntry, outcome: events.ProcessOutcome) -> Instructions:
        if self.is_over:
            entry.phase = Phase.WAITING
            return self._term_over()
        entry.name = outcome.name or entry.name
        if outcome.has_run:
            entry.may_fail = False
        result = entry.end_told_by(outcome, self._clock.now_ms())
        if result is not None:
            entry.result, entry.phase = result, Phase.RECORDING
            return [instructions.StoreResult(result)]
        entry.failures += 1
        entry.last_failure = outcome.failure or FailureCause("ProcessEnded", "The process was stopped from outside.")
        return self._wait(entry, Phase.WAITING, entry.restarts)

    def _cancel(self, event: events.CancelRequested) -> Instructions:
        entry = self.jobs.get(event.job_id)
        if not self.is_ready or entry is None or entry.phase is Phase.WITHDRAWING:
            status, reason = (404, f"There is no job {event.job_id}.") if self.is_ready else (503, "Try again.")
            return [instructions.Reply(event.request, status, reason)]
        if entry.result is not None and entry.status != "CANCELED":
            return [instructions.Reply(event.request, 409, f"Job {event.job_id} has ended {entry.status} already.")]
        todo: Instructions = [instructions.Reply(event.request, 202)]
        if entry.result is not None or entry.cancel_wanted:
            return todo
        entry.cancel_wanted = True
        if entry.phase is Phase.RUNNING:
            todo.append(instructions.CancelJob(entry.job_id))
        elif entry.phase is Phase.STARTING:
            todo.append(instructions.EndProcess(entry.job_id, at_once=False))
        elif entry.phase is Phase.WAITING:
            # Durable first: a cancellation that was acknowledged holds for the next leader, too.
            entry.waiters.append(event.request)
            return self._record(entry, "CANCELED")
        return todo

    def _record(self, entry: JobEntry, status: str) -> Instructions:
        entry.result, entry.phase = entry.result_of(status, None, self._clock.now_ms()), Phase.RECORDING
        entry.wait += 1  # a timer that is under way is late
        return [instructions.StoreResult(entry.result)]

    def _clean_up(self, entry: JobEntry) -> instructions.Instruction:
        return instructions.CleanUp(entry.job_id, entry.plan, entry.phase is not Phase.WITHDRAWING)

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
        return [instructions.WakeAfter(entry.job_id, entry.wait, strategy.get_backoff_time() / 1000)]

    # The end of the term.

    def _end_term(self, event: events.TermEnded) -> Instructions:
        self.is_over = True
        todo: Instructions = []
        for entry in self.jobs.values():
            todo += self._tell(
                entry, 503, "This job manager leads no more; whether the job was accepted, the next knows."
            )
            todo += [instructions.Reply(waiter, 503, "This job manager leads no more.") for waiter in entry.waiters]
            entry.waiters.clear()
            if entry.has_process:
                todo.append(instructions.EndProcess(entry.job_id, event.at_once))
        return [*todo, *self._term_over()]

    def _after_the_end(self, event: events.Event) -> Instructions:
        match event:
            case events.Submitted() | events.CancelRequested():
                return [instructions.Reply(event.request, 503, "This job manager leads no more.")]
            case events.TermEnded() if event.at_once:
                running = [entry.job_id for entry in self.jobs.values() if entry.has_process]
                return [instructions.EndProcess(job_id, at_once=True) for job_id in running]
        return []

    def _term_over(self) -> Instructions:
        if self._has_told or any(entry.has_process for entry in self.jobs.values()):
            return []
        self._has_told = True
        return [instructions.TermOver()]

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
        return [] if request is None else [instructions.Reply(request, status, message)]


def _duplicate(job_id: JobID, status: str) -> str:
    return f"Job {job_id} was submitted before and is {status}. Another job needs another id (pipeline.job-id)."
