"""`FileSplitSource`: files for real-time jobs. Its elements are splits, each of which the next step reads at once."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa

from holdfast.datastream.connectors.file_system.file_log import FileLog
from holdfast.datastream.connectors.file_system.pending_files import PendingFiles
from holdfast.datastream.formats.input_format import InputFile, InputFormat, StreamFormat
from holdfast.errors import ConfigurationError
from holdfast.runtime.function.bounded_sources import SequentialReader
from holdfast.runtime.function.source import (
    BoundedEnumerator,
    EpochOffset,
    ListedFile,
    PositionFiles,
    SourceReader,
    SourceSplit,
    SplitEnumerator,
    SplitSource,
)
from holdfast.runtime.graph.stream_graph import SPLITS_COLUMN
from holdfast.storage.file_system import local_path

_LINES: Final = 1 << 20
"""Bytes of lines in a split. A barrier waits until a split is read."""
_BULK: Final = 8 << 20
"""Bytes of a file that is read by rows: a row group is read as a whole in any case."""
_MOST_OPEN: Final = 4096
"""Splits for each task that are assigned and not read, so that a position stays small."""
_SHORTEST_SECONDS: Final = 0.001
_UNSUPPORTED: Final = {"cleanSource": "off", "recursiveFileLookup": "true"}


@dataclass(frozen=True)
class FileSplitSource(SplitSource):
    """The files of a `FileSource`.

    Attributes:
        input_format: The format of the files.
        paths: Directories, files and globs.
        interval: Seconds between two listings of a stream; None for files that are read once.
        options: The options of Spark's file source. The limits of an epoch do not apply.
        fixed: The files that are read once; None for a stream.
        files: Keeps the list of files in checkpoint storage; None in tasks.
    """

    input_format: InputFormat
    paths: tuple[str, ...]
    interval: float | None
    options: Mapping[str, str]
    fixed: Sequence[InputFile] | None = None
    files: PositionFiles | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "files": None}

    def with_files(self, files: PositionFiles) -> FileSplitSource:
        return replace(self, files=files)

    def create_enumerator(self, position: Any, tasks: int) -> SplitEnumerator:
        if self.fixed is not None:
            cut = {_split_id(0, split): split for file in self.fixed for split in _cut(self.input_format, file)}
            return BoundedEnumerator(cut if position is None else position["splits"])
        for name, only in _UNSUPPORTED.items():
            if self.options.get(name, only).lower() != only:
                raise ConfigurationError(
                    f"FileSource: {name}={self.options[name]} is an option of Spark, which does not list the files of "
                    f"a real-time job: remove it, or run the job by epochs, with another execution.trigger."
                )
        return _FileEnumerator(self, position, tasks)

    def create_reader(self, task: int) -> SourceReader:
        return _SplitTextReader()

    def to_epoch_offsets(self, position: Any) -> Sequence[EpochOffset] | None:
        if self.fixed is not None or position["partial"] or position.get("has_skipped"):
            return None
        return [EpochOffset(one["offset"], one["files"]) for one in position["paths"]]

    def from_epoch_offsets(self, offsets: Sequence[EpochOffset]) -> Any:
        paths = [{"offset": one.offset, "files": dict(one.files)} for one in offsets]
        return {"paths": paths, "partial": []}


def _cut(input_format: InputFormat, file: InputFile) -> list[list[Any]]:
    """Return the splits of a file: path, time and length of the file, and the first and the last byte."""
    size = _LINES if isinstance(input_format, StreamFormat) else _BULK
    pieces = max(1, round(file.length / size)) if input_format.can_split(file.path) else 1
    cuts = [file.length * n // pieces for n in range(pieces + 1)] if file.length else []
    return [[file.path, file.time, file.length, begin, end] for begin, end in pairwise(cuts)]


def _split_id(place: int, split: Sequence[Any]) -> str:
    return f"{place}:{split[3]}:{split[0]}"


@dataclass
class _OpenFile:
    """A file of which not all splits are read.

    Attributes:
        file: The file.
        unread: Its splits, by id.
        is_begun: Whether a split was read.
    """

    file: InputFile
    unread: dict[str, list[Any]]
    is_begun: bool = False


class _FileEnumerator(SplitEnumerator):
    """Lists the files of a stream.

    Its position has, for each path, the log of the files that were read completely::

        {"paths": [{"offset": {"logOffset": 7}, "files": {"7": {...}}}], "partial": [[0, [["/data/a", ...], ...]]],
         "has_skipped": false}

    `partial` has the unread splits of files that were read in part, with the number of their path. It also has those of
    files that no listing would find again, because a file that is newer by `maxFileAge` was read before them.
    `has_skipped` says whether files are unread that a job by epochs would skip for their age, and this one does not:
    Spark reads files of any age with `latestFirst` only if an epoch has a limit.
    """

    def __init__(self, source: FileSplitSource, position: Any, tasks: int) -> None:
        if source.files is None:
            raise ValueError("a stream of files keeps its position in checkpoint storage")
        self._source = source
        # A listing has a limit, as with maxFilesPerTrigger: then Spark's latestFirst reads files of any age.
        self._pending = PendingFiles(source.paths, {"maxFilesPerTrigger": str(_MOST_OPEN), **source.options})
        self._most = _MOST_OPEN * tasks
        self._newest_first = source.options.get("latestFirst", "false").lower() == "true"
        self._lock = threading.Lock()
        self._open: dict[tuple[int, str], _OpenFile] = {}
        self._read: dict[int, list[ListedFile]] = {place: [] for place in range(len(source.paths))}
        known = [None] * len(source.paths) if position is None else [_offset_of(one) for one in position["paths"]]
        schemes = [path.partition("://")[0] if local_path(path) is None else "" for path in source.paths]
        self._logs = [FileLog(source.files, one, scheme) for one, scheme in zip(known, schemes, strict=True)]
        read = [log.read_files() for log in self._logs]
        self._known = [{file.path for file in own} for own in read]
        self._newest_read = [max((file.time for file in own), default=None) for own in read]
        self._newest = [None if newest is None else _until_now(newest) for newest in self._newest_read]
        self._by_epochs = PendingFiles(source.paths, source.options)
        self._oldest_left = dict.fromkeys(self._read, -math.inf)  # not known before a listing
        self._undiscovered = [] if position is None else self._restored(position["partial"])

    def _restored(self, partial: Iterable[Any]) -> list[SourceSplit]:
        found = []
        for place, splits in partial:
            path, time, length, *_ = splits[0]
            unread = {_split_id(place, split): list(split) for split in splits}
            self._known[place].add(path)
            self._open[place, path] = _OpenFile(InputFile(path, time, length), unread, is_begun=True)
            found += [SourceSplit(split_id, split) for split_id, split in unread.items()]
        return found

    @property
    def discovery_seconds(self) -> float:
        return max(_SHORTEST_SECONDS, self._source.interval or 0.0)

    def is_exhausted(self) -> bool:
        return False

    def discover(self) -> Sequence[SourceSplit]:
        restored, self._undiscovered = self._undiscovered, []
        found = list(restored)
        for place in range(len(self._source.paths)):
            found += self._discover(place, self._most - len(found))
        return found

    def _discover(self, place: int, most: int) -> list[SourceSplit]:
        """Return the splits of new files, oldest first, at most so many and those of one more file."""
        with self._lock:
            most -= sum(len(one.unread) for one in self._open.values())
        if most <= 0:
            return []
        found: list[SourceSplit] = []
        new = sorted(self._listed(place), key=lambda file: (file.time, file.path), reverse=self._newest_first)
        left = iter(new)
        self._oldest_left[place] = _oldest(new)
        for listed in left:
            file = InputFile(listed.path, listed.time, listed.size)
            unread = {_split_id(place, split): split for split in _cut(self._source.input_format, file)}
            with self._lock:
                if unread:
                    self._open[place, file.path] = _OpenFile(file, unread)
                else:
                    self._mark_read(place, listed)
            self._known[place].add(file.path)
            newest = _until_now(listed.time)
            self._newest[place] = max(newest, self._newest[place] or newest)
            found += [SourceSplit(split_id, split) for split_id, split in unread.items()]
            if len(found) >= most:
                break
        self._oldest_left[place] = _oldest(left)
        return found

    def _listed(self, place: int) -> Iterable[ListedFile]:
        path = self._source.paths[place]
        listing = self._pending.listed if local_path(path) is not None else self._pending.listed_remote
        found = listing(place, self._newest[place], self._known[place])
        if found is None:
            raise ConfigurationError(
                f"FileSource cannot list {path!r} in real time, because it is a glob that only Spark knows: give "
                "directories, or run the job by epochs, with another execution.trigger."
            )
        return found

    def split_finished(self, split_id: str) -> None:
        number, _, path = split_id.split(":", 2)
        place = int(number)
        with self._lock:
            one = self._open[place, path]
            del one.unread[split_id]
            one.is_begun = True
            if not one.unread:
                del self._open[place, path]
                self._mark_read(place, ListedFile(path, one.file.time, one.file.length))

    def _mark_read(self, place: int, file: ListedFile) -> None:
        self._read[place].append(file)
        self._newest_read[place] = max(file.time, self._newest_read[place] or file.time)

    def snapshot(self, splits: Mapping[str, Any]) -> Any:
        with self._lock:
            read, self._read = self._read, {place: [] for place in self._read}
            oldest = [self._pending.oldest(newest) or 0 for newest in self._newest_read]
            partial = [
                [place, list(one.unread.values())]
                for (place, _), one in self._open.items()
                if one.is_begun or one.file.time < oldest[place]
            ]
            unread = [*self._oldest_left.items(), *((place, one.file.time) for (place, _), one in self._open.items())]
            by_epochs = [self._by_epochs.oldest(newest) or -math.inf for newest in self._newest_read]
        for place, files in read.items():
            if files:
                self._logs[place].append(files)
        positions = [log.position() for log in self._logs]
        return {
            "paths": [{"offset": one.offset, "files": dict(one.files)} for one in positions],
            "partial": partial,
            "has_skipped": any(changed < by_epochs[place] for place, changed in unread),
        }


def _until_now(milliseconds: int) -> int:
    """Return the time of a file as `maxFileAge` counts it: a file of next year does not make all others too old."""
    return min(milliseconds, time.time_ns() // 1_000_000)


def _oldest(files: Iterable[ListedFile]) -> float:
    return min((file.time for file in files), default=math.inf)


def _offset_of(value: Mapping[str, Any]) -> EpochOffset:
    return EpochOffset(value["offset"], value["files"])


class _SplitTextReader(SequentialReader):
    def read(self, split_id: str, state: Any) -> tuple[pa.RecordBatch, Any]:
        return pa.RecordBatch.from_arrays([pa.array([json.dumps([state])], pa.string())], [SPLITS_COLUMN]), None
