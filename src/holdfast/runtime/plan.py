"""From a logical graph to levels: which operators share a task, and what crosses each exchange.

A **level** is one Python stage of the Spark job of an epoch. Level 0 has no exchange before it: it is what the
source's own partitions run, and it exists only if something needs Python before the first exchange. A keyed operator
stands one level below its deepest input, and so does an operator without keys that has operator state or a broadcast
side; other narrow operators and sinks are chained into the level of their input. All operators of a level share its
tasks (subtask i of each runs in task i), so that the job of an epoch is one linear chain of exchanges and one Spark
action, without a cache between actions.

An **edge** carries elements from one level to a later one. Where several edges cross the same exchange each has a
struct column of its own; an edge that spans several exchanges is handed on untouched by the levels in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from holdfast.errors import ConfigurationError
from holdfast.kernel.key_group import default_max_parallelism
from holdfast.runtime.graph import (
    BroadcastNode,
    FrameTransformNode,
    KeyedNode,
    KeySpec,
    NarrowNode,
    Node,
    OperatorSpec,
    SideOutputNode,
    SinkNode,
    SourceNode,
    StreamGraph,
    UnionNode,
)
from holdfast.types.key import KeyCodec, key_codec_for
from holdfast.types.type_information import RowTypeInformation, TypeInformation


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
    """An operator or a sink as it runs in the tasks of one level.

    Attributes:
        parallelism: Number of subtasks of an operator with state; 0 for a step that runs in every task.
    """

    uid: str
    name: str
    kind: Literal["keyed", "narrow", "sink"]
    inputs: tuple[Port, ...]
    input_type: TypeInformation
    output_type: TypeInformation
    operator: OperatorSpec | None = None
    sink: Any = None
    parallelism: int = 0
    max_parallelism: int = 0
    codec: KeyCodec | None = None

    @property
    def has_operator_state(self) -> bool:
        """Whether it has state that belongs to a subtask."""
        return self.operator is not None and self.operator.has_operator_state


@dataclass(frozen=True)
class Level:
    """What one Python stage reads, runs and hands on.

    Attributes:
        index: 0 for the stage on the source's own partitions.
        tasks: Number of tasks; 0 at level 0, where the source decides.
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
    """A frame of the engine (source and the frame transforms after it), read by steps of level 0 or by edges.

    `node` is None in workers: frames live in the driver.
    """

    uid: str
    node: Node | None
    element_type: TypeInformation


@dataclass(frozen=True)
class JobPlan:
    """The levels of a job, the frames they start from, and the keyed steps by uid."""

    sources: tuple[Source, ...]
    levels: tuple[Level, ...]
    edges: tuple[Edge, ...]
    names: dict[str, str] = field(default_factory=dict)

    @property
    def starts_in_python(self) -> bool:
        """Whether level 0 is a Python stage."""
        return self.levels[0].index == 0

    def without_frames(self) -> JobPlan:
        """The plan as workers need it."""
        return replace(self, sources=tuple(replace(source, node=None) for source in self.sources))

    def keyed_steps(self) -> list[Step]:
        """All steps with keyed state."""
        return [step for level in self.levels for step in level.steps if step.kind == "keyed"]

    def stateful_steps(self) -> list[Step]:
        """All steps with keyed state or operator state."""
        return [step for level in self.levels for step in level.steps if step.parallelism]

    def sinks(self) -> list[Step]:
        """All sinks."""
        return [step for level in self.levels for step in level.steps if step.kind == "sink"]


def compile_graph(
    graph: StreamGraph,
    default_parallelism: int,
    default_max: int | None = None,
    stored_max: Mapping[str, int] | None = None,
    parallelism: Mapping[str, int] | None = None,
) -> JobPlan:
    """Assigns every step to a level and every crossing to an edge.

    Args:
        graph: A named graph.
        default_parallelism: Subtasks of a keyed operator that names no parallelism.
        default_max: Max parallelism of operators that name none; None derives it from the parallelism.
        stored_max: Max parallelism by uid in the restored checkpoint; it is adopted where none was set.
        parallelism: Parallelism by uid that wins over the program's; the empty uid stands for all keyed operators.

    Raises:
        ConfigurationError: The program cannot be planned; the message names the step.
    """
    return _Compiler(graph, default_parallelism, default_max, stored_max or {}, parallelism or {}).plan()


