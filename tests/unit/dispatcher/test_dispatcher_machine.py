"""The life of jobs with a dispatcher, event by event: nothing is done here, only what would be is looked at."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.dispatcher import dispatcher_machine as events
from holdfast.dispatcher import dispatcher_machine as instructions
from holdfast.dispatcher.dispatcher_machine import DispatcherMachine, Phase
from holdfast.dispatcher.options import process_restarts
from holdfast.ha.execution_plan_store import ExecutionPlan
from holdfast.ha.job_result_store import ApplicationStatus, FailureCause, JobResult
from holdfast.kernel.clock import ManualClock
from holdfast.kernel.ids import JobID
from holdfast.kernel.restart_strategy import FixedDelayRestartStrategy

JOB = JobID.from_name("tides")
PLAN = ExecutionPlan(JOB, "tides")
BOOM = FailureCause("ValueError", "boom")


class Term:
    """A term, and what it wanted last."""

    def __init__(
        self,
        *plans: ExecutionPlan,
        results: tuple[JobResult, ...] = (),
        ended: tuple[JobResult, ...] = (),
        retries: int = 2,
    ) -> None:
        clock = ManualClock(1_000_000)
        self.machine = DispatcherMachine(
            clock, lambda: process_restarts(clock), lambda: FixedDelayRestartStrategy(retries, 5), 2
        )
        assert self.machine.begin() == [instructions.ReadStores()]
        self.last = self.machine.handle(events.StoresRead(plans, results, ended))

    def hear(self, event: events.Event) -> list[instructions.Instruction]:
        self.last = self.machine.handle(event)
        return self.last

    def submit(self) -> None:
        self.hear(events.JobSubmitted(PLAN, "me"))
        assert self.last == [instructions.LookUpResult(JOB)]
        self.hear(events.ResultLookedUp(JOB, False))
        assert self.last == [instructions.StorePlan(PLAN)]
        self.hear(events.PlanStored(JOB))
        assert self.last == [instructions.Reply("me", 202), instructions.StartProcess(PLAN, 1)]

    def run(self) -> None:
        self.submit()
        assert self.hear(events.JobLaunched(JOB, 1, "tides of the year")) == []

    def end(self, status: str | None, start: int = 1, **fields: Any) -> list[instructions.Instruction]:
        return self.hear(events.ProcessEnded(JOB, start, events.ProcessOutcome(status, **fields)))

    @property
    def job(self) -> Any:
        return self.machine.jobs[JOB]

    def wanted(self, kind: type) -> Any:
        (found,) = [instruction for instruction in self.last if isinstance(instruction, kind)]
        return found


def result(status: ApplicationStatus = ApplicationStatus.SUCCEEDED) -> JobResult:
    return JobResult(JOB, "tides", status)


@pytest.mark.parametrize(
    ("status", "result", "shown"),
    [
        ("FINISHED", ApplicationStatus.SUCCEEDED, "FINISHED"),
        ("SUSPENDED", ApplicationStatus.SUCCEEDED, "SUSPENDED"),
        ("CANCELED", ApplicationStatus.CANCELED, "CANCELED"),
        ("FAILED", ApplicationStatus.FAILED, "FAILED"),
    ],
)
def test_a_job_runs_ends_and_leaves_nothing(status: str, result: ApplicationStatus, shown: str) -> None:
    term = Term()
    term.run()
    assert (term.job.status, term.job.name) == ("RUNNING", "tides of the year")
    term.end(status, has_run=True, failure=BOOM if status == "FAILED" else None)
    stored = term.wanted(instructions.StoreResult).result
    assert stored.application_status is result
    assert (stored.failure_cause == BOOM) == (status == "FAILED")
    assert term.hear(events.ResultStored(JOB)) == [instructions.CleanUp(JOB, PLAN)]
    assert term.hear(events.CleanedUp(JOB)) == [instructions.MarkClean(stored)]
    assert term.hear(events.MarkedClean(JOB)) == []
    assert (term.job.phase, term.job.status, term.job.plan) == (Phase.ENDED, shown, None)


def test_nothing_is_removed_before_the_result_is_durable() -> None:
    term = Term()
    term.run()
    term.end("FINISHED", has_run=True)
    assert [type(instruction) for instruction in term.last] == [instructions.StoreResult]
    assert term.hear(events.CleanedUp(JOB)) == [], "nobody has cleaned up yet"


def test_a_job_is_submitted_once() -> None:
    term = Term()
    term.hear(events.JobSubmitted(PLAN, "me"))
    answer = term.hear(events.JobSubmitted(PLAN, "you"))
    assert [(a.request, a.status) for a in answer if isinstance(a, instructions.Reply)] == [("you", 409)]
    term.hear(events.ResultLookedUp(JOB, False))
    term.hear(events.PlanStored(JOB))
    assert term.hear(events.JobSubmitted(PLAN, "they"))[0].status == 409, "it runs"  # type: ignore[attr-defined]


def test_a_job_that_has_ended_under_a_leader_before_is_not_taken() -> None:
    term = Term()
    term.hear(events.JobSubmitted(PLAN, "me"))
    term.hear(events.ResultLookedUp(JOB, True))
    assert term.wanted(instructions.Reply).status == 409
    assert term.machine.jobs == {}


def test_a_job_that_has_ended_and_left_nothing_may_be_submitted_again() -> None:
    term = Term()
    term.run()
    term.end("SUSPENDED", has_run=True)
    for event in (events.ResultStored(JOB), events.CleanedUp(JOB), events.MarkedClean(JOB)):
        term.hear(event)
    term.submit()


def test_a_submission_that_cannot_be_stored_is_told_and_taken_back() -> None:
    term = Term()
    term.hear(events.JobSubmitted(PLAN, "me"))
    term.hear(events.ResultLookedUp(JOB, False))
    term.hear(events.SubmissionFailed(JOB, "the disk is full"))
    assert term.last == [
        instructions.Reply("me", 500, "the disk is full"),
        instructions.CleanUp(JOB, PLAN, was_accepted=False),
    ]
    assert term.hear(events.CleanedUp(JOB)) == []
    assert term.machine.jobs == {}


def test_a_process_that_dies_is_started_again() -> None:
    term = Term()
    term.run()
    term.end(None, failure=BOOM)
    wait = term.wanted(instructions.ScheduleWakeup)
    assert wait.seconds >= 1
    assert (term.job.status, term.job.last_failure) == ("RESTARTING", BOOM)
    assert term.hear(events.WaitElapsed(JOB, wait.wait - 1)) == [], "a timer of an earlier wait is late"
    assert term.hear(events.WaitElapsed(JOB, wait.wait)) == [instructions.StartProcess(PLAN, 2)]
    assert term.end("FINISHED", start=1) == [], "the news of the first process is late"


@pytest.mark.parametrize("outcome", [{"was_fenced": True}, {"was_interrupted": True}])
def test_what_others_do_to_a_process_is_not_the_end_of_its_job(outcome: dict[str, bool]) -> None:
    term = Term()
    term.run()
    term.end("FAILED" if "was_fenced" in outcome else "SUSPENDED", has_run=True, **outcome)
    assert term.wanted(instructions.ScheduleWakeup)


def test_a_new_job_that_cannot_begin_has_failed() -> None:
    term = Term()
    term.submit()
    term.end("FAILED", failure=BOOM)
    assert term.wanted(instructions.StoreResult).result.failure_cause == BOOM


def test_a_recovered_job_that_cannot_begin_is_tried_again() -> None:
    term = Term(PLAN)
    assert term.last == [instructions.StartProcess(PLAN, 1)]
    term.end("FAILED", failure=BOOM)
    assert term.wanted(instructions.ScheduleWakeup)
    assert term.job.last_failure == BOOM


def test_a_job_that_has_run_in_this_term_and_then_cannot_begin_is_tried_again() -> None:
    term = Term()
    term.run()
    term.end(None, has_run=True)
    term.hear(events.WaitElapsed(JOB, term.wanted(instructions.ScheduleWakeup).wait))
    term.end("FAILED", start=2, failure=BOOM)
    assert term.wanted(instructions.ScheduleWakeup)


def test_a_recovered_job_that_has_run_can_fail() -> None:
    term = Term(PLAN)
    term.end("FAILED", has_run=True, failure=BOOM)
    assert term.wanted(instructions.StoreResult).result.application_status is ApplicationStatus.FAILED


def test_a_job_with_a_result_is_cleaned_up_and_never_runs() -> None:
    term = Term(PLAN, results=(result(),))
    assert term.last == [instructions.CleanUp(JOB, PLAN)]
    term.hear(events.CleanedUp(JOB))
    assert term.last == [instructions.MarkClean(result())]


def test_a_job_that_has_ended_under_a_leader_before_is_known_and_does_nothing() -> None:
    term = Term(ended=(result(ApplicationStatus.CANCELED),))
    assert term.last == []
    assert (term.job.status, term.job.phase) == ("CANCELED", Phase.ENDED)
    assert cancelled(term) == [instructions.Reply("you", 202)], "it is what was asked for"
    term.submit()


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_submission_that_is_refused_leaves_what_is_known_of_the_job_before(has_ended: bool) -> None:
    term = Term(ended=(result(ApplicationStatus.CANCELED),))
    term.hear(events.JobSubmitted(PLAN, "me"))
    assert term.job.status == "INITIALIZING"
    if has_ended:
        term.hear(events.ResultLookedUp(JOB, True))
    else:
        term.hear(events.SubmissionFailed(JOB, "the store is away"))
    assert term.job.status == "CANCELED"


def test_what_runs_or_is_to_be_cleaned_up_wins_over_what_had_ended_before() -> None:
    assert Term(PLAN, ended=(result(),)).job.was_taken_over
    assert Term(results=(result(),), ended=(result(),)).job.phase is Phase.CLEANING


def test_of_jobs_that_have_ended_the_newest_are_remembered() -> None:
    old = tuple(JobResult(JobID.from_name(str(n)), str(n), ApplicationStatus.SUCCEEDED, end_time=n) for n in range(2))
    term = Term(ended=old)
    term.run()
    term.end("FINISHED", has_run=True)
    for event in (events.ResultStored(JOB), events.CleanedUp(JOB), events.MarkedClean(JOB)):
        term.hear(event)
    assert [entry.name for entry in term.machine.jobs.values()] == ["1", "tides of the year"]


def test_a_clean_up_is_tried_again_and_what_is_left_is_owed() -> None:
    term = Term(results=(result(ApplicationStatus.FAILED),), retries=2)
    for _ in range(2):
        term.hear(events.CleanUpFailed(JOB, "somebody holds a lock"))
        assert term.job.cleanup_error == "somebody holds a lock"
        term.hear(events.WaitElapsed(JOB, term.wanted(instructions.ScheduleWakeup).wait))
        assert term.last == [instructions.CleanUp(JOB, None)]
    assert term.hear(events.CleanUpFailed(JOB, "somebody holds a lock")) == []
    assert term.job.phase is Phase.CLEANING, "it stays dirty for the next leader"


def cancelled(term: Term) -> list[instructions.Instruction]:
    return term.hear(events.CancelRequested(JOB, "you"))


def test_a_running_job_is_cancelled_by_its_process() -> None:
    term = Term()
    term.run()
    assert cancelled(term) == [instructions.Reply("you", 202), instructions.CancelJob(JOB)]
    assert term.job.status == "CANCELLING"
    assert cancelled(term) == [instructions.Reply("you", 202)]
    term.end("CANCELED", has_run=True)
    assert term.wanted(instructions.StoreResult).result.application_status is ApplicationStatus.CANCELED
    assert cancelled(term) == [instructions.Reply("you", 202)], "it is what was asked for"


@pytest.mark.parametrize("status", [None, "SUSPENDED", "CANCELED", "FAILED"])
def test_a_job_that_is_starting_is_cancelled_by_ending_its_process(status: str | None) -> None:
    term = Term()
    term.submit()
    cancelled(term)
    assert term.wanted(instructions.EndProcess) == instructions.EndProcess(JOB, at_once=False)
    term.end(status, was_interrupted=True)
    assert term.wanted(instructions.StoreResult).result.application_status is ApplicationStatus.CANCELED


def test_a_job_that_waits_is_cancelled_once_that_is_durable() -> None:
    term = Term()
    term.run()
    term.end(None)
    cancelled(term)
    assert [type(i) for i in term.last] == [instructions.StoreResult]
    assert instructions.Reply("you", 202) in term.hear(events.ResultStored(JOB))
    assert term.hear(events.WaitElapsed(JOB, 1)) == []


def test_a_job_is_cancelled_while_it_is_submitted() -> None:
    term = Term()
    term.hear(events.JobSubmitted(PLAN, "me"))
    cancelled(term)
    term.hear(events.ResultLookedUp(JOB, False))
    term.hear(events.PlanStored(JOB))
    assert term.wanted(instructions.StoreResult).result.application_status is ApplicationStatus.CANCELED


def test_a_job_that_finishes_while_it_is_cancelled_has_finished() -> None:
    term = Term()
    term.run()
    cancelled(term)
    term.end("FINISHED", has_run=True)
    assert term.wanted(instructions.StoreResult).result.application_status is ApplicationStatus.SUCCEEDED
    cancelled(term)
    assert term.wanted(instructions.Reply).status == 409


def test_a_job_that_nobody_knows_cannot_be_cancelled() -> None:
    assert cancelled(Term())[0] == instructions.Reply("you", 404, f"There is no job '{JOB}'. There are no jobs.")


def test_nothing_is_taken_before_the_stores_are_read() -> None:
    machine = Term().machine.__class__(ManualClock(), lambda: None, lambda: None)  # type: ignore[arg-type,return-value]
    machine.begin()
    (answer,) = machine.handle(events.JobSubmitted(PLAN, "me"))
    assert isinstance(answer, instructions.Reply)
    assert answer.status == 503


def test_what_cannot_be_read_or_recorded_ends_the_process() -> None:
    assert Term().hear(events.FatalFailure("a plan is damaged")) == [instructions.AbortProcess("a plan is damaged")]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_term_ends_its_processes_and_writes_nothing(at_once: bool) -> None:
    term = Term()
    term.run()
    assert term.hear(events.TermEnded(at_once)) == [instructions.EndProcess(JOB, at_once)]
    assert term.hear(events.JobSubmitted(ExecutionPlan(JobID(), "x"), "you"))[0].status == 503  # type: ignore[attr-defined]
    assert term.end("FINISHED", has_run=True) == [instructions.TermFinished()], (
        "the next leader hears of it from the job"
    )
    assert term.hear(events.TermEnded(True)) == []


def test_a_term_without_processes_is_over_at_once_and_answers_who_waits() -> None:
    term = Term()
    term.hear(events.JobSubmitted(PLAN, "me"))
    term.hear(events.TermEnded(True))
    assert [type(i) for i in term.last] == [instructions.Reply, instructions.TermFinished]
    assert term.wanted(instructions.Reply).status == 503
    assert term.hear(events.ResultLookedUp(JOB, False)) == []


def test_a_term_that_ends_in_good_order_can_be_ended_at_once() -> None:
    term = Term()
    term.run()
    term.hear(events.TermEnded(False))
    assert term.hear(events.TermEnded(True)) == [instructions.EndProcess(JOB, at_once=True)]
