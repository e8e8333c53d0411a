"""Results of queries: values, the checkpoint they were read from, and read-only state objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Final, Generic, NoReturn, TypeVar

import pyarrow as pa

from holdfast.queryable.wire.errors import ReadOnlyStateError
from holdfast.queryable.wire.request import StateDescription
from holdfast.state.api import AggregatingState, FoldingState, ListState, MapState, ReducingState, ValueState
from holdfast.state.descriptor import StateKind

T = TypeVar("T")


def _refuse(*_: Any) -> NoReturn:
    raise ReadOnlyStateError("State is read-only. No modifications allowed.")


class ImmutableValueState(ValueState[Any]):
    """A queried value as read-only state."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def value(self) -> Any:
        return self._value

    def update(self, value: Any) -> None:
        _refuse()

    def clear(self) -> None:
        _refuse()


class _ImmutableSum:
    def __init__(self, value: Any) -> None:
        self._value = value

    def get(self) -> Any:
        return self._value

    def add(self, value: Any) -> None:
        _refuse()

    def clear(self) -> None:
        _refuse()


class ImmutableReducingState(_ImmutableSum, ReducingState[Any]):
    """A queried reduced value as read-only state."""


class ImmutableAggregatingState(_ImmutableSum, AggregatingState[Any, Any]):
    """A queried accumulator, or its result, as read-only state."""


class ImmutableFoldingState(_ImmutableSum, FoldingState[Any, Any]):
    """A queried accumulator as read-only state."""


class ImmutableListState(ListState[Any]):
    """A queried list as read-only state."""

    def __init__(self, value: list[Any]) -> None:
        self._value = value

    def get(self) -> Iterable[Any]:
        return iter(self._value)

    def add(self, value: Any) -> None:
        _refuse()

    def update(self, values: Iterable[Any]) -> None:
        _refuse()

    def add_all(self, values: Iterable[Any]) -> None:
        _refuse()

    def clear(self) -> None:
        _refuse()


class ImmutableMapState(MapState[Any, Any]):
    """A queried map as read-only state."""

    def __init__(self, value: dict[Any, Any]) -> None:
        self._value = value

    def get(self, key: Any) -> Any:
        return self._value.get(key)

    def contains(self, key: Any) -> bool:
        return key in self._value

    def keys(self) -> Iterator[Any]:
        return iter(self._value)

    def values(self) -> Iterator[Any]:
        return iter(self._value.values())

    def items(self) -> Iterator[tuple[Any, Any]]:
        return iter(self._value.items())

    def is_empty(self) -> bool:
        return not self._value

    def put(self, key: Any, value: Any) -> None:
        _refuse()

    def put_all(self, entries: Any) -> None:
        _refuse()

    def remove(self, key: Any) -> None:
        _refuse()

    def clear(self) -> None:
        _refuse()


_CLASSES: Final[dict[StateKind, Callable[[Any], Any]]] = {
    StateKind.VALUE: ImmutableValueState,
    StateKind.LIST: ImmutableListState,
    StateKind.MAP: ImmutableMapState,
    StateKind.REDUCING: ImmutableReducingState,
    StateKind.AGGREGATING: ImmutableAggregatingState,
    StateKind.FOLDING: ImmutableFoldingState,
}


def read_only_state(kind: StateKind, value: Any) -> Any:
    return _CLASSES[kind](value)


@dataclass(frozen=True)
class Origin:
    """The completed checkpoint that an answer was read from.

    Attributes:
        checkpoint_id: The checkpoint.
        epoch: The epoch after which the state was taken.
        lineage: The line of checkpoints. A different lineage than before means that the job was restored from an
            earlier state.
        completed_at: Completion time in milliseconds since 1970, by the job's clock.
    """

    checkpoint_id: int
    epoch: int
    lineage: str
    completed_at: int


@dataclass(frozen=True)
class StateResult(Generic[T]):
    """The state of one key.

    Attributes:
        value: A value, a list, a dict, or an accumulator (the result, if a descriptor was given).
        origin: The checkpoint it was read from.
        description: The description of the state.
        is_entry: Whether the value is that of one entry of a map; it may be None.
    """

    value: T
    origin: Origin
    description: StateDescription
    is_entry: bool = False

    @property
    def checkpoint_id(self) -> int:
        """The id of the checkpoint it was read from."""
        return self.origin.checkpoint_id

    @property
    def lineage(self) -> str:
        """The line of checkpoints it was read from."""
        return self.origin.lineage

    @property
    def completed_at(self) -> int:
        """Completion time of the checkpoint, in milliseconds since 1970."""
        return self.origin.completed_at

    @property
    def state(self) -> Any:
        """The result as a state object (`ValueState`, `ListState` and so on) that rejects changes.

        A single entry of a map is a `ValueState`.
        """
        return read_only_state(StateKind.VALUE if self.is_entry else self.description.kind, self.value)


@dataclass(frozen=True)
class ManyResult:
    """The state of several keys, all read from one checkpoint.

    Attributes:
        keys: The keys in the order of the request.
        values: Their values; None for keys without state.
        origin: The checkpoint they were read from.
        there: Whether there is state, for each key. It distinguishes a map's entry with value None from a missing one.
            None if there is state for all keys.
    """

    keys: Sequence[Any]
    values: list[Any]
    origin: Origin
    there: Sequence[bool] | None = None

    @property
    def checkpoint_id(self) -> int:
        """The id of the checkpoint they were read from."""
        return self.origin.checkpoint_id

    @property
    def lineage(self) -> str:
        """The line of checkpoints they were read from."""
        return self.origin.lineage

    @property
    def completed_at(self) -> int:
        """Completion time of the checkpoint, in milliseconds since 1970."""
        return self.origin.completed_at

    def as_dict(self) -> dict[Any, Any]:
        """Return the values by key, without keys that have no state."""
        pairs = zip(self.keys, self.values, strict=True)
        return dict(pairs if self.there is None else compress(pairs, self.there))

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __getitem__(self, position: int) -> Any:
        return self.values[position]


@dataclass(frozen=True)
class ScanHead:
    """The head of a scan, known before its first row.

    Attributes:
        origin: The checkpoint that all rows are read from.
        description: The description of the state.
        schema: The columns: key, namespace and map key where the state has them, value.
    """

    origin: Origin
    description: StateDescription
    schema: pa.Schema
