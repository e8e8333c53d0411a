"""Sources whose rows tasks read: the driver plans the splits of an epoch, and each task reads its own."""

from __future__ import annotations

import json
import shutil
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from holdfast.errors import ConfigurationError
from holdfast.kernel.watermark import WatermarkAlignment
from holdfast.types.type_information import TypeInformation

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


class BatchDecoder(ABC):
    """A function that makes elements of the rows of a source, and can do so by columns."""

    @property
    @abstractmethod
    def produced_type(self) -> TypeInformation:
        """The type of the elements."""

    @abstractmethod
    def decode(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Array | None] | None:
        """Return the elements of rows, at most one for each row, and which rows have one; None for all.

        Returns:
            None if the function has to be called with each row.
        """


@dataclass(frozen=True)
class SourceStatistics:
    """The statistics of a source beside its rows; None for values that it does not count.

    Attributes:
        records: Unread records.
        files: Unread files.
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

    def backlog(self) -> dict[str, Any]:
        """Return the unread records, files and bytes, by their names in progress reports."""
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
    """A source whose watermarks are aligned with those of others.

    Attributes:
        alignment: How far it may be ahead of them.
        gate: Pauses it in jobs by epochs; None if only a real-time job can pause it.
    """

    alignment: WatermarkAlignment
    gate: EpochGate | None


# Sources of real-time jobs, under the names of Flink's FLIP-27. The enumerator runs in the driver and finds splits. The
# reader of one task reads each split. The position of a source is the state of each of its splits at a barrier.


class PositionFiles(Protocol):
    """Keeps files that positions of sources name, in checkpoint storage."""

    def write(self, content: bytes) -> dict[str, Any]:
        """Write a file, and return its handle as JSON. Blocks."""

    def read(self, handle: Mapping[str, Any]) -> bytes:
        """Read a file. Blocks.

        Raises:
            CorruptFileError: It is damaged or missing.
        """


class EpochOffset(NamedTuple):
    """The position of a part of an input, as jobs by epochs keep it.

    Attributes:
        offset: Its offset in Spark's log, as JSON; None if it has none yet.
        files: Handles of the files that its source remembers, by name.
    """

    offset: Any
    files: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class SourceSplit:
    """A part of a source that one reader reads, in order.

    Attributes:
        split_id: Its name, unique in the source and the same in every attempt.
        state: Its position, as JSON: where the reader goes on. Not None, the state of a split that was read to its end.
    """

    split_id: str
    state: Any


def plain_copy(value: Any, what: str) -> Any:
    """Return a value as it is after it was in a checkpoint, which has JSON.

    Args:
        value: The value.
        what: Where it is from, for the error.

    Raises:
        ConfigurationError: It is no JSON.
    """
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"{what} that are no JSON: {error}. Use numbers, text, lists, dictionaries with text as keys, and None"
        ) from error


class SplitEnumerator(ABC):
    """Finds the splits of one source, in the driver.

    `discover` and `is_exhausted` are called by one thread, one call after the other. The other methods are called by
    another thread, also while `discover` runs.
    """

    @abstractmethod
    def discover(self) -> Sequence[SourceSplit]:
        """Return the splits that were not returned before; the first call returns the restored ones. Blocks."""

    @abstractmethod
    def is_exhausted(self) -> bool:
        """Return whether no further split follows: the source is bounded."""

    @property
    def discovery_seconds(self) -> float:
        """Seconds between the starts of two calls of `discover`; they do not overlap."""
        return 1.0

    @abstractmethod
    def snapshot(self, splits: Mapping[str, Any]) -> Any:
        """Return the position of the source as JSON, from which an enumerator is restored.

        With None a restored source begins at its start, although the state of the job is not of its start.

        Args:
            splits: The state of each split that was discovered and is not finished, by id.
        """

    @property
    def is_begun(self) -> bool:
        """Whether checkpoints need the position of a bounded source also before anything was read."""
        return False

    def split_finished(self, split_id: str) -> None:  # noqa: B027 - optional
        """Called when all tasks have acknowledged a barrier behind the end of a split."""

    def close(self) -> None:  # noqa: B027 - optional
        """Release connections. Never raises."""


class SourceReader(ABC):
    """Reads the splits of one source that one task was assigned. Called by one thread, that of the task.

    Attributes:
        at_once: Elements that `poll` should return at most. The task lowers it while later stages are slow, because a
            barrier waits for all elements that were polled before it.
        wait_seconds: Seconds for which `poll` may wait for elements. The task raises it while there are none.
        separates_splits: Whether all elements of a `poll` should be of one split, because watermarks follow each split.
            The task sets it before it calls other methods.
    """

    at_once: int = 4096
    wait_seconds: float = 0.002
    separates_splits: bool = True

    @abstractmethod
    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        """Read these splits too."""

    @abstractmethod
    def poll(self) -> pa.RecordBatch | Sequence[Any] | None:
        """Return the next elements; None if there are none now.

        They are a list, or a batch with the columns of the type of the source. Does not block for longer than
        `wait_seconds`: barriers wait meanwhile.
        """

    @abstractmethod
    def snapshot(self) -> Mapping[str, Any]:
        """Return the state of each split behind the last element that `poll` returned, by id.

        A split that was read to its end has the state None, once. The states are copied as JSON before `poll` is called
        again.
        """

    @property
    @abstractmethod
    def has_splits(self) -> bool:
        """Whether a split is not read to its end."""

    @property
    def ended_splits(self) -> Collection[str]:
        """Splits that the reader has and from which no element follows; watermarks do not wait for them.

        Those that the last `snapshot` reported as read to their ends may be missing. The default has none: then a
        watermark waits for the next checkpoint.
        """
        return ()

    @property
    def seconds_to_next(self) -> float | None:
        """Seconds after which `poll` may return elements; None, the default, if only `poll` finds out.

        The task does not call `poll` before. It uses less processor time if the reader knows.
        """
        return None

    @property
    def polled_split(self) -> str:
        """The split of the elements that `poll` returned last; empty if they may be of several."""
        return ""

    @property
    def has_fetched(self) -> bool:
        """Whether the next `poll` returns elements that were read together with those of the last one.

        The task calls `poll` again before it waits for further elements.
        """
        return False

    @property
    def pending_records(self) -> int | None:
        """Unread records of the splits, for metrics; None if the source does not count them. Does not block."""
        return None

    def close(self) -> None:  # noqa: B027 - optional
        """Release connections. Never raises."""


class SplitSource(ABC):
    """A source that tasks of a real-time job read by splits. It is pickled into tasks."""

    @abstractmethod
    def create_enumerator(self, position: Any, tasks: int) -> SplitEnumerator:
        """Return an enumerator in the driver.

        Args:
            position: The result of `SplitEnumerator.snapshot` in a checkpoint; None to read from the beginning.
            tasks: Number of tasks that read.
        """

    @abstractmethod
    def create_reader(self, task: int) -> SourceReader:
        """Return a reader in a task."""

    def with_files(self, files: PositionFiles) -> SplitSource:
        """Return the same source, for the driver, whose positions may name files."""
        return self

    def to_epoch_offsets(self, position: Any) -> Sequence[EpochOffset] | None:
        """Return a position as jobs by epochs keep it: an offset for each part of the input that Spark reads.

        None if jobs by epochs cannot go on from it.
        """
        return None

    def from_epoch_offsets(self, offsets: Sequence[EpochOffset]) -> Any:
        """Return the position for offsets of a job by epochs; None if a real-time job cannot go on from them.

        Args:
            offsets: The offset of each part of the input.
        """
        return None


class BoundedEnumerator(SplitEnumerator):
    """The splits of a source whose splits are known from the beginning. Its position has those that are not finished.

    Args:
        splits: The state of each split, by id.
    """

    def __init__(self, splits: Mapping[str, Any]) -> None:
        self._undiscovered: Mapping[str, Any] | None = splits

    def discover(self) -> Sequence[SourceSplit]:
        found, self._undiscovered = self._undiscovered or {}, None
        return [SourceSplit(split_id, state) for split_id, state in found.items()]

    def is_exhausted(self) -> bool:
        return self._undiscovered is None

    def snapshot(self, splits: Mapping[str, Any]) -> Any:
        return {"splits": dict(splits)}
