"""State as user functions use it: handles, the stores that return them, and contexts of initialization and snapshot.

Keyed handles work on the current key. Reading absent state returns None, the default, or an empty collection, and never
raises. None is not an element of a list, but is a legal value of a map entry.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Generic, TypeVar

from holdfast.errors import StateError

if TYPE_CHECKING:
    from holdfast.state.descriptor import (
        AggregatingStateDescriptor,
        FoldingStateDescriptor,
        ListStateDescriptor,
        MapStateDescriptor,
        ReducingStateDescriptor,
        ValueStateDescriptor,
    )


K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
IN = TypeVar("IN")
OUT = TypeVar("OUT")
_PAIRS: Final = "a map, or pairs of a key and a value"
RAW_KEYED: Final = "_raw_keyed"
"""Name of the operator state in which raw keyed state is kept."""


class ReadableMap(ABC, Generic[K, V]):
    """A map with methods and with brackets. Unlike a dict it returns None for a missing key."""

    @abstractmethod
    def get(self, key: K) -> V | None:
        """Return the value of an entry.

        Returns:
            The value, None if there is no such entry.
        """

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Return whether an entry exists, also one whose value is None."""

    @abstractmethod
    def keys(self) -> Iterable[K]:
        """Return the keys of all entries, in no promised order."""

    def __getitem__(self, key: K) -> V | None:
        return self.get(key)

    def __contains__(self, key: K) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())


class WritableMap(ReadableMap[K, V]):
    """A map that can be changed with methods and with brackets."""

    @abstractmethod
    def put(self, key: K, value: V | None) -> None:
        """Set the value of an entry, and add the entry if it does not exist.

        Args:
            key: The key, not None.
            value: The value, which may be None.

        Raises:
            StateError: The key is None.
            OutputTypeError: Key or value does not fit the declared type.
        """

    @abstractmethod
    def remove(self, key: K) -> None:
        """Remove an entry. Removing a missing entry is not an error."""

    def __setitem__(self, key: K, value: V | None) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self.remove(key)


class State(ABC):
    """State of the current key."""

    @abstractmethod
    def clear(self) -> None:
        """Remove the state of the current key. Clearing absent state is not an error."""


class ValueState(State, Generic[T]):
    """One value per key.

    >>> class Count(KeyedProcessFunction):
    ...     def open(self, runtime_context):
    ...         self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", 0))
    ...
    ...     def process_element(self, value, ctx):
    ...         self.count.update(self.count.value() + 1)
    ...         yield self.count.value()
    >>> numbers = env.from_collection([3, 1, 3], "bigint").key_by(lambda n: 0)
    >>> list(numbers.process(Count(), "bigint").execute_and_collect())
    [1, 2, 3]
    """

    @abstractmethod
    def value(self) -> T | None:
        """Return the value.

        Returns:
            The value; without one, a copy of the descriptor's default, which is None unless set.
        """

    @abstractmethod
    def update(self, value: T | None) -> None:
        """Replace the value. None clears it.

        Raises:
            OutputTypeError: The value does not fit the declared type.
        """


class AppendingState(State, Generic[IN, OUT]):
    """State that collects elements."""

    @abstractmethod
    def add(self, value: IN) -> None:
        """Add an element.

        Raises:
            OutputTypeError: The element, or the new content, does not fit the declared type.
        """

    @abstractmethod
    def get(self) -> OUT:
        """Return the content: the elements of a list, the result of an aggregation; see the subclasses."""


class MergingState(AppendingState[IN, OUT]):
    """Appending state whose content can be merged across namespaces, as session windows need."""


