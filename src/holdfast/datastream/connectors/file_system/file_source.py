"""`FileSource`: files as a stream, read by tasks into columns, under PyFlink's names.

Spark's streaming file source lists the files and remembers them; it does not read them. The driver splits the files
of an epoch into ranges of bytes (`FileSplits`), and tasks of the first stage read these with pyarrow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from holdfast.datastream.connectors.base import Source, cannot_pause
from holdfast.datastream.connectors.file_system.file_split_source import FileSplitSource
from holdfast.datastream.connectors.file_system.pending_files import PendingFiles
from holdfast.datastream.formats.input_format import BulkFormat, InputFile, InputFormat, LineFormat, StreamFormat
from holdfast.errors import ConfigurationError, CorruptFileError, HoldfastError, InputError, InputGoneError
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.runtime.function.source import EpochGate, ListedFile, SplitInput, SplitPlan, SplitSource
from holdfast.runtime.function.user_function import OutputTag
from holdfast.types.type_information import TypeInformation
from holdfast.types.type_parser import to_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_SMALLEST: Final = 256 << 10
_LARGEST: Final = 128 << 20
_CONCURRENT_REQUESTS: Final = 16
_UNREADABLE: Final = (pa.ArrowException, OSError, EOFError, ValueError)
Cut = tuple[InputFile, tuple[int, ...]]
_MOST_FILES: Final = "maxFilesPerTrigger"
_MOST_BYTES: Final = "maxBytesPerTrigger"
_OF_STREAMS: Final = (_MOST_FILES, _MOST_BYTES, "maxFileAge", "latestFirst", "cleanSource", "sourceArchiveDir")
_OF_BOTH: Final = ("pathGlobFilter", "recursiveFileLookup")
DEAD_LETTER: Final = "path string, position bigint, line binary, reason string, line_number bigint"
"""Type of unreadable lines: the file, the byte at which the line begins, its bytes, the reason, and its number from 1.

