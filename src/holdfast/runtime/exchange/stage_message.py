"""Messages from the job master to tasks: the job once a job attempt, the epoch to each stage in every epoch.

The engine sends one function a stage, so a stage message reaches every task of the stage. It has the state of all
subtasks in slices (runs of key groups, operator state, watermark generators), of which a task unpickles only its own.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from holdfast.errors import ConfigurationError
from holdfast.kernel.ids import JobID
from holdfast.kernel.key_group import subtask_of
from holdfast.runtime.function.source import SplitSource
from holdfast.runtime.graph.event_time import EventTime, Generators
from holdfast.runtime.graph.plan import JobPlan, Stage
from holdfast.state.compaction_plan import TaskMerge, TaskMerges
from holdfast.state.operator_snapshot import OperatorSnapshot
from holdfast.state.run_file import RunHandle
from holdfast.state.version import StateVersion
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.scheme import file_system_for
from holdfast.types.program_classes import pickle_program

SubtaskStates = Sequence[OperatorSnapshot | None] | Mapping[int, OperatorSnapshot]
"""Operator state by subtask: of all subtasks, or of those that a task needs."""


@dataclass(frozen=True)
class JobDescriptor:
    """The constant facts of a job attempt, sent once, pickled, from the driver to its workers.

    Attributes:
        key: Unique name of the job attempt; a worker opens functions anew when it changes.
        job_root: Directory of the job in checkpoint storage, an absolute path or URI.
        nonce_file: Relative path of a file that the driver wrote there; a worker that cannot see it stops.
        incarnation: The incarnation of the job.
        targets: The results of `Sink.prepare`, by uid.
        split_sources: The sources that tasks of a real-time job read, by uid.
        control_secret: What driver and tasks of a real-time job prove to each other; here, because it must not be in
            a plan of the engine.
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
    incarnation: str = ""
    targets: Mapping[str, Any] = field(default_factory=dict)
    split_sources: Mapping[str, SplitSource] = field(default_factory=dict)
    control_secret: bytes = field(default=b"", repr=False)

    def directory(self) -> JobDirectory:
        fs = file_system_for(self.job_root)
        return JobDirectory(fs, self.job_root, JobID.from_hex(self.job_id), create_subdir=False)

    def to_bytes(self) -> bytes:
        """Pickle the descriptor with all user functions and the classes of the program; `unpickle_program` reads it.

        Raises:
            ConfigurationError: A function, a key selector or a sink cannot be pickled.
        """
        try:
            return pickle_program(replace(self, plan=self.plan.without_frames()))
        except Exception as error:
            raise ConfigurationError(
                f"{_culprit(self.plan)} cannot be sent to workers: {error}. Create connections, locks, sessions and "
                "open files in open(), which runs in the worker."
            ) from error


def _culprit(plan: JobPlan) -> str:
    """Name the part of a plan that cannot be pickled, for an error."""
    parts: list[tuple[str, Any]] = [
        (f"the {'sink' if step.sink else 'function'} of {step.uid!r}", (step.operator, step.sink))
        for stage in plan.stages
        for step in stage.steps
    ]
    parts += [(f"the key selector of {edge.consumer!r}", edge.key.spec) for edge in plan.edges if edge.key]
    for name, part in parts:
        try:
            pickle_program(part)
        except Exception:  # noqa: BLE001 - pickling user code may raise anything
            return name
    return "the job"


@dataclass(frozen=True)
class CheckpointNotifications:
    """Checkpoints to report to functions.

    Attributes:
        next_id: Id that the next checkpoint is expected to get.
        newest: The newest one that is complete, None if there is none.
        completed: The same, if it has completed since the epoch before.
        aborted: Those that failed since the epoch before.
    """

    next_id: int = 1
    newest: int | None = None
    completed: int | None = None
    aborted: tuple[int, ...] = ()

    def after(self, earlier: CheckpointNotifications) -> CheckpointNotifications:
        """Return one that also has the news of an earlier one, which was not delivered."""
        completed = earlier.completed if self.completed is None else self.completed
        return replace(self, completed=completed, aborted=earlier.aborted + self.aborted)


