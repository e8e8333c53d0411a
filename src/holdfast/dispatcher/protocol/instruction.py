"""What a dispatcher wants to be done; most are answered with an event."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.ha.job_manager_store.execution_plan import ExecutionPlan
from holdfast.ha.job_manager_store.job_result import JobResult
from holdfast.kernel.ids import JobID


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
