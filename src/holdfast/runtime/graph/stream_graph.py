"""The logical graph of a job: the steps of a program, before anything is planned.

`holdfast.datastream` builds these nodes; `holdfast.runtime.graph.compiler` turns them into stages. Nodes are immutable
after `StreamGraph` has named them. They have user functions and opaque frames, so they stay in the driver.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Final, Literal

from holdfast.errors import ConfigurationError
from holdfast.kernel.key_group import MAX_PARALLELISM, key_group_of, subtask_of
from holdfast.kernel.secret import get_logger
from holdfast.kernel.watermark import WatermarkStrategy
from holdfast.runtime.function.source import AlignedSource, SourceListener, SplitInput, SplitSource
from holdfast.runtime.function.user_function import (
    CheckpointedFunction,
    KeySelector,
    RuntimeContext,
    close_owner,
    open_owner,
)
from holdfast.state.descriptor import MapStateDescriptor
from holdfast.types.composite import RowTypeInformation
from holdfast.types.key_codec import key_codec_for
from holdfast.types.type_information import TypeInformation
from holdfast.types.types import Types

logger = get_logger(__name__)

# Uids of steps without one are derived from the structure of the program.
#
# A derived uid must be the same when the same program runs again, and another one when a change of the program might
# make the step a different one: then a restore finds unclaimed state and fails, instead of giving it to another step.
# So it is made of
#
# - all that is upstream, down to the inputs; a step with a uid of its own stands for what is above it,
# - the step itself: how it is called, by which columns its stream is keyed, the name of its function's class,
# - the steps with state after it. Without them, a step inserted before another one would be taken for that one,
# - its number among those of which all this is equal, and how many they are.
#
# Steps without state after it do not count: a sink or a map may be added there.
#
# An input without a uid is identified by its columns and its number among inputs of these columns. A step that would be
# another one if the inputs were defined in another order is identified by what they read instead: positions follow
# that, and so must state. Other steps are not, because targets know sinks by these uids, which must not change.

_DIGITS = 10
Shape = Literal[
    "map", "flat_map", "filter", "process", "reduce", "batches", "groups", "async", "window", "panes", "splits"
]
SPLITS_COLUMN: Final = "splits"
"""The column of the frame of an input whose elements are splits."""


@dataclass(frozen=True)
class StructuredStep:
    """The parts of a step that identify it in the structure of a program.

    Attributes:
        own: What the step itself is.
        inputs: Positions in the program of the steps that it reads.
        uid: Set by the program; None if it is to be derived.
        has_state: Whether steps above it are identified by it.
        is_input: Whether its number distinguishes it from other inputs with the same `own`.
        is_union: Whether the order of its inputs does not count.
        reads: Distinguishes an input from others with the same `own`, wherever it stands; may be empty.
    """

    own: tuple[str, ...]
    inputs: tuple[int, ...]
    uid: str | None
    has_state: bool
    is_input: bool = False
    is_union: bool = False
    reads: str = ""


@dataclass(frozen=True)
class StepIdentity:
    """The derived identity of a step.

    Attributes:
        digits: Hexadecimal, unique in the program.
        by_order: Whether only the order of definition distinguishes it from another step.
    """

    digits: str
    by_order: bool


def uid_of_input(name: str, reads: str, taken: Container[str]) -> str:
    """Return a uid by what an input reads, independent of its position; equal inputs are numbered."""
    stem = f"{name}-{hashlib.sha256(reads.encode()).hexdigest()[:8]}"
    numbered = (f"{stem}-{number}" for number in itertools.count(2))
    return next(uid for uid in itertools.chain([stem], numbered) if uid not in taken)


def identify_steps(steps: Sequence[StructuredStep]) -> list[StepIdentity]:
    """Derive the identity of each step from the structure of the program.

    Args:
        steps: All steps of the program, inputs before their readers.
    """
    below = _below(steps)
    told, unnumbered = _above(steps, _by_what_they_read(steps)), _above(steps, _by_what_they_read(steps, False))
    above = [*map(_first_if_all_are_equal, zip(*_of_all_orders(steps), strict=True), told)]
    both = [*map(_digest, above, below)]
    alike = Counter(map(_digest, unnumbered, below))
    return [
        StepIdentity(_digest(*place)[:_DIGITS], alike[_digest(up, down)] > 1)
        for place, up, down in zip(_numbered(both), unnumbered, below, strict=True)
    ]


def _first_if_all_are_equal(digests: Sequence[str], otherwise: str) -> str:
    return digests[0] if len(set(digests)) == 1 else otherwise


def _inputs(steps: Sequence[StructuredStep]) -> list[StructuredStep]:
    return [step for step in steps if step.is_input and step.uid is None]


def _of_all_orders(steps: Sequence[StructuredStep]) -> Iterator[list[str]]:
    """Yield the digests of `_above` by the numbers of inputs, first as they are, then in other orders of definition.

    Two orders stand for all: a step that is the same if two inputs are swapped and if all are rotated is the same in
    any order.
    """
    inputs = _inputs(steps)
    numbered = _numbered([_digest(*step.own) for step in inputs])
    yield _above(steps, [_digest(*number) for number in numbered])
    for own in dict.fromkeys(step.own for step in inputs):
        places = [place for place, step in enumerate(inputs) if step.own == own]
        if len({inputs[place].reads for place in places}) > 1:
            for order in ([places[1], places[0], *places[2:]], [*places[1:], places[0]]):
                moved = list(numbered)
                for place, other in zip(places, order, strict=True):
                    moved[place] = numbered[other]
                yield _above(steps, [_digest(*number) for number in moved])


def _by_what_they_read(steps: Sequence[StructuredStep], numbered: bool = True) -> list[str]:
    """Return digests of inputs by what they read, numbered among equal ones if `numbered`."""
    told = _numbered([_digest(*step.own, step.reads) for step in _inputs(steps)])
    return [_digest(*number) if numbered else number[0] for number in told]


def _above(steps: Sequence[StructuredStep], inputs: Iterable[str]) -> list[str]:
    """Return a digest of each step and all that is upstream; `inputs` are the digests of inputs without a uid."""
    inputs = iter(inputs)
    found: list[str] = []
    for step in steps:
        if step.uid is not None:
            found.append(_digest("uid", step.uid))
        elif step.is_input:
            found.append(next(inputs))
        else:
            read = [found[place] for place in step.inputs]
            found.append(_digest(*step.own, *(sorted(read) if step.is_union else read)))
    return found


def _below(steps: Sequence[StructuredStep]) -> list[str]:
    """Return for each step a digest of the steps with state that read it, directly or through steps without state."""
    reached: list[set[str]] = [set() for _ in steps]
    found: list[str] = [""] * len(steps)
    for place in reversed(range(len(steps))):
        step = steps[place]
        found[place] = _digest(*sorted(reached[place]))
        if step.has_state:
            told = {_digest(*(step.own if step.uid is None else ("uid", step.uid)), found[place])}
        else:
            told = reached[place]
        for above in step.inputs:
            reached[above] |= told
    return found


def _numbered(texts: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return each text with its number among the equal ones, and how many they are."""
    total, seen = Counter(texts), Counter[str]()
    numbered = []
    for text in texts:
        seen[text] += 1
        numbered.append((text, seen[text], total[text]))
    return numbered


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