class ListState(MergingState[T, Iterable[T]]):
    """A list of elements per key.

    >>> class Collect(KeyedProcessFunction):
    ...     def open(self, runtime_context):
    ...         self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", "bigint"))
    ...
    ...     def process_element(self, value, ctx):
    ...         self.seen.add(value)
    ...         yield list(self.seen.get())
    >>> numbers = env.from_collection([3, 1, 3], "bigint").key_by(lambda n: 0)
    >>> list(numbers.process(Collect(), "array<bigint>").execute_and_collect())
    [[3], [3, 1], [3, 1, 3]]
    """

    @abstractmethod
    def get(self) -> Iterable[T]:
        """Return the elements in order.

        Returns:
            The elements; empty, and not None, if there are none.
        """

    @abstractmethod
    def add(self, value: T) -> None:
        """Append an element.

        Raises:
            StateError: The element is None.
            OutputTypeError: The element does not fit the declared type.
        """

    @abstractmethod
    def update(self, values: Iterable[T]) -> None:
        """Replace all elements. An empty list clears the state.

        Raises:
            StateError: The argument or an element is None; nothing has changed then.
            OutputTypeError: An element does not fit the declared type; nothing has changed then.
        """

    @abstractmethod
    def add_all(self, values: Iterable[T]) -> None:
        """Append elements. An empty list changes nothing.

        Raises:
            StateError: The argument or an element is None; nothing has changed then.
            OutputTypeError: An element does not fit the declared type; nothing has changed then.
        """

    def __iter__(self) -> Iterator[T]:
        return iter(self.get())


class ReducingState(MergingState[T, T | None]):
    """One value per key; every added element is reduced into it. `get` returns None if there is no value.

    >>> class Greatest(KeyedProcessFunction):
    ...     def open(self, runtime_context):
    ...         self.greatest = runtime_context.get_reducing_state(ReducingStateDescriptor("greatest", max, "bigint"))
    ...
    ...     def process_element(self, value, ctx):
    ...         self.greatest.add(value)
    ...         yield self.greatest.get()
    >>> numbers = env.from_collection([3, 1, 4], "bigint").key_by(lambda n: 0)
    >>> list(numbers.process(Greatest(), "bigint").execute_and_collect())
    [3, 3, 4]
    """


class AggregatingState(MergingState[IN, OUT | None]):
    """An accumulator per key. `get` returns the result of the accumulator, None if there is none.

    >>> class Mean(AggregateFunction):
    ...     def create_accumulator(self):
    ...         return 0, 0
    ...
    ...     def add(self, value, accumulator):
    ...         return accumulator[0] + value, accumulator[1] + 1
    ...
    ...     def get_result(self, accumulator):
    ...         return accumulator[0] / accumulator[1]
    ...
    ...     def merge(self, acc_a, acc_b):
    ...         return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]
    >>> class RunningMean(KeyedProcessFunction):
    ...     def open(self, runtime_context):
    ...         descriptor = AggregatingStateDescriptor("mean", Mean())
    ...         self.mean = runtime_context.get_aggregating_state(descriptor)
    ...
    ...     def process_element(self, value, ctx):
    ...         self.mean.add(value)
    ...         yield self.mean.get()
    >>> numbers = env.from_collection([3, 1, 8], "bigint").key_by(lambda n: 0)
    >>> list(numbers.process(RunningMean(), "double").execute_and_collect())
    [3.0, 2.0, 4.0]
    """


class FoldingState(AppendingState[IN, OUT | None]):
    """An accumulator per key that starts from an initial value. `get` returns None before the first element.

    >>> class Text(KeyedProcessFunction):
    ...     def open(self, runtime_context):
    ...         descriptor = FoldingStateDescriptor("text", "", lambda text, n: f"{text}{n}", "string")
    ...         self.text = runtime_context.get_folding_state(descriptor)
    ...
    ...     def process_element(self, value, ctx):
    ...         self.text.add(value)
    ...         yield self.text.get()
    >>> numbers = env.from_collection([3, 1, 3], "bigint").key_by(lambda n: 0)
    >>> list(numbers.process(Text(), "string").execute_and_collect())
    ['3', '31', '313']
    """


