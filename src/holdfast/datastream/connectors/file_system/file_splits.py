"""Files as splits: the driver cuts what an epoch reads into ranges of bytes, and records it; tasks read the ranges.

A record is one text of JSON, in which each file has its path, the time of its last change in milliseconds since 1970,
its length, and the bytes at which it is cut::

    {"files": [["/data/a.parquet", 1764000000000, 5000000, [0, 2500000, 5000000]]]}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa

from holdfast.datastream.connectors.file_system.file_lists import FileLists
from holdfast.datastream.formats.input_file import InputFile
from holdfast.datastream.formats.input_format import InputFormat
from holdfast.datastream.formats.text_lines import LineFormat
from holdfast.errors import CorruptFileError, HoldfastError
from holdfast.kernel.malformed import MALFORMED
from holdfast.runtime.function.splits import ListedFile, SplitInput, SplitPlan
from holdfast.runtime.job.engine import InputError, InputGoneError

_SMALLEST: Final = 256 << 10
_LARGEST: Final = 128 << 20
_ASKED_AT_ONCE: Final = 16
_UNREADABLE: Final = (pa.ArrowException, OSError, EOFError, ValueError)

Cut = tuple[InputFile, tuple[int, ...]]


class FileSplits(SplitInput):
    """The files of one source.

    Args:
        input_format: How they are read.
        interval: Seconds between two looks for new ones; None for as often as possible.
        lists: What lists them, to count those that wait; None if they are not counted.
        letters: Tag of the side output for lines that cannot be read; None if they fail the job.
    """

    def __init__(
        self,
        input_format: InputFormat,
        interval: float | None = None,
        lists: FileLists | None = None,
        letters: str | None = None,
    ) -> None:
        self._format = input_format
        self._lists = lists
        self._interval = interval
        self._letters = letters
        self._fixed: str | None = None

    def fix(self, paths: Sequence[str], tasks: int) -> None:
        """Decides what is read by a source that is read once: these files, as they are now. Blocks."""
        self._fixed = self.plan(paths, None, tasks).record

    def interval(self) -> float | None:
        return self._interval

    def form(self) -> str:
        return self._format.name

    def dead_letters(self) -> str | None:
        return self._letters

    def listed(self, place: int, newest: int | None) -> Iterator[ListedFile] | None:
        return None if self._lists is None else self._lists.listed(place, newest)

    def plan(self, paths: Sequence[str], known: str | None, tasks: int) -> SplitPlan:
        known = known or self._fixed
        if known is None:
            cuts = self._cut(_as_they_are(paths), tasks)
        else:
            cuts = _recorded(known)
            _require_same([file for file, _ in cuts])
        record = json.dumps({"files": [[f.path, f.time, f.length, list(at)] for f, at in cuts]}, separators=(",", ":"))
        return SplitPlan(record, tuple(_shared_out(cuts, tasks)))

    def _cut(self, files: Sequence[InputFile], tasks: int) -> list[Cut]:
        size = min(_LARGEST, max(_SMALLEST, -(-sum(file.length for file in files) // max(1, tasks))))
        cuts = []
        for file in files:
            pieces = max(1, round(file.length / size)) if self._format.can_split(file.path) else 1
            cuts.append((file, tuple(file.length * n // pieces for n in range(pieces + 1))))
        return cuts

    def read(self, splits: str, refuse: Callable[[Any], None] | None = None) -> Iterator[pa.RecordBatch]:
        for path, time, length, begin, end in json.loads(splits):
            file = InputFile(path, time, length)
            file.require_same()
            try:
                if isinstance(self._format, LineFormat):
                    yield from self._format.readable(file, begin, end, refuse)
                else:
                    yield from self._format.read(file, begin, end)
            except HoldfastError:
                raise
            except _UNREADABLE as error:
                file.require_same()
                raise InputError(f"the file {path!r} cannot be read as {self._format.name}: {error}") from error
            file.require_same()  # what changed while it was read is of no state of the file


def _as_they_are(paths: Sequence[str]) -> list[InputFile]:
    if len(paths) < _ASKED_AT_ONCE:
        return [InputFile.of(path) for path in paths]
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        return list(pool.map(InputFile.of, paths))


def _require_same(files: Sequence[InputFile]) -> None:
    for file, now in zip(files, _as_they_are([file.path for file in files]), strict=True):
        if now != file:
            error = file.changed(now)
            raise InputGoneError(f"an epoch cannot be repeated: {error}") from error


def _recorded(text: str) -> list[Cut]:
    try:
        found = [
            (InputFile(str(path), int(time), int(length)), tuple(map(int, at)))
            for path, time, length, at in json.loads(text)["files"]
        ]
        for file, at in found:
            if (at[0], at[-1]) != (0, file.length) or list(at) != sorted(at):
                raise ValueError(f"{file.path!r} is cut at {at!r:.200}")
    except MALFORMED as error:
        raise CorruptFileError(
            "splits", None, f"what was recorded of an epoch's files is damaged: {error!r}."
        ) from error
    return found


def _shared_out(cuts: Sequence[Cut], tasks: int) -> Iterator[str]:
    """Splits for each task, about the same number of bytes: the largest first, each to who has least."""
    splits = [
        (end - begin, number, [file.path, file.time, file.length, begin, end])
        for number, (file, at) in enumerate(cuts)
        for begin, end in pairwise(at)
        if file.length
    ]
    shares: list[list[Any]] = [[0, n, []] for n in range(min(max(1, tasks), len(splits)))]
    for size, number, split in sorted(splits, key=lambda one: (-one[0], one[1], one[2][3])):
        least = min(shares, key=lambda share: (share[0], share[1]))
        least[0] += size
        least[2].append((number, split))
    for _, _, own in shares:
        yield json.dumps(
            [split for _, split in sorted(own, key=lambda one: (one[0], one[1][3]))], separators=(",", ":")
        )
