"""Sources whose rows tasks read: the driver plans the splits of an epoch, and each task reads its own."""

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

_CLOSED: Final = "closed"
_MORE: Final = "more"


@dataclass(frozen=True)
class SplitPlan:
    """The splits of one input in one epoch.

    Attributes:
        record: The plan in one text, which checkpoints keep, so that the same epoch can be planned again.
        tasks: The splits of each task, as `SplitInput.read` takes them.
    """

    record: str
    tasks: tuple[str, ...]


class ListedFile(NamedTuple):
    """A file in the directory of an input.

    Attributes:
        path: Its path, without a scheme if it is local.
        time: Time of its last change, in milliseconds since 1970.
        size: Its size in bytes.
    """

    path: str
    time: int
    size: int


class SplitInput(ABC):
    """An input of files. It is pickled into tasks."""

    @abstractmethod
    def plan(self, paths: Sequence[str], known: str | None, tasks: int) -> SplitPlan:
        """Plan an epoch, in the driver. Blocks.

        Args:
            paths: The files; none for a bounded input, which knows its own.
            known: The record of the same epoch, if it was planned before; the plan is the same then.
            tasks: Number of tasks that can run at once.

        Raises:
            InputGoneError: A file does not exist any more, or was changed since it was recorded.
        """

    @abstractmethod
    def read(self, splits: str, refuse: Callable[[Any], None] | None = None) -> Iterator[pa.RecordBatch]:
        """Read splits, in a task, and yield batches in the columns of the elements. Blocks.

        Args:
            splits: The splits of this task.
            refuse: Called with each line or record that cannot be read, if there is a side output for it; None fails
                the job.

        Raises:
            InputError: A file cannot be read, or was changed since the epoch was planned.
        """

    def form(self) -> str:
        """Return the file format as a word for messages."""
        return "files"

    def dead_letters(self) -> str | None:
        """Return the tag of the side output for records that cannot be read; None if they fail the job."""
        return None

    def interval(self) -> float | None:
        """Return the seconds between two listings while there are no new files; None for the interval of the engine."""
        return None

    def listed(self, place: int, newest: int | None) -> Iterator[ListedFile] | None:
        """Yield the files in a directory of the input that may be unread; None if it cannot be listed. Blocks.

        Args:
            place: Index of the directory.
            newest: Time of the newest file that was read, in milliseconds since 1970; None if there is none.
        """
        return None


@dataclass(frozen=True)
class SourceStatistics:
    """The statistics of a source beside its rows; None for values that it does not count.

    Attributes:
        records: Records that wait to be read.
        files: Files that wait to be read.
        bytes: Bytes of these files.
        commits: Successful commits of offsets to the consumer group, since the process started.
        failed_commits: Failed commits.
    """

    records: int | None = None
    files: int | None = None
    bytes: int | None = None
    commits: int | None = None
    failed_commits: int | None = None

    def __add__(self, other: SourceStatistics) -> SourceStatistics:
        """Add the statistics of two parts of a source."""
        return SourceStatistics(*(_sum(getattr(self, name), getattr(other, name)) for name in self.__match_args__))

    def waiting(self) -> dict[str, Any]:
        """Return what waits to be read, by its names in progress reports."""
        found = {"behind": self.records, "files_behind": self.files, "bytes_behind": self.bytes}
        return {name: number for name, number in found.items() if number is not None}


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other


class SourceListener(ABC):
    """Is notified in the driver of completed checkpoints. Positions are in checkpoints, so nothing depends on it."""

    @abstractmethod
    def checkpoint_completed(self, offset: Any) -> None:
        """Called when a checkpoint is complete and its output committed. Must not block.

        Args:
            offset: The position of the source in the checkpoint, as JSON; None for a bounded source that was read.
        """

    def numbers(self) -> SourceStatistics:
        """Return the statistics. Called at any time; does not block."""
        return SourceStatistics()

    def close(self) -> None:  # noqa: B027 - most have nothing under way
        """Called at the end of a job attempt; another attempt may follow. Blocks for seconds at most."""


def _new_place() -> str:
    return str(Path(tempfile.gettempdir()) / f"holdfast-gate-{uuid.uuid4().hex}")


@dataclass(frozen=True)
class EpochGate:
    """Pauses one source. A pickled copy is the same gate.

    Spark plans the epochs of a Python source in another process on the machine of the driver, so both sides communicate
    by files in a directory. Nothing of it is durable: an attempt begins with open gates.

    Attributes:
        place: The directory; it exists while the gate is closed or the source has more.
    """

    place: str = field(default_factory=_new_place)

    def reset(self) -> None:
        """Open the gate, and forget whether the source has more; called when an attempt begins or ends."""
        shutil.rmtree(self.place, ignore_errors=True)

    def close(self) -> None:
        """Let the source read nothing in epochs that are planned from now on."""
        self._put(_CLOSED)

    def open(self) -> None:
        """Let the source read again."""
        self._remove(_CLOSED)

    @property
    def is_closed(self) -> bool:
        """Whether the source reads nothing."""
        return (Path(self.place) / _CLOSED).exists()

    def set_has_more(self, has_more: bool) -> None:
        """Record whether the source has unread data that is not in the planned epoch."""
        self._put(_MORE) if has_more else self._remove(_MORE)

    @property
    def has_more(self) -> bool:
        """Whether the source had unread data beyond the epoch that was planned last."""
        return (Path(self.place) / _MORE).exists()

    def _put(self, name: str) -> None:
        # Created each time: a cleaner of temporary files may have deleted it.
        Path(self.place).mkdir(mode=0o700, exist_ok=True)
        (Path(self.place) / name).touch()

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            (Path(self.place) / name).unlink()


@dataclass(frozen=True)
class AlignedSource:
    """A source whose watermarks are aligned with those of others, and its gate."""

    alignment: WatermarkAlignment
    gate: EpochGate
