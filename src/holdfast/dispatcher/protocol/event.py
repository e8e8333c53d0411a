"""What a dispatcher hears."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.ha.job_manager_store.execution_plan import ExecutionPlan
from holdfast.ha.job_manager_store.job_result import FailureCause, JobResult
from holdfast.kernel.ids import JobID


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
