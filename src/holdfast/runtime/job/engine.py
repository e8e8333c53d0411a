"""Interface of engines, which run the epochs of a job, and the `Job` itself.

`holdfast.spark.engine` runs epochs as Spark jobs, `holdfast.testing.epoch_runner` in this process without a JVM. Job
master, tasks and everything durable are the same for both, and for the engines of real-time jobs
(`holdfast.runtime.realtime.engine`). Engine and job attempt call each other::

    JobAttempt.run --drive--> Engine --process(input)--> JobAttempt --execute--> Engine: the tasks of the epoch
                                                             |
                                                             +-- accepts the epoch, completes its checkpoint
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, TypeVar

from holdfast.checkpoint.checkpoint_machine import CheckpointParticipant
from holdfast.checkpoint.options import CHECKPOINT_STORAGE, CHECKPOINTS_DIRECTORY, CREATE_CHECKPOINT_SUBDIR
from holdfast.errors import (  # noqa: F401 - programs that were written for 0.1 import those of Spark from here
    CheckpointError,
    ConfigurationError,
    EngineError,
    EngineLostError,
    EngineUnavailableError,
    HoldfastError,
    InputError,
    InputGoneError,
)
from holdfast.ha.checkpoint_recovery import checkpoints_directory
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.runtime.exchange.real_time_metrics import RealTimeMetricsByTask
from holdfast.runtime.exchange.stage_message import EpochDescriptor, JobDescriptor
from holdfast.runtime.exchange.task_report import EpochReport, TaskReport
from holdfast.runtime.function.source import SourceStatistics
from holdfast.runtime.graph.input_matching import InputRules
from holdfast.runtime.graph.plan import JobPlan, SourcePlan
from holdfast.runtime.graph.stream_graph import StreamGraph
from holdfast.runtime.job.leadership import JobLeadership
from holdfast.storage.file_system import FileSystem
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.register import FencedRegister

T = TypeVar("T")


class Outcome(Enum):
    """Why an engine stopped feeding epochs."""

    ENDED = "all inputs are bounded and have been consumed"
    EXHAUSTED = "the trigger has processed what was there"
    STOPPED = "a stop was requested"


class EpochAbandonedError(CheckpointError):
    """The tasks of a real-time job go on without the snapshot of an epoch; its changes belong to the next one."""


class EpochInput(ABC):
    """Input of one epoch, opaque to the job master."""

    is_last: bool = False
    """Whether all inputs are bounded and end with this epoch."""
    completes_checkpoint: bool = False
    """Whether the end of the epoch completes a checkpoint, whatever the interval says."""
    ended_sources: Collection[str] = frozenset()
    """Uids of the sources of which no elements follow."""

    @abstractmethod
    def positions(self) -> dict[str, Any]:
        """Return the positions of the sources after this epoch, as JSON for the checkpoint.

        Called after the tasks have acknowledged and before the checkpoint completes. Makes durable what a recovery
        needs.
        """


@dataclass(frozen=True)
class StagedInput:
    """Input of a later epoch job of an epoch.

    Attributes:
        epoch_job: Number of the epoch job.
        files: Staged files of each step in the epoch, by uid: absolute paths, or URIs.
    """

    epoch_job: int
    files: Mapping[str, tuple[str, ...]]

    def of(self, source: SourcePlan) -> list[str]:
        """Return the files of a source of the epoch job."""
        return [path for uid in source.staged for path in self.files.get(uid, ())]


class BegunCheckpoint(Protocol):
    """The checkpoint of an epoch whose tasks take their snapshots before the epoch has ended, in a real-time job."""

    def acknowledge(self, report: TaskReport) -> None:
        """Count the acknowledgement of a task."""

    def decline(self, execution_id: str, reason: CheckpointError) -> None:
        """Abort the checkpoint, because a task cannot take its snapshot."""

    @property
    def failure(self) -> CheckpointError | None:
        """Why the checkpoint was aborted: declined, or not done before its timeout. None while it is pending."""


class EpochDriver(Protocol):
    """The job attempt as its engine sees it (`JobAttempt` in `runtime/master/attempt.py`)."""

    def process(self, epoch_input: EpochInput) -> None:
        """Run one epoch with input to its end, including its checkpoint; sinks may still commit. Blocks.

        Calls `Engine.execute` for each epoch job.
        """

    def tick_if_due(self) -> None:
        """Run an epoch without input if a timer or a request is due; raises the failure of a commit."""

    def wait_all_committed(self) -> None:
        """Block until sinks have committed everything; raises the failure of a commit."""

    def wait(self, seconds: float) -> None:
        """Block until something may be due, a stop is requested, or the time has passed."""

    def wake(self) -> None:
        """End `wait`, in another thread."""

    def report(self, failure: HoldfastError) -> None:
        """Record a failure after which the engine goes on by itself."""

    def begin_checkpoint(self, epoch: int, tasks: Sequence[CheckpointParticipant]) -> BegunCheckpoint:
        """Begin the checkpoint of an epoch before its tasks take their snapshots. Blocks.

        An engine that does not call this leaves it to the driver, when the epoch has ended.

        Args:
            epoch: The epoch.
            tasks: The subtasks of all steps, which must acknowledge.

        Raises:
            CheckpointError: It could not be begun.
        """

    def begin_next_epoch(self) -> EpochDescriptor | None:
        """Begin the next epoch before the one that runs has ended; `Engine.execute` gets it in its turn.

        Returns:
            The epoch; None if the one that runs must end first.
        """

    @property
    def epoch(self) -> int:
        """Number of the epoch that runs, or ran last."""

    @property
    def is_stopping(self) -> bool:
        """Whether no further epoch may start."""

    @property
    def has_requests(self) -> bool:
        """Whether somebody waits for the end of the epoch, or a stop is requested."""


class Engine(ABC):
    """Runs the epochs of one job.

    Attributes:
        source_tasks: Number of tasks that read the sources; 0 where the sources decide.
        fires_timers: Whether tasks fire processing-time timers when they are due, and not in an epoch for them.
        tasks_merge: Whether tasks may merge runs: they know exactly the version before the epoch.
        aligns_sources: Whether the engine pauses aligned sources, and not the job between epochs.
        web_url: URL of the engine's own web interface; None if it has none, or is not prepared.
        failed_at: Time of the monotonic clock at which tasks of this attempt have failed; None if they have not, or the
            engine does not know. The delay of a restart begins then, and not when all tasks have ended, as in Flink.
    """

    source_tasks: int = 0
    fires_timers: bool = False
    tasks_merge: bool = True
    aligns_sources: bool = False
    web_url: str | None = None
    failed_at: float | None = None

    @abstractmethod
    def prepare(self, job: JobDescriptor, positions: Mapping[str, Any] | None, token: int, rules: InputRules) -> None:
        """Start a job attempt: send the functions to the workers and set the positions of the sources.

        Args:
            job: The job.
            positions: Positions of a checkpoint; None to read from the beginning.
            token: Token of the attempt.
            rules: The user's rules for inputs that do not match the positions.

        Raises:
            RestoreError: Inputs do not match the positions, and no rule covers them.
        """

    def check_plan(self, plan: JobPlan) -> None:  # noqa: B027 - most engines run every plan
        """Check that the tasks of another plan of the same operators could run, before it replaces the present one.

        Raises:
            ConfigurationError: They could not.
        """

    @abstractmethod
    def update_plan(self, job: JobDescriptor) -> None:
        """Send the job again with another plan of the same operators, for the following epochs."""

    @abstractmethod
    def drive(self, driver: EpochDriver) -> Outcome:
        """Pass the input of each epoch to `driver.process` until inputs end or a stop is requested. Blocks.

        Raises:
            HoldfastError: The failure of the attempt.
        """

    @abstractmethod
    def execute(
        self, epoch: EpochDescriptor, epoch_input: EpochInput | StagedInput | None
    ) -> list[TaskReport] | EpochReport:
        """Run the tasks of one epoch job and return the reports of its last stage.

        An engine that knows by itself which attempts read which others returns the report of the epoch, and no
        digests are compared.

        Args:
            epoch: The try of the epoch.
            epoch_input: Input of the epoch for its first epoch job, None for none; staged files for a later one.

        Raises:
            EpochAbandonedError: Its tasks go on without its snapshot; run the next epoch.
            HoldfastError: The error of a task, or `EngineError` for a failure of the engine.
        """

    def source_metrics(self) -> Mapping[str, SourceStatistics]:
        """Return metrics of the sources by uid, as far as the engine knows. Safe at any time."""
        return {}

    def task_metrics(self) -> RealTimeMetricsByTask:
        """Return the metrics of the tasks that run now; none in a job by epochs. Safe at any time."""
        return {}

    def checkpoint_completed(self, positions: Mapping[str, Any]) -> None:  # noqa: B027 - optional
        """Notify sources that a checkpoint is complete and its output committed. Does not block.

        Args:
            positions: Positions of the sources in the checkpoint.
        """

    def bind_session(self, call: Callable[[], T]) -> Callable[[], T]:
        """Bind a call to the session of the current thread, so that another thread can make it."""
        return call

    @property
    def batch_rows(self) -> int:
        """Largest number of rows in a batch of a task; 0 if elements cannot cross exchanges in messages."""
        return 10_000

    @abstractmethod
    def services(self) -> Mapping[str, Any]:
        """Return services for committers, by name."""

    @abstractmethod
    def close(self) -> None:
        """End the attempt: stop feeding and remove what belongs to the attempt alone. Never raises."""


@dataclass(frozen=True)
class Job:
    """A job, its options and its places.

    Attributes:
        job_id: The job.
        name: Display name.
        graph: The program.
        configuration: The options.
        directory: The job's directory.
        register: The job's register.
        engine: Runs the epochs.
        default_parallelism: Parallelism of keyed operators that set none.
        owner: Host and process, for messages of other leaders.
        clock: Time.
        leadership: This process in the leader election; None if the last started process leads.
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
    leadership: JobLeadership | None = None


