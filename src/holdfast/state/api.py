"""Maps as Python writes them: `state[key]`, `state[key] = value`, `del state[key]`, `key in state`."""

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
_PAIRS: Final = "a map, or pairs of a key and a value"


class ReadableMap(ABC, Generic[K, V]):
    """A map that is read by its methods, and so by brackets; unlike a dict it has None for a key that is not there."""

    @abstractmethod
    def get(self, key: K) -> V | None:
        """Returns the value of an entry, None if there is no such entry."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Whether there is such an entry."""

    @abstractmethod
    def keys(self) -> Iterable[K]:
        """Returns the key of each entry."""

    def __getitem__(self, key: K) -> V | None:
        return self.get(key)

    def __contains__(self, key: K) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())


class WritableMap(ReadableMap[K, V]):
    """A map that is changed by its methods, and so by brackets."""

    @abstractmethod
    def put(self, key: K, value: V | None) -> None:
        """Sets an entry."""

    @abstractmethod
    def remove(self, key: K) -> None:
        """Removes an entry; no such entry is no error."""

    def __setitem__(self, key: K, value: V | None) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self.remove(key)


def iter_entries(
    given: Mapping[Any, Any] | Iterable[tuple[Any, Any]], called: Callable[[], str]
) -> Iterable[tuple[Any, Any]]:
    """Return the entries of a mapping, or the pairs that are given; PyFlink's `put_all` takes those only.

    Args:
        given: What the user gave.
        called: How the state is called in errors.

    Raises:
        StateError: It is neither.
    """
    if isinstance(given, Mapping):
        return given.items()
    if given is None:
        raise StateError(f"The entries for {called()} are None; an empty map is no error.")
    return _pairs(given, called)


def iter_elements(given: Iterable[Any], called: Callable[[], str], takes: str = "several elements") -> Iterator[Any]:
    """Return the elements that are given for a state of several.

    Args:
        given: What the user gave.
        called: How the state is called in errors.
        takes: What it takes, in errors.

    Raises:
        StateError: There is no telling what its elements are.
    """
    try:
        return iter(given)
    except TypeError as error:
        raise StateError(f"{called()} is given {given!r:.200}, but takes {takes}.") from error


def _pairs(given: Iterable[Any], called: Callable[[], str]) -> Iterator[tuple[Any, Any]]:
    for pair in iter_elements(given, called, _PAIRS):
        try:
            key, value = pair
        except (TypeError, ValueError) as error:
            raise StateError(f"{called()} takes {_PAIRS}: {pair!r:.200} is none.") from error
        yield key, value


# State as user functions see it: the handles, the stores that give them out, and the contexts around snapshots.
#
# Every handle works on the current key. Absent state reads as None, as the default, or as an empty collection, and
# never raises; None is no element of a list, but a legal value of a map entry.

T = TypeVar("T")


IN = TypeVar("IN")
OUT = TypeVar("OUT")


class State(ABC):
    """Any state of the current key."""

    @abstractmethod
    def clear(self) -> None:
        """Removes the state of the current key; absent state stays absent."""


class ValueState(State, Generic[T]):
    """One value a key."""

    @abstractmethod
    def value(self) -> T | None:
        """Returns the value, or a copy of the descriptor's default (None unless given) if there is none."""

    @abstractmethod
    def update(self, value: T | None) -> None:
        """Replaces the value; None clears it."""


class AppendingState(State, Generic[IN, OUT]):
    """State to which elements are added and from which something is read."""

    @abstractmethod
    def add(self, value: IN) -> None:
        """Adds an element."""

    @abstractmethod
    def get(self) -> OUT:
        """Returns what has come of the elements."""


class MergingState(AppendingState[IN, OUT]):
    """Appending state of which that of two namespaces can be merged."""


