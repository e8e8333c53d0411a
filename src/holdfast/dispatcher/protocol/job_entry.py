"""What a dispatcher knows of one job in its term."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from holdfast.dispatcher.protocol.event import ProcessOutcome
from holdfast.ha.job_manager_store.execution_plan import ExecutionPlan
from holdfast.ha.job_manager_store.job_result import ApplicationStatus, FailureCause, JobResult
from holdfast.kernel.backoff import RestartStrategy
from holdfast.kernel.ids import JobID


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
