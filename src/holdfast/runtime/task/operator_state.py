"""Operator state between epochs: the files of a task, and the state of all subtasks in the job master."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from holdfast.checkpoint.metadata import OperatorMetadata
from holdfast.checkpoint.options import FS_SMALL_FILE_THRESHOLD
from holdfast.errors import ConfigurationError, StateError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.runtime.exchange.owned_file import read_owned, write_owned
from holdfast.runtime.exchange.task_report import StepReport
from holdfast.runtime.graph.plan import JobPlan, Stage
from holdfast.state.environment import TaskKvStateRegistry
from holdfast.state.operator_snapshot import Mode, OperatorSnapshot, SnapshotStore
from holdfast.state.operator_state import RoundRobinOperatorStateRepartitioner
from holdfast.storage.job_directory import FileName, JobDirectory

REPORT_BUDGET = 24 * 1024
"""The largest operator state in one report, in bytes before the encoding."""

Subtasks = tuple[OperatorSnapshot | None, ...]


class TaskSnapshotStore(SnapshotStore):
    """Keeps small state in the report, and writes larger state to a file.

    Args:
        directory: The job's directory.
        name: Makes a new file name.
        inline_limit: The largest state that stays in the report, in bytes.
    """

    def __init__(self, directory: JobDirectory, name: Callable[[], FileName], inline_limit: int) -> None:
        self.inline_limit = inline_limit
        self._directory = directory
        self._name = name

    def write_file(self, data: bytes) -> dict[str, Any]:
        return write_owned(self._directory, self._name, data)

    def read_file(self, data: Mapping[str, Any]) -> bytes:
        return read_owned(self._directory, data)


def inline_limit(configuration: Configuration, stage: Stage, stages: Sequence[Stage]) -> int:
    """Return how many bytes of one subtask's state may stay in its report.

    A report has the state of all steps of its task, and the reports that it forwards; the budget is for all together.

    Args:
        configuration: Configuration of the job.
        stage: The stage of the subtask.
        stages: All stages of its epoch job.
    """
    steps = sum(step.has_operator_state for step in stage.steps)
    return min(configuration.get(FS_SMALL_FILE_THRESHOLD), REPORT_BUDGET // max(1, steps * _forwarded(stage, stages)))


def _forwarded(stage: Stage, stages: Sequence[Stage]) -> int:
    """Return how many reports of a stage, or of the stages between, one task below forwards at most."""
    together = most = 1
    tasks = stage.tasks
    for lower in (other for other in stages if other.index > stage.index):
        together *= -(-tasks // lower.tasks) if tasks else 1
        most = max(most, together)
        tasks = lower.tasks
    return most * len(stages)


class OperatorStates:
    """The operator state of all operators of a job attempt before its next epoch.

    Within an attempt each subtask gets the state that it left. State is redistributed when the attempt begins with a
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
                self._by_uid[step.uid] = _redistributed(tuple(subtasks), step.parallelism)

    def for_epoch(self) -> dict[str, Subtasks]:
        return dict(self._by_uid)

    def update(self, reports: Iterable[StepReport], parallelism: Mapping[str, int]) -> None:
        """Update the state from the reports of an accepted epoch.

        Args:
            reports: The reports of steps.
            parallelism: Number of subtasks by uid.

        Raises:
            StateError: Two subtasks use one name with different modes (list, union or broadcast).
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
        """Redistribute the state of operators whose parallelism changes."""
        for step in plan.stateful_steps():
            subtasks = self._by_uid.get(step.uid)
            if subtasks is not None and len(subtasks) != step.parallelism:
                self._by_uid[step.uid] = _redistributed(subtasks, step.parallelism)

    def to_json(self, uid: str) -> tuple[Any, ...]:
        """Return the state of an operator for the metadata of a checkpoint, empty if it has none."""
        return tuple(None if part is None else part.to_json() for part in self._by_uid.get(uid, ()))

    def paths(self) -> set[str]:
        """Return the files that the next epoch needs."""
        return {path for subtasks in self._by_uid.values() for part in subtasks if part for path in part.paths()}


def _verify_mode(uid: str, name: str, mode: Mode, subtasks: Iterable[OperatorSnapshot | None]) -> None:
    """Check that all subtasks use a name with the same mode; otherwise its state cannot be redistributed."""
    for other in subtasks:
        known = other.states[name].mode if other is not None and name in other.states else mode
        if known is not mode:
            raise StateError(
                f"Incompatible state assignment modes: operator state {name!r} of {uid!r} is {known.value!r} on one "
                f"subtask and {mode.value!r} on another. Give one of them another name."
            )


def _redistributed(subtasks: Subtasks, parallelism: int) -> Subtasks:
    return tuple(RoundRobinOperatorStateRepartitioner().repartition_state(subtasks, len(subtasks), parallelism))


# Names of queryable states. States are known only once the functions are open, so tasks report their names, and the job
# master compares them before the first epoch is accepted: a clash fails the job before anything is committed.


class QueryableNames(TaskKvStateRegistry):
    """Collects the names of queryable states of one subtask of an operator."""

    def __init__(self, uid: str) -> None:
        self._uid = uid
        self._states: dict[str, str] = {}

    def register_kv_state(self, key_group_range: KeyGroupRange, registration_name: str, state_name: str) -> None:
        """Register a name.

        Raises:
            ConfigurationError: Another state of the operator has this name.
        """
        known = self._states.setdefault(registration_name, state_name)
        if known != state_name:
            raise ConfigurationError(
                f"Registration name clash. States {known!r} and {state_name!r} of operator {self._uid!r} are both "
                f"queryable as {registration_name!r}. Give one of them another name."
            )

    def unregister_all(self) -> None:
        self._states.clear()

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._states))


def check_queryable_names(steps: Iterable[StepReport]) -> None:
    """Check that no two operators have queryable state of the same name.

    Raises:
        ConfigurationError: Two operators use one name.
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
