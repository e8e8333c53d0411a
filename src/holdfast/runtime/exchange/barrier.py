"""The barrier row: what a task says about itself when it has read its input and written its run.

One copy goes to every task of the next stage, as a row in the reserved control column, so that what is acknowledged
is exactly what was
used: a task lists the attempts whose barriers it read, and the job master accepts an epoch only if all lists agree. A
barrier of partition 0 also carries the full barriers of the stage above, so that they reach the driver through the
last stage; the others carry only the list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import InconsistentEpochError
from holdfast.runtime.graph.event_time import greatest


@dataclass(frozen=True)
class StepReport:
    """What one step of a task did in the epoch.

    Attributes:
        uid: The step.
        subtask: Index of the subtask.
        run: The new run's handle as JSON; None if no state changed.
        committables: What the sink staged, JSON values.
        records_in: Elements read.
        records_out: Elements emitted.
        least_timer: Time of the least processing-time timer in milliseconds, None if there is none.
        operator_state: The subtask's operator state as JSON; None if it has not changed.
        queryable: The names under which its states can be queried.
        staged: Names of the files that it staged for a later epoch job of the epoch.
        observed: The greatest timestamp that it assigned, None if there was none.
        saving: How many milliseconds its function took to save its state, and the subtask to write it.
    """

    uid: str
    subtask: int
    run: dict[str, Any] | None = None
    committables: tuple[Any, ...] = ()
    records_in: int = 0
    records_out: int = 0
    least_timer: int | None = None
    operator_state: dict[str, Any] | None = None
    queryable: tuple[str, ...] = ()
    staged: tuple[str, ...] = ()
    observed: int | None = None
    saving: tuple[int, int] = (0, 0)

    def to_json(self) -> dict[str, Any]:
        return {
            "uid": self.uid,
            "subtask": self.subtask,
            "run": self.run,
            "committables": list(self.committables),
            "in": self.records_in,
            "out": self.records_out,
            "least_timer": self.least_timer,
            "operator_state": self.operator_state,
            "queryable": list(self.queryable),
            "staged": list(self.staged),
            "observed": self.observed,
            "saving": list(self.saving),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> StepReport:
        _require(value, uid=str, subtask=int, committables=list, queryable=list, staged=list, saving=list)
        _require(value, **{"in": int, "out": int})
        return cls(
            value["uid"],
            value["subtask"],
            value["run"],
            tuple(value["committables"]),
            value["in"],
            value["out"],
            value["least_timer"],
            value["operator_state"],
            tuple(value["queryable"]),
            tuple(value["staged"]),
            value["observed"],
            (value["saving"][0], value["saving"][1]),
        )


@dataclass(frozen=True)
class Barrier:
    """One task's acknowledgement of one epoch.

    Attributes:
        read: Partition and attempt of the tasks of the stage above whose barriers it has read.
        upstream: These barriers, in the one of partition 0.
        observed: The greatest timestamp by clock that this task, and those that it has read of, assigned.
    """

    stage: int
    partition: int
    attempt: str
    steps: tuple[StepReport, ...] = ()
    read: tuple[tuple[int, str], ...] = ()
    upstream: tuple[Barrier, ...] = ()
    observed: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "partition": self.partition,
            "attempt": self.attempt,
            "steps": [step.to_json() for step in self.steps],
            "read": [list(item) for item in self.read],
            "upstream": [barrier.to_json() for barrier in self.upstream],
            "observed": dict(self.observed),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Barrier:
        """The barrier of which `to_json` was written.

        Raises:
            Any of `MALFORMED`: There is none.
        """
        _require(value, stage=int, partition=int, attempt=str, steps=list, read=list, upstream=list, observed=dict)
        return cls(
            stage=value["stage"],
            partition=value["partition"],
            attempt=value["attempt"],
            steps=tuple(StepReport.from_json(step) for step in value["steps"]),
            read=tuple((partition, attempt) for partition, attempt in value["read"]),
            upstream=tuple(cls.from_json(barrier) for barrier in value["upstream"]),
            observed=value["observed"],
        )


def _require(value: Mapping[str, Any], **kinds: type) -> None:
    for name, kind in kinds.items():
        if type(value[name]) is not kind:
            raise TypeError(f"{name!r} of a barrier is {value[name]!r:.80}")


class BarrierReader:
    """Collects the barriers that arrive in one task's input."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, str], Barrier] = {}

    def take(self, barrier: Barrier) -> None:
        """Takes one barrier; a copy of one that was taken changes nothing."""
        self._seen[barrier.partition, barrier.attempt] = barrier

    def read_list(self) -> tuple[tuple[int, str], ...]:
        """(partition, attempt) of every barrier read, sorted."""
        return tuple(sorted(self._seen))

    def observed(self) -> dict[str, int]:
        """The greatest timestamp by clock that the tasks above have assigned or read of."""
        return greatest(*(barrier.observed for barrier in self._seen.values()))

    def barriers(self) -> tuple[Barrier, ...]:
        """The barriers themselves, in the same order."""
        return tuple(self._seen[key] for key in sorted(self._seen))


