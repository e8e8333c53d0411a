"""The logical graph of a job: what a program asked for, before anything is planned.

`holdfast.datastream` builds these nodes and nothing else; `holdfast.runtime.plan` turns them into levels. Nodes are
immutable after `StreamGraph` has named them, and they hold user functions and opaque frames, so they live in the
driver only.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from holdfast.errors import ConfigurationError
from holdfast.kernel.key_group import MAX_PARALLELISM
from holdfast.kernel.watermark import WatermarkStrategy
from holdfast.runtime.function import CheckpointedFunction
from holdfast.state.descriptor import MapStateDescriptor
from holdfast.types.type_information import TypeInformation

logger = logging.getLogger(__name__)

Shape = Literal["map", "flat_map", "filter", "process", "reduce", "batches"]
_counter = itertools.count()


@dataclass(frozen=True)
class KeySpec:
    """How a stream is partitioned: by columns of its rows, or by a Python selector.

    Attributes:
        columns: Names of the key columns; empty if a selector is used.
        selector: `element -> key`; None if columns are used.
        key_type: Type of the key. None with a selector means the tagged encoding of untyped Python keys.
        order_by: Columns by which the rows of one key are ordered within an epoch; empty means arrival order.
    """

    columns: tuple[str, ...] = ()
    selector: Callable[[Any], Any] | None = None
    key_type: TypeInformation | None = None
    order_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class OperatorSpec:
    """One user function together with the way in which it is called.

    Attributes:
        side_outputs: Whether anybody reads its side outputs; only then its output is searched for `yield tag, value`.
        broadcast: Descriptors of its broadcast states; None for a function without a broadcast side.
    """

    function: Any
    shape: Shape
    keyed: bool
    input_type: TypeInformation
    output_type: TypeInformation
    side_outputs: bool = False
    broadcast: tuple[MapStateDescriptor[Any, Any], ...] | None = None

    @property
    def has_operator_state(self) -> bool:
        """Whether it has state that belongs to a subtask, so that its parallelism must be known."""
        return self.broadcast is not None or isinstance(self.function, CheckpointedFunction)


@dataclass(eq=False, kw_only=True)
class Node:
    """One step of the program; `inputs` are the steps that it reads."""

    inputs: tuple[Node, ...] = ()
    name: str = ""
    uid: str | None = None
    element_type: TypeInformation
    parallelism: int | None = None
    max_parallelism: int | None = None
    number: int = field(default_factory=lambda: next(_counter))

    @property
    def identity(self) -> str:
        """The uid once the graph has been validated."""
        if self.uid is None:
            raise ConfigurationError(f"the step {self.name!r} has no uid yet: validate the graph first")
        return self.uid


@dataclass(eq=False, kw_only=True)
class SourceNode(Node):
    """Input of the job: an opaque frame of the engine, or a Python collection."""

    frame: Any = None
    collection: Sequence[Any] | None = None
    is_streaming: bool = False


@dataclass(eq=False, kw_only=True)
class FrameTransformNode(Node):
    """A function over the engine's frames (`DataFrame -> DataFrame`), applied without Python workers.

    After a Python operator its frame holds the rows of one epoch.
    """

    function: Callable[[Any], Any]


def transforms_of(frame: Node) -> list[FrameTransformNode]:
    """The transforms that make a frame of an input, or of what an operator emits, in the order of their application."""
    found: list[FrameTransformNode] = []
    while isinstance(frame, FrameTransformNode):
        found.insert(0, frame)
        frame = frame.inputs[0]
    return found


@dataclass(eq=False, kw_only=True)
class NarrowNode(Node):
    """An operator without keys; it is chained into the task that makes its input, unless it has operator state."""

    operator: OperatorSpec


@dataclass(eq=False, kw_only=True)
class TimestampNode(Node):
    """Gives elements their event time, and is a clock for the operators after it; chained like other narrow steps."""

    strategy: WatermarkStrategy


@dataclass(eq=False, kw_only=True)
class KeyedNode(Node):
    """An operator on a keyed stream; its input crosses an exchange."""

    operator: OperatorSpec
    key: KeySpec


@dataclass(eq=False, kw_only=True)
class UnionNode(Node):
    """All elements of several streams of one type, in no particular order."""


@dataclass(eq=False, kw_only=True)
class BroadcastNode(Node):
    """All elements of a stream, for every subtask of the operator that reads it."""


@dataclass(eq=False, kw_only=True)
class SideOutputNode(Node):
    """What the input operator sent to `ctx.output(tag, value)`."""

    tag: str


@dataclass(eq=False, kw_only=True)
class SinkNode(Node):
    """The end of a stream: a `holdfast.runtime.sink.Sink`."""

    sink: Any


class StreamGraph:
    """All steps that lead to the sinks of a job, in topological order, each with a uid.

    Args:
        sinks: The ends of the program.
        auto_generate_uids: Whether a missing uid is derived from name and position (with one warning) or is an error.

    Raises:
        ConfigurationError: No sink, a uid used twice, an impossible parallelism, or a missing uid that may not be
            derived.
    """

    def __init__(self, sinks: Iterable[SinkNode], *, auto_generate_uids: bool = True) -> None:
        self.sinks = tuple(sinks)
        if not self.sinks:
            raise ConfigurationError(
                "the job has no sink: end a stream with sink_to(), for_each_epoch() or print() before execute()"
            )
        self.nodes = tuple(_topological(self.sinks))
        self._name_all(auto_generate_uids)
        self._check_parallelism()

    def consumers(self, node: Node) -> list[Node]:
        """The steps that read `node`, in the order of their definition."""
        return [other for other in self.nodes if node in other.inputs]

    def of(self, kind: type[Any]) -> list[Any]:
        """The steps of one kind, in topological order."""
        return [node for node in self.nodes if isinstance(node, kind)]

    def _name_all(self, auto_generate_uids: bool) -> None:
        taken: dict[str, Node] = {}
        for node in self.nodes:
            if node.uid is not None:
                if node.uid in taken:
                    raise ConfigurationError(
                        f"the uid {node.uid!r} is used by two steps, {taken[node.uid].name!r} and {node.name!r}: "
                        "give each its own"
                    )
                taken[node.uid] = node
        stateful = [n.name for n in self.nodes if n.uid is None and _has_state(n)]
        if stateful and not auto_generate_uids:
            raise ConfigurationError(
                f"these steps have no uid: {', '.join(map(repr, stateful))}; call .uid('...') on each, or set "
                "pipeline.auto-generate-uids"
            )
        if stateful:
            logger.warning(
                "no uid was set for %s: derived from name and position, so inserting a step before one of them loses "
                "its state; call .uid('...')",
                ", ".join(map(repr, stateful)),
            )
        for position, node in enumerate(self.nodes):
            if node.uid is None:
                node.uid = _derived(node, position, taken)
                taken[node.uid] = node

    def _check_parallelism(self) -> None:
        for node in self.nodes:
            for value, word in ((node.parallelism, "parallelism"), (node.max_parallelism, "max parallelism")):
                if value is not None and not 1 <= value <= MAX_PARALLELISM:
                    raise ConfigurationError(
                        f"{word} of {node.name!r} is {value}: it must be between 1 and {MAX_PARALLELISM}"
                    )
            if node.parallelism and node.max_parallelism and node.parallelism > node.max_parallelism:
                raise ConfigurationError(
                    f"parallelism {node.parallelism} of {node.name!r} is above its max parallelism "
                    f"{node.max_parallelism}"
                )


def _has_state(node: Node) -> bool:
    if isinstance(node, NarrowNode):
        return node.operator.has_operator_state
    return isinstance(node, KeyedNode | SinkNode)


def _derived(node: Node, position: int, taken: dict[str, Node]) -> str:
    stem = re.sub(r"[^a-zA-Z0-9]+", "-", node.name).strip("-").lower() or type(node).__name__.lower()
    uid = f"{stem}-{position}"
    while uid in taken:
        uid += "-x"
    return uid


def _topological(sinks: Sequence[Node]) -> Iterator[Node]:
    """Inputs before consumers; among equals the order of definition, so that derived uids are stable between runs."""
    reached: dict[int, Node] = {}
    stack = list(sinks)
    while stack:
        node = stack.pop()
        if node.number not in reached:
            reached[node.number] = node
            stack.extend(node.inputs)
    for number in sorted(reached):
        yield reached[number]