SUBTASK_KEY_TYPE: Final[TypeInformation] = Types.LONG()


class SubtaskSelector(KeySelector):
    """Selects a key by which an element goes to the subtask that a partitioner chooses.

    An exchange places elements by the hash of their key. So each subtask has a key here, the least whole number whose
    hash leads to it, and choosing a subtask is choosing its key.

    Args:
        partition: `(key, number of subtasks) -> subtask`.
        select: `element -> key`.
        keys: The key of each subtask; empty until the parallelism is known.
    """

    def __init__(
        self, partition: Callable[[Any, int], int], select: Callable[[Any], Any], keys: tuple[int, ...] = ()
    ) -> None:
        self._partition = partition
        self._select = select
        self._keys = keys

    def among(self, parallelism: int, max_parallelism: int) -> SubtaskSelector:
        """Return the selector for a known parallelism."""
        return SubtaskSelector(self._partition, self._select, keys_of_subtasks(parallelism, max_parallelism))

    def open(self, runtime_context: RuntimeContext) -> None:
        open_owner(self._partition, runtime_context)
        open_owner(self._select, runtime_context)

    def close(self) -> None:
        close_owner(self._partition)
        close_owner(self._select)

    def get_key(self, element: Any) -> int:
        """Return the key of the chosen subtask.

        Raises:
            ValueError: The partitioner returned no index of a subtask.
        """
        keys = self._keys
        chosen = self._partition(self._select(element), len(keys))
        if isinstance(chosen, bool) or not isinstance(chosen, int) or not 0 <= chosen < len(keys):
            raise ValueError(
                f"the partitioner of partition_custom() returned {chosen!r} for {element!r:.200}: it must return the "
                f"index of one of {len(keys)} subtasks, from 0 to {len(keys) - 1}."
            )
        return keys[chosen]


