"""What a query returns: values, and where they are from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Final, Generic, NoReturn, TypeVar

import pyarrow as pa

from holdfast.queryable.wire.description import StateDescription
from holdfast.queryable.wire.errors import ReadOnlyStateError
from holdfast.state.api import AggregatingState, FoldingState, ListState, MapState, ReducingState, ValueState
from holdfast.state.descriptor import StateKind

# Queried state as state objects that cannot be changed.


def _refuse(*_: Any) -> NoReturn:
    raise ReadOnlyStateError("State is read-only. No modifications allowed.")


class ImmutableValueState(ValueState[Any]):
    """A value that was read."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def value(self) -> Any:
        """Return it."""
        return self._value

    def update(self, value: Any) -> None:
        """Refused."""
        _refuse()

    def clear(self) -> None:
        """Refused."""
        _refuse()


class _ImmutableSum:
    """What reducing, aggregating and folding state have in common."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def get(self) -> Any:
        """Return it."""
        return self._value

    def add(self, value: Any) -> None:
        """Refused."""
        _refuse()

    def clear(self) -> None:
        """Refused."""
        _refuse()


class ImmutableReducingState(_ImmutableSum, ReducingState[Any]):
    """A reduced value that was read."""


class ImmutableAggregatingState(_ImmutableSum, AggregatingState[Any, Any]):
    """An accumulator, or its result, that was read."""


class ImmutableFoldingState(_ImmutableSum, FoldingState[Any, Any]):
    """An accumulator that was read."""


class ImmutableListState(ListState[Any]):
    """A list that was read."""

    def __init__(self, value: list[Any]) -> None:
        self._value = value

    def get(self) -> Iterable[Any]:
        """Return its elements."""
        return iter(self._value)

    def add(self, value: Any) -> None:
        """Refused."""
        _refuse()

    def update(self, values: Iterable[Any]) -> None:
        """Refused."""
        _refuse()

    def add_all(self, values: Iterable[Any]) -> None:
        """Refused."""
        _refuse()

    def clear(self) -> None:
        """Refused."""
        _refuse()


class ImmutableMapState(MapState[Any, Any]):
    """A map that was read."""

    def __init__(self, value: dict[Any, Any]) -> None:
        self._value = value

    def get(self, key: Any) -> Any:
        """Return the value of an entry, None if there is none."""
        return self._value.get(key)

    def contains(self, key: Any) -> bool:
        """Whether there is such an entry."""
        return key in self._value

    def keys(self) -> Iterator[Any]:
        """Go through the keys."""
        return iter(self._value)

    def values(self) -> Iterator[Any]:
        """Go through the values."""
        return iter(self._value.values())

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Go through the entries."""
        return iter(self._value.items())

    def is_empty(self) -> bool:
        """Whether there are no entries."""
        return not self._value

    def put(self, key: Any, value: Any) -> None:
        """Refused."""
        _refuse()

    def put_all(self, entries: Any) -> None:
        """Refused."""
        _refuse()

    def remove(self, key: Any) -> None:
        """Refused."""
        _refuse()

    def clear(self) -> None:
        """Refused."""
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
    """Return a state object of a kind with a value that was read."""
    return _CLASSES[kind](value)


T = TypeVar("T")


@dataclass(frozen=True)
class Origin:
    """The completed checkpoint that an answer is from.

    Attributes:
        checkpoint_id: The checkpoint.
        epoch: The epoch at whose end the state was.
        lineage: The line of checkpoints; another one than before says that the job was restored from an earlier state.
        completed_at: When the checkpoint completed, in milliseconds since 1970, by the job's clock.
    """

    checkpoint_id: int
    epoch: int
    lineage: str
    completed_at: int


@dataclass(frozen=True)
class StateResult(Generic[T]):
    """The state of one key.

    Attributes:
        value: A value, a list, a dict, or an accumulator (the result, where a descriptor was given).
        origin: Where it is from.
        description: What the state is.
        is_entry: Whether the value is that of one entry of a map; it may be None.
    """

    value: T
    origin: Origin
    description: StateDescription
    is_entry: bool = False

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint that it is from."""
        return self.origin.checkpoint_id

    @property
    def lineage(self) -> str:
        """The line of checkpoints that it is from."""
        return self.origin.lineage

    @property
    def completed_at(self) -> int:
        """When the checkpoint completed, in milliseconds since 1970."""
        return self.origin.completed_at

    @property
    def state(self) -> Any:
        """The same as a state object (`ValueState`, `ListState` and so on) that refuses changes.

        That of one entry of a map is a `ValueState`.
        """
        return read_only_state(StateKind.VALUE if self.is_entry else self.description.kind, self.value)


@dataclass(frozen=True)
class ManyResult:
    """The state of several keys, all from one checkpoint.

    Attributes:
        keys: As they were asked for.
        values: In the same order; None where there is no state for the key.
        origin: Where they are from.
        there: For each whether there is state, which tells a map's entry that has the value None from one that is not
            there; None if there is for all.
    """

    keys: Sequence[Any]
    values: list[Any]
    origin: Origin
    there: Sequence[bool] | None = None

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint that they are from."""
        return self.origin.checkpoint_id

    @property
    def lineage(self) -> str:
        """The line of checkpoints that they are from."""
        return self.origin.lineage

    @property
    def completed_at(self) -> int:
        """When the checkpoint completed, in milliseconds since 1970."""
        return self.origin.completed_at

    def as_dict(self) -> dict[Any, Any]:
        """Return the values by key, without keys that have none."""
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
    """What is known when a scan begins.

    Attributes:
        origin: Where all rows are from.
        description: What the state is.
        schema: The columns: key, namespace and map key where the state has them, value.
    """

    origin: Origin
    description: StateDescription
    schema: pa.Schema
