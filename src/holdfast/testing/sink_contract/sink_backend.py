"""What the contract of sinks needs to know of one: how it is made, what readers see, and how its target goes away."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from holdfast.runtime.function.sink import Sink

SeenRow = tuple[str, int]
"""A row as its reader sees it: the values of the columns `word` and `n`."""


class SinkBackend(ABC):
    """One target, and the sinks that write into it. It is pickled into processes that are killed while they commit.

    Attributes:
        columns: The type of the elements that sinks are given.
        steps: At how many lines of a commit a process is killed, and is stopped, in turn; spread over all of them.
    """

    columns: ClassVar[str] = "word string, n bigint"
    steps: ClassVar[int] = 40

    @abstractmethod
    def new_sink(self) -> Sink:
        """The sink as each process of a job makes it: settings, and no connection."""

    @abstractmethod
    def rows(self) -> list[SeenRow]:
        """What a reader of the target sees now, in any order. Rows that somebody sees twice are there twice."""

    @abstractmethod
    def away(self) -> AbstractContextManager[Any]:
        """While it is entered nobody reaches the target; what is in it is there again afterwards."""

    def refused_row(self) -> tuple[Any, Any] | None:
        """A row that the target cannot take, of the same columns, as a task can tell; None if it takes them all."""
        return None
