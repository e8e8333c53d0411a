"""Inputs whose rows tasks read: the driver plans splits of an epoch, and hands each task its own as text."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from holdfast.kernel.watermark import WatermarkAlignment


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


# What is known of a source beside the rows that its epochs have.


@dataclass(frozen=True)
class SourceStatistics:
    """The numbers of one source now; None for what it does not count.

    Attributes:
        records: That wait to be read.
        files: That wait to be read.
        bytes: Of these files.
        commits: How often where it stands was committed to its consumer group, since the process runs.
        failed_commits: How often it was not.
    """

    records: int | None = None
    files: int | None = None
    bytes: int | None = None
    commits: int | None = None
    failed_commits: int | None = None

    def __add__(self, other: SourceStatistics) -> SourceStatistics:
        """The numbers of two parts of a source."""
        return SourceStatistics(*(_sum(getattr(self, name), getattr(other, name)) for name in self.__match_args__))

    def waiting(self) -> dict[str, Any]:
        """What waits, as progress says it."""
        found = {"behind": self.records, "files_behind": self.files, "bytes_behind": self.bytes}
        return {name: number for name, number in found.items() if number is not None}


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other


# What a source does when a checkpoint is complete, beside what the checkpoint itself keeps of it.


class SourceListener(ABC):
    """Is told in the driver how far a source is. Nothing depends on it: positions are in checkpoints."""

    @abstractmethod
    def checkpoint_completed(self, offset: Any) -> None:
        """A checkpoint is complete, and its output committed. Must not block.

        Args:
            offset: Where the source stands in it, as JSON; None for one that is read once as a whole, and has been.
        """

    def numbers(self) -> SourceStatistics:
        """What it counts. May be asked at any time; does not block."""
        return SourceStatistics()

    def close(self) -> None:  # noqa: B027 - most have nothing under way
        """The attempt ends, and perhaps the process; another attempt may follow. Blocks for seconds at most."""


# How the driver lets a source wait: who plans the epochs of the source asks here, and says what it has left.
#
# Spark plans the epochs of a source in Python in a process of its own, on the machine of the driver. So what the two
# tell each other is whether a file is there. Nothing of it is durable: what an epoch reads is in its plan, and an
# attempt begins with open gates.

_CLOSED: Final = "closed"
_MORE: Final = "more"


def _new_place() -> str:
    return str(Path(tempfile.gettempdir()) / f"holdfast-gate-{uuid.uuid4().hex}")


@dataclass(frozen=True)
class EpochGate:
    """The gate of one source. It can be pickled, and stays the same gate.

    Attributes:
        place: A directory of its own; it is there as long as something is said.
    """

    place: str = field(default_factory=_new_place)

    def begin(self) -> None:
        """An attempt begins, or has ended: the gate is open, and nothing is known of its source."""
        shutil.rmtree(self.place, ignore_errors=True)

    def close(self) -> None:
        """The source reads nothing in epochs that are planned from now on."""
        self._put(_CLOSED)

    def open(self) -> None:
        """The source reads again."""
        self._take(_CLOSED)

    @property
    def is_closed(self) -> bool:
        """Whether the source is to read nothing."""
        return (Path(self.place) / _CLOSED).exists()

    def tell(self, has_more: bool) -> None:
        """Who plans an epoch says whether the source has something to read that is not in it."""
        self._put(_MORE) if has_more else self._take(_MORE)

    @property
    def has_more(self) -> bool:
        """Whether the source has left something unread in the epoch that was planned last."""
        return (Path(self.place) / _MORE).exists()

    def _put(self, name: str) -> None:
        # Made each time: whoever cleans directories of temporary files may have taken it.
        Path(self.place).mkdir(mode=0o700, exist_ok=True)
        (Path(self.place) / name).touch()

    def _take(self, name: str) -> None:
        with suppress(FileNotFoundError):
            (Path(self.place) / name).unlink()


@dataclass(frozen=True)
class AlignedSource:
    """What a clock at a source that waits for others goes by."""

    alignment: WatermarkAlignment
    gate: EpochGate
