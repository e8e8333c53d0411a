"""Describes a program without running it: its steps, their connections, and the state that they register.

Functions register state when they are opened, so a copy of each function is opened with empty state. A function that
cannot be opened on this machine is described without state, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

from holdfast.errors import UserFunctionError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.failure_text import summary
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.kernel.secret import redacted_message
from holdfast.runtime.function.user_function import CheckpointedFunction
from holdfast.runtime.graph.compiler import compile_graph
from holdfast.runtime.graph.plan import Step
from holdfast.runtime.graph.stream_graph import (
    BroadcastNode,
    ForwardNode,
    FrameTransformNode,
    KeyedNode,
    Node,
    NonKeyedNode,
    OperatorSpec,
    SecondInputNode,
    SideOutputNode,
    SinkNode,
    SourceNode,
    StreamGraph,
    TimestampNode,
    UnionNode,
)
from holdfast.runtime.job.options import MAX_PARALLELISM
from holdfast.runtime.operator.context import InitializationContext, RawState, SubtaskContext, SubtaskInfo
from holdfast.runtime.operator.operator_instance import OperatorInstance
from holdfast.runtime.operator.subtask import REDUCE_STATE
from holdfast.state.backend import AbstractKeyedStateBackend, StateBackend, load_state_backend
from holdfast.state.descriptor import MapStateDescriptor, StateDescriptor, ValueStateDescriptor
from holdfast.state.environment import Environment
from holdfast.state.operator_snapshot import OperatorSnapshot
from holdfast.state.operator_state import OperatorStateBackend
from holdfast.types.program_classes import pickle_program, unpickle_program

_JOB: Final = "0" * 32
_KINDS: Final[dict[type[Node], str]] = {
    SourceNode: "source",
    FrameTransformNode: "transform",
    TimestampNode: "timestamps",
    UnionNode: "union",
    ForwardNode: "partition",
    BroadcastNode: "broadcast",
    SecondInputNode: "second input",
    SideOutputNode: "side output",
    SinkNode: "sink",
}


@dataclass(frozen=True)
class DeclaredState:
    """One state of an operator.

    Attributes:
        name: Its name.
        kind: value, list, map, ...; split, union or broadcast for operator state.
        type: Its type as DDL.
        ttl: Its time to live in milliseconds; None for no limit.
        queryable: Its name in queries; None if it is not queryable.
    """

    name: str
    kind: str
    type: str
    ttl: int | None = None
    queryable: str | None = None


@dataclass(frozen=True)
class StepDescription:
    """One step of a program.

    Attributes:
        uid: Its uid, derived if the program sets none.
        name: Display name.
        kind: source, map, keyed process, sink, ...
        does: Class of its function or sink, or a description of the source.
        parallelism: Subtasks of a step with state; None if it runs in the tasks of its input.
        max_parallelism: Key groups of a step with state.
        inputs: The uids that it reads.
        type: Type of its output as DDL.
        state: Its state.
        problem: Why its state is unknown; None if it is known.
    """

    uid: str
    name: str
    kind: str
    does: str
    parallelism: int | None
    max_parallelism: int | None
    inputs: tuple[str, ...]
    type: str
    state: tuple[DeclaredState, ...] = ()
    problem: str | None = None


def describe_job(graph: StreamGraph, configuration: Configuration, default_parallelism: int) -> list[StepDescription]:
    """Return the steps of a program, inputs before their readers.

    Args:
        graph: The program.
        configuration: Its options.
        default_parallelism: Parallelism of operators that set none.

    Raises:
        ConfigurationError: The program cannot be run.
    """
    plan = compile_graph(graph, default_parallelism, configuration.get(MAX_PARALLELISM))
    steps = {step.uid: step for stage in plan.stages for step in stage.steps}
    backend = load_state_backend(configuration)
    return [_described(node, steps.get(node.identity), backend, configuration) for node in graph.nodes]


def _described(node: Node, step: Step | None, backend: StateBackend, configuration: Configuration) -> StepDescription:
    has_state = step is not None and bool(step.parallelism)
    states: tuple[DeclaredState, ...] = ()
    problem = None
    if step is not None and step.operator is not None and has_state:
        try:
            states = tuple(_states(step, backend, configuration))
        except Exception as error:  # noqa: BLE001 - declaring state is user code; the description shows its error
            cause = error.__cause__ if isinstance(error, UserFunctionError) and error.__cause__ else error
            problem = summary(f"{type(cause).__name__}: {redacted_message(cause)}")
    return StepDescription(
        uid=node.identity,
        name=node.name,
        kind=_kind(node),
        does=_does(node),
        parallelism=step.parallelism if step is not None and has_state else None,
        max_parallelism=step.max_parallelism if step is not None and has_state else None,
        inputs=tuple(other.identity for other in node.inputs),
        type=node.element_type.ddl,
        state=states,
        problem=problem,
    )


def _kind(node: Node) -> str:
    if isinstance(node, KeyedNode | NonKeyedNode):
        return f"{'keyed ' if isinstance(node, KeyedNode) else ''}{node.operator.shape}"
    return _KINDS[type(node)]


def _does(node: Node) -> str:
    if isinstance(node, KeyedNode | NonKeyedNode):
        return _named(node.operator.function)
    if isinstance(node, SinkNode):
        return _named(node.sink)
    if isinstance(node, FrameTransformNode):
        return _named(node.function)
    if isinstance(node, SourceNode):
        if node.collection is not None:
            return f"{len(node.collection)} elements"
        return "streaming frame" if node.is_streaming else "static frame"
    return node.tag if isinstance(node, SideOutputNode) else ""


def _named(thing: Any) -> str:
    return getattr(thing, "__qualname__", None) or type(thing).__qualname__


def _states(step: Step, backend: StateBackend, configuration: Configuration) -> Iterator[DeclaredState]:
    """Return the states that a copy of a step's function registers when it is opened."""
    assert step.operator is not None
    spec: OperatorSpec
    spec, _ = unpickle_program(pickle_program(step.operator))
    info = SubtaskInfo(
        step.uid, step.name, _JOB, parallelism=step.parallelism, max_parallelism=step.max_parallelism, parameters={}
    )
    environment = Environment(_JOB, step.uid, 0, step.parallelism, step.max_parallelism, configuration)
    keyed = None if step.codec is None else _Keyed(_keyed_backend(step, backend, environment))
    instance = OperatorInstance(spec, info, cast("AbstractKeyedStateBackend | None", keyed))
    try:
        store = _Operator(backend.create_operator_state_backend(environment, step.uid))
        for descriptor in spec.broadcast or ():
            store.get_broadcast_state(descriptor)
        if isinstance(spec.function, CheckpointedFunction):
            _initialize(spec.function, info, keyed, store)
        if spec.shape == "reduce":
            yield _declared(ValueStateDescriptor(REDUCE_STATE, spec.input_type), "value")
        if spec.shape in ("window", "panes"):
            for descriptor in spec.function.descriptors:
                yield _declared(descriptor, descriptor.kind.value)
        if keyed is not None:
            yield from (_declared(descriptor, descriptor.kind.value) for descriptor in keyed.registered.values())
        yield from (_declared(descriptor, mode) for mode, descriptor in store.registered.values())
    finally:
        instance.close()


