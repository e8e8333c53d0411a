"""The states of a job."""

from __future__ import annotations

from enum import Enum


class JobStatus(Enum):
    """Flink's job states, as far as they occur here.

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

    def is_globally_terminal_state(self) -> bool:
        """Whether the job is over for good."""
        return self in (JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED)

    def is_terminal_state(self) -> bool:
        """Whether this process runs it no more."""
        return self.is_globally_terminal_state() or self is JobStatus.SUSPENDED
