"""The barrier: what a task says about itself when it has read its input and written its run.

Every task of the next stage gets a marker of it (`marker`), and one of them the whole of it, so that what is
acknowledged is exactly what was used: a task has a digest of the attempts whose markers it read, and the job master
accepts an epoch only if all tasks of a stage have read each task above once, in the attempt whose report has come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.errors import InconsistentEpochError
from holdfast.runtime.exchange.marker import NOTHING_READ, digest_of, head
from holdfast.runtime.graph.event_time import greatest

_TOLD: Final = 5
"""How many tasks an error names."""


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
        metrics: What the function has counted itself; see `holdfast.runtime.function.metric`.
        busy: How many microseconds the subtask has worked, handing on what it emitted included.
        arrived: Rows and bytes that came to it in columns, by the edge or the source that they came from.
        warm: 1 if its state was in the worker's memory, 0 if it was not, None where none is kept there.
        generator: What its watermark generator holds, pickled, in base 64; None if there is none, or no change.
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
    metrics: dict[str, list[Any]] = field(default_factory=dict)
    busy: int = 0
    arrived: dict[str, tuple[int, int]] = field(default_factory=dict)
    warm: int | None = None
    generator: str | None = None

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
            **({"metrics": self.metrics} if self.metrics else {}),
            **({"busy": self.busy} if self.busy else {}),
            **({"arrived": {name: list(numbers) for name, numbers in self.arrived.items()}} if self.arrived else {}),
            **({} if self.warm is None else {"warm": self.warm}),
            **({} if self.generator is None else {"generator": self.generator}),
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
            _metrics(value.get("metrics", {})),
            _number("busy", value.get("busy", 0)),
            _arrived(value.get("arrived", {})),
            _number("warm", value["warm"]) if "warm" in value else None,
            _generator(value.get("generator")),
        )


@dataclass(frozen=True)
class Barrier:
    """One task's acknowledgement of one epoch.

    Attributes:
        read: Digest of the markers that it has read, `NOTHING_READ` for none.
        upstream: The barriers of the stage above that it carries to the driver.
        observed: The greatest timestamp by clock that this task, and those that it has read of, assigned.
        listed: Partition and attempt of what it has read, where an epoch is run again and people may want to know.
    """

    stage: int
    partition: int
    attempt: str
    steps: tuple[StepReport, ...] = ()
    read: str = NOTHING_READ
    upstream: tuple[Barrier, ...] = ()
    observed: Mapping[str, int] = field(default_factory=dict)
    listed: tuple[tuple[int, str], ...] = ()

    @property
    def head(self) -> bytes:
        """What the markers of this task begin with."""
        return head(self.stage, self.partition, self.attempt)

    def to_json(self) -> dict[str, Any]:
        """All but the barriers that it carries."""
        return {
            "stage": self.stage,
            "partition": self.partition,
            "attempt": self.attempt,
            "steps": [step.to_json() for step in self.steps],
            "read": self.read,
            "observed": dict(self.observed),
            **({"listed": [list(item) for item in self.listed]} if self.listed else {}),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any], upstream: tuple[Barrier, ...] = ()) -> Barrier:
        """The barrier of which `to_json` was written.

        Args:
            value: What was written.
            upstream: The barriers that it carries.

        Raises:
            Any of `MALFORMED`: There is none.
        """
        _require(value, stage=int, partition=int, attempt=str, steps=list, read=str, observed=dict)
        barrier = cls(
            stage=value["stage"],
            partition=value["partition"],
            attempt=value["attempt"],
            steps=tuple(StepReport.from_json(step) for step in value["steps"]),
            read=value["read"],
            upstream=upstream,
            observed=value["observed"],
            listed=tuple((partition, attempt) for partition, attempt in value.get("listed", ())),
        )
        assert barrier.head
        return barrier


def _metrics(value: Any) -> dict[str, list[Any]]:
    _require({"metrics": value}, metrics=dict)
    for name, entry in value.items():
        _require({name: entry}, **{name: list})
        if not entry or any(type(number) not in (int, float) for number in entry[1:]):
            raise TypeError(f"metric {name!r:.80} of a barrier is {entry!r:.80}")
    return dict(value)


def _arrived(value: Any) -> dict[str, tuple[int, int]]:
    _require({"arrived": value}, arrived=dict)
    return {name: (_number(name, rows), _number(name, size)) for name, (rows, size) in value.items()}


def _generator(value: Any) -> str | None:
    if value is not None:
        _require({"generator": value}, generator=str)
    return value  # type: ignore[no-any-return]


def _number(name: str, value: Any) -> int:
    _require({name: value}, **{name: int})
    return int(value)


def _require(value: Mapping[str, Any], **kinds: type) -> None:
    for name, kind in kinds.items():
        if type(value[name]) is not kind:
            raise TypeError(f"{name!r} of a barrier is {value[name]!r:.80}")


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
        InconsistentEpochError: A task is missing or answered twice, or a task has read another attempt of a task above
            than the one whose report came, or one twice, or not at all. Nothing of the epoch may be used; run it again
            under a new attempt id.
    """
    stages: list[tuple[Barrier, ...]] = []
    current = tuple(sorted(last_stage, key=lambda b: b.partition))
    for index in sorted(tasks, reverse=True):
        _check_complete(current, index, tasks[index])
        stages.append(current)
        if index - 1 in tasks:
            current = _upstream_of(current, index)
        elif any(barrier.read != NOTHING_READ or barrier.upstream for barrier in current):
            raise InconsistentEpochError(f"stage {index} has no stage above it, but its tasks have read markers")
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
    above = sorted((b for barrier in current for b in barrier.upstream), key=lambda b: (b.partition, b.attempt))
    came = digest_of(barrier.head for barrier in above)
    differing = [barrier for barrier in current if barrier.read != came]
    if differing:
        raise InconsistentEpochError(
            f"tasks of stage {index} have read different attempts of the stage above than those whose reports came, or "
            f"one of them twice or not at all: {len(differing)} of {len(current)} tasks{_told(differing, above)}"
        )
    return tuple(above)


def _told(differing: Sequence[Barrier], above: Sequence[Barrier]) -> str:
    """Which tasks, and what the first of them has read that is not what came, if it lists that."""
    partitions = ", ".join(str(barrier.partition) for barrier in differing[:_TOLD])
    first = next((barrier for barrier in differing if barrier.listed), None)
    if first is None:
        return f" (partitions {partitions}{', ...' if len(differing) > _TOLD else ''})"
    read, came = Counter(first.listed), Counter((barrier.partition, barrier.attempt) for barrier in above)
    more, less = sorted((read - came).elements()), sorted((came - read).elements())
    return f" (partitions {partitions}); partition {first.partition} read {more[:_TOLD]} instead of {less[:_TOLD]}"
