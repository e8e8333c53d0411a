"""The way of a stream to the next operator, as PyFlink says it.

Operators without keys run inside the tasks of their input, which Spark balances; keyed operators get their elements by
key. So there is no channel between two operators whose partitioning or buffers could be chosen, unless a program makes
one: with `partition_custom`, or `broadcast`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast, overload

from holdfast.datastream.stream.step.named import Placed
from holdfast.errors import ConfigurationError
from holdfast.runtime.function.user_function import KeySelectorLike, Partitioner
from holdfast.state.declaration.descriptor import MapStateDescriptor
from holdfast.types.information.type_information import (
    ChangelogTypeInformation,
    RowTypeInformation,
    StructTypeInformation,
    TupleTypeInformation,
    TypeInformation,
)

if TYPE_CHECKING:
    from holdfast.datastream.environment.stream_execution_environment import StreamExecutionEnvironment
    from holdfast.datastream.stream.broadcast import BroadcastStream
    from holdfast.datastream.stream.data_stream import DataStream


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
