"""Inputs whose rows tasks read: the driver plans splits of an epoch, and hands each task its own as text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa


@dataclass(frozen=True)
class SplitPlan:
    """What an epoch reads of one input, fixed before it is read.

    Attributes:
        record: It in one text, which a checkpoint keeps: by it the same epoch can be planned again.
        tasks: The splits of each task, as `SplitInput.read` takes them.
    """

    record: str
    tasks: tuple[str, ...]


class ListedFile(NamedTuple):
    """A file that lies in the place of an input.

    Attributes:
        path: Of the file; without a scheme if it is local.
        time: Of its last change, in milliseconds since 1970.
        size: In bytes.
    """

    path: str
    time: int
    size: int


class SplitInput(ABC):
    """An input of files. It is pickled into tasks."""

    @abstractmethod
    def plan(self, paths: Sequence[str], known: str | None, tasks: int) -> SplitPlan:
        """Plans an epoch, in the driver. Blocks.

        Args:
            paths: The files; none for an input that is read once, as a whole, which knows its own.
            known: What was recorded of the same epoch, if it was planned before; it is planned as it was.
            tasks: How many tasks can run at once.

        Raises:
            InputGoneError: A file is gone, or not the one any more that was recorded.
        """

    @abstractmethod
    def read(self, splits: str, refuse: Callable[[Any], None] | None = None) -> Iterator[pa.RecordBatch]:
        """Reads splits, in a task: batches in the columns of the elements. Blocks.

        Args:
            splits: Of this task.
            refuse: Gets what cannot be read, if there is a side output for it; None if that fails the job.

        Raises:
            InputError: A file cannot be read, or is not what it was when the epoch was planned.
        """

    def form(self) -> str:
        """As what files are read, in a word of messages."""
        return "files"

    def dead_letters(self) -> str | None:
        """Tag of the side output for what cannot be read; None if that fails the job."""
        return None

    def interval(self) -> float | None:
        """Seconds between two looks for new files while there are none; None for what the engine does anyway."""
        return None

    def listed(self, place: int, newest: int | None) -> Iterator[ListedFile] | None:
        """What lies in a place of the input and would be read, if it was not; None if nobody can tell. Blocks.

        Args:
            place: Number of the place.
            newest: The time of the newest file that was read, in milliseconds since 1970; None if there is none.
        """
        return None
