"""What is said of single steps, as PyFlink says it: name, uid, the end of a stream, and where elements are processed.

Operators without keys run inside the tasks of their input, which Spark balances; keyed operators get their elements by
key. So there is no channel between two operators whose partitioning or buffers could be chosen, unless a program makes
one: with `partition_custom`, or `broadcast`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast, overload

from holdfast.errors import ConfigurationError
from holdfast.kernel.key_group import MAX_PARALLELISM
from holdfast.runtime.function.sink import dead_letter_type
from holdfast.runtime.function.user_function import KeySelectorLike, OutputTag, Partitioner
from holdfast.runtime.graph.stream_graph import Node, SideOutputNode, SinkNode
from holdfast.state.declaration.descriptor import MapStateDescriptor
from holdfast.types.conversion.arrow import element_ddl
from holdfast.types.information.type_information import (
    ChangelogTypeInformation,
    RowTypeInformation,
    StructTypeInformation,
    TupleTypeInformation,
    TypeInformation,
    Types,
)

if TYPE_CHECKING:
    from holdfast.datastream.environment.stream_execution_environment import StreamExecutionEnvironment
    from holdfast.datastream.stream.broadcast import BroadcastStream
    from holdfast.datastream.stream.data_stream import DataStream


class Placed:
    """What is said of the place of one step; the stream, or the sink, stays as it is."""

    def set_uid_hash(self, uid_hash: str) -> NoReturn:
        """Refused: state is found by uid, never by a hash of it."""
        raise ConfigurationError(
            f"set_uid_hash({uid_hash!r}): a checkpoint of Flink cannot be restored here, and in Holdfast's own a step "
            "is known by its uid: call uid()."
        )

    def disable_chaining(self) -> Self:
        """Accepted: what shares a task shares it without queues, so nothing is gained by parting it."""
        return self

    def start_new_chain(self) -> Self:
        """Accepted: what shares a task shares it without queues, so nothing is gained by parting it."""
        return self

    def slot_sharing_group(self, slot_sharing_group: Any) -> Self:
        """Accepted: there are no slots; resources are those of Spark's executors."""
        return self

    def set_buffer_timeout(self, timeout_millis: int) -> Self:
        """Accepted: elements cross an exchange when the epoch's stage has ended, and no buffer waits for a timeout."""
        return self


class Named:
    """What streams and sinks have in common: they stand for one step of the program."""

    _node: Node

    def name(self, name: str) -> Self:
        """Names the step for logs and messages."""
        self._node.name = name
        return self

    def set_description(self, description: str) -> Self:
        """Names the step for logs and messages, as `name` does."""
        return self.name(description)

    def get_name(self) -> str:
        """The step's name."""
        return self._node.name

    def uid(self, uid: str) -> Self:
        """Identifies the step in checkpoints. State is found again under this uid, wherever the step then stands.

        Raises:
            ConfigurationError: It is empty.
        """
        if not uid:
            raise ConfigurationError("a uid must not be empty: it names the operator in checkpoints.")
        self._node.uid = uid
        return self


class DataStreamSink(Named, Placed):
    """The end of a stream.

    Args:
        node: The step.
        make: Makes a stream of a step that reads this one.
    """

    _node: SinkNode

    def __init__(self, node: SinkNode, make: Callable[[Node], DataStream]) -> None:
        self._node = node
        self._make = make

    def set_parallelism(self, parallelism: int) -> Self:
        """Accepted: a sink runs in the tasks of its input, which decide how many files or writers there are."""
        self._node.parallelism = checked_parallelism(parallelism, "parallelism")
        return self

    def set_dead_letter_output(self, tag: OutputTag) -> Self:
        """Elements that the sink cannot write go to this side output, and do not fail the job.

        These are what a task can tell before it stages them: a serializer that raises, a null or a value that the table
        does not take. What a target refuses later, at the commit, still stops the job.

        Args:
            tag: `OutputTag("refused")`. `get_side_output(tag)` of this sink has rows of `row, sink, epoch, reason`: the
                element, the uid of the sink, and why. Without that call they are dropped.

        Raises:
            ConfigurationError: It is no tag, or one of another type.
        """
        letter = dead_letter_type(self._node.element_type)
        if not isinstance(tag, OutputTag) or tag.type_info not in (letter, Types.PICKLED_BYTE_ARRAY()):
            raise ConfigurationError(
                f"set_dead_letter_output() takes OutputTag('refused'), whose type is {element_ddl(letter)!r} for this "
                f"stream, not {tag!r}."
            )
        self._node.dead_letters = tag.tag_id
        return self

    def get_side_output(self, output_tag: OutputTag) -> DataStream:
        """The elements that the sink cannot write, as `set_dead_letter_output` says.

        Raises:
            ConfigurationError: The sink has no such side output.
        """
        if self._node.dead_letters != output_tag.tag_id:
            raise ConfigurationError(
                f"the sink {self._node.name!r} has no side output {output_tag.tag_id!r}: call set_dead_letter_output() "
                "with this tag first."
            )
        name, letter = f"{self._node.name}: {output_tag.tag_id}", dead_letter_type(self._node.element_type)
        return self._make(SideOutputNode(inputs=(self._node,), name=name, element_type=letter, tag=output_tag.tag_id))


