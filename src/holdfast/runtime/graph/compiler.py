"""The compiler: from a logical graph to epoch jobs, stages and edges.

A keyed operator is one stage below its deepest input, and so is an operator without keys that has operator state or a
broadcast side; other narrow operators and sinks are chained into the stage of their input.

A transform of frames after a Python operator begins an epoch job; its readers are in that job or a later one. Where
elements go from one epoch job to a later one, a step beside their producer stages them, and the later job reads them as
a source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from holdfast.errors import ConfigurationError
from holdfast.kernel.key_group import UPPER_BOUND_MAX_PARALLELISM, default_max_parallelism
from holdfast.kernel.watermark import ColumnTimestampAssigner
from holdfast.runtime.function.sink import StagingSink, require_full_structs
from holdfast.runtime.graph.plan import Edge, EpochJob, EventTimePlan, JobPlan, KeyPlan, Port, SourcePlan, Stage, Step
from holdfast.runtime.graph.stream_graph import (
    SUBTASK_KEY_TYPE,
    BroadcastNode,
    ForwardNode,
    FrameTransformNode,
    KeyedNode,
    KeySpec,
    Node,
    NonKeyedNode,
    SecondInputNode,
    SideOutputNode,
    SinkNode,
    SourceNode,
    StreamGraph,
    TimestampNode,
    UnionNode,
)
from holdfast.types.composite import RowTypeInformation
from holdfast.types.key_codec import KeyCodec, key_codec_for
from holdfast.types.type_information import TypeInformation

_StepNode = KeyedNode | NonKeyedNode | TimestampNode | ForwardNode | SinkNode


def compile_graph(
    graph: StreamGraph,
    default_parallelism: int,
    default_max: int | None = None,
    stored_max: Mapping[str, int] | None = None,
    parallelism: Mapping[str, int] | None = None,
) -> JobPlan:
    """Assign every step to a stage and every crossing to an edge.

    Args:
        graph: A named graph.
        default_parallelism: Subtasks of a keyed operator without a parallelism of its own.
        default_max: Max parallelism of operators without one; None derives it from the parallelism.
        stored_max: Max parallelism by uid in the restored checkpoint; it is used where none was set.
        parallelism: Parallelism by uid that overrides the program's; the empty uid stands for all keyed operators.

    Raises:
        ConfigurationError: The program cannot be planned; the message names the step.
    """
    if default_max is not None and not 1 <= default_max <= UPPER_BOUND_MAX_PARALLELISM:
        raise ConfigurationError(
            f"pipeline.max-parallelism must be from 1 to {UPPER_BOUND_MAX_PARALLELISM}, not {default_max!r}; remove it "
            "to derive it from the parallelism"
        )
    return _Compiler(graph, default_parallelism, default_max, stored_max or {}, parallelism or {}).plan()


@dataclass(frozen=True)
class _Producer:
    """The producer of elements that a step reads, behind unions, side outputs, broadcasts and second inputs."""

    node: Node
    element_type: TypeInformation
    tag: str | None = None
    broadcast: bool = False
    second: SecondInputNode | None = None

    @property
    def port(self) -> Port:
        return Port("source" if _is_frame(self.node) else "step", self.node.identity, self.tag)


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
        self._time = EventTimePlan(graph)
        self._epoch_job: dict[Node, int] = {}
        self._depth: dict[Node, int] = {}
        self._bases: list[int] = []
        self._edges: list[Edge] = []
        self._steps: dict[int, list[Step]] = {}
        self._staged: dict[tuple[Port, int], str] = {}
        self._forwarded: dict[tuple[int, str], SourcePlan] = {}

    def plan(self) -> JobPlan:
        for node in self._graph.nodes:
            self._place(node)
        lasts = [0] * (1 + max(self._epoch_job.values()))
        for node, epoch_job in self._epoch_job.items():
            lasts[epoch_job] = max(lasts[epoch_job], self._depth[node])
        self._bases = [sum(1 + last for last in lasts[:epoch_job]) for epoch_job in range(len(lasts))]
        for node in self._graph.nodes:
            if isinstance(node, _StepNode):
                self._add_step(node)
        # Sources first: this adds the steps that stage their rows.
        sources = [tuple(self._sources(epoch_job)) for epoch_job in range(len(lasts))]
        return JobPlan(
            epoch_jobs=tuple(
                self._epoch_job_plan(epoch_job, sources[epoch_job], last) for epoch_job, last in enumerate(lasts)
            ),
            edges=tuple(self._edges),
            names={n.identity: n.name for n in self._graph.nodes},
        )

    def _place(self, node: Node) -> None:
        """Find the epoch job of a step, and the number of exchanges of the epoch job before it."""
        epoch_job = max((self._epoch_job[other] for other in node.inputs), default=0)
        self._epoch_job[node] = epoch_job + 1 if _begins_epoch_job(node) else epoch_job
        above = [self._depth[other] for other in node.inputs if self._epoch_job[other] == epoch_job]
        self._depth[node] = 0 if _is_frame(node) else max(above, default=0) + _is_placed(node)

    def _stage_of(self, node: Node) -> int:
        return self._bases[self._epoch_job[node]] + self._depth[node]

    def _sources(self, epoch_job: int) -> Iterable[SourcePlan]:
        for node in self._graph.nodes:
            readers = [reader for reader in self._graph.consumers(node) if not isinstance(reader, FrameTransformNode)]
            if readers and self._epoch_job[node] == epoch_job and _is_frame(node):
                yield SourcePlan(node.identity, node, node.element_type, self._staging_steps(node))
        yield from (source for (reader, _), source in self._forwarded.items() if reader == epoch_job)

    def _staging_steps(self, node: Node) -> tuple[str, ...]:
        """Return the steps that stage the rows of a frame; none for inputs of the job."""
        if not isinstance(node, FrameTransformNode):
            return ()
        if not _begins_epoch_job(node):
            return self._staging_steps(node.inputs[0])
        producers = list(_producers(node.inputs))
        ports = [producer.port for producer in producers]
        # A stream that is read twice is staged twice, because no file is read twice.
        return tuple(
            self._staging_step(producer, ports[:n].count(producer.port)) for n, producer in enumerate(producers)
        )

    def _staging_step(self, producer: _Producer, copy: int = 0) -> str:
        """Return the uid of the step that stages a producer's output, in the producer's stage."""
        port, type_ = producer.port, producer.element_type
        if (port, copy) not in self._staged:
            require_full_structs(f"The job has a transform(), before which {producer.node.identity!r}", type_)
            uid = f"{port.name}{f': {port.tag}' if port.tag else ''} (staged{f' {copy + 1}' if copy else ''})"
            has_timestamps = self._time.has_timestamps(producer.node)
            step = Step(uid, uid, "staging", (port,), type_, type_, sink=StagingSink(), has_timestamps=has_timestamps)
            self._steps.setdefault(self._stage_of(producer.node), []).append(step)
            self._staged[port, copy] = uid
        return self._staged[port, copy]

    def _origin(self, producer: _Producer, epoch_job: int) -> tuple[Port, int]:
        """Return the port from which a step of an epoch job reads a producer, and its stage."""
        if self._epoch_job[producer.node] == epoch_job:
            return producer.port, self._stage_of(producer.node)
        uid = self._staging_step(producer)
        has_timestamps = self._time.has_timestamps(producer.node)
        self._forwarded[epoch_job, uid] = SourcePlan(uid, None, producer.element_type, (uid,), has_timestamps)
        return Port("source", uid), self._bases[epoch_job]

    def _add_step(self, node: _StepNode) -> None:
        stage = self._stage_of(node)
        parallelism, maximum = self._parallelism_of(node) if _is_placed(node) else (0, 0)
        keys = self._key_plans(node, parallelism, maximum)
        goes_to_all = isinstance(node, ForwardNode) and node.partitioner is None and node.key is None
        ports = []
        producers = list(_producers(node.inputs))
        for producer in producers:
            origin, origin_stage = self._origin(producer, self._epoch_job[node])
            if not parallelism and origin_stage == stage:
                ports.append(origin)
                continue
            edge = Edge(
                name=f"e{len(self._edges)}",
                origin=origin,
                consumer=node.identity,
                from_stage=origin_stage,
                to_stage=stage,
                element_type=producer.element_type,
                key=None if producer.broadcast else keys[producer.second is not None],
                parallelism=parallelism,
                broadcast=producer.broadcast or goes_to_all,
                has_timestamps=self._time.has_timestamps(producer.node),
                time_column=_time_column(producer),
                second=producer.second is not None,
            )
            self._edges.append(edge)
            ports.append(Port("edge", edge.name))
        codec = keys[0].codec if keys[0] and isinstance(node, KeyedNode) else None
        step = _step(node, tuple(ports), parallelism, maximum, codec)
        has_timestamps = any(self._time.has_timestamps(producer.node) for producer in producers)
        firsts = [producer.second for producer in producers].count(None)
        first_inputs = firsts if firsts < len(producers) else 0
        step = replace(step, clocks=self._time.clocks(node), has_timestamps=has_timestamps, first_inputs=first_inputs)
        self._steps.setdefault(stage, []).append(step)

    def _parallelism_of(self, node: Node) -> tuple[int, int]:
        rescaled = self._rescaled.get(node.identity)
        # Operators that cannot run in parallel are not part of "all".
        if rescaled is None and node.max_parallelism != 1:
            rescaled = self._rescaled.get("")
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
                "state: lower it, or restore into a job whose state was written with a higher one"
            )
        return parallelism, maximum

    def _key_plans(self, node: _StepNode, parallelism: int, maximum: int) -> tuple[KeyPlan | None, KeyPlan | None]:
        """Return the partitioning of the first and the second input of a step."""

        def planned(key: KeySpec, element: TypeInformation) -> KeyPlan:
            names, key_type = _key_columns(node.name, key, element)
            return KeyPlan(key, key_codec_for(key_type, names), parallelism, maximum)

        if isinstance(node, ForwardNode) and node.partitioner is not None:
            chosen = KeySpec(selector=node.partitioner.among(parallelism, maximum).get_key, key_type=SUBTASK_KEY_TYPE)
            return planned(chosen, node.element_type), None
        if isinstance(node, ForwardNode) and node.key is not None:
            return planned(node.key, node.element_type), None
        if not isinstance(node, KeyedNode):
            return None, None
        seconds = [
            planned(other.key, other.element_type)
            for other in node.inputs
            if isinstance(other, SecondInputNode) and other.key
        ]
        return planned(node.key, node.operator.input_type), seconds[0] if seconds else None

    def _epoch_job_plan(self, epoch_job: int, sources: tuple[SourcePlan, ...], last: int) -> EpochJob:
        base = self._bases[epoch_job]
        starts_in_python = base in self._steps or any(
            e.from_stage == base and e.key and e.key.spec.selector for e in self._edges
        )
        first = base if starts_in_python else base + 1
        return EpochJob(base, sources, tuple(self._stage_plan(index) for index in range(first, base + last + 1)))

    def _stage_plan(self, index: int) -> Stage:
        steps = tuple(self._steps.get(index, ()))
        return Stage(
            index=index,
            tasks=max((s.parallelism for s in steps), default=0),
            arriving=tuple(e for e in self._edges if e.from_stage < index <= e.to_stage),
            steps=steps,
            leaving=tuple(e for e in self._edges if e.from_stage <= index < e.to_stage),
        )


def _is_frame(node: Node) -> bool:
    return isinstance(node, SourceNode | FrameTransformNode)


def _begins_epoch_job(node: Node) -> bool:
    """Return whether it is a frame that is made of the output of Python operators."""
    return isinstance(node, FrameTransformNode) and not _is_frame(node.inputs[0])


def _is_placed(node: Node) -> bool:
    """Return whether its subtasks have numbers: elements reach them through an exchange."""
    if isinstance(node, NonKeyedNode):
        return node.operator.has_operator_state
    return isinstance(node, KeyedNode | ForwardNode)


def _producers(inputs: Iterable[Node]) -> Iterable[_Producer]:
    for node in inputs:
        if isinstance(node, UnionNode):
            yield from _producers(node.inputs)
        elif isinstance(node, BroadcastNode):
            yield from (replace(producer, broadcast=True) for producer in _producers(node.inputs))
        elif isinstance(node, SecondInputNode):
            yield from (replace(producer, second=node) for producer in _producers(node.inputs))
        elif isinstance(node, SideOutputNode):
            yield _Producer(node.inputs[0], node.element_type, node.tag)
        else:
            yield _Producer(node, node.element_type)


def _time_column(producer: _Producer) -> str | None:
    """Return the column that the event times of elements were just taken from."""
    node = producer.node
    assigner = node.strategy.assigner if isinstance(node, TimestampNode) else None
    return assigner.column if isinstance(assigner, ColumnTimestampAssigner) else None


def _key_columns(name: str, key: KeySpec, element: TypeInformation) -> tuple[tuple[str, ...], TypeInformation | None]:
    """Return names and type of the key: of the columns, or of the selector's result."""
    if key.selector is not None:
        return (), key.key_type
    if not isinstance(element, RowTypeInformation):
        raise ConfigurationError(
            f"{name!r} is keyed by the columns {key.columns!r}, but its elements are {element.ddl}, not "
            "rows: use a key selector"
        )
    types = dict(zip(element.names, element.types, strict=True))
    missing = [c for c in (*key.columns, *key.order_by) if c not in types]
    if missing:
        raise ConfigurationError(
            f"{name!r}: no column {missing[0]!r} in {element.ddl}; key_by and order_by name columns of the stream"
        )
    if len(key.columns) == 1:
        return (), types[key.columns[0]]
    return key.columns, RowTypeInformation(list(key.columns), [types[c] for c in key.columns])


