"""The logical graph of a job: what a program asked for, before anything is planned.

`holdfast.datastream` builds these nodes and nothing else; `holdfast.runtime.graph.plan` turns them into stages. Nodes
are immutable after `StreamGraph` has named them, and they hold user functions and opaque frames, so they live in the
driver only.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from holdfast.errors import ConfigurationError
from holdfast.kernel.key_group import MAX_PARALLELISM
from holdfast.kernel.secret import get_logger
from holdfast.kernel.watermark import WatermarkStrategy
from holdfast.runtime.function.epoch_gate import AlignedSource
from holdfast.runtime.function.source_listener import SourceListener
from holdfast.runtime.function.splits import SplitInput
from holdfast.runtime.function.user_function import CheckpointedFunction
from holdfast.runtime.graph.chosen_subtask import ChosenSubtask
from holdfast.runtime.graph.structure import StructuredStep, identities, uid_of_input
from holdfast.state.declaration.descriptor import MapStateDescriptor
from holdfast.types.information.type_information import RowTypeInformation, TypeInformation

logger = get_logger(__name__)

Shape = Literal[
    "map", "flat_map", "filter", "process", "reduce", "batches", "groups", "async", "window", "panes", "splits"
]
_counter = itertools.count()

SPLITS_COLUMN: Final = "splits"
"""The column of the frame of an input whose elements are splits."""


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
        second_type: Type of the elements of its second input; None for a function of one input.
        gives_times: Whether it emits pairs of an event time and an element, instead of elements that have the time of
            what they are emitted for.
        key_columns: Names and types of the columns of its key, for a function of whole batches; None if the type of the
            key is not known.
    """

    function: Any
    shape: Shape
    keyed: bool
    input_type: TypeInformation
    output_type: TypeInformation
    side_outputs: bool = False
    broadcast: tuple[MapStateDescriptor[Any, Any], ...] | None = None
    second_type: TypeInformation | None = None
    gives_times: bool = False
    key_columns: RowTypeInformation | None = None

    @property
    def has_operator_state(self) -> bool:
        """Whether it has state that belongs to a subtask, so that its parallelism must be known."""
        return self.broadcast is not None or isinstance(self.function, CheckpointedFunction)


@dataclass(eq=False, kw_only=True)
class Node:
    """One step of the program; `inputs` are the steps that it reads.

    `former_uid` is what the uid of a step that was given none was derived to before it was derived from structure.
    """

    inputs: tuple[Node, ...] = ()
    name: str = ""
    uid: str | None = None
    element_type: TypeInformation
    parallelism: int | None = None
    max_parallelism: int | None = None
    number: int = field(default_factory=lambda: next(_counter))
    former_uid: str | None = None

    @property
    def identity(self) -> str:
        """The uid once the graph has been validated."""
        if self.uid is None:
            raise ConfigurationError(f"the step {self.name!r} has no uid yet: validate the graph first")
        return self.uid

    @property
    def keeps_state(self) -> bool:
        """Whether a checkpoint says something of it."""
        return False


@dataclass(eq=False, kw_only=True)
class SourceNode(Node):
    """Input of the job: an opaque frame of the engine, or a Python collection.

    Attributes:
        reads: What it reads, in words that are the same in every run; its uid is derived from them if it has none.
        splits: What plans its epochs, if its elements are the splits that the next step reads.
        listener: Is told of completed checkpoints.
        elements: What a step makes of its rows as it reads them, in words; empty if they are the elements.
    """

    frame: Any = None
    collection: Sequence[Any] | None = None
    is_streaming: bool = False
    reads: str = ""
    splits: SplitInput | None = None
    listener: SourceListener | None = None
    elements: str = ""


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


def input_of(frame: Node) -> Node:
    """The input, or the operator, that a frame is made of by transforms."""
    transforms = transforms_of(frame)
    return transforms[0].inputs[0] if transforms else frame


@dataclass(eq=False, kw_only=True)
class NarrowNode(Node):
    """An operator without keys; it is chained into the task that makes its input, unless it has operator state."""

    operator: OperatorSpec

    @property
    def keeps_state(self) -> bool:
        return self.operator.has_operator_state


@dataclass(eq=False, kw_only=True)
class TimestampNode(Node):
    """Gives elements their event time, chained like others; a clock for who comes after, if it keeps no watermarks."""

    strategy: WatermarkStrategy
    aligned: AlignedSource | None = None
    keeps_watermarks: bool = False


@dataclass(eq=False, kw_only=True)
class KeyedNode(Node):
    """An operator on a keyed stream; its input crosses an exchange."""

    operator: OperatorSpec
    key: KeySpec

    @property
    def keeps_state(self) -> bool:
        return True


@dataclass(eq=False, kw_only=True)
class PassNode(Node):
    """Hands on all elements in subtasks with numbers: each in one that is chosen, or all in all of them.

    Attributes:
        chooses: The function that chooses.
        key: The key that chooses. Without either every subtask gets every element.
    """

    chooses: ChosenSubtask | None = None
    key: KeySpec | None = None


@dataclass(eq=False, kw_only=True)
class UnionNode(Node):
    """All elements of several streams of one type, in no particular order."""


@dataclass(eq=False, kw_only=True)
class BroadcastNode(Node):
    """All elements of a stream, for every subtask of the operator that reads it."""