def _keyed_backend(step: Step, backend: StateBackend, environment: Environment) -> AbstractKeyedStateBackend:
    assert step.codec is not None
    return backend.create_keyed_state_backend(
        environment, _JOB, step.uid, step.codec, step.max_parallelism, KeyGroupRange(0, 0), None
    )


def _initialize(function: CheckpointedFunction, info: SubtaskInfo, keyed: _Keyed | None, store: _Operator) -> None:
    backend = cast("AbstractKeyedStateBackend | None", keyed)
    operator = cast("OperatorStateBackend", store)
    store.restore(OperatorSnapshot({}))
    raw = RawState(info.uid, store.real, backend)
    function.initialize_state(InitializationContext(info, SubtaskContext(info, backend), operator, raw))


def _declared(descriptor: StateDescriptor[Any], kind: str) -> DeclaredState:
    ddl = descriptor.type_info.ddl
    if isinstance(descriptor, MapStateDescriptor):
        key = descriptor.key_type_info
        ddl = f"map<{'any' if key is None else key.ddl}, {ddl}>"
    elif kind in ("list", "split", "union"):
        ddl = f"array<{ddl}>"
    ttl = descriptor.ttl_config
    milliseconds = ttl.get_ttl() if ttl.is_enabled() else None
    return DeclaredState(descriptor.name, kind, ddl, milliseconds, descriptor.queryable_state_name)


class _Keyed:
    """Keyed backend that remembers the registered states."""

    def __init__(self, backend: AbstractKeyedStateBackend) -> None:
        self._backend = backend
        self.registered: dict[str, StateDescriptor[Any]] = {}

    def get_partitioned_state(self, namespace: Any, serializer: Any, descriptor: StateDescriptor[Any]) -> Any:
        self.registered.setdefault(descriptor.name, descriptor)
        return self._backend.get_partitioned_state(namespace, serializer, descriptor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


class _Operator:
    """Operator state backend that remembers the registered states."""

    def __init__(self, store: OperatorStateBackend) -> None:
        self.real = store
        self.registered: dict[str, tuple[str, StateDescriptor[Any]]] = {}

    def get_list_state(self, descriptor: Any) -> Any:
        self.registered.setdefault(descriptor.name, ("split", descriptor))
        return self.real.get_list_state(descriptor)

    def get_union_list_state(self, descriptor: Any) -> Any:
        self.registered.setdefault(descriptor.name, ("union", descriptor))
        return self.real.get_union_list_state(descriptor)

    def get_broadcast_state(self, descriptor: Any) -> Any:
        self.registered.setdefault(descriptor.name, ("broadcast", descriptor))
        return self.real.get_broadcast_state(descriptor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)