class MapState(State, WritableMap[K, V]):
    """A map per key. A value may be None; such an entry exists.

    >>> class CountEach(KeyedProcessFunction):
    ...     def open(self, runtime_context):
    ...         self.counts = runtime_context.get_map_state(MapStateDescriptor("counts", "bigint", "bigint"))
    ...
    ...     def process_element(self, value, ctx):
    ...         self.counts[value] = (self.counts[value] or 0) + 1
    ...         yield dict(self.counts.items())
    >>> numbers = env.from_collection([3, 1, 3], "bigint").key_by(lambda n: 0)
    >>> list(numbers.process(CountEach(), "map<bigint, bigint>").execute_and_collect())
    [{3: 1}, {3: 1, 1: 1}, {3: 2, 1: 1}]
    """

    @abstractmethod
    def get(self, key: K) -> V | None:
        """Return the value of an entry.

        Returns:
            The value, None if there is no such entry.
        """

    @abstractmethod
    def put(self, key: K, value: V | None) -> None:
        """Set the value of an entry, and add the entry if it does not exist.

        Args:
            key: The key, not None.
            value: The value, which may be None.

        Raises:
            StateError: The key is None.
            OutputTypeError: Key or value does not fit the declared type.
        """

    @abstractmethod
    def put_all(self, dict_value: Mapping[K, V | None] | Iterable[tuple[K, V | None]]) -> None:
        """Set several entries. If one of them is rejected, none is set.

        Args:
            dict_value: A mapping, or an iterable of pairs of key and value.

        Raises:
            StateError: The argument is None or no entries, or a key is None.
            OutputTypeError: A key or value does not fit the declared type.
        """

    @abstractmethod
    def remove(self, key: K) -> None:
        """Remove an entry. Removing a missing entry is not an error; removing the last one clears the map."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Return whether an entry exists, also one whose value is None."""

    @abstractmethod
    def items(self) -> Iterable[tuple[K, V | None]]:
        """Return key and value of all entries, in no promised order. The map may be changed during iteration."""

    @abstractmethod
    def keys(self) -> Iterable[K]:
        """Return the keys of all entries, in no promised order."""

    @abstractmethod
    def values(self) -> Iterable[V | None]:
        """Return the values of all entries, in no promised order."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Return whether the map has no entry."""

    def entries(self) -> Iterator[MapEntry[K, V]]:
        """Yield the entries as `MapEntry` objects, through which the map can be changed."""
        for key, value in self.items():
            yield MapEntry(self, key, value)

    def iterator(self) -> MapIterator[K, V]:
        """Return an iterator over `entries` that can remove the entry it returned last."""
        return MapIterator(self)


class MapEntry(tuple[K, V | None], Generic[K, V]):
    """One entry of a map state. It equals the pair of its key and the value that was read."""

    _state: MapState[K, V]
    _value: V | None

    def __new__(cls, state: MapState[K, V], key: K, value: V | None) -> MapEntry[K, V]:
        entry = super().__new__(cls, (key, value))
        entry._state = state
        entry._value = value
        return entry

    @property
    def key(self) -> K:
        return self[0]

    @property
    def value(self) -> V | None:
        """The value that was read, or the one that `set_value` has set since."""
        return self._value

    def set_value(self, value: V | None) -> V | None:
        """Write a new value into the map.

        Returns:
            The value before.
        """
        before = self._value
        self._state.put(self.key, value)
        self._value = value
        return before


class MapIterator(Iterator[MapEntry[K, V]], Generic[K, V]):
    """Iterator over the entries of a map state that can remove the last one it returned."""

    def __init__(self, state: MapState[K, V]) -> None:
        self._state = state
        self._entries = state.entries()
        self._last: MapEntry[K, V] | None = None

    def __next__(self) -> MapEntry[K, V]:
        self._last = None
        self._last = next(self._entries)
        return self._last

    def remove(self) -> None:
        """Remove the entry that `next` returned last from the map.

        Raises:
            StateError: `next` has returned no entry yet, or the entry is removed already.
        """
        if self._last is None:
            raise StateError("remove() takes out the entry that next() gave last: call next() before each remove().")
        self._state.remove(self._last.key)
        self._last = None