def checked_parallelism(value: int, what: str) -> int:
    """A number of subtasks.

    Raises:
        ConfigurationError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_PARALLELISM:
        raise ConfigurationError(f"{what} must be a whole number from 1 to {MAX_PARALLELISM}, not {value!r}.")
    return value


class Distributed(Placed):
    """What is said of the way of a stream to the next operator."""

    _environment: StreamExecutionEnvironment

    @abstractmethod
    def get_type(self) -> TypeInformation:
        """Return the type of the elements."""

    @abstractmethod
    def map(self, func: Any, output_type: Any = None) -> DataStream:
        """Replace each element."""

    def shuffle(self) -> Self:
        """Accepted: the next operator runs in the tasks of this one, or gets its elements by key."""
        return self

    def rebalance(self) -> Self:
        """Accepted: Spark balances the partitions of an input, and `transform` has its `repartition()`."""
        return self

    def rescale(self) -> Self:
        """Accepted: the next operator runs in the tasks of this one, or gets its elements by key."""
        return self

    def forward(self) -> Self:
        """Accepted: the next operator runs in the tasks of this one anyway, unless it is keyed."""
        return self

    def cache(self) -> Self:
        """Accepted: a stream that several steps read is made once an epoch."""
        return self

    def partition_custom(
        self, partitioner: Partitioner | Callable[[Any, int], int], key_selector: KeySelectorLike
    ) -> DataStream:
        """Sends each element to the subtask that `partitioner(key, number of subtasks)` names.

        The steps after it, up to the next `key_by`, run there. There are as many subtasks as `set_parallelism` of the
        returned stream says.

        Raises:
            ConfigurationError: The stream is keyed, or one of the two cannot be called so.
        """
        return self._environment._other_kinds.partitioned(cast("DataStream", self), partitioner, key_selector)

    @overload
    def broadcast(self) -> DataStream: ...

    @overload
    def broadcast(
        self,
        broadcast_state_descriptor: MapStateDescriptor[Any, Any],
        *other_broadcast_state_descriptors: MapStateDescriptor[Any, Any],
    ) -> BroadcastStream: ...

    def broadcast(
        self,
        broadcast_state_descriptor: MapStateDescriptor[Any, Any] | None = None,
        *other_broadcast_state_descriptors: MapStateDescriptor[Any, Any],
    ) -> DataStream | BroadcastStream:
        """Gives every element to every subtask: of the operator that it is connected with, or of the steps after it.

        Args:
            broadcast_state_descriptor: The map state that the operator that it is then connected with keeps of these
                elements. Without it the stream goes on, with as many copies as its `set_parallelism` says.
            *other_broadcast_state_descriptors: Further ones.

        Raises:
            ConfigurationError: One is no `MapStateDescriptor`, a name comes twice, or the stream is keyed.
        """
        kinds = self._environment._other_kinds
        if broadcast_state_descriptor is None and not other_broadcast_state_descriptors:
            return kinds.to_all(cast("DataStream", self))
        given = (broadcast_state_descriptor, *other_broadcast_state_descriptors)
        return kinds.broadcast(cast("DataStream", self), given)  # type: ignore[arg-type]  # which are looked at there

    def add_sink(self, sink_func: Any) -> NoReturn:
        """Refused: a `SinkFunction` is a class of Java."""
        raise ConfigurationError(
            f"add_sink({sink_func!r:.80}) takes a SinkFunction, a class of Java: sink_to() takes a Sink "
            "(ParquetFileSink, FileSink, KafkaSink, DeltaSink, IcebergSink, DatabaseSink, or one of your own)."
        )

    def project(self, *field_indexes: int) -> DataStream:
        """Keeps some parts of tuples, or columns of rows, in the order in which they are named.

        Raises:
            ConfigurationError: The elements have no declared parts, or not these.
        """
        element_type = self.get_type()
        if not isinstance(element_type, TupleTypeInformation | RowTypeInformation):
            raise ConfigurationError(
                f"project() keeps parts of tuples or rows, and the elements of this stream are {element_type.ddl!r}: "
                "declare output_type at the operator before it."
            )
        if isinstance(element_type, ChangelogTypeInformation):
            raise ConfigurationError(
                f"project() would lose the kinds of {element_type.ddl!r}: use map(), and return rows of the same kind."
            )
        places = range(len(element_type.types))
        if not field_indexes or any(type(index) is not int or index not in places for index in field_indexes):
            raise ConfigurationError(
                f"project() takes positions from 0 to {len(places) - 1}, not {list(field_indexes)!r}."
            )
        kept: StructTypeInformation
        if isinstance(element_type, RowTypeInformation):
            names = [element_type.names[index] for index in field_indexes]
            if len(set(names)) < len(names):
                raise ConfigurationError(f"project() names a column twice: {names!r}.")
            kept = RowTypeInformation(names, [element_type.types[index] for index in field_indexes])
        else:
            kept = TupleTypeInformation([element_type.types[index] for index in field_indexes])
        return self.map(_Parts(field_indexes), kept)


class _Parts:
    """Takes parts of an element."""

    def __init__(self, places: tuple[int, ...]) -> None:
        self._places = places

    def __call__(self, value: Any) -> tuple[Any, ...]:
        return tuple(value[place] for place in self._places)
