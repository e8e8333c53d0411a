"""Operator state between epochs: files of a task's part, and what the job master holds of all subtasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from holdfast.checkpoint.metadata import OperatorMetadata
from holdfast.checkpoint.options import FS_SMALL_FILE_THRESHOLD
from holdfast.errors import ConfigurationError, StateError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.runtime.exchange.barrier import StepReport
from holdfast.runtime.exchange.owned_file import read_owned, write_owned
from holdfast.runtime.graph.plan import JobPlan, Stage
from holdfast.state.environment import TaskKvStateRegistry
from holdfast.state.operator_snapshot import Mode, OperatorSnapshot, SnapshotStore
from holdfast.state.operator_state import RoundRobinOperatorStateRepartitioner
from holdfast.storage.job_directory import FileName, JobDirectory

BARRIER_BUDGET = 24 * 1024
"""Bytes of operator state, before they are encoded, that may travel in one barrier row."""

Subtasks = tuple[OperatorSnapshot | None, ...]


class TaskSnapshotStore(SnapshotStore):
    """Keeps small state in the barrier, and writes larger state to a file among those that operators own.

    Args:
        directory: The job's directory.
        name: Draws a new name for a file.
        inline_limit: Up to how many bytes state stays in the barrier.
    """

    def __init__(self, directory: JobDirectory, name: Callable[[], FileName], inline_limit: int) -> None:
        self.inline_limit = inline_limit
        self._directory = directory
        self._name = name

    def write_file(self, data: bytes) -> dict[str, Any]:
        """Write a new file, durably."""
        return write_owned(self._directory, self._name, data)

    def read_file(self, data: Mapping[str, Any]) -> bytes:
        """Read a file and check it."""
        return read_owned(self._directory, data)


def inline_limit(configuration: Configuration, stage: Stage, stages: Sequence[Stage]) -> int:
    """Bytes of one subtask's state that may stay in its barrier.

    What a task says holds the state of all steps of its task, and what it carries that of tasks above; the budget is
    for all of them together.

    Args:
        configuration: Of the job.
        stage: The stage of the subtask.
        stages: All stages of its epoch job.
    """
    steps = sum(step.has_operator_state for step in stage.steps)
    return min(configuration.get(FS_SMALL_FILE_THRESHOLD), BARRIER_BUDGET // max(1, steps * _carried(stage, stages)))


def _carried(stage: Stage, stages: Sequence[Stage]) -> int:
    """How many tasks one task below may speak for at most, those of the stages between counted like the first one's."""
    together = most = 1
    tasks = stage.tasks
    for lower in (other for other in stages if other.index > stage.index):
        together *= -(-tasks // lower.tasks) if tasks else 1
        most = max(most, together)
        tasks = lower.tasks
    return most * len(stages)


class OperatorStates:
    """The operator state of all operators of a job attempt, as its next epoch finds it.

    Within an attempt each subtask finds what it left. State is dealt out again when the attempt begins with a
    checkpoint, and when the parallelism of an operator changes.

    Args:
        plan: The job.
        operators: The operators of the checkpoint that is restored.
    """

    def __init__(self, plan: JobPlan, operators: Iterable[OperatorMetadata] = ()) -> None:
        stored = {operator.uid: operator.subtasks for operator in operators}
        self._by_uid: dict[str, Subtasks] = {}
        for step in plan.stateful_steps():
            subtasks = [None if item is None else OperatorSnapshot.from_json(item) for item in stored.get(step.uid, ())]
            if any(subtasks):
                self._by_uid[step.uid] = _dealt_out(tuple(subtasks), step.parallelism)

    def for_epoch(self) -> dict[str, Subtasks]:
        """The state of each subtask, by uid."""
        return dict(self._by_uid)

    def take(self, reports: Iterable[StepReport], parallelism: Mapping[str, int]) -> None:
        """Moves on to what subtasks have left; nothing, where they changed nothing.

        Args:
            reports: What steps have done in an epoch.
            parallelism: Number of subtasks by uid.

        Raises:
            StateError: A name that is new on a subtask is of another mode than on another one.
        """
        changed: dict[str, list[OperatorSnapshot | None]] = {}
        for report in sorted(reports, key=lambda report: report.subtask):
            if report.operator_state is None:
                continue
            uid = report.uid
            if uid not in changed:
                changed[uid] = list(self._by_uid.get(uid, (None,) * parallelism[uid]))
            subtasks = changed[uid]
            before, after = subtasks[report.subtask], OperatorSnapshot.from_json(report.operator_state)
            for name in after.states.keys() - (before.states if before else {}):
                _verify_mode(uid, name, after.states[name].mode, subtasks)
            subtasks[report.subtask] = after
        self._by_uid.update((uid, tuple(subtasks)) for uid, subtasks in changed.items())

    def replan(self, plan: JobPlan) -> None:
        """Deals out the state of operators whose parallelism changes."""
        for step in plan.stateful_steps():
            subtasks = self._by_uid.get(step.uid)
            if subtasks is not None and len(subtasks) != step.parallelism:
                self._by_uid[step.uid] = _dealt_out(subtasks, step.parallelism)

    def to_json(self, uid: str) -> tuple[Any, ...]:
        """The state of an operator as a checkpoint's document holds it, empty if there is none."""
        return tuple(None if part is None else part.to_json() for part in self._by_uid.get(uid, ()))

    def paths(self) -> set[str]:
        """The files that the next epoch needs."""
        return {path for subtasks in self._by_uid.values() for part in subtasks if part for path in part.paths()}


def _verify_mode(uid: str, name: str, mode: Mode, subtasks: Iterable[OperatorSnapshot | None]) -> None:
    """A subtask knows the modes of its own states; what the others have cannot be dealt out if it is of another one."""
    for other in subtasks:
        known = other.states[name].mode if other is not None and name in other.states else mode
        if known is not mode:
            raise StateError(
                f"Incompatible state assignment modes: operator state {name!r} of {uid!r} is {known.value!r} on one "
                f"subtask and {mode.value!r} on another. Give one of them another name."
            )


def _dealt_out(subtasks: Subtasks, parallelism: int) -> Subtasks:
    return tuple(RoundRobinOperatorStateRepartitioner().repartition_state(subtasks, len(subtasks), parallelism))


# The names under which the states of a job can be queried: each belongs to one state of one operator.
#
# Which states there are is known only once the functions are open, so tasks collect the names and report them, and the
# job master compares before the first epoch is accepted: a clash fails the job, and nothing was committed.


class QueryableNames(TaskKvStateRegistry):
    """Collects the names of one subtask.

    Args:
        uid: Its operator.
    """

    def __init__(self, uid: str) -> None:
        self._uid = uid
        self._states: dict[str, str] = {}

    def register_kv_state(self, key_group_range: KeyGroupRange, registration_name: str, state_name: str) -> None:
        """Take a name.

        Raises:
            ConfigurationError: Another state of the operator has it.
        """
        known = self._states.setdefault(registration_name, state_name)
        if known != state_name:
            raise ConfigurationError(
                f"Registration name clash. States {known!r} and {state_name!r} of operator {self._uid!r} are both "
                f"queryable as {registration_name!r}. Give one of them another name."
            )

    def unregister_all(self) -> None:
        """Forget all names."""
        self._states.clear()

    def names(self) -> tuple[str, ...]:
        """All names, sorted."""
        return tuple(sorted(self._states))


def check_queryable_names(steps: Iterable[StepReport]) -> None:
    """Check that no two operators have made state queryable under one name.

    Raises:
        ConfigurationError: Two have.
    """
    owners: dict[str, str] = {}
    for step in steps:
        for name in step.queryable:
            owner = owners.setdefault(name, step.uid)
            if owner != step.uid:
                raise ConfigurationError(
                    f"Registration name clash. KvState with name {name!r} has been registered by operator {owner!r} "
                    f"and by operator {step.uid!r}. Give one of them another name."
                )