@dataclass(eq=False, kw_only=True)
class SecondInputNode(Node):
    """All elements of a stream, as the second input of the operator that reads it.

    Attributes:
        key: How they are partitioned, the same key as that of the first input; None for an operator without keys.
    """

    key: KeySpec | None = None


@dataclass(eq=False, kw_only=True)
class SideOutputNode(Node):
    """What the input operator sent to `ctx.output(tag, value)`."""

    tag: str


@dataclass(eq=False, kw_only=True)
class SinkNode(Node):
    """The end of a stream: a `holdfast.runtime.function.sink.Sink`.

    Attributes:
        dead_letters: Tag of the side output for elements that it cannot write; None if they fail the job.
    """

    sink: Any
    dead_letters: str | None = None

    @property
    def keeps_state(self) -> bool:
        return True


class StreamGraph:
    """All steps that lead to the sinks of a job, in topological order, each with a uid.

    Args:
        sinks: The ends of the program.
        auto_generate_uids: Whether a missing uid is derived from structure (with one warning) or is an error.

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
        unnamed = [node for node in self.nodes if node.uid is None and node.keeps_state]
        if unnamed and not auto_generate_uids:
            asked = "call .uid('...') on each, or set pipeline.auto-generate-uids"
            raise ConfigurationError(f"these steps have no uid: {_names(unnamed)}; {asked}")
        formers = set(taken)
        told = identities(self._structured())
        alike = [node for node, one in zip(self.nodes, told, strict=True) if one.by_order and node in unnamed]
        if unnamed:
            logger.warning(
                "no uid was set for %s: derived from the structure of the program, so a changed program is refused its "
                "state%s; call .uid('...')",
                _names(unnamed),
                f", but for these, which only their order tells from each other: {_names(alike)}" if alike else "",
            )
        for position, node in enumerate(self.nodes):
            if node.uid is None:
                former = _free(f"{_stem(node.name, node)}-{position}", formers)
                formers.add(former)
                if node.keeps_state:
                    node.former_uid = former
                    former = f"{_stem(_own(node)[0], node)}-{told[position].digits}"
                node.uid = _uid_of_input(node, taken) or _free(former, taken)
                taken[node.uid] = node
                if isinstance(node, SourceNode):
                    _tell_derived(node)

    def _structured(self) -> list[StructuredStep]:
        places = {node.number: place for place, node in enumerate(self.nodes)}
        steps = []
        for node in self.nodes:
            inputs = tuple(places[other.number] for other in node.inputs)
            counts = node.keeps_state and not isinstance(node, SinkNode)
            is_input, is_union = isinstance(node, SourceNode), isinstance(node, UnionNode)
            reads = _uid_of_input(node)
            steps.append(StructuredStep(_own(node), inputs, node.uid, counts, is_input, is_union, reads))
        return steps

    def _check_parallelism(self) -> None:
        for node in self.nodes:
            for value, word in ((node.parallelism, "parallelism"), (node.max_parallelism, "max parallelism")):
                if value is not None and not 1 <= value <= MAX_PARALLELISM:
                    raise ConfigurationError(
                        f"{word} of {node.identity!r} is {value}: it must be between 1 and {MAX_PARALLELISM}"
                    )
            if node.parallelism and node.max_parallelism and node.parallelism > node.max_parallelism:
                raise ConfigurationError(
                    f"parallelism {node.parallelism} of {node.identity!r} is above its max parallelism "
                    f"{node.max_parallelism}"
                )


def _own(node: Node) -> tuple[str, ...]:
    """What a step is by itself, as far as it tells it from others."""
    if isinstance(node, SinkNode):
        return (type(node.sink).__name__,)
    if isinstance(node, SourceNode):
        return ("source", node.element_type.ddl)
    if isinstance(node, SideOutputNode):
        return ("side", node.tag)
    if isinstance(node, SecondInputNode):
        return (type(node).__name__, *(node.key.columns or ("(selector)",) if node.key else ()))
    if not isinstance(node, KeyedNode | NarrowNode):
        return (type(node).__name__,)
    if not node.keeps_state:
        return (node.operator.shape,)
    key = node.key.columns or ("(selector)",) if isinstance(node, KeyedNode) else ()
    function = node.operator.function
    return (node.operator.shape, getattr(function, "__qualname__", None) or type(function).__qualname__, *key)


def _tell_derived(node: SourceNode) -> None:
    """Says under which uid the position of an input is kept; only that of a stream is ever gone on from in a row."""
    tell = logger.warning if node.is_streaming else logger.info
    tell(
        "no uid was set for the input that reads %s: its position is kept under %r, derived from it; call .uid('...')",
        node.reads or "no named place",
        node.uid,
    )


def _names(nodes: Iterable[Node]) -> str:
    return ", ".join(repr(node.name) for node in nodes)


def _stem(name: str, node: Node) -> str:
    return re.sub(r"[^a-zA-Z0-9]+", "-", name).strip("-").lower() or type(node).__name__.lower()


def _free(uid: str, taken: Container[str]) -> str:
    while uid in taken:
        uid += "-x"
    return uid


def _uid_of_input(node: Node, taken: Container[str] = ()) -> str:
    return uid_of_input(node.name, node.reads, taken) if isinstance(node, SourceNode) and node.reads else ""


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
