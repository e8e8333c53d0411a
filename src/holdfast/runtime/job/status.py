"""The states of a job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.kernel.ids import JobID


class JobStatus(Enum):
    """Flink's job states. FAILING, CANCELLING and RECONCILING do not occur here: a job goes on after its epoch.

    FINISHED, CANCELED and FAILED are globally terminal: nobody runs the job again by itself. SUSPENDED is locally
    terminal: this process has stopped and kept everything, and running the job again resumes it.
    """

    CREATED = "CREATED"
    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"
    FINISHED = "FINISHED"
    CANCELED = "CANCELED"
    FAILED = "FAILED"
    SUSPENDED = "SUSPENDED"
    FAILING = "FAILING"
    CANCELLING = "CANCELLING"
    RECONCILING = "RECONCILING"

    def result(self, timeout: float | None = None) -> JobStatus:
        """Itself, at once: PyFlink hands out a future of it."""
        return self

    def is_globally_terminal_state(self) -> bool:
        """Whether the job is over for good."""
        return self in (JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED)

    def is_terminal_state(self) -> bool:
        """Whether this process runs it no more."""
        return self.is_globally_terminal_state() or self is JobStatus.SUSPENDED


@dataclass(frozen=True)
class JobExecutionResult:
    """How a job ended in this process.

    Attributes:
        job_id: The job.
        status: FINISHED (bounded inputs have ended), SUSPENDED (resumes when it is run again) or CANCELED.
        net_runtime: Milliseconds from launch to end.
    """

    job_id: JobID
    status: JobStatus
    net_runtime: int

    def get_job_id(self) -> JobID:
        """The job."""
        return self.job_id

    def get_net_runtime(self) -> int:
        """Milliseconds from launch to end."""
        return self.net_runtime

    def is_job_execution_result(self) -> bool:
        """True: the job has ended."""
        return True

    def get_all_accumulator_results(self) -> dict[str, Any]:
        """Nothing: functions have no accumulators here."""
        return {}

    def get_accumulator_result(self, accumulator_name: str) -> Any:
        """Refused: functions have no accumulators here.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(
            f"there is no accumulator {accumulator_name!r}: functions count in state, or emit what they have counted."
        )
