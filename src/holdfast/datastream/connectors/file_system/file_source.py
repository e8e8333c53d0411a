"""`FileSource`: files as a stream, read by tasks straight into columns. The names are PyFlink's.

Spark's streaming file source lists files and remembers them; nothing of its rows is used. The driver cuts what an epoch
has into ranges of bytes, tasks of the first stage read them with pyarrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from holdfast.datastream.connectors.base import Source, cannot_wait
from holdfast.datastream.connectors.file_system.file_lists import FileLists
from holdfast.datastream.connectors.file_system.file_splits import FileSplits
from holdfast.datastream.formats.input_format import BulkFormat, InputFormat
from holdfast.datastream.formats.text_lines import LineFormat, StreamFormat
from holdfast.errors import ConfigurationError
from holdfast.runtime.function.epoch_gate import EpochGate
from holdfast.runtime.function.user_function import OutputTag
from holdfast.types.conversion.convert import to_type
from holdfast.types.information.type_information import TypeInformation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MOST_FILES: Final = "maxFilesPerTrigger"
_MOST_BYTES: Final = "maxBytesPerTrigger"
_OF_STREAMS: Final = (_MOST_FILES, _MOST_BYTES, "maxFileAge", "latestFirst", "cleanSource", "sourceArchiveDir")
_OF_BOTH: Final = ("pathGlobFilter", "recursiveFileLookup")
DEAD_LETTER: Final = "path string, position bigint, line binary, reason string"
"""Type of lines that cannot be read: the file, the byte at which one begins, what stands there, and why."""
_DEFAULTS: Final = {"recursiveFileLookup": "true"}


class FileSource(Source):
    """Reads files; `FileSource.for_record_stream_format` and `FileSource.for_bulk_file_format` begin one.

    Each file is read once, whole, in one epoch. It must be complete when it gets its name.
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
        self._splits = FileSplits(input_format, interval or None, FileLists(paths, self._options), letters)

    @staticmethod
    def for_record_stream_format(stream_format: StreamFormat, *paths: str) -> FileSourceBuilder:
        """A builder of a source of records that follow each other, such as lines of text.

        Args:
            stream_format: How the files are read.
            *paths: Directories, files and globs. Directories are searched as deep as they go; what begins with `.` or
                `_` is left out.
        """
        _require_format(isinstance(stream_format, StreamFormat), "a StreamFormat", stream_format)
        return FileSourceBuilder(stream_format, paths)

    @staticmethod
    def for_bulk_file_format(bulk_format: BulkFormat, *paths: str) -> FileSourceBuilder:
        """A builder of a source of files that have rows in batches, such as Parquet; see `for_record_stream_format`."""
        _require_format(isinstance(bulk_format, BulkFormat), "a BulkFormat", bulk_format)
        return FileSourceBuilder(bulk_format, paths)

    def create_frame(self, session: SparkSession) -> DataFrame:
        """A frame that lists the files; those of a static set are fixed now, and read in one epoch.

        Raises:
            ConfigurationError: There is no such path.
        """
        from holdfast.spark.input.file_listing import listed_now, listing_frame

        if self._interval is not None:
            return listing_frame(session, self._paths, self._options)
        frame, paths = listed_now(session, self._paths, self._options)
        self._splits = FileSplits(self._format, letters=self._letters)
        self._splits.fix(paths, session.sparkContext.defaultParallelism)
        return frame

    def with_gate(self, gate: EpochGate) -> Source:
        """Refused: Spark's file source says which files an epoch has, and a static set is read in one epoch."""
        static = "a static set of files is read in one epoch, as a whole"
        moving = (
            "Spark's file source, which lists the files, says which of them an epoch has, and cannot be told to wait"
        )
        raise cannot_wait(self, static if self._interval is None else moving)

    def element_type(self) -> TypeInformation:
        """That of the format."""
        return self._format.element_type()

    def splits(self) -> FileSplits:
        """What reads the files."""
        return self._splits


class FileSourceBuilder:
    """Builds a `FileSource`; the names are PyFlink's, but for the limits of an epoch.

    A value that cannot be is refused with a `ConfigurationError` where it is given.
    """

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
        """A stream that goes on: new files are read as they come.

        Args:
            discovery_interval: How long to wait between two looks for new files while there are none, where all inputs
                of the job are files. An epoch begins with a look in any case, and `execution.trigger` says when.
        """
        if not isinstance(discovery_interval, timedelta) or discovery_interval <= timedelta(0):
            raise ConfigurationError(
                f"monitor_continuously() takes a positive Duration, such as Duration.of_seconds(1), not "
                f"{discovery_interval!r}."
            )
        self._interval = discovery_interval.total_seconds()
        return self

    def process_static_file_set(self) -> FileSourceBuilder:
        """The files that there are when the program is defined, read in one epoch; this is the default."""
        self._interval = None
        return self

    def set_max_files_per_epoch(self, files: int) -> FileSourceBuilder:
        """How many files an epoch has at most, of each path; oldest first."""
        return self.set_property(_MOST_FILES, _positive("set_max_files_per_epoch", files))

    def set_max_bytes_per_epoch(self, size: int) -> FileSourceBuilder:
        """How many bytes an epoch has at most, of each path, but for a single file that has more. Since Spark 4.0."""
        return self.set_property(_MOST_BYTES, _positive("set_max_bytes_per_epoch", size))

    def set_property(self, key: str, value: Any) -> FileSourceBuilder:
        """An option of Spark's file source, which lists the files: `pathGlobFilter`, `latestFirst` and others.

        Raises:
            ConfigurationError: It is none that says what is listed.
        """
        if key not in (*_OF_STREAMS, *_OF_BOTH):
            raise ConfigurationError(f"FileSource takes {', '.join((*_OF_STREAMS, *_OF_BOTH))}, not {key!r}.")
        self._options[key] = str(value).lower() if isinstance(value, bool) else str(value)
        return self

    def set_dead_letter_output(self, tag: OutputTag) -> FileSourceBuilder:
        """Lines that cannot be read go to this side output, and do not fail the job.

        Args:
            tag: `OutputTag("unreadable", DEAD_LETTER)`; `get_side_output(tag)` of what `from_source` returns has the
                lines, with the file, the byte at which each begins, and why it cannot be read.

        Raises:
            ConfigurationError: The tag has another type, or the format has no lines that can be read one by one.
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
        """The source.

        Raises:
            ConfigurationError: A static set of files has a limit of an epoch, which it has only one of, or a stream has
                two limits.
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