class ReadOnlyBroadcastState(State, ReadableMap[K, V]):
    """The map of a broadcast state, as the non-broadcast side of a function reads it."""

    @abstractmethod
    def get(self, key: K) -> V | None:
        """Return the value of an entry.

        Returns:
            The value, None if there is no such entry.
        """

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Return whether an entry exists, also one whose value is None."""

    @abstractmethod
    def items(self) -> Iterable[tuple[K, V | None]]:
        """Return key and value of all entries, in no promised order. The map may be changed during iteration."""

    @abstractmethod
    def keys(self) -> Iterable[K]:
        """Return the keys of all entries, in no promised order."""

    @abstractmethod
    def values(self) -> Iterable[V | None]:
        """Return the values of all entries, in no promised order."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Return whether the map has no entry."""

    def immutable_entries(self) -> Iterable[tuple[K, V | None]]:
        """Return key and value of all entries; the same as `items`."""
        return self.items()


class BroadcastState(ReadOnlyBroadcastState[K, V], WritableMap[K, V]):
    """A map with the same content on every subtask of an operator, because all of them receive the same elements.

    >>> from holdfast.testing import OperatorHarness
    >>> LIMITS = MapStateDescriptor("limits", "string", "bigint")
    >>> class Check(BroadcastProcessFunction):
    ...     def process_element(self, value, ctx):
    ...         yield ctx.get_broadcast_state(LIMITS).get(value)
    ...
    ...     def process_broadcast_element(self, value, ctx):
    ...         ctx.get_broadcast_state(LIMITS).put(*value)
    >>> with OperatorHarness(Check(), broadcast=[LIMITS]) as harness:
    ...     _ = harness.process_broadcast_element(("kelp", 5))
    ...     harness.process_element("kelp")
    [5]
    """

    @abstractmethod
    def put(self, key: K, value: V | None) -> None:
        """Set the value of an entry, and add the entry if it does not exist.

        Args:
            key: The key, not None.
            value: The value, which may be None.

        Raises:
            StateError: The key is None.
            OutputTypeError: Key or value does not fit the declared type.
        """

    @abstractmethod
    def put_all(self, dict_value: Mapping[K, V | None] | Iterable[tuple[K, V | None]]) -> None:
        """Set several entries. If one of them is rejected, none is set.

        Args:
            dict_value: A mapping, or an iterable of pairs of key and value.

        Raises:
            StateError: The argument is None or no entries, or a key is None.
            OutputTypeError: A key or value does not fit the declared type.
        """

    @abstractmethod
    def remove(self, key: K) -> None:
        """Remove an entry. Removing a missing entry is not an error."""