class ListState(MergingState[T, Iterable[T]]):
    """A list of elements a key."""

    @abstractmethod
    def get(self) -> Iterable[T]:
        """Returns the elements in order; empty if there are none, and never None."""

    @abstractmethod
    def add(self, value: T) -> None:
        """Appends an element.

        Raises:
            StateError: The element is None.
        """

    @abstractmethod
    def update(self, values: Iterable[T]) -> None:
        """Replaces all elements; an empty list clears.

        Raises:
            StateError: The list or an element is None; nothing has changed then.
        """

    @abstractmethod
    def add_all(self, values: Iterable[T]) -> None:
        """Appends elements; an empty list changes nothing.

        Raises:
            StateError: The list or an element is None; nothing has changed then.
        """

    def __iter__(self) -> Iterator[T]:
        return iter(self.get())


class ReducingState(MergingState[T, T | None]):
    """One value a key, into which every added element is reduced."""


class AggregatingState(MergingState[IN, OUT | None]):
    """An accumulator a key; reading gives its result."""


class FoldingState(AppendingState[IN, OUT | None]):
    """An accumulator a key that starts from a given value."""


class MapState(State, WritableMap[K, V]):
    """A map a key. A value may be None; an entry with it exists."""

    @abstractmethod
    def get(self, key: K) -> V | None:
        """Returns the value of an entry, None if there is no such entry."""

    @abstractmethod
    def put(self, key: K, value: V | None) -> None:
        """Sets an entry."""

    @abstractmethod
    def put_all(self, dict_value: Mapping[K, V | None] | Iterable[tuple[K, V | None]]) -> None:
        """Sets several entries: a mapping, or pairs.

        Raises:
            StateError: The mapping is None.
        """

    @abstractmethod
    def remove(self, key: K) -> None:
        """Removes an entry; no such entry is no error. Without its last entry the map is absent."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Whether there is such an entry."""

    @abstractmethod
    def items(self) -> Iterable[tuple[K, V | None]]:
        """Returns key and value of each entry, in no promised order; the map may be changed while it is iterated."""

    @abstractmethod
    def keys(self) -> Iterable[K]:
        """Returns the key of each entry."""

    @abstractmethod
    def values(self) -> Iterable[V | None]:
        """Returns the value of each entry."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether there is no entry."""

    def entries(self) -> Iterator[MapEntry[K, V]]:
        """Yields the entries as objects through which the map can be changed."""
        for key, value in self.items():
            yield MapEntry(self, key, value)

    def iterator(self) -> MapIterator[K, V]:
        """Returns an iterator over `entries` that can remove the one it gave last."""
        return MapIterator(self)


class MapEntry(tuple[K, V | None], Generic[K, V]):
    """One entry of a map state; equal to the pair of its key and the value it was read with."""

    _state: MapState[K, V]
    _value: V | None

    def __new__(cls, state: MapState[K, V], key: K, value: V | None) -> MapEntry[K, V]:
        """Make an entry of a map state."""
        entry = super().__new__(cls, (key, value))
        entry._state = state
        entry._value = value
        return entry

    @property
    def key(self) -> K:
        """The key of the entry."""
        return self[0]

    @property
    def value(self) -> V | None:
        """The value that the entry had when it was read, or that was set since."""
        return self._value

    def set_value(self, value: V | None) -> V | None:
        """Writes another value into the map and returns the one that the entry had."""
        before = self._value
        self._state.put(self.key, value)
        self._value = value
        return before


class MapIterator(Iterator[MapEntry[K, V]], Generic[K, V]):
    """Iterates over the entries of a map state and can remove the last one given."""

    def __init__(self, state: MapState[K, V]) -> None:
        self._state = state
        self._entries = state.entries()
        self._last: MapEntry[K, V] | None = None

    def __next__(self) -> MapEntry[K, V]:
        self._last = None
        self._last = next(self._entries)
        return self._last

    def remove(self) -> None:
        """Removes the entry that was given last from the map.

        Raises:
            StateError: None was given yet, or it was removed already.
        """
        if self._last is None:
            raise StateError("remove() takes out the entry that next() gave last: call next() before each remove().")
        self._state.remove(self._last.key)
        self._last = None


