"""Maps as Python writes them: `state[key]`, `state[key] = value`, `del state[key]`, `key in state`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar

from holdfast.errors import StateError

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


def entries_of(
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


def elements_of(given: Iterable[Any], called: Callable[[], str], takes: str = "several elements") -> Iterator[Any]:
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
    for pair in elements_of(given, called, _PAIRS):
        try:
            key, value = pair
        except (TypeError, ValueError) as error:
            raise StateError(f"{called()} takes {_PAIRS}: {pair!r:.200} is none.") from error
        yield key, value
