"""Spark's file source as what lists files and remembers them: nobody reads the rows of these frames.

Its format is `binaryFile`, of which Spark touches no content. What a query has listed stands in the log of its source,
in a file a batch, with the path of each file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import ConfigurationError, CorruptFileError
from holdfast.kernel.malformed import MALFORMED
from holdfast.runtime.graph.stream_graph import SPLITS_COLUMN

_SCHEMA: Final = "path string, modificationTime timestamp, length long, content binary"
_MOST_BYTES: Final = "maxBytesPerTrigger"
_LIMITS_BYTES_SINCE: Final = 4
_HADOOP_S3: Final = re.compile(r"s3[an]://")


def listing_frame(session: SparkSession, paths: Sequence[str], options: Mapping[str, str]) -> DataFrame:
    """A stream whose source lists files.

    Args:
        session: The session.
        paths: Directories, files and globs; each has a source of its own.
        options: Of Spark's file source.

    Raises:
        ConfigurationError: There is no such path, or this Spark knows no limit of bytes.
    """
    if _MOST_BYTES in options and int(session.version.partition(".")[0]) < _LIMITS_BYTES_SINCE:
        raise ConfigurationError(
            f"Spark {session.version} cannot limit an epoch of files by bytes, which came with Spark 4.0: limit it by "
            "their number"
        )
    reader = session.readStream.format("binaryFile").schema(_SCHEMA).options(**options)
    frames = [_told(path, partial(reader.load, path)) for path in paths]
    return reduce(DataFrame.union, [frame.selectExpr(f"path as {SPLITS_COLUMN}") for frame in frames])


def listed_now(
    session: SparkSession, paths: Sequence[str], options: Mapping[str, str]
) -> tuple[DataFrame, tuple[str, ...]]:
    """A static frame over files, and the paths of those that there are, in order. Blocks.

    Raises:
        ConfigurationError: There is no such path.
    """
    reader = session.read.format("binaryFile").options(**options)
    frame = _told(", ".join(paths), lambda: reader.load(list(paths))).selectExpr(f"path as {SPLITS_COLUMN}")
    return frame, tuple(sorted({plain(str(row[0]), is_encoded=False) for row in frame.collect()}))


def _told(path: str, load: Callable[[], DataFrame]) -> DataFrame:
    try:
        return load()
    except AnalysisException as error:
        raise ConfigurationError(f"FileSource cannot list {path!r}: {error}") from error


def listed_in_log(folder: Path, after: int, until: int) -> list[str]:
    """The paths in the log of a source of files, of the entries after one up to another; in order.

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
        except MALFORMED as error:
            raise CorruptFileError(str(entry), None, f"it is no log of a source of files: {error!r:.200}.") from error
    return sorted(set(found))


def plain(path: str, *, is_encoded: bool) -> str:
    """A path of Hadoop as our file systems take it: local ones without a scheme.

    Args:
        path: The path.
        is_encoded: Whether characters stand in it as they do in URIs.
    """
    text = unquote(path) if is_encoded else path
    if text.startswith("file:"):
        return "/" + text.removeprefix("file:").lstrip("/")
    return _HADOOP_S3.sub("s3://", text, count=1)