def checkpoint_root(configuration: Configuration) -> str | None:
    """Return the directory of checkpoints; None for a temporary one.

    Raises:
        ConfigurationError: ``filesystem`` without a directory, or a storage that jobs cannot use.
    """
    kind = configuration.get(CHECKPOINT_STORAGE)
    directory = checkpoints_directory(configuration)
    name = (kind or "").lower()
    if name == "jobmanager":
        return None
    if name not in ("", "filesystem"):
        raise ConfigurationError(
            f"{CHECKPOINT_STORAGE.key} is {kind!r}, but the tasks of a job write their files by path: choose "
            f"'filesystem' or 'jobmanager', and set a directory with {CHECKPOINTS_DIRECTORY.key}. A user-defined "
            "storage is only for a CheckpointCoordinator that a program makes by hand."
        )
    if name and directory is None:
        raise ConfigurationError(f"{CHECKPOINT_STORAGE.key} is {kind!r}, but {CHECKPOINTS_DIRECTORY.key} is not set.")
    return directory


def job_directory(fs: FileSystem, root: str, job_id: JobID, configuration: Configuration) -> JobDirectory:
    """Return the directory of a job; its id is the name unless execution.checkpointing.create-subdir is off."""
    return JobDirectory(fs, root, job_id, create_subdir=configuration.get(CREATE_CHECKPOINT_SUBDIR))