@dataclass(frozen=True)
class EpochReport:
    """All barriers of an epoch, stage by stage, known to agree."""

    stages: tuple[tuple[Barrier, ...], ...]

    def steps(self) -> list[StepReport]:
        """Reports of all subtasks of all steps."""
        return [step for stage in self.stages for barrier in stage for step in barrier.steps]

    def observed(self) -> dict[str, int]:
        """The greatest timestamp by clock."""
        return greatest(*({step.uid: step.observed} for step in self.steps() if step.observed is not None))


def accept(last_stage: list[Barrier], tasks: dict[int, int]) -> EpochReport:
    """Checks that the acknowledged attempts are exactly those whose rows were used.

    Args:
        last_stage: The barriers that the engine's action returned.
        tasks: Number of tasks of each stage; 0 where the source decides (stage 0).

    Raises:
        InconsistentEpochError: A task is missing or answered twice, or two tasks read different attempts of one
            upstream task. Nothing of the epoch may be used; run it again under a new attempt id.
    """
    stages: list[tuple[Barrier, ...]] = []
    current = tuple(sorted(last_stage, key=lambda b: b.partition))
    for index in sorted(tasks, reverse=True):
        _check_complete(current, index, tasks[index])
        stages.append(current)
        if index - 1 in tasks:
            current = _upstream_of(current, index)
        elif any(barrier.read for barrier in current):
            raise InconsistentEpochError(f"stage {index} has no stage above it, but its tasks read barriers")
    return EpochReport(tuple(reversed(stages)))


def _check_complete(barriers: tuple[Barrier, ...], index: int, expected: int) -> None:
    partitions = [barrier.partition for barrier in barriers]
    wrong = [b.stage for b in barriers if b.stage != index]
    if wrong or len(set(partitions)) != len(partitions) or (expected and partitions != list(range(expected))):
        raise InconsistentEpochError(
            f"stage {index} must be acknowledged by each of its {expected or 'own'} tasks once, but acknowledgements "
            f"came from partitions {partitions}"
        )


def _upstream_of(current: tuple[Barrier, ...], index: int) -> tuple[Barrier, ...]:
    lists = {barrier.read for barrier in current}
    if len(lists) > 1:
        named = [f"partition {b.partition} read {list(b.read)}" for b in current]
        raise InconsistentEpochError(
            f"tasks of stage {index} read different attempts of the stage above: {'; '.join(named)}"
        )
    carrier = next(b for b in current if b.partition == 0)
    if tuple((b.partition, b.attempt) for b in carrier.upstream) != carrier.read:
        raise InconsistentEpochError(f"partition 0 of stage {index} carries other barriers than it lists")
    return carrier.upstream