@cache
def keys_of_subtasks(parallelism: int, max_parallelism: int) -> tuple[int, ...]:
    """Return the least whole number that goes to each subtask."""
    codec = key_codec_for(SUBTASK_KEY_TYPE)
    found: dict[int, int] = {}
    number = 0
    while len(found) < parallelism:
        group = key_group_of(codec.hash(number), max_parallelism)
        found.setdefault(subtask_of(group, max_parallelism, parallelism), number)
        number += 1
    return tuple(found[subtask] for subtask in range(parallelism))


_counter = itertools.count()


@dataclass(frozen=True)
class KeySpec:
    """The partitioning of a stream: by columns of its rows, or by a Python selector.

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
    """A user function and the way in which it is called.

    Attributes:
        side_outputs: Whether side outputs are read; only then the output is searched for `yield tag, value`.
        broadcast: Descriptors of its broadcast states; None for a function without a broadcast side.
        second_type: Type of the elements of its second input; None for a function of one input.
        emits_timestamps: Whether it emits pairs of an event time and an element. Other output has the time of the
            element that it was emitted for.
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
    emits_timestamps: bool = False
    key_columns: RowTypeInformation | None = None

    @property
    def has_operator_state(self) -> bool:
        """Whether it has state that belongs to a subtask, so that its parallelism must be known."""
        return self.broadcast is not None or isinstance(self.function, CheckpointedFunction)


@dataclass(eq=False, kw_only=True)
class Node:
    """One step of the program; `inputs` are the steps that it reads.

    `former_uid` is the uid that releases before uids from structure derived for the step.
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
        """The uid, after the graph was validated."""
        if self.uid is None:
            raise ConfigurationError(f"The step {self.name!r} has no uid yet: validate the graph first.")
        return self.uid

    @property
    def keeps_state(self) -> bool:
        """Whether checkpoints have something of it."""
        return False


@dataclass(eq=False, kw_only=True)
class SourceNode(Node):
    """Input of the job: an opaque frame of the engine, or a Python collection.

    Attributes:
        reads: What it reads, in words that are the same in every run; its uid is derived from them if it has none.
        splits: Plans its epochs, if its elements are the splits that the next step reads.
        listener: Is notified of completed checkpoints.
        elements: What a step makes of its rows as it reads them, in words; empty if the rows are the elements.
        split_source: What the tasks of a real-time job read; None if only the engine can read it.
    """

    frame: Any = None
    collection: Sequence[Any] | None = None
    is_streaming: bool = False
    reads: str = ""
    splits: SplitInput | None = None
    listener: SourceListener | None = None
    elements: str = ""
    split_source: SplitSource | None = None


@dataclass(eq=False, kw_only=True)
class FrameTransformNode(Node):
    """A function of frames of the engine (`DataFrame -> DataFrame`), which needs no Python workers.

    After a Python operator its frame has the rows of one epoch.
    """

    function: Callable[[Any], Any]


def transforms_of(frame: Node) -> list[FrameTransformNode]:
    """Return the transforms of a frame in the order of their application."""
    found: list[FrameTransformNode] = []
    while isinstance(frame, FrameTransformNode):
        found.insert(0, frame)
        frame = frame.inputs[0]
    return found


def input_of(frame: Node) -> Node:
    """Return the input or operator whose output the transforms of a frame start with."""
    transforms = transforms_of(frame)
    return transforms[0].inputs[0] if transforms else frame


@dataclass(eq=False, kw_only=True)
class NonKeyedNode(Node):
    """An operator without keys; it is chained into the task of its input, unless it has operator state."""

    operator: OperatorSpec

    @property
    def keeps_state(self) -> bool:
        return self.operator.has_operator_state


@dataclass(eq=False, kw_only=True)
class TimestampNode(Node):
    """Assigns event time to elements. It is a clock for the steps after it, unless it keeps their watermarks."""

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
class ForwardNode(Node):
    """Forwards elements to subtasks with numbers: each to a chosen one, or all to all.

    Attributes:
        partitioner: The function that chooses.
        key: The key that chooses. Without either every subtask gets every element.
    """

    NAME_IN_UIDS: ClassVar = "PassNode"
    partitioner: SubtaskSelector | None = None
    key: KeySpec | None = None


@dataclass(eq=False, kw_only=True)
class UnionNode(Node):
    """All elements of several streams of one type, in undefined order."""


@dataclass(eq=False, kw_only=True)
class BroadcastNode(Node):
    """All elements of a stream, for every subtask of the operator that reads it."""


@dataclass(eq=False, kw_only=True)
class SecondInputNode(Node):
    """All elements of a stream, as the second input of the operator that reads it.

    Attributes:
        key: The partitioning, by the same key as that of the first input; None for an operator without keys.
    """

    key: KeySpec | None = None


@dataclass(eq=False, kw_only=True)
class SideOutputNode(Node):
    """Elements that the input operator emits to `ctx.output(tag, value)`."""

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
        ConfigurationError: There is no sink, a uid is used twice, a parallelism is out of range, or a uid is missing.
    """

    def __init__(self, sinks: Iterable[SinkNode], *, auto_generate_uids: bool = True) -> None:
        self.sinks = tuple(sinks)
        if not self.sinks:
            raise ConfigurationError(
                "The job has no sink: end a stream with sink_to(), for_each_epoch() or print() before execute()."
            )
        self.nodes = tuple(_topological(self.sinks))
        self._name_all(auto_generate_uids)
        self._check_parallelism()

    def consumers(self, node: Node) -> list[Node]:
        """Return the steps that read `node`, in order of definition."""
        return [other for other in self.nodes if node in other.inputs]

    def of(self, kind: type[Any]) -> list[Any]:
        """Return the steps of one kind, in topological order."""
        return [node for node in self.nodes if isinstance(node, kind)]

    def _name_all(self, auto_generate_uids: bool) -> None:
        taken: dict[str, Node] = {}
        for node in self.nodes:
            if node.uid is not None:
                if node.uid in taken:
                    raise ConfigurationError(
                        f"The uid {node.uid!r} is used by two steps, {taken[node.uid].name!r} and {node.name!r}: "
                        "give each its own."
                    )
                taken[node.uid] = node
        unnamed = [node for node in self.nodes if node.uid is None and node.keeps_state]
        if unnamed and not auto_generate_uids:
            raise ConfigurationError(
                f"These steps have no uid: {_names(unnamed)}; call .uid('...') on each, or set "
                "pipeline.auto-generate-uids."
            )
        formers = set(taken)
        told = identify_steps(self._structured())
        alike = [node for node, one in zip(self.nodes, told, strict=True) if one.by_order and node in unnamed]
        if unnamed:
            logger.warning(
                "no uid was set for %s: it is derived from the structure of the program, so a changed program cannot "
                "restore the state%s; call .uid('...')",
                _names(unnamed),
                f", except for these, which differ by their order only: {_names(alike)}" if alike else "",
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
                    _log_derived(node)

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
                        f"{word} of {node.identity!r} is {value}: it must be between 1 and {MAX_PARALLELISM}."
                    )
            if node.parallelism and node.max_parallelism and node.parallelism > node.max_parallelism:
                raise ConfigurationError(
                    f"parallelism {node.parallelism} of {node.identity!r} is above its max parallelism "
                    f"{node.max_parallelism}."
                )