class ReadOnlyBroadcastState(State, ReadableMap[K, V]):
    """The broadcast side's map as the other side sees it."""

    @abstractmethod
    def get(self, key: K) -> V | None:
        """Returns the value of an entry, None if there is no such entry."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Whether there is such an entry."""

    @abstractmethod
    def items(self) -> Iterable[tuple[K, V | None]]:
        """Returns key and value of each entry."""

    @abstractmethod
    def keys(self) -> Iterable[K]:
        """Returns the key of each entry."""

    @abstractmethod
    def values(self) -> Iterable[V | None]:
        """Returns the value of each entry."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether there is no entry."""

    def immutable_entries(self) -> Iterable[tuple[K, V | None]]:
        """Returns key and value of each entry."""
        return self.items()


class BroadcastState(ReadOnlyBroadcastState[K, V], WritableMap[K, V]):
    """A map that is the same on every subtask of an operator, because all of them get the same elements."""

    @abstractmethod
    def put(self, key: K, value: V | None) -> None:
        """Sets an entry."""

    @abstractmethod
    def put_all(self, dict_value: Mapping[K, V | None] | Iterable[tuple[K, V | None]]) -> None:
        """Sets several entries: a mapping, or pairs."""

    @abstractmethod
    def remove(self, key: K) -> None:
        """Removes an entry; no such entry is no error."""