class _Compiler:
    def __init__(
        self,
        graph: StreamGraph,
        parallelism: int,
        maximum: int | None,
        stored_max: Mapping[str, int],
        rescaled: Mapping[str, int],
    ) -> None:
        self._graph = graph
        self._parallelism = parallelism
        self._maximum = maximum
        self._stored_max = stored_max
        self._rescaled = rescaled
        self._level: dict[Node, int] = {}
        self._edges: list[Edge] = []
        self._steps: dict[int, list[Step]] = {}

    def plan(self) -> JobPlan:
        for node in self._graph.nodes:
            self._level[node] = self._level_of(node)
        for node in self._graph.nodes:
            if isinstance(node, KeyedNode | NarrowNode | SinkNode):
                self._add_step(node)
        last = max(self._steps)
        python_start = bool(self._steps.get(0)) or any(
            e.from_level == 0 and e.key and e.key.spec.selector for e in self._edges
        )
        levels = [self._level_plan(index) for index in range(0 if python_start else 1, last + 1)]
        return JobPlan(
            sources=tuple(self._sources()),
            levels=tuple(levels),
            edges=tuple(self._edges),
            names={n.identity: n.name for n in self._graph.nodes},
        )

    def _level_of(self, node: Node) -> int:
        depth = max((self._level[other] for other in node.inputs), default=0)
        if isinstance(node, FrameTransformNode) and not _is_frame(node.inputs[0]):
            raise ConfigurationError(
                f"transform() of {node.name!r} follows a Python operator: frames end at the first Python operator, "
                "so call transform() "
                "before it, or write to a sink and read that in a job of its own"
            )
        return depth + 1 if _is_placed(node) else depth

    def _sources(self) -> Iterable[Source]:
        frames = [n for n in self._graph.nodes if _is_frame(n)]
        for node in frames:
            readers = [c for c in self._graph.consumers(node) if not isinstance(c, FrameTransformNode)]
            if readers:
                yield Source(node.identity, node, node.element_type)

    def _add_step(self, node: KeyedNode | NarrowNode | SinkNode) -> None:
        level = self._level[node]
        parallelism, maximum = self._parallelism_of(node) if _is_placed(node) else (0, 0)
        key = self._key_plan(node, parallelism, maximum) if isinstance(node, KeyedNode) else None
        ports = []
        for producer, tag, broadcast in _producers(node.inputs):
            origin = Port("source" if _is_frame(producer) else "step", producer.identity, tag)
            if not parallelism and self._level[producer] == level:
                ports.append(origin)
                continue
            edge = Edge(
                name=f"e{len(self._edges)}",
                origin=origin,
                consumer=node.identity,
                from_level=self._level[producer],
                to_level=level,
                element_type=(broadcast or node.inputs[0]).element_type if tag else producer.element_type,
                key=None if broadcast else key,
                parallelism=parallelism,
                broadcast=broadcast is not None,
            )
            self._edges.append(edge)
            ports.append(Port("edge", edge.name))
        codec = key.codec if key else None
        self._steps.setdefault(level, []).append(_step(node, tuple(ports), parallelism, maximum, codec))

    def _parallelism_of(self, node: Node) -> tuple[int, int]:
        rescaled = self._rescaled.get(node.identity) or self._rescaled.get("")
        parallelism = rescaled or node.parallelism or self._parallelism
        maximum = (
            node.max_parallelism
            or self._stored_max.get(node.identity)
            or self._maximum
            or default_max_parallelism(parallelism)
        )
        if parallelism > maximum:
            raise ConfigurationError(
                f"parallelism {parallelism} of {node.identity!r} is above the max parallelism {maximum} of its "
                "state: lower it, or restore into a "
                "job whose state was written with a higher one"
            )
        return parallelism, maximum

    def _key_plan(self, node: KeyedNode, parallelism: int, maximum: int) -> KeyPlan:
        names, key_type = _key_columns(node)
        return KeyPlan(node.key, key_codec_for(key_type, names), parallelism, maximum)

    def _level_plan(self, index: int) -> Level:
        steps = tuple(self._steps.get(index, ()))
        return Level(
            index=index,
            tasks=max((s.parallelism for s in steps), default=0),
            arriving=tuple(e for e in self._edges if e.from_level < index <= e.to_level),
            steps=steps,
            leaving=tuple(e for e in self._edges if e.from_level <= index < e.to_level),
        )


def _is_frame(node: Node) -> bool:
    return isinstance(node, SourceNode) or (isinstance(node, FrameTransformNode) and _is_frame(node.inputs[0]))


def _is_placed(node: Node) -> bool:
    """Whether its subtasks have numbers: elements reach them through an exchange."""
    return isinstance(node, KeyedNode) or (isinstance(node, NarrowNode) and node.operator.has_operator_state)


def _producers(
    inputs: Iterable[Node], tag: str | None = None, broadcast: BroadcastNode | None = None
) -> Iterable[tuple[Node, str | None, BroadcastNode | None]]:
    """The steps behind unions, side outputs and broadcasts, with the side output's tag and the broadcast."""
    for node in inputs:
        if isinstance(node, UnionNode):
            yield from _producers(node.inputs, None, broadcast)
        elif isinstance(node, BroadcastNode):
            yield from _producers(node.inputs, None, node)
        elif isinstance(node, SideOutputNode):
            yield from _producers(node.inputs, node.tag, broadcast)
        else:
            yield node, tag, broadcast


def _key_columns(node: KeyedNode) -> tuple[tuple[str, ...], TypeInformation | None]:
    """Names and type of the key: of the columns, or of what the selector returns."""
    if node.key.selector is not None:
        return (), node.key.key_type
    element = node.operator.input_type
    if not isinstance(element, RowTypeInformation):
        raise ConfigurationError(
            f"{node.name!r} is keyed by the columns {node.key.columns!r}, but its elements are {element.ddl}, not "
            "rows: use a key selector"
        )
    types = dict(zip(element.names, element.types, strict=True))
    missing = [c for c in (*node.key.columns, *node.key.order_by) if c not in types]
    if missing:
        raise ConfigurationError(
            f"{node.name!r}: no column {missing[0]!r} in {element.ddl}; key_by and order_by name columns of the stream"
        )
    if len(node.key.columns) == 1:
        return node.key.columns, types[node.key.columns[0]]
    return node.key.columns, RowTypeInformation(list(node.key.columns), [types[c] for c in node.key.columns])


def _step(
    node: KeyedNode | NarrowNode | SinkNode,
    ports: tuple[Port, ...],
    parallelism: int,
    maximum: int,
    codec: KeyCodec | None,
) -> Step:
    if isinstance(node, SinkNode):
        return Step(node.identity, node.name, "sink", ports, node.element_type, node.element_type, sink=node.sink)
    return Step(
        uid=node.identity,
        name=node.name,
        kind="keyed" if codec else "narrow",
        inputs=ports,
        input_type=node.operator.input_type,
        output_type=node.operator.output_type,
        operator=node.operator,
        parallelism=parallelism,
        max_parallelism=maximum,
        codec=codec,
    )
