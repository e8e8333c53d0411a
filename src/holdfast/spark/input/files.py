"""Files that inputs read: those to find again after a failure, those that Spark lists, and those that wait.

Spark lists a folder when a query begins, so it does not miss a file that has gone since the attempt before, and its
file index skips files that go after the listing (it logs "Was it deleted very recently?"). Their rows would be in no
epoch. So this process remembers the files of epochs that no checkpoint has, and the next attempt checks them. Another
process knows of none.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, LongType, StringType, StructType, TimestampType

from holdfast.errors import ConfigurationError, CorruptFileError, InputGoneError
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.kernel.secret import get_logger
from holdfast.runtime.function.source import SourceStatistics, SplitInput
from holdfast.runtime.graph.input_matching import InputLeaf
from holdfast.runtime.graph.source_positions import OffsetLine, offsets_of
from holdfast.runtime.graph.stream_graph import SPLITS_COLUMN

logger = get_logger(__name__)

_SHOWN: Final = 3
_IGNORED: Final = "spark.sql.files.ignoreMissingFiles"
_MOST_BYTES: Final = "maxBytesPerTrigger"
_LIMITS_BYTES_SINCE: Final = 4
_HADOOP_S3: Final = re.compile(r"s3[an]://")
_COMPACT: Final = ".compact"
_SHORTEST: Final = 1.0
_SHARE: Final = 20
_AHEAD: Final = 86_400_000
"""Milliseconds by which a file's time may be in the future: clocks and time zones differ."""


class ConsumedFiles:
    """The files that attempts of a job in this process have read since its last checkpoint."""

    def __init__(self) -> None:
        self._read: dict[InputLeaf, dict[str, int]] = {}

    def record(self, lines: Sequence[OffsetLine], sources: Path) -> None:
        """Remember the files that an attempt has read, by the folders of Spark's sources."""
        for line in lines:
            found = {path: number for number, path in _entries(sources / str(line.folder))}
            if found:
                self._read.setdefault(line.leaf, {}).update(found)

    def require_again(
        self, lines: Sequence[OffsetLine], streaming: Mapping[str, Any] | None, session: SparkSession
    ) -> None:
        """Check that the files to be read again exist, and forget those that a checkpoint has.

        Args:
            lines: Lines of the plan.
            streaming: Its starting positions, in the order of the lines; None for the start of all.
            session: Session of the job.

        Raises:
            InputGoneError: One is gone, and Spark was not told to ignore missing files.
        """
        offsets = [-1] * len(lines) if streaming is None else offsets_of(streaming)
        before, self._read = self._read, {}
        for line, offset in zip(lines, offsets, strict=True):
            again = {path: number for path, number in before.get(line.leaf, {}).items() if number > offset}
            if again:
                self._read[line.leaf] = again
                gone = [path for path in sorted(again) if not _exists(path, session)]
                if gone:
                    self._report_missing(line, gone, session)

    def _report_missing(self, line: OffsetLine, gone: Sequence[str], session: SparkSession) -> None:
        shown = ", ".join(gone[:_SHOWN]) + (f" and {len(gone) - _SHOWN} more" if len(gone) > _SHOWN else "")
        what = f"{len(gone)} file(s) of input {line.leaf.uid!r} are gone, and their epoch has to be repeated"
        if line.ignores_missing or session.conf.get(_IGNORED, "false") == "true":
            logger.warning("%s. Missing files are skipped, as configured: %s", what, shown)
            for path in gone:
                del self._read[line.leaf][path]
            return
        raise InputGoneError(
            f"{what}: {shown}; put them back and run the job again, or let the input skip their rows "
            f"(option ignoreMissingFiles=true, or {_IGNORED})"
        )


def _entries(folder: Path) -> Iterator[tuple[int, str]]:
    """Yield number and path of each file in the log of a source of files; nothing of other sources."""
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        if entry.name.startswith(".") or not entry.is_file():
            continue
        for text in entry.read_text(errors="replace").splitlines()[1:]:
            try:
                said = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(said, dict) and "path" in said and isinstance(said.get("batchId"), int):
                yield said["batchId"], str(said["path"])


def _exists(path: str, session: SparkSession) -> bool:
    jvm = session.sparkContext._jvm
    assert jvm is not None
    place = jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(path))
    return bool(place.getFileSystem(session._jsparkSession.sessionState().newHadoopConf()).exists(place))


_SCHEMA: Final = (
    StructType()
    .add("path", StringType())
    .add("modificationTime", TimestampType())
    .add("length", LongType())
    .add("content", BinaryType())
)


def listing_frame(session: SparkSession, paths: Sequence[str], options: Mapping[str, str]) -> DataFrame:
    """Return a stream whose source only lists files: `binaryFile`, whose content Spark does not touch.

    The query's log has a file for each batch with the paths.

    Args:
        session: The session.
        paths: Directories, files and globs; each has a source of its own.
        options: Options of Spark's file source.

    Raises:
        ConfigurationError: There is no such path, or this Spark knows no limit of bytes.
    """
    if _MOST_BYTES in options and int(session.version.partition(".")[0]) < _LIMITS_BYTES_SINCE:
        raise ConfigurationError(
            f"Spark {session.version} cannot limit an epoch of files by bytes, which came with Spark 4.0: limit it by "
            "their number"
        )
    reader = session.readStream.format("binaryFile").schema(_SCHEMA).options(**options)
    frames = [_load_listing(path, partial(reader.load, path)) for path in paths]
    return reduce(DataFrame.union, [frame.selectExpr(f"path as {SPLITS_COLUMN}") for frame in frames])