class KeyedStateStore(ABC):
    """Gives out handles of keyed state; the same name gives the same state."""

    @abstractmethod
    def get_state(self, state_descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """Returns the handle of a value state."""

    @abstractmethod
    def get_list_state(self, state_descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Returns the handle of a list state."""

    @abstractmethod
    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """Returns the handle of a reducing state."""

    @abstractmethod
    def get_aggregating_state(
        self, state_descriptor: AggregatingStateDescriptor[IN, Any, OUT]
    ) -> AggregatingState[IN, OUT]:
        """Returns the handle of an aggregating state."""

    @abstractmethod
    def get_folding_state(self, state_descriptor: FoldingStateDescriptor[IN, OUT]) -> FoldingState[IN, OUT]:
        """Returns the handle of a folding state."""

    @abstractmethod
    def get_map_state(self, state_descriptor: MapStateDescriptor[K, V]) -> MapState[K, V]:
        """Returns the handle of a map state."""


class OperatorStateStore(ABC):
    """Gives out handles of state that belongs to a subtask and not to a key."""

    @abstractmethod
    def get_list_state(self, state_descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Returns a list whose elements are dealt out over the subtasks when the parallelism changes."""

    @abstractmethod
    def get_union_list_state(self, state_descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Returns a list of which every subtask gets the elements of all on restore."""

    @abstractmethod
    def get_broadcast_state(self, state_descriptor: MapStateDescriptor[K, V]) -> BroadcastState[K, V]:
        """Returns a map that is the same on every subtask."""

    @abstractmethod
    def get_registered_state_names(self) -> set[str]:
        """Returns the names of all list states, split and union."""

    @abstractmethod
    def get_registered_broadcast_state_names(self) -> set[str]:
        """Returns the names of all broadcast states."""


class ManagedInitializationContext(ABC):
    """Where a function gets its managed state from."""

    @abstractmethod
    def is_restored(self) -> bool:
        """Whether the state was restored from an earlier checkpoint or savepoint."""

    @abstractmethod
    def get_operator_state_store(self) -> OperatorStateStore:
        """Returns the store of operator state."""

    @abstractmethod
    def get_keyed_state_store(self) -> KeyedStateStore:
        """Returns the store of keyed state; the stream must be keyed."""

    @abstractmethod
    def get_restored_checkpoint_id(self) -> int | None:
        """Returns the id of the checkpoint that was restored, None if there was none."""


class FunctionInitializationContext(ManagedInitializationContext):
    """What `initialize_state` is given."""

    def get_managed_initialization_context(self) -> ManagedInitializationContext:
        """Returns the part about managed state, which is this context."""
        return self


class FunctionSnapshotContext(ABC):
    """What `snapshot_state` is given."""

    @abstractmethod
    def get_checkpoint_id(self) -> int:
        """Returns the id of the checkpoint that is being taken."""

    @abstractmethod
    def get_checkpoint_timestamp(self) -> int:
        """Returns its time in milliseconds since 1970."""


class StateSnapshotContext(FunctionSnapshotContext):
    """What an operator is given when it takes its snapshot."""

    @abstractmethod
    def get_checkpoint_stream_factory(self) -> Any:
        """Returns the `CheckpointStreamFactory` to which raw state is written."""


class StatePartitionStreamProvider(ABC):
    """Gives the bytes of one partition of raw state."""

    @abstractmethod
    def get_stream(self) -> BinaryIO:
        """Opens the stream; the caller closes it."""


# Raw state: bytes that a function writes itself, when its snapshot is taken, and reads when it is set up.
#
# Holdfast knows nothing of it but where it belongs: raw operator state to a subtask, whose partitions are dealt out
# when the parallelism changes, raw keyed state to a key group. What a snapshot does not write again is gone.

RAW_KEYED: Final = "_raw_keyed"
"""Name of the operator state in which raw keyed state is kept."""


class KeyGroupStatePartitionStreamProvider(StatePartitionStreamProvider):
    """Gives the bytes of one key group."""

    @abstractmethod
    def get_key_group_id(self) -> int:
        """Returns the key group."""


class RawOutputStream(ABC):
    """What raw state is written to."""

    @abstractmethod
    def write(self, data: bytes) -> int:
        """Appends bytes to the current part and returns their number."""


class OperatorStateCheckpointOutputStream(RawOutputStream):
    """Raw operator state: partitions, of which each goes to one subtask as a whole."""

    @abstractmethod
    def start_new_partition(self) -> None:
        """Begins another partition; the first one begins by itself."""


class KeyedStateCheckpointOutputStream(RawOutputStream):
    """Raw keyed state: the bytes of each key group."""

    @abstractmethod
    def start_new_key_group(self, key_group_id: int) -> None:
        """Begins the bytes of a key group of the subtask, each once a snapshot.

        Raises:
            StateError: It belongs to another subtask, or was begun before.
        """

    @abstractmethod
    def get_key_group_list(self) -> Iterable[int]:
        """Returns the key groups of the subtask."""


class RawStateInitializationContext(FunctionInitializationContext):
    """What `initialize_state` is given."""

    @abstractmethod
    def get_raw_operator_state_inputs(self) -> Iterable[StatePartitionStreamProvider]:
        """Returns the partitions of raw operator state that this subtask has."""

    @abstractmethod
    def get_raw_keyed_state_inputs(self) -> Iterable[KeyGroupStatePartitionStreamProvider]:
        """Returns the raw state of the key groups of this subtask that have any, ascending.

        Raises:
            StateError: The operator has no keys.
        """


class RawStateSnapshotContext(StateSnapshotContext):
    """What `snapshot_state` is given."""

    @abstractmethod
    def get_raw_operator_state_output(self) -> OperatorStateCheckpointOutputStream:
        """Returns the stream of raw operator state, the same for all calls of a snapshot."""

    @abstractmethod
    def get_raw_keyed_operator_state_output(self) -> KeyedStateCheckpointOutputStream:
        """Returns the stream of raw keyed state, the same for all calls of a snapshot.

        Raises:
            StateError: The operator has no keys.
        """


# A store of keyed state whose states are all found in one way, whatever their kind.


class DescriptorStateStore(KeyedStateStore):
    """Gives out handles by their descriptors alone."""

    @abstractmethod
    def _state(self, descriptor: Any) -> Any:
        """Return the handle of the state that a descriptor describes."""

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
