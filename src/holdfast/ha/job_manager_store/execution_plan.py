"""What was submitted: enough to run a job again in another process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from holdfast.kernel.ids import JobID
from holdfast.storage.handle.state_handle import DocumentSerializer, StateSerializer

_KIND: Final = "execution-plan"
_FORMAT_VERSION: Final = 1


@dataclass(frozen=True)
class JobResourceRequirements:
    """How many subtasks the vertices of a job may have.

    Attributes:
        parallelisms: Lower and upper bound by vertex.
    """

    parallelisms: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse bounds that no parallelism fits."""
        for vertex, (lower, upper) in self.parallelisms.items():
            if not 1 <= lower <= upper:
                raise ValueError(
                    f"Bounds of the parallelism of {vertex!r} are 1 <= lower <= upper, not {lower}, {upper}."
                )


@dataclass(frozen=True)
class ExecutionPlan:
    """A submitted job.

    Attributes:
        job_id: The job.
        job_name: Its name.
        document: What whoever submits and whoever runs agree upon, JSON; nothing in it is executed by the store.
        resource_requirements: How many subtasks it may have.
    """

    job_id: JobID
    job_name: str
    document: Mapping[str, Any] = field(default_factory=dict)
    resource_requirements: JobResourceRequirements = field(default_factory=JobResourceRequirements)

    def get_job_id(self) -> JobID:
        """The job."""
        return self.job_id

    def get_name(self) -> str:
        """The job's name."""
        return self.job_name

    def with_resource_requirements(self, requirements: JobResourceRequirements) -> ExecutionPlan:
        """The same job with other bounds."""
        return replace(self, resource_requirements=requirements)


def execution_plan_serializer() -> StateSerializer[ExecutionPlan]:
    """Turns plans into documents and back."""
    return DocumentSerializer(_KIND, _FORMAT_VERSION, _to_json, _from_json)


def _to_json(plan: ExecutionPlan) -> dict[str, Any]:
    bounds = plan.resource_requirements.parallelisms
    return {
        "job_id": str(plan.job_id),
        "job_name": plan.job_name,
        "plan": dict(plan.document),
        "parallelisms": {vertex: list(pair) for vertex, pair in bounds.items()},
    }


def _from_json(body: dict[str, Any]) -> ExecutionPlan:
    bounds = {str(vertex): (int(lower), int(upper)) for vertex, (lower, upper) in body["parallelisms"].items()}
    return ExecutionPlan(
        JobID.from_hex(body["job_id"]), str(body["job_name"]), dict(body["plan"]), JobResourceRequirements(bounds)
    )