def _step(
    node: _StepNode,
    ports: tuple[Port, ...],
    parallelism: int,
    maximum: int,
    codec: KeyCodec | None,
) -> Step:
    types = (node.element_type, node.element_type)  # of steps that do not change elements
    if isinstance(node, SinkNode):
        letters = node.dead_letters
        return Step(node.identity, node.name, "sink", ports, *types, sink=node.sink, dead_letters=letters)
    if isinstance(node, TimestampNode):
        strategy, aligned = node.strategy, node.aligned
        return Step(node.identity, node.name, "timestamps", ports, *types, strategy=strategy, aligned=aligned)
    if isinstance(node, ForwardNode):
        return Step(
            node.identity, node.name, "forward", ports, *types, parallelism=parallelism, max_parallelism=maximum
        )
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


def with_source_stage(plan: JobPlan, tasks: int) -> JobPlan:
    """Return the plan in which so many tasks of a Python stage read the sources, in each epoch job."""
    return replace(plan, epoch_jobs=tuple(_with_source_stage(epoch_job, tasks) for epoch_job in plan.epoch_jobs))


def _with_source_stage(epoch_job: EpochJob, tasks: int) -> EpochJob:
    stages = epoch_job.stages
    if not epoch_job.starts_in_python:
        leaving = tuple(edge for edge in stages[0].arriving if edge.from_stage == epoch_job.base)
        stages = (Stage(epoch_job.base, tasks, (), (), leaving), *stages)
    return replace(epoch_job, stages=(replace(stages[0], tasks=tasks), *stages[1:]))


def with_packed_exchanges(plan: JobPlan, batch_rows: int) -> JobPlan:
    """Return the plan in which elements cross in messages wherever both sides of an exchange are Python.

    Where an operator behind it orders its rows, they cross as rows: the engine sorts them, on disk if needed.

    Args:
        plan: The plan.
        batch_rows: Rows that the engine passes to a task at once.
    """
    return replace(plan, epoch_jobs=tuple(_packed(epoch_job, batch_rows) for epoch_job in plan.epoch_jobs))


def _packed(epoch_job: EpochJob, batch_rows: int) -> EpochJob:
    before = [at > 0 and not _orders_rows(stage) for at, stage in enumerate(epoch_job.stages)]
    stages = zip(epoch_job.stages, before, [*before[1:], False], strict=True)
    return replace(
        epoch_job,
        stages=tuple(
            replace(stage, arrives_packed=packed, leaves_packed=after, batch_rows=batch_rows)
            for stage, packed, after in stages
        ),
    )


def _orders_rows(stage: Stage) -> bool:
    return any(edge.key is not None and edge.key.spec.order_by for edge in stage.arriving)
