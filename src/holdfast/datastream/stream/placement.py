"""Where elements are processed, as a PyFlink program may say it: what acts here, and what has nothing to act on.

Operators without keys run inside the tasks of their input, which Spark balances; keyed operators get their elements by
key. So there is no channel between two operators whose partitioning or buffers could be chosen.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Self

from holdfast.errors import ConfigurationError
from holdfast.types.information.type_information import (
    ChangelogTypeInformation,
    RowTypeInformation,
    StructTypeInformation,
    TupleTypeInformation,
    TypeInformation,
)

if TYPE_CHECKING:
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


class Distributed(Placed):
    """What is said of the way of a stream to the next operator."""

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

    def partition_custom(self, partitioner: Any, key_selector: Callable[[Any], Any]) -> NoReturn:
        """Refused: which task processes an element is Spark's business, or that of its key."""
        raise ConfigurationError(
            "partition_custom() sends elements to tasks by number, and here operators without keys have no tasks of "
            "their own: key_by(key_selector) brings the elements of one key together, and transform() has Spark's "
            "repartition()."
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