Lines after the first GiB of a file have no number.
"""
_DEFAULTS: Final = {"recursiveFileLookup": "true"}


class FileSplits(SplitInput):
    """Splits the files of an epoch into ranges of bytes, records them in the driver, and reads them in tasks.

    A record is a JSON text with the path, the time of the last change in milliseconds since 1970, the length, and the
    bytes at which a file is split::

        {"files": [["/data/a.parquet", 1764000000000, 5000000, [0, 2500000, 5000000]]]}

    Args:
        input_format: The format of the files.
        interval: Seconds between two listings; None for as often as possible.
        pending: Lists files, to count those that are not read yet; None if they are not counted.
        letters: The tag of the side output for unreadable lines; None if they fail the job.
    """

    def __init__(
        self,
        input_format: InputFormat,
        interval: float | None = None,
        pending: PendingFiles | None = None,
        letters: str | None = None,
    ) -> None:
        self._format = input_format
        self._pending = pending
        self._interval = interval
        self._letters = letters
        self._fixed: str | None = None

    def fix(self, paths: Sequence[str], tasks: int) -> None:
        """Fix the splits of a source that is read once: these files, as they are now. Blocks."""
        self._fixed = self.plan(paths, None, tasks).record

    def fixed_files(self) -> list[InputFile] | None:
        """Return the files of a source that is read once; None for a stream."""
        return None if self._fixed is None else [file for file, _ in _parse_record(self._fixed)]

    def interval(self) -> float | None:
        return self._interval

    def form(self) -> str:
        return self._format.name

    def dead_letters(self) -> str | None:
        return self._letters

    def listed(self, place: int, newest: int | None) -> Iterator[ListedFile] | None:
        return None if self._pending is None else self._pending.listed(place, newest)

    def plan(self, paths: Sequence[str], known: str | None, tasks: int) -> SplitPlan:
        known = known or self._fixed
        if known is None:
            cuts = self._cut(_current_files(paths), tasks)
        else:
            cuts = _parse_record(known)
            _require_same([file for file, _ in cuts])
        record = json.dumps({"files": [[f.path, f.time, f.length, list(at)] for f, at in cuts]}, separators=(",", ":"))
        return SplitPlan(record, tuple(_assign(cuts, tasks)))

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
                    yield from self._format.read_lines(file, begin, end, refuse)
                else:
                    yield from self._format.read(file, begin, end)
            except HoldfastError:
                raise
            except _UNREADABLE as error:
                file.require_same()
                raise InputError(f"the file {path!r} cannot be read as {self._format.name}: {error}") from error
            file.require_same()  # if the file changed while it was read, the rows are of no single version of it


def _current_files(paths: Sequence[str]) -> list[InputFile]:
    if len(paths) < _CONCURRENT_REQUESTS:
        return [InputFile.of(path) for path in paths]
    with ThreadPoolExecutor(_CONCURRENT_REQUESTS) as pool:
        return list(pool.map(InputFile.of, paths))


def _require_same(files: Sequence[InputFile]) -> None:
    for file, now in zip(files, _current_files([file.path for file in files]), strict=True):
        if now != file:
            error = file.changed(now)
            raise InputGoneError(f"an epoch cannot be repeated: {error}") from error


def _parse_record(text: str) -> list[Cut]:
    try:
        found = [
            (InputFile(str(path), int(time), int(length)), tuple(map(int, at)))
            for path, time, length, at in json.loads(text)["files"]
        ]
        for file, at in found:
            if (at[0], at[-1]) != (0, file.length) or list(at) != sorted(at):
                raise ValueError(f"{file.path!r} is cut at {at!r:.200}")
    except PARSE_ERRORS as error:
        raise CorruptFileError(
            "splits", None, f"what was recorded of an epoch's files is damaged: {error!r}."
        ) from error
    return found


def _assign(cuts: Sequence[Cut], tasks: int) -> Iterator[str]:
    """Assign splits to tasks, the largest first to the task with the fewest bytes; yield the JSON of each task."""
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


class FileSource(Source):
    """Reads files; create it with `for_record_stream_format` or `for_bulk_file_format`.

    Each file is read once, completely, in one epoch. It must be complete when it gets its name: write it under another
    name, then rename it.

    Example:
        >>> from holdfast.common import Duration
        >>> from holdfast.datastream.connectors.file_system import FileSource, StreamFormat
        >>> lines = StreamFormat.text_line_format()
        >>> source = (
        ...     FileSource.for_record_stream_format(lines, "/data/words")
        ...     .monitor_continuously(Duration.of_seconds(1))
        ...     .set_max_files_per_epoch(100)
        ...     .build()
        ... )
        >>> source.element_type()
        <string>
    """

    def __init__(
        self,
        input_format: InputFormat,
        paths: tuple[str, ...],
        interval: float | None,
        options: Mapping[str, str],
        letters: str | None = None,
    ) -> None:
        self._format = input_format
        self._paths = paths
        self._interval = interval
        self._options = dict(options)
        self._letters = letters
        self._splits = FileSplits(input_format, interval or None, PendingFiles(paths, self._options), letters)

    @staticmethod
    def for_record_stream_format(stream_format: StreamFormat, *paths: str) -> FileSourceBuilder:
        """Return a builder of a source of sequential records, such as lines of text.

        Args:
            stream_format: The format of the files.
            *paths: Directories, files and globs. Directories are searched recursively; names that begin with `.` or
                `_` are skipped.

        Raises:
            ConfigurationError: The format or a path is invalid.
        """
        _require_format(isinstance(stream_format, StreamFormat), "a StreamFormat", stream_format)
        return FileSourceBuilder(stream_format, paths)

    @staticmethod
    def for_bulk_file_format(bulk_format: BulkFormat, *paths: str) -> FileSourceBuilder:
        """Return a builder of a source of rows in batches, such as Parquet; see `for_record_stream_format`."""
        _require_format(isinstance(bulk_format, BulkFormat), "a BulkFormat", bulk_format)
        return FileSourceBuilder(bulk_format, paths)

    def create_frame(self, session: SparkSession) -> DataFrame:
        """Return a frame that lists the files; those of a static set are fixed now, and read in one epoch.

        Raises:
            ConfigurationError: A path does not exist.
        """
        from holdfast.spark.input.files import list_files, listing_frame

        if self._interval is not None:
            return listing_frame(session, self._paths, self._options)
        frame, paths = list_files(session, self._paths, self._options)
        self._splits = FileSplits(self._format, letters=self._letters)
        self._splits.fix(paths, session.sparkContext.defaultParallelism)
        return frame

    def with_gate(self, gate: EpochGate) -> Source:
        """Raise `ConfigurationError`: Spark decides which files an epoch has, and a static set has one epoch."""
        static = "a static set of files is read in one epoch, as a whole"
        moving = (
            "Spark's file source, which lists the files, says which of them an epoch has, and cannot be told to wait"
        )
        raise cannot_pause(self, static if self._interval is None else moving)

    def split_source(self) -> SplitSource:
        return FileSplitSource(self._format, self._paths, self._interval, self._options, self._splits.fixed_files())

    def element_type(self) -> TypeInformation:
        return self._format.element_type()

    def splits(self) -> FileSplits:
        return self._splits


class FileSourceBuilder:
    """Builds a `FileSource`, under PyFlink's names. Setters raise `ConfigurationError` for an invalid value."""

    def __init__(self, input_format: InputFormat, paths: tuple[str, ...]) -> None:
        if not paths or not all(isinstance(path, str) and path for path in paths):
            raise ConfigurationError(f"FileSource takes paths of directories or files, not {paths!r}.")
        if len(set(paths)) < len(paths):
            raise ConfigurationError(f"FileSource got a path twice, whose files would be read twice: {paths!r}.")
        self._format = input_format
        self._paths = paths
        self._interval: float | None = None
        self._options: dict[str, str] = {}
        self._letters: str | None = None

    def monitor_continuously(self, discovery_interval: timedelta) -> FileSourceBuilder:
        """Read new files as they appear; the stream is unbounded.

        Args:
            discovery_interval: The pause between two listings while there are no new files, if all inputs of the job
                are files. Every epoch begins with a listing, and `execution.trigger` says when epochs begin. In real
                time, the pause between any two listings.
        """
        if not isinstance(discovery_interval, timedelta) or discovery_interval <= timedelta(0):
            raise ConfigurationError(
                f"monitor_continuously() takes a positive Duration, such as Duration.of_seconds(1), not "
                f"{discovery_interval!r}."
            )
        self._interval = discovery_interval.total_seconds()
        return self

    def process_static_file_set(self) -> FileSourceBuilder:
        """Read the files that exist when the program is defined, in one epoch. This is the default."""
        self._interval = None
        return self

    def set_max_files_per_epoch(self, files: int) -> FileSourceBuilder:
        """Limit the number of files that an epoch reads of each path, oldest first; without effect in real time."""
        return self.set_property(_MOST_FILES, _positive("set_max_files_per_epoch", files))

    def set_max_bytes_per_epoch(self, size: int) -> FileSourceBuilder:
        """Limit the bytes that an epoch reads of each path; a larger single file is still read. Needs Spark 4.0."""
        return self.set_property(_MOST_BYTES, _positive("set_max_bytes_per_epoch", size))

    def set_property(self, key: str, value: Any) -> FileSourceBuilder:
        """Set an option of Spark's file source, which lists the files: `pathGlobFilter`, `latestFirst` and others.

        Raises:
            ConfigurationError: It is unknown, or has nothing to do with listing.
        """
        if key not in (*_OF_STREAMS, *_OF_BOTH):
            raise ConfigurationError(f"FileSource takes {', '.join((*_OF_STREAMS, *_OF_BOTH))}, not {key!r}.")
        self._options[key] = str(value).lower() if isinstance(value, bool) else str(value)
        return self

    def set_dead_letter_output(self, tag: OutputTag) -> FileSourceBuilder:
        """Send lines that cannot be read to a side output, instead of failing the job.

        Args:
            tag: `OutputTag("unreadable", DEAD_LETTER)`. Call `get_side_output(tag)` on the stream of `from_source` to
                get the lines, with file, byte, number and reason.

        Raises:
            ConfigurationError: The tag has another type, or lines of the format cannot be read one by one.
        """
        if not isinstance(tag, OutputTag) or tag.type_info != to_type(DEAD_LETTER):
            raise ConfigurationError(
                f"set_dead_letter_output() takes OutputTag('unreadable', DEAD_LETTER), not {tag!r}."
            )
        if not (isinstance(self._format, LineFormat) and self._format.has_single_lines()):
            raise ConfigurationError(
                f"set_dead_letter_output() is for files of lines that can be read one by one; of {self._format.name} a "
                "file is read or not, as a whole."
            )
        self._letters = tag.tag_id
        return self

    def build(self) -> FileSource:
        """Create the source.

        Raises:
            ConfigurationError: A static set of files has a limit for epochs, or a stream has two limits.
        """
        if self._interval is None:
            odd = [key for key in _OF_STREAMS if key in self._options]
            if odd:
                raise ConfigurationError(
                    f"{odd[0]} says how a stream of files goes on, but a static set of files is read in one epoch: "
                    "call monitor_continuously(); with execution.trigger=available-now the job ends nevertheless"
                )
        if _MOST_FILES in self._options and _MOST_BYTES in self._options:
            raise ConfigurationError("An epoch is limited by files or by bytes: Spark does not take both.")
        return FileSource(self._format, self._paths, self._interval, {**_DEFAULTS, **self._options}, self._letters)


def _require_format(holds: bool, wanted: str, given: Any) -> None:
    if not holds:
        raise ConfigurationError(f"FileSource takes {wanted} here, not {given!r}.")


def _positive(method: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{method}() takes a positive whole number, not {value!r}.")
    return value
