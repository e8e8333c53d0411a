"""Levels and legs: which operators share a task, what crosses each exchange, and what needs a job of its own.

A **level** is one Python stage of the Spark job of an epoch. All operators of a level share its tasks (subtask i of
each runs in task i), so that a job is one linear chain of exchanges and one Spark action, without a cache between
actions. The first level of a job has no exchange before it: it is what the source's own partitions run, and it exists
only if something needs Python before the first exchange.

An **edge** carries elements from one level to a later one. Where several edges cross the same exchange each has a
struct column of its own; an edge that spans several exchanges is handed on untouched by the levels in between.

A **leg** is one such job. Most epochs have one; each `transform()` after a Python operator begins another, which reads
what the tasks of the legs before it have staged. `holdfast.runtime.compiler` makes all this from a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from holdfast.kernel.watermark import WatermarkStrategy
from holdfast.runtime.event_time import Clock
from holdfast.runtime.graph import KeySpec, Node, OperatorSpec
from holdfast.types.key import KeyCodec
from holdfast.types.type_information import TypeInformation


@dataclass(frozen=True)
class Port:
    """Where elements come from: a frame of the engine, a step of the same level, or an edge that ends here."""

    kind: Literal["source", "step", "edge"]
    name: str
    tag: str | None = None


@dataclass(frozen=True)
class KeyPlan:
    """How an edge is partitioned."""

    spec: KeySpec
    codec: KeyCodec
    parallelism: int
    max_parallelism: int


@dataclass(frozen=True)
class Edge:
    """Elements that cross at least one exchange on their way to `consumer`.

    Attributes:
        key: How they are partitioned; None for elements that stay together with those of their task.
        parallelism: Subtasks of the consumer, if it has a number of its own; 0 if it runs in every task.
        broadcast: Whether each of them gets a copy.
        stamped: Whether the elements have event times.
    """

    name: str
    origin: Port
    consumer: str
    from_level: int
    to_level: int
    element_type: TypeInformation
    key: KeyPlan | None
    parallelism: int = 0
    broadcast: bool = False
    stamped: bool = False

    def targets(self, exchange: int, tasks: int, partition: int) -> Sequence[int | None]:
        """To which tasks an element goes that a task sends into an exchange, None for one that its key places.

        Args:
            exchange: Index of the level behind the exchange.
            tasks: Number of tasks of that level.
            partition: The sending task.
        """
        if self.key is not None:
            return (None,)
        if exchange < self.to_level or not self.parallelism:
            return (partition % tasks,)
        return range(self.parallelism) if self.broadcast else (partition % self.parallelism,)


@dataclass(frozen=True)
class Step:
    """An operator or a sink as it runs in the tasks of one level, or what stages elements for a later leg.

    Attributes:
        parallelism: Number of subtasks of an operator with state; 0 for a step that runs in every task.
        strategy: Of a step that assigns timestamps.
        clocks: The steps that assign the timestamps by which its event time advances; none if it does not.
        stamped: Whether its elements have event times.
    """

    uid: str
    name: str
    kind: Literal["keyed", "narrow", "timestamps", "sink", "stage"]
    inputs: tuple[Port, ...]
    input_type: TypeInformation
    output_type: TypeInformation
    operator: OperatorSpec | None = None
    sink: Any = None
    parallelism: int = 0
    max_parallelism: int = 0
    codec: KeyCodec | None = None
    strategy: WatermarkStrategy | None = None
    clocks: tuple[str, ...] = ()
    stamped: bool = False

    @property
    def has_operator_state(self) -> bool:
        """Whether it has state that belongs to a subtask."""
        return self.operator is not None and self.operator.has_operator_state


@dataclass(frozen=True)
class Level:
    """What one Python stage reads, runs and hands on.

    Attributes:
        index: 0 for the stage on the source's own partitions; unique in the plan, later legs go on counting.
        tasks: Number of tasks; 0 where the source decides.
        arriving: Edges that cross the exchange before this level (ends here or is handed on).
        steps: Operators and sinks, producers before consumers.
        leaving: Edges that cross the exchange after this level.
    """

    index: int
    tasks: int
    arriving: tuple[Edge, ...]
    steps: tuple[Step, ...]
    leaving: tuple[Edge, ...]


@dataclass(frozen=True)
class Source:
    """A frame of the engine, read by steps of the first level of a leg or by edges.

    Attributes:
        node: The input, or the last of the frame transforms that make it; None for staged elements as they are, and
            in workers: frames live in the driver.
        staged: The steps that have staged what it is made of; none for an input of the job.
        stamped: Whether the elements have event times.
    """

    uid: str
    node: Node | None
    element_type: TypeInformation
    staged: tuple[str, ...] = ()
    stamped: bool = False


@dataclass(frozen=True)
class Leg:
    """What one job of the engine runs.

    Attributes:
        base: Index that the level on the partitions of its sources has, or would have.
    """

    base: int
    sources: tuple[Source, ...]
    levels: tuple[Level, ...]

    @property
    def starts_in_python(self) -> bool:
        """Whether the partitions of its sources run a Python stage."""
        return self.levels[0].index == self.base

    @property
    def tasks(self) -> dict[int, int]:
        """Number of tasks by level; 0 where the source decides."""
        return {level.index: level.tasks for level in self.levels}


@dataclass(frozen=True)
class JobPlan:
    """The legs of a job, and what crosses the exchanges in them."""

    legs: tuple[Leg, ...]
    edges: tuple[Edge, ...]
    names: dict[str, str] = field(default_factory=dict)

    @property
    def sources(self) -> tuple[Source, ...]:
        """The inputs of the job."""
        return self.legs[0].sources

    @property
    def levels(self) -> tuple[Level, ...]:
        """All levels of all legs."""
        return tuple(level for leg in self.legs for level in leg.levels)

    @property
    def clocks(self) -> dict[str, Clock]:
        """The steps that assign timestamps."""
        steps = [step for level in self.levels for step in level.steps if step.strategy is not None]
        return {step.uid: Clock.of(step.strategy) for step in steps if step.strategy is not None}

    def clocks_of_steps(self) -> dict[str, tuple[str, ...]]:
        """The clocks of each step."""
        return {step.uid: step.clocks for level in self.levels for step in level.steps}

    def leg_of(self, level: int) -> Leg:
        """The leg that has the level of this index."""
        return next(leg for leg in reversed(self.legs) if leg.base <= level)

    def without_frames(self) -> JobPlan:
        """The plan as workers need it."""
        legs = [replace(leg, sources=tuple(replace(source, node=None) for source in leg.sources)) for leg in self.legs]
        return replace(self, legs=tuple(legs))

    def keyed_steps(self) -> list[Step]:
        """All steps with keyed state."""
        return [step for level in self.levels for step in level.steps if step.kind == "keyed"]

    def stateful_steps(self) -> list[Step]:
        """All steps with keyed state or operator state."""
        return [step for level in self.levels for step in level.steps if step.parallelism]

    def sinks(self) -> list[Step]:
        """All sinks."""
        return [step for level in self.levels for step in level.steps if step.kind == "sink"]
