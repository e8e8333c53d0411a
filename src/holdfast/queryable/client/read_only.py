"""Queried state as state objects that cannot be changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NoReturn

from holdfast.queryable.wire.errors import ReadOnlyStateError
from holdfast.state.declaration.api import (
    AggregatingState,
    FoldingState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)
from holdfast.state.declaration.descriptor import StateKind


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
