"""The physical plan of a job: stages, edges between them, and epoch jobs.

A **stage** is one Python stage of a Spark job. All operators of a stage share its tasks (subtask i of each runs in task
i), so that a job is one linear chain of exchanges and one Spark action. The first stage of a job has no exchange before
it: it runs on the partitions of the source, and exists only if something needs Python before the first exchange.

An **edge** carries elements from one stage to a later one. Where several edges cross the same exchange each has a
struct column of its own; stages in between forward the elements of longer edges unchanged.

An **epoch job** is one such job. Most epochs have one; each `transform()` after a Python operator begins another one,
which reads what the tasks of earlier epoch jobs of the epoch have staged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from holdfast.kernel.secret import get_logger
from holdfast.kernel.watermark import WatermarkStrategy
from holdfast.runtime.function.source import AlignedSource
from holdfast.runtime.graph.event_time import WatermarkClock
from holdfast.runtime.graph.stream_graph import (
    BroadcastNode,
    FrameTransformNode,
    KeyedNode,
    KeySpec,
    Node,
    NonKeyedNode,
    OperatorSpec,
    SourceNode,
    StreamGraph,
    TimestampNode,
)
from holdfast.types.key_codec import KeyCodec
from holdfast.types.type_information import TypeInformation

logger = get_logger(__name__)


@dataclass(frozen=True)
class Port:
    """The origin of elements: a frame of the engine, a step of the same stage, or an edge that ends here."""

    kind: Literal["source", "step", "edge"]
    name: str
    tag: str | None = None


@dataclass(frozen=True)
class KeyPlan:
    """The partitioning of an edge."""

    spec: KeySpec
    codec: KeyCodec
    parallelism: int
    max_parallelism: int


@dataclass(frozen=True)
class Edge:
    """Elements that cross at least one exchange on their way to `consumer`.

    Attributes:
        key: The partitioning; None for elements that stay together with those of their task.
        parallelism: Number of subtasks of the consumer; 0 if it runs in every task.
        broadcast: Whether each subtask gets a copy.
        has_timestamps: Whether the elements have event times.
        time_column: The column of the elements that has their event times; None if they cross in a column of their own.
        second: Whether they are for the second input of the consumer.
    """

    name: str
    origin: Port
    consumer: str
    from_stage: int
    to_stage: int
    element_type: TypeInformation
    key: KeyPlan | None
    parallelism: int = 0
    broadcast: bool = False
    has_timestamps: bool = False
    time_column: str | None = None
    second: bool = False

    @property
    def has_timestamp_column(self) -> bool:
        """Whether event times cross in a column of their own."""
        return self.has_timestamps and self.time_column is None

    def targets(self, exchange: int, tasks: int, partition: int) -> Sequence[int | None]:
        """Return the tasks that an element goes to, None for the task of its key.

        Args:
            exchange: Index of the stage behind the exchange.
            tasks: Number of tasks of that stage.
            partition: The sending task.
        """
        if self.key is not None:
            return (None,)
        if exchange < self.to_stage or not self.parallelism:
            return (partition % tasks,)
        return range(self.parallelism) if self.broadcast else (partition % self.parallelism,)


@dataclass(frozen=True)
class Step:
    """An operator, a sink, or the staging for a later epoch job, in the tasks of one stage.

    Attributes:
        parallelism: Number of subtasks of an operator with state, or of one that elements are sent to by number; 0 for
            a step that runs in every task.
        strategy: The watermark strategy of a step that assigns timestamps.
        clocks: The steps that assign the timestamps by which its event time advances; none if it does not.
        has_timestamps: Whether its elements have event times.
        first_inputs: Number of inputs that are the first of an operator of two; 0 for an operator of one.
        dead_letters: Tag of the side output of a sink for elements that it cannot write; None if they fail the task.
    """

    uid: str
    name: str
    kind: Literal["keyed", "narrow", "timestamps", "forward", "sink", "staging"]
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
    has_timestamps: bool = False
    first_inputs: int = 0
    dead_letters: str | None = None
    aligned: AlignedSource | None = None

    @property
    def has_operator_state(self) -> bool:
        """Whether it has state that belongs to a subtask."""
        return self.operator is not None and self.operator.has_operator_state

    @property
    def windows(self) -> Mapping[str, Any]:
        """See `window_format_of`."""
        return {} if self.operator is None else window_format_of(self.operator)

    @property
    def is_clock(self) -> bool:
        """Whether watermarks follow from the timestamps that it assigns."""
        return self.strategy is not None and self.uid in self.clocks


def window_format_of(operator: OperatorSpec) -> Mapping[str, Any]:
    """Return the format of the open windows of an operator in a checkpoint; empty without windows."""
    if operator.shape not in ("window", "panes"):
        return {}
    kept: Mapping[str, Any] = operator.function.window_format
    return kept


@dataclass(frozen=True)
class Stage:
    """The edges and steps of one Python stage.

    Attributes:
        index: 0 for the stage on the partitions of the source; unique in the plan, also over epoch jobs.
        tasks: Number of tasks; 0 where the source decides.
        arriving: Edges that cross the exchange before this stage; they end here or are forwarded.
        steps: Operators and sinks, producers before consumers.
        leaving: Edges that cross the exchange after this stage.
        arrives_packed: Whether elements cross the exchange before it in messages, not as rows.
        leaves_packed: The same for the exchange after it.
        batch_rows: Rows that a task behind it gets at once, where elements leave in messages.
    """

    index: int
    tasks: int
    arriving: tuple[Edge, ...]
    steps: tuple[Step, ...]
    leaving: tuple[Edge, ...]
    arrives_packed: bool = False
    leaves_packed: bool = False
    batch_rows: int = 0


@dataclass(frozen=True)
class SourcePlan:
    """A frame of the engine that the first stage of an epoch job, or an edge, reads.

    Attributes:
        node: The input, or the last frame transform that makes it; None for staged elements and in workers, because
            frames stay in the driver.
        staged: The steps that have staged its rows; none for an input of the job.
        has_timestamps: Whether the elements have event times.
    """

    uid: str
    node: Node | None
    element_type: TypeInformation
    staged: tuple[str, ...] = ()
    has_timestamps: bool = False

    @property
    def has_timestamp_column(self) -> bool:
        """Whether event times come in a column of their own."""
        return self.has_timestamps


@dataclass(frozen=True)
class EpochJob:
    """One job of the engine.

    Attributes:
        base: Index of the stage on the partitions of its sources, whether it exists or not.
    """

    base: int
    sources: tuple[SourcePlan, ...]
    stages: tuple[Stage, ...]

    @property
    def starts_in_python(self) -> bool:
        """Whether the partitions of its sources run a Python stage."""
        return self.stages[0].index == self.base

    @property
    def tasks(self) -> dict[int, int]:
        """Number of tasks by stage; 0 where the source decides."""
        return {stage.index: stage.tasks for stage in self.stages}


@dataclass(frozen=True)
class JobPlan:
    """The epoch jobs of a job, and the edges in them."""

    epoch_jobs: tuple[EpochJob, ...]
    edges: tuple[Edge, ...]
    names: dict[str, str] = field(default_factory=dict)

    @property
    def sources(self) -> tuple[SourcePlan, ...]:
        """The inputs of the job."""
        return self.epoch_jobs[0].sources

    @property
    def stages(self) -> tuple[Stage, ...]:
        """All stages of all epoch jobs."""
        return tuple(stage for epoch_job in self.epoch_jobs for stage in epoch_job.stages)

    @property
    def clocks(self) -> dict[str, WatermarkClock]:
        """The steps that assign timestamps from which watermarks follow."""
        steps = [step for stage in self.stages for step in stage.steps if step.is_clock]
        return {step.uid: WatermarkClock.of(step.strategy) for step in steps if step.strategy is not None}

    @property
    def aligned(self) -> dict[str, AlignedSource]:
        """The clocks whose sources are aligned with others."""
        steps = [step for stage in self.stages for step in stage.steps]
        return {step.uid: step.aligned for step in steps if step.aligned is not None}

    def ended_clocks(self, sources: Collection[str]) -> frozenset[str]:
        """Return the clocks that get no elements any more, because these sources have ended."""
        return frozenset(uid for uid, own in self.sources_of_clocks.items() if own <= frozenset(sources))

    @cached_property
    def sources_of_clocks(self) -> dict[str, frozenset[str]]:
        """The sources whose elements reach a step that assigns timestamps, also those of stages before, by its uid."""
        edges = {edge.name: edge for edge in self.edges}
        steps = {step.uid: step for stage in self.stages for step in stage.steps}
        staged = {source.uid: source.staged for epoch_job in self.epoch_jobs[1:] for source in epoch_job.sources}

        def origins(uid: str) -> Iterable[str]:
            ports = (edges[port.name].origin if port.kind == "edge" else port for port in steps[uid].inputs)
            for port in ports:
                yield from staged.get(port.name, (port.name,)) if port.kind == "source" else (port.name,)

        found = {}
        for clock in self.clocks:
            above, ahead = {clock}, [clock]
            while ahead:
                following = set(origins(ahead.pop())) - above
                above |= following
                ahead += following & steps.keys()
            found[clock] = frozenset(above - steps.keys())
        return found

    def clocks_of_steps(self) -> dict[str, tuple[str, ...]]:
        return {step.uid: step.clocks for stage in self.stages for step in stage.steps}

    def epoch_job_of(self, stage: int) -> EpochJob:
        """Return the epoch job of a stage."""
        return next(epoch_job for epoch_job in reversed(self.epoch_jobs) if epoch_job.base <= stage)

    def without_frames(self) -> JobPlan:
        """Return the plan for workers, without frames."""
        epoch_jobs = [
            replace(epoch_job, sources=tuple(replace(source, node=None) for source in epoch_job.sources))
            for epoch_job in self.epoch_jobs
        ]
        return replace(self, epoch_jobs=tuple(epoch_jobs))

    def keyed_steps(self) -> list[Step]:
        return [step for stage in self.stages for step in stage.steps if step.kind == "keyed"]

    def stateful_steps(self) -> list[Step]:
        """Return all steps with keyed state or operator state."""
        return [step for stage in self.stages for step in stage.steps if step.parallelism]

    def sinks(self) -> list[Step]:
        return [step for stage in self.stages for step in stage.steps if step.kind == "sink"]


class EventTimePlan:
    """Clocks and timestamps of all steps of a graph.

    A step has the clocks of all its inputs, and its event time stands still if an input has none, as in Flink; only a
    broadcast input without a clock is ignored. Timestamps end where Spark, or a function of groups, makes other rows.
    """

    def __init__(self, graph: StreamGraph) -> None:
        self._clocks: dict[Node, tuple[str, ...]] = {}
        self._with_timestamps: dict[Node, bool] = {}
        for node in graph.nodes:
            self._clocks[node] = self._clocks_of(node)
            self._with_timestamps[node] = self._has_timestamps(node)

    def clocks(self, node: Node) -> tuple[str, ...]:
        """Return the clocks of a step; none if its event time does not advance."""
        return self._clocks[node]

    def has_timestamps(self, node: Node) -> bool:
        """Return whether the output of a step has timestamps."""
        return self._with_timestamps[node]

    def _clocks_of(self, node: Node) -> tuple[str, ...]:
        if isinstance(node, TimestampNode) and not node.keeps_watermarks:
            return (node.identity,)
        if isinstance(node, SourceNode):
            return ()
        inputs = [other for other in node.inputs if self._clocks[other] or not isinstance(other, BroadcastNode)]
        without = [other.name for other in inputs if not self._clocks[other]]
        if without and len(without) < len(inputs):
            logger.warning(
                "event time stands still for %r: its input %r has no watermarks; call "
                "assign_timestamps_and_watermarks() on it, too",
                node.name,
                without[0],
            )
        if without:
            return ()
        return tuple(dict.fromkeys(uid for other in inputs for uid in self._clocks[other]))

    def _has_timestamps(self, node: Node) -> bool:
        if isinstance(node, SourceNode | FrameTransformNode | BroadcastNode):
            return False
        if isinstance(node, TimestampNode) and node.strategy.assigner is not None:
            return True
        if isinstance(node, KeyedNode | NonKeyedNode) and node.operator.shape == "groups":
            return False
        return any(self._with_timestamps[other] for other in node.inputs)
