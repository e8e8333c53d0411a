"""What the job master tells the tasks: the job once an attempt, the epoch in every epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import cloudpickle

from holdfast.runtime.plan import JobPlan
from holdfast.state.version import StateVersion


@dataclass(frozen=True)
class JobDescriptor:
    """Everything that stays while a job attempt lives; shipped once, pickled, from the driver to its own workers.

    Attributes:
        key: Unique name of the job attempt; a worker opens functions anew when it changes.
        job_root: Directory of the job in checkpoint storage, an absolute path or URI.
        nonce_file: Relative path of a file that the driver wrote there; a worker that cannot see it stops.
    """

    key: str
    job_id: str
    job_name: str
    attempt_number: int
    token: int
    job_root: str
    nonce_file: str
    plan: JobPlan
    configuration: Mapping[str, str]
    parameters: Mapping[str, str] = field(default_factory=dict)
    is_restored: bool = False

    def to_bytes(self) -> bytes:
        """The descriptor with all user functions, for workers of this job only."""
        return cloudpickle.dumps(replace(self, plan=self.plan.without_frames()))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class EpochDescriptor:
    """One attempt at one epoch.

    Attributes:
        attempt: How often the epoch was attempted before under this token.
        processing_time: Milliseconds since 1970; whatever asks for the time in the epoch gets this.
        watermark: Event time in milliseconds up to which timers fire at the end of the epoch.
        previous_watermark: The same of the epoch before: what functions see as the current watermark.
        versions: State version of each keyed step before the epoch.
        is_last: Whether the job ends with this epoch because its inputs have ended.
    """

    epoch: int
    attempt: int
    processing_time: int
    watermark: int
    previous_watermark: int
    versions: Mapping[str, StateVersion]
    is_last: bool = False