def _own(node: Node) -> tuple[str, ...]:
    """Return what a step is by itself.

    Names of node, sink and function classes are part of derived uids. A class of ours that is renamed keeps its former
    name as `NAME_IN_UIDS`, or running jobs would not find their state.
    """
    if isinstance(node, SinkNode):
        return (_name_in_uids(type(node.sink)),)
    if isinstance(node, SourceNode):
        return ("source", node.element_type.ddl)
    if isinstance(node, SideOutputNode):
        return ("side", node.tag)
    if isinstance(node, SecondInputNode):
        return (_name_in_uids(type(node)), *(node.key.columns or ("(selector)",) if node.key else ()))
    if not isinstance(node, KeyedNode | NonKeyedNode):
        return (_name_in_uids(type(node)),)
    if not node.keeps_state:
        return (node.operator.shape,)
    key = node.key.columns or ("(selector)",) if isinstance(node, KeyedNode) else ()
    function = node.operator.function
    return (node.operator.shape, getattr(function, "__qualname__", None) or _name_in_uids(type(function)), *key)


def _name_in_uids(kind: type) -> str:
    """Return the name of a class in derived uids: the one that it had first, also after it was renamed."""
    return str(vars(kind).get("NAME_IN_UIDS", kind.__qualname__))


def _log_derived(node: SourceNode) -> None:
    """Log the uid under which the position of an input is kept; a warning for streams, which resume from it."""
    log = logger.warning if node.is_streaming else logger.info
    log(
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
    """Yield inputs before consumers, otherwise in order of definition, so that derived uids are stable."""
    reached: dict[int, Node] = {}
    stack = list(sinks)
    while stack:
        node = stack.pop()
        if node.number not in reached:
            reached[node.number] = node
            stack.extend(node.inputs)
    for number in sorted(reached):
        yield reached[number]
