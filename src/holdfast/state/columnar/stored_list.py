"""A list that is not read until somebody asks for its elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any


class StoredList:
    """What a cell of list state has: elements in runs, and behind them those that were added since.

    It is used in the place of a list. Its length and its slices are about the elements that were added: these are
    written, and counting the others would mean to read them.
    """

    def __init__(self, read: Callable[[], list[Any]]) -> None:
        self._read: Callable[[], list[Any]] | None = read
        self._stored: list[Any] = []
        self._added: list[Any] = []
        self.append = self._added.append
        self.extend = self._added.extend

    def __len__(self) -> int:
        return len(self._added)

    def __bool__(self) -> bool:
        return bool(self._added) or bool(self._before())

    def __getitem__(self, part: slice) -> list[Any]:
        return self._added[part]

    def __iter__(self) -> Iterator[Any]:
        yield from self._before()
        yield from self._added

    def __add__(self, other: Iterable[Any]) -> list[Any]:
        return [*self, *other]

    def _before(self) -> list[Any]:
        if self._read is not None:
            self._stored, self._read = self._read(), None
        return self._stored
