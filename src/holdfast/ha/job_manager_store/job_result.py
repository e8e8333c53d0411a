"""How a job ended, as it is kept for whoever leads next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from holdfast.kernel.ids import JobID


class ApplicationStatus(Enum):
    """How something ended; the value is the exit code of a process that reports it."""

    SUCCEEDED = ("SUCCEEDED", 0)
    FAILED = ("FAILED", 1443)
    CANCELED = ("CANCELED", 0)
    UNKNOWN = ("UNKNOWN", 1445)

    @property
    def process_exit_code(self) -> int:
        """The exit code of a process that reports it."""
        return self.value[1]

    @classmethod
    def from_job_status(cls, job_status: str | None) -> ApplicationStatus:
        """Translate the name of a job's status; one that is not final is unknown."""
        return {"FINISHED": cls.SUCCEEDED, "FAILED": cls.FAILED, "CANCELED": cls.CANCELED}.get(
            job_status or "", cls.UNKNOWN
        )

    def to_job_status(self) -> str | None:
        """The name of the job's status, None if it is unknown."""
        names = {self.SUCCEEDED: "FINISHED", self.FAILED: "FAILED", self.CANCELED: "CANCELED"}
        return names.get(self)


@dataclass(frozen=True)
class FailureCause:
    """Why a job failed, as text: nothing that is read from a store is ever executed.

    Attributes:
        type_name: The class of the error.
        message: Its message.
        stack_trace: Where it was raised.
    """

    type_name: str
    message: str
    stack_trace: str = ""


@dataclass(frozen=True)
class JobResult:
    """The result of a job that has ended for good.

    Attributes:
        job_id: The job.
        job_name: Its name.
        application_status: How it ended.
        net_runtime: Milliseconds for which it ran, 0 or more.
        accumulator_results: What it counted, JSON values by name.
        failure_cause: Why it failed, None if it did not.
        start_time: Milliseconds since 1970, -1 if it is not known.
        end_time: Milliseconds since 1970, -1 if it is not known.
    """

    job_id: JobID
    job_name: str = "unknown"
    application_status: ApplicationStatus = ApplicationStatus.UNKNOWN
    net_runtime: int = 0
    accumulator_results: Mapping[str, Any] = field(default_factory=dict, hash=False)
    failure_cause: FailureCause | None = None
    start_time: int = -1
    end_time: int = -1

    def __post_init__(self) -> None:
        """Refuse a negative runtime."""
        if self.net_runtime < 0:
            raise ValueError(f"The runtime of a job is 0 ms or more, not {self.net_runtime!r}.")

    def is_success(self) -> bool:
        """Whether the job finished, or ended in an unknown way without an error."""
        if self.application_status is ApplicationStatus.UNKNOWN:
            return self.failure_cause is None
        return self.application_status is ApplicationStatus.SUCCEEDED

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON."""
        result: dict[str, Any] = {
            "id": str(self.job_id),
            "name": self.job_name,
            "application-status": self.application_status.name,
            "net-runtime": self.net_runtime,
            "accumulator-results": dict(self.accumulator_results),
            "start-time": self.start_time,
            "end-time": self.end_time,
        }
        if self.failure_cause is not None:
            result["failure-cause"] = {
                "class": self.failure_cause.type_name,
                "message": self.failure_cause.message,
                "stack-trace": self.failure_cause.stack_trace,
            }
        return result

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> JobResult:
        """Read a result; unknown fields are ignored.

        Raises:
            ConfigurationError or any of `MALFORMED`: It is not one.
        """
        cause = body.get("failure-cause")
        return cls(
            JobID.from_hex(body["id"]),
            str(body.get("name", "unknown")),
            ApplicationStatus[body["application-status"]],
            int(body["net-runtime"]),
            dict(body.get("accumulator-results", {})),
            FailureCause(str(cause["class"]), str(cause.get("message", "")), str(cause.get("stack-trace", "")))
            if cause is not None
            else None,
            int(body.get("start-time", -1)),
            int(body.get("end-time", -1)),
        )