@dataclass(frozen=True)
class EpochDescriptor:
    """One try of one epoch. A task gets one with the state of its own subtasks (`StageMessage.for_task`).

    Attributes:
        try_number: Number of earlier tries of the epoch under this token.
        processing_time: Milliseconds since 1970, the same in the whole epoch.
        event_time: Event time as the epoch, or this epoch job of it, begins.
        versions: State version of each keyed step before the epoch.
        is_last: Whether event time ends with this epoch: its inputs have ended, or it is drained.
        operator_states: Operator state of each subtask before the epoch, by uid.
        follows: Whether another epoch of the same job attempt went before.
        notifications: Notifications of checkpoints for functions.
        generators: The watermark generator of each subtask after the epoch before, by uid.
        merges: Merges that tasks carry out when they write their runs.
    """

    epoch: int
    try_number: int
    processing_time: int
    event_time: EventTime
    versions: Mapping[str, StateVersion]
    is_last: bool = False
    operator_states: Mapping[str, SubtaskStates] = field(default_factory=dict)
    follows: bool = False
    notifications: CheckpointNotifications = field(default_factory=CheckpointNotifications)
    generators: Generators = field(default_factory=dict)
    merges: TaskMerges = field(default_factory=dict)

    def at(self, processing_time: int, event_time: EventTime) -> EpochDescriptor:
        """Return the same epoch at another time. For each step and round of a real-time task: `replace` is too slow."""
        copy = object.__new__(EpochDescriptor)
        copy.__dict__.update(self.__dict__, processing_time=processing_time, event_time=event_time)
        return copy

    def state_of(self, uid: str, subtask: int) -> OperatorSnapshot | None:
        """Return the operator state with which a subtask begins, None if it has none."""
        states = self.operator_states.get(uid, ())
        return states.get(subtask) if isinstance(states, Mapping) else states[subtask] if states else None


@dataclass(frozen=True)
class StageMessage:
    """One try of one epoch, for one stage.

    Attributes:
        epoch: The fields that are the same for all tasks, without state.
        slices: The state of each task, pickled, one after the other.
        ends: The end of each slice, as 64-bit numbers in native byte order.
    """

    epoch: EpochDescriptor
    slices: bytes
    ends: bytes

    @classmethod
    def of(cls, epoch: EpochDescriptor, stage: Stage) -> StageMessage:
        """Make the message for the tasks of a stage.

        Args:
            epoch: The epoch with the state of all subtasks of all steps.
            stage: The stage.
        """
        versions: dict[int, dict[str, StateVersion]] = defaultdict(dict)
        states: dict[int, dict[str, SubtaskStates]] = defaultdict(dict)
        generators: dict[int, dict[str, dict[int, str]]] = defaultdict(dict)
        merges: dict[int, dict[str, dict[int, TaskMerge]]] = defaultdict(dict)
        for step in stage.steps:
            for subtask, merge in epoch.merges.get(step.uid, {}).items():
                merges[subtask][step.uid] = {subtask: merge}
            for subtask, held in epoch.generators.get(step.uid, {}).items():
                generators[subtask][step.uid] = {subtask: held}
            if step.uid in epoch.versions:
                for subtask, runs in _by_subtask(epoch.versions[step.uid], step.max_parallelism, step.parallelism):
                    versions[subtask][step.uid] = StateVersion(tuple(runs))
            for subtask in range(step.parallelism if step.uid in epoch.operator_states else 0):
                state = epoch.state_of(step.uid, subtask)
                if state is not None:
                    states[subtask][step.uid] = {subtask: state}
        tasks = max(stage.tasks, 1 + max(generators, default=-1))  # where the source decides, there are 0 of the stage
        parts = [tuple(part.get(task, {}) for part in (versions, states, generators, merges)) for task in range(tasks)]
        slices = [pickle.dumps(part, pickle.HIGHEST_PROTOCOL) if any(part) else b"" for part in parts]
        ends = np.cumsum([len(part) for part in slices], dtype=np.int64)
        common = replace(epoch, versions={}, operator_states={}, generators={}, merges={})
        return cls(common, b"".join(slices), ends.tobytes())

    def for_task(self, partition: int) -> EpochDescriptor:
        """Return the epoch with the state of one task only."""
        ends = np.frombuffer(self.ends, np.int64)
        start = int(ends[partition - 1]) if 0 < partition <= len(ends) else 0
        end = int(ends[partition]) if partition < len(ends) else start
        if start == end:
            return self.epoch
        parts = pickle.loads(memoryview(self.slices)[start:end])  # noqa: S301 - the driver wrote it
        versions, states, generators, merges = parts
        return replace(self.epoch, versions=versions, operator_states=states, generators=generators, merges=merges)


def _by_subtask(version: StateVersion, max_parallelism: int, parallelism: int) -> list[tuple[int, list[RunHandle]]]:
    """Return the runs that each subtask needs, in their order."""
    found: dict[int, list[RunHandle]] = {}
    for run in version.runs:
        first, last = (subtask_of(group, max_parallelism, parallelism) for group in run.key_groups)
        for subtask in range(first, last + 1):
            found.setdefault(subtask, []).append(run)
    return list(found.items())
