"""What the job master needs of an engine: feed epochs, run one, offer services to sinks.

There are two: `holdfast.spark.engine` runs epochs as Spark jobs, `holdfast.testing.epoch_runner` runs them in
this process without a JVM. The job master, the tasks and everything durable are the same for both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, TypeVar

from holdfast.checkpoint.options import CHECKPOINT_STORAGE, CHECKPOINTS_DIRECTORY, CREATE_CHECKPOINT_SUBDIR
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.ha.checkpoint_recovery import checkpoints_directory
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID
from holdfast.runtime.exchange.barrier import Barrier
from holdfast.runtime.exchange.stage_message import EpochDescriptor, JobDescriptor
from holdfast.runtime.function.source import SourceStatistics
from holdfast.runtime.graph.input_fitting import InputRules
from holdfast.runtime.graph.plan import SourcePlan
from holdfast.runtime.graph.stream_graph import StreamGraph
from holdfast.runtime.job.leadership import JobLeadership
from holdfast.storage.file_system import FileSystem
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.register import FencedRegister

T = TypeVar("T")


class EngineError(HoldfastError):
    """The engine failed for a reason of its own."""


class InputError(EngineError):
    """An input cannot be read: a file of it is damaged, or gone, or nobody may read it."""


class InputGoneError(InputError):
    """Rows of an input are gone that the job has not read, and it was not told to go on without them."""


class EngineAwayError(EngineError):
    """A machine, a connection or a service that the engine needs was away; who runs it mends that, not the program."""


class EngineLostError(EngineError):
    """The engine is gone for this process; only a new process can go on."""


class Outcome(Enum):
    """Why an engine stopped feeding epochs."""

    ENDED = "all inputs are bounded and have been consumed"
    EXHAUSTED = "the trigger has processed what was there"
    STOPPED = "a stop was asked for"


class EpochInput(ABC):
    """Input of one epoch, opaque to the job master."""

    is_last: bool = False
    """Whether all inputs are bounded and end with this epoch."""

    @abstractmethod
    def positions(self) -> dict[str, Any]:
        """Where the sources stand after this epoch, as JSON for the checkpoint.

        Called after the tasks have acknowledged and before the checkpoint completes; makes durable whatever a
        recovery needs.
        """


@dataclass(frozen=True)
class StagedInput:
    """Input of a later epoch job of an epoch.

    Attributes:
        epoch job: The epoch job's number.
        files: What each step has staged in the epoch, by uid: absolute paths, or URIs.
    """

    epoch_job: int
    files: Mapping[str, tuple[str, ...]]

    def of(self, source: SourcePlan) -> list[str]:
        """The files that a source of the epoch job is made of."""
        return [path for uid in source.staged for path in self.files.get(uid, ())]


class EpochDriver(Protocol):
    """The job master as the engine sees it while it feeds epochs."""

    def process(self, epoch_input: EpochInput) -> None:
        """Runs one data epoch to its end, checkpoint included; sinks may go on. Blocks; raises what failed."""

    def tick_if_due(self) -> None:
        """Runs an epoch without input if a timer or a requested checkpoint is due; raises what a commit has met."""

    def wait_all_committed(self) -> None:
        """Blocks until sinks have committed all that they may; raises what failed."""

    def wait(self, seconds: float) -> None:
        """Waits until something may be due, a stop is asked for, or the time has passed."""

    @property
    def epoch(self) -> int:
        """Number of the epoch that runs, or ran last."""

    @property
    def is_stopping(self) -> bool:
        """Whether no further epoch may start."""


class Engine(ABC):
    """Runs the epochs of one job."""

    @abstractmethod
    def prepare(self, job: JobDescriptor, positions: Mapping[str, Any] | None, token: int, rules: InputRules) -> None:
        """Starts a job attempt: ships the functions and seeds the sources (positions None: from their start).

        Args:
            job: The job.
            positions: Of a checkpoint.
            token: Of the attempt.
            rules: What the user has said about inputs that do not fit the positions.

        Raises:
            RestoreError: Inputs do not fit the positions, and the user has not said what is to be done.
        """

    @abstractmethod
    def update_plan(self, job: JobDescriptor) -> None:
        """Ships the job again, with another plan of the same operators; the epochs after it run by that one."""

    @abstractmethod
    def drive(self, driver: EpochDriver) -> Outcome:
        """Feeds epochs until inputs end or a stop is asked for. Blocks; raises what made it fail."""

    @abstractmethod
    def execute(self, epoch: EpochDescriptor, epoch_input: EpochInput | StagedInput | None) -> list[Barrier]:
        """Runs the tasks of one epoch job in one attempt at an epoch and returns the barriers of its last stage.

        Args:
            epoch: The attempt at the epoch.
            epoch_input: Input of the epoch for its first epoch job, None if it has none; what was staged for a later
                one.

        Raises:
            HoldfastError: What a task raised, or `EngineError` for a failure of the engine itself.
        """

    def source_numbers(self) -> Mapping[str, SourceStatistics]:
        """What waits in sources and what they count, by uid, as far as the engine knows. May be asked at any time."""
        return {}

    def checkpoint_completed(self, positions: Mapping[str, Any]) -> None:  # noqa: B027 - most have nobody to tell
        """A checkpoint is complete and its output committed; sources that wish to know are told. Does not block.

        Args:
            positions: Where the sources stand in it.
        """

    def bind_session(self, call: Callable[[], T]) -> Callable[[], T]:
        """The call, for another thread: what the engine keeps of the thread that asks goes with it."""
        return call

    @property
    def batch_rows(self) -> int:
        """How many rows a task gets at once at most; 0 where elements cannot cross its exchanges in messages."""
        return 10_000

    @abstractmethod
    def services(self) -> Mapping[str, Any]:
        """What committers may use, by name."""

    @abstractmethod
    def close(self) -> None:
        """Ends the attempt: stops feeding, removes what belongs to this attempt alone. Never raises."""


# What is fixed about a job for as long as this process runs it.


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


# Where a job keeps its checkpoints, by its options.


def checkpoint_root(configuration: Configuration) -> str | None:
    """Return the directory of checkpoints; None for one that goes with the process.

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
            f"'filesystem' or 'jobmanager', and name a directory with {CHECKPOINTS_DIRECTORY.key}. A storage of your "
            "own is for a CheckpointCoordinator that is used by hand."
        )
    if name and directory is None:
        raise ConfigurationError(f"{CHECKPOINT_STORAGE.key} is {kind!r}, but {CHECKPOINTS_DIRECTORY.key} is not set.")
    return directory


def job_directory(fs: FileSystem, root: str, job_id: JobID, configuration: Configuration) -> JobDirectory:
    """Return the directory of a job, which its id names unless execution.checkpointing.create-subdir is off."""
    return JobDirectory(fs, root, job_id, create_subdir=configuration.get(CREATE_CHECKPOINT_SUBDIR))