def list_files(
    session: SparkSession, paths: Sequence[str], options: Mapping[str, str]
) -> tuple[DataFrame, tuple[str, ...]]:
    """Return a static frame over files, and the paths of the present ones, in order. Blocks.

    Raises:
        ConfigurationError: There is no such path.
    """
    reader = session.read.format("binaryFile").options(**options)
    frame = _load_listing(", ".join(paths), lambda: reader.load(list(paths))).selectExpr(f"path as {SPLITS_COLUMN}")
    return frame, tuple(sorted({plain(str(row[0]), is_encoded=False) for row in frame.collect()}))


def _load_listing(path: str, load: Callable[[], DataFrame]) -> DataFrame:
    try:
        return load()
    except AnalysisException as error:
        raise ConfigurationError(f"FileSource cannot list {path!r}: {error}") from error


def listed_in_log(folder: Path, after: int, until: int) -> list[str]:
    """Return the paths in the log of a source of files, of the entries after one up to another; in order.

    Args:
        folder: That of the source in the directory of its query.
        after: Number of the last entry that was read before; -1 for none.
        until: Number of the last entry that is read now.

    Raises:
        CorruptFileError: An entry is damaged.
    """
    found: list[str] = []
    for number in range(after + 1, until + 1):
        entry = folder / str(number)
        if not entry.exists():
            entry = folder / f"{number}.compact"  # has all those before as well
        try:
            lines = entry.read_text("utf-8").splitlines()[1:]
            said = [json.loads(line) for line in lines if line]
            found += [plain(one["path"], is_encoded=True) for one in said if one["batchId"] == number]
        except PARSE_ERRORS as error:
            raise CorruptFileError(str(entry), None, f"it is no log of a source of files: {error!r:.200}.") from error
    return sorted(set(found))


def plain(path: str, *, is_encoded: bool) -> str:
    """Return a Hadoop path for Holdfast's file systems: local ones without a scheme.

    Args:
        path: The path.
        is_encoded: Whether it is encoded as a URI.
    """
    text = unquote(path) if is_encoded else path
    if text.startswith("file:"):
        return "/" + text.removeprefix("file:").lstrip("/")
    return _HADOOP_S3.sub("s3://", text, count=1)


class UnreadFileCounter:
    """Counts the files in one place of a source that Spark has not listed for an epoch; safe from any thread.

    Spark does not count them, so the place is listed once more: so seldom that it takes a twentieth of the time of a
    thread that asks all the time.

    Args:
        source: The source.
        place: Number of the place among those of the source.
        log: The folder of Spark's source in its query.
    """

    def __init__(self, source: SplitInput, place: int, log: Path) -> None:
        self._source = source
        self._place = place
        self._log = log
        self._lock = threading.Lock()
        self._last = -1
        self._newest: int | None = None
        self._read: set[int] = set()  # hashes, because paths of years are many
        self._counted = SourceStatistics()
        self._again = 0.0

    def count(self) -> SourceStatistics:
        """Count them, or return the count of a moment ago. Blocks while it lists."""
        with self._lock:
            began = time.monotonic()
            if began >= self._again:
                try:
                    self._catch_up()
                    self._counted = self._waiting()
                except (OSError, *PARSE_ERRORS):  # Spark writes the log, and cleans it up, at the same time
                    self._counted = SourceStatistics()
                ended = time.monotonic()
                self._again = ended + max(_SHORTEST, _SHARE * (ended - began))
            return self._counted

    def _waiting(self) -> SourceStatistics:
        files = size = 0
        listed = self._source.listed(self._place, self._newest)
        if listed is None:
            return SourceStatistics()
        for file in listed:
            if hash(file.path) not in self._read:
                files += 1
                size += file.size
        return SourceStatistics(files=files, bytes=size)

    def _catch_up(self) -> None:
        for number, entry in self._new_entries():
            for line in entry.read_text("utf-8").splitlines()[1:]:
                said = json.loads(line)
                self._read.add(hash(plain(said["path"], is_encoded=True)))
                time_of_file = int(said["timestamp"])
                if time_of_file > max(self._newest or 0, time.time() * 1000 + _AHEAD):
                    logger.warning(
                        "the time of the file %s is in the future: Spark never reads files that are older than it by "
                        "more than maxFileAge (7 days, if you did not set it). To read those, set a larger one: "
                        "set_property('maxFileAge', '4000d')",
                        said["path"],
                    )
                self._newest = max(time_of_file, self._newest or 0)
            self._last = number

    def _new_entries(self) -> Iterator[tuple[int, Path]]:
        """Return the entries of the log that were not read yet, in order, from the newest compacted one."""
        found: dict[int, Path] = {}
        for entry in self._log.iterdir():
            number = entry.name.removesuffix(_COMPACT)
            if number.isdecimal() and int(number) > self._last:
                found[int(number)] = entry
        whole = max((number for number, entry in found.items() if entry.name.endswith(_COMPACT)), default=-1)
        return iter(sorted(item for item in found.items() if item[0] >= whole))