class KeyedStateStore(ABC):
    """Returns handles of keyed state. The same name returns the same state."""

    @abstractmethod
    def get_state(self, state_descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """Return the handle of a value state.

        Args:
            state_descriptor: Name and type of the state.

        Raises:
            StateError: The name belongs to a state of another kind.
            StateMigrationError: The restored state has another kind, or a type that cannot be migrated.
        """

    @abstractmethod
    def get_list_state(self, state_descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Return the handle of a list state.

        Args:
            state_descriptor: Name and type of the state.

        Raises:
            StateError: The name belongs to a state of another kind.
            StateMigrationError: The restored state has another kind, or a type that cannot be migrated.
        """

    @abstractmethod
    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """Return the handle of a reducing state.

        Args:
            state_descriptor: Name and type of the state.

        Raises:
            StateError: The name belongs to a state of another kind.
            StateMigrationError: The restored state has another kind, or a type that cannot be migrated.
        """

    @abstractmethod
    def get_aggregating_state(
        self, state_descriptor: AggregatingStateDescriptor[IN, Any, OUT]
    ) -> AggregatingState[IN, OUT]:
        """Return the handle of an aggregating state.

        Args:
            state_descriptor: Name and type of the state.

        Raises:
            StateError: The name belongs to a state of another kind.
            StateMigrationError: The restored state has another kind, or a type that cannot be migrated.
        """

    @abstractmethod
    def get_folding_state(self, state_descriptor: FoldingStateDescriptor[IN, OUT]) -> FoldingState[IN, OUT]:
        """Return the handle of a folding state.

        Args:
            state_descriptor: Name and type of the state.

        Raises:
            StateError: The name belongs to a state of another kind.
            StateMigrationError: The restored state has another kind, or a type that cannot be migrated.
        """

    @abstractmethod
    def get_map_state(self, state_descriptor: MapStateDescriptor[K, V]) -> MapState[K, V]:
        """Return the handle of a map state.

        Args:
            state_descriptor: Name and type of the state.

        Raises:
            StateError: The name belongs to a state of another kind.
            StateMigrationError: The restored state has another kind, or a type that cannot be migrated.
        """


class OperatorStateStore(ABC):
    """Returns handles of operator state, which belongs to a subtask and not to a key."""

    @abstractmethod
    def get_list_state(self, state_descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Return a list whose elements are redistributed over the subtasks when the parallelism changes.

        Args:
            state_descriptor: Name and type of the state.

        Raises:
            StateError: The name belongs to a state that is distributed in another way.
            StateMigrationError: The restored state has a type that cannot be migrated.
        """

    @abstractmethod
    def get_union_list_state(self, state_descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Return a list. On restore every subtask receives the elements of all subtasks.

        Args:
            state_descriptor: Name and type of the state.

        Raises:
            StateError: The name belongs to a state that is distributed in another way.
            StateMigrationError: The restored state has a type that cannot be migrated.
        """

    @abstractmethod
    def get_broadcast_state(self, state_descriptor: MapStateDescriptor[K, V]) -> BroadcastState[K, V]:
        """Return a map that has the same content on every subtask.

        Args:
            state_descriptor: Name and type of the state.

        Raises:
            StateError: The name belongs to a state that is distributed in another way.
            StateMigrationError: The restored state has a type that cannot be migrated.
        """

    @abstractmethod
    def get_registered_state_names(self) -> set[str]:
        """Return the names of all list states, split and union."""

    @abstractmethod
    def get_registered_broadcast_state_names(self) -> set[str]:
        """Return the names of all broadcast states."""


class ManagedInitializationContext(ABC):
    """Access to managed state while a function is initialized."""

    @abstractmethod
    def is_restored(self) -> bool:
        """Return whether the state was restored from a checkpoint or savepoint."""

    @abstractmethod
    def get_operator_state_store(self) -> OperatorStateStore:
        """Return the store of operator state."""

    @abstractmethod
    def get_keyed_state_store(self) -> KeyedStateStore:
        """Return the store of keyed state.

        Raises:
            StateError: The stream is not keyed.
        """

    @abstractmethod
    def get_restored_checkpoint_id(self) -> int | None:
        """Return the id of the restored checkpoint, None if nothing was restored."""


class FunctionInitializationContext(ManagedInitializationContext):
    """The argument of `CheckpointedFunction.initialize_state`."""

    def get_managed_initialization_context(self) -> ManagedInitializationContext:
        """Return the context of managed state, which is this object."""
        return self


class FunctionSnapshotContext(ABC):
    """The argument of `CheckpointedFunction.snapshot_state`."""

    @abstractmethod
    def get_checkpoint_id(self) -> int:
        """Return the id of the checkpoint that is being taken."""

    @abstractmethod
    def get_checkpoint_timestamp(self) -> int:
        """Return the timestamp of the checkpoint in milliseconds since 1970."""


class StateSnapshotContext(FunctionSnapshotContext):
    """The context of an operator's snapshot."""

    @abstractmethod
    def get_checkpoint_stream_factory(self) -> Any:
        """Return the `CheckpointStreamFactory` that raw state is written to."""


class StatePartitionStreamProvider(ABC):
    """One partition of raw state."""

    @abstractmethod
    def get_stream(self) -> BinaryIO:
        """Open a stream of the bytes. The caller closes it."""


# Raw state is bytes that a function writes when its snapshot is taken, and reads when it is initialized. A snapshot has
# only what the function writes for it: nothing is carried over from the snapshot before.


class KeyGroupStatePartitionStreamProvider(StatePartitionStreamProvider):
    """The raw state of one key group."""

    @abstractmethod
    def get_key_group_id(self) -> int:
        """Return the id of the key group."""


class RawOutputStream(ABC):
    """A stream that raw state is written to."""

    @abstractmethod
    def write(self, data: bytes) -> int:
        """Append bytes to the current partition or key group.

        Returns:
            The number of bytes.
        """


class OperatorStateCheckpointOutputStream(RawOutputStream):
    """Stream of raw operator state. On restore each partition goes to one subtask as a whole."""

    @abstractmethod
    def start_new_partition(self) -> None:
        """Start another partition. The first one is started by the first `write`."""


class KeyedStateCheckpointOutputStream(RawOutputStream):
    """Stream of raw keyed state: the bytes of each key group."""

    @abstractmethod
    def start_new_key_group(self, key_group_id: int) -> None:
        """Start the bytes of a key group, each once per snapshot.

        Args:
            key_group_id: A key group of this subtask.

        Raises:
            StateError: The key group belongs to another subtask, or was started before.
        """

    @abstractmethod
    def get_key_group_list(self) -> Iterable[int]:
        """Return the ids of this subtask's key groups."""


class RawStateInitializationContext(FunctionInitializationContext):
    """The argument of `initialize_state` with access to raw state."""

    @abstractmethod
    def get_raw_operator_state_inputs(self) -> Iterable[StatePartitionStreamProvider]:
        """Return the partitions of raw operator state of this subtask."""

    @abstractmethod
    def get_raw_keyed_state_inputs(self) -> Iterable[KeyGroupStatePartitionStreamProvider]:
        """Return the raw state of this subtask's key groups that have any, in ascending order.

        Raises:
            StateError: The stream is not keyed.
        """


class RawStateSnapshotContext(StateSnapshotContext):
    """The argument of `snapshot_state` with access to raw state."""

    @abstractmethod
    def get_raw_operator_state_output(self) -> OperatorStateCheckpointOutputStream:
        """Return the stream of raw operator state. All calls in a snapshot return the same stream."""

    @abstractmethod
    def get_raw_keyed_operator_state_output(self) -> KeyedStateCheckpointOutputStream:
        """Return the stream of raw keyed state. All calls in a snapshot return the same stream.

        Raises:
            StateError: The stream is not keyed.
        """


class DescriptorStateStore(KeyedStateStore):
    """A keyed state store that finds the states of all kinds in the same way, by descriptor."""

    @abstractmethod
    def _state(self, descriptor: Any) -> Any: ...

    def get_state(self, state_descriptor: Any) -> Any:
        return self._state(state_descriptor)

    def get_list_state(self, state_descriptor: Any) -> Any:
        return self._state(state_descriptor)

    def get_map_state(self, state_descriptor: Any) -> Any:
        return self._state(state_descriptor)

    def get_reducing_state(self, state_descriptor: Any) -> Any:
        return self._state(state_descriptor)

    def get_aggregating_state(self, state_descriptor: Any) -> Any:
        return self._state(state_descriptor)

    def get_folding_state(self, state_descriptor: Any) -> Any:
        return self._state(state_descriptor)


def iter_entries(
    values: Mapping[Any, Any] | Iterable[tuple[Any, Any]], describe: Callable[[], str]
) -> Iterable[tuple[Any, Any]]:
    """Return entries as pairs.

    Args:
        values: A mapping, or pairs of key and value.
        describe: Returns the name of the state for errors.

    Raises:
        StateError: The argument is neither; for pairs, raised when they are read.
    """
    if isinstance(values, Mapping):
        return values.items()
    if values is None:
        raise StateError(f"The entries for {describe()} are None. Pass an empty map to set no entries.")
    return _pairs(values, describe)


def iter_elements(
    values: Iterable[Any], describe: Callable[[], str], expected: str = "several elements"
) -> Iterator[Any]:
    """Return an iterator of elements.

    Args:
        values: The elements.
        describe: Returns the name of the state for errors.
        expected: The expected argument, for errors.

    Raises:
        StateError: The argument is not iterable.
    """
    try:
        return iter(values)
    except TypeError as error:
        raise StateError(f"{describe()} takes {expected}, not {values!r:.200}.") from error


def _pairs(values: Iterable[Any], describe: Callable[[], str]) -> Iterator[tuple[Any, Any]]:
    for pair in iter_elements(values, describe, _PAIRS):
        try:
            key, value = pair
        except (TypeError, ValueError) as error:
            raise StateError(f"{describe()} takes {_PAIRS}: {pair!r:.200} is neither.") from error
        yield key, value
