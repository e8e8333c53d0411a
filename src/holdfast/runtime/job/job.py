"""What is fixed about a job for as long as this process runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.runtime.graph.stream_graph import StreamGraph
from holdfast.runtime.job.engine import Engine
from holdfast.runtime.job.leadership import JobLeadership
from holdfast.storage.job.job_directory import JobDirectory
from holdfast.storage.register.fenced_register import FencedRegister


@dataclass(frozen=True)
class Job:
    """A job and the places that it lives in.

    Attributes:
        default_parallelism: Subtasks of keyed operators that name no parallelism.
        owner: Who runs it, for messages of those who fence it: host and process.
        leadership: The part of this process in the election of the leader; None where whoever starts last leads.
    """

    job_id: JobID
    name: str
    graph: StreamGraph
    configuration: Configuration
    directory: JobDirectory
    register: FencedRegister
    engine: Engine
    default_parallelism: int
    owner: str
    clock: Clock = field(default_factory=SystemClock)
    random: Callable[[], float] | None = None
    leadership: JobLeadership | None = None
