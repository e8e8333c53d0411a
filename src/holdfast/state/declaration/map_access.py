"""Maps as Python writes them: `state[key]`, `state[key] = value`, `del state[key]`, `key in state`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


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


def entries_of(given: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> Iterable[tuple[Any, Any]]:
    """Return the entries of a mapping, or the pairs that are given; PyFlink's `put_all` takes those only."""
    return given.items() if isinstance(given, Mapping) else given
