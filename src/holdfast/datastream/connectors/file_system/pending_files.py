"""`PendingFiles`: lists the files of a source, by the rules of Spark's file source."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from holdfast.runtime.function.source import ListedFile
from holdfast.storage.file_system import join, local_path
from holdfast.storage.scheme import file_system_for

_AGE: Final = re.compile(r"\s*([0-9]+)\s*(ms|s|min|m|h|d)\s*")
_MILLISECONDS: Final = {"ms": 1, "s": 1_000, "min": 60_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DEFAULT_AGE: Final = "7d"
_HADOOP_ONLY: Final = frozenset("{}\\^")
"""Characters with a meaning in Hadoop's globs, but not in Python's."""
_GLOB: Final = frozenset("*?[")
_HADOOP_S3: Final = re.compile(r"s3[an]://")


class PendingFiles:
    """Lists the files of a source as Spark would, without Spark.

    A job by epochs counts unread files by it; there Spark decides which files are read. So paths for which its own
    rules would be needed, such as globs with alternatives, are not listed at all. A real-time job reads what it lists.

    Args:
        paths: Directories, files and globs.
        options: The options of Spark's file source.
    """

    def __init__(self, paths: Sequence[str], options: Mapping[str, str]) -> None:
        self._paths = tuple(paths)
        self._pattern = options.get("pathGlobFilter")
        self._age = _age(options)

    def listed(
        self, place: int, newest: int | None, known: Collection[str] = frozenset()
    ) -> Iterator[ListedFile] | None:
        """List the files of a path that Spark would read, read or not; return None if that is unknown. Blocks.

        Args:
            place: The number of the path.
            newest: The time of the newest file that was read, in milliseconds since 1970; Spark skips files that are
                older by `maxFileAge`.
            known: Paths of files to leave out.
        """
        path = local_path(self._paths[place])
        if path is None or self._age is None or not _HADOOP_ONLY.isdisjoint(f"{path}{self._pattern or ''}"):
            return None
        return self._files(os.path.normpath(Path(path).absolute()), self.oldest(newest), known)

    def listed_remote(
        self, place: int, newest: int | None, known: Collection[str] = frozenset()
    ) -> Iterator[ListedFile] | None:
        """Do the same for a path in an object store; return None for a glob. Blocks."""
        path = self._paths[place]
        if not _GLOB.union(_HADOOP_ONLY).isdisjoint(f"{path}{self._pattern or ''}".partition("://")[2]):
            return None
        return self._objects(_HADOOP_S3.sub("s3://", path, count=1), self.oldest(newest), known)

    def oldest(self, newest: int | None) -> int | None:
        """Return the time of the oldest file that is listed when the newest one was read; None for no limit."""
        return None if newest is None or self._age is None or self._age < 0 else newest - self._age

    def _objects(self, path: str, oldest: int | None, known: Collection[str]) -> Iterator[ListedFile]:
        for entry in file_system_for(path).list(path):
            if not _is_hidden(entry.name):
                inside = join(path, entry.name)
                if entry.is_directory:
                    yield from self._objects(inside, oldest, known)
                elif inside not in known and self._matches(entry.name) and (oldest is None or entry.mtime >= oldest):
                    yield ListedFile(inside, entry.mtime, entry.size)

    def _matches(self, name: str) -> bool:
        return self._pattern is None or fnmatchcase(name, self._pattern)

    def _files(self, path: str, oldest: int | None, known: Collection[str]) -> Iterator[ListedFile]:
        for root in Path("/").glob(path.removeprefix("/")):
            for file, name in _below(root) if root.is_dir() else iter([(str(root), root.name)]):
                if file in known or _is_hidden(name) or not self._matches(name):
                    continue
                try:
                    found = Path(file).stat()
                except OSError:  # deleted since it was listed
                    continue
                time = found.st_mtime_ns // 1_000_000
                if oldest is None or time >= oldest:
                    yield ListedFile(file, time, found.st_size)


def _below(directory: Path) -> Iterator[tuple[str, str]]:
    """Yield the paths and the names of files."""
    for folder, folders, files in os.walk(directory, followlinks=True):
        folders[:] = [name for name in folders if not _is_hidden(name)]
        prefix = folder.rstrip("/") + "/"
        yield from ((prefix + name, name) for name in files)


def _is_hidden(name: str) -> bool:
    """Return whether Spark skips a file or directory."""
    if name.startswith(("_common_metadata", "_metadata")):
        return False
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


def _age(options: Mapping[str, str]) -> int | None:
    """Return `maxFileAge` in milliseconds; -1 for no limit, None if it cannot be parsed."""
    is_limited = any(name in options for name in ("maxFilesPerTrigger", "maxBytesPerTrigger"))
    if options.get("latestFirst", "false").lower() == "true" and is_limited:
        return -1
    match = _AGE.fullmatch(options.get("maxFileAge", _DEFAULT_AGE).lower())
    return None if match is None else int(match[1]) * _MILLISECONDS[match[2]]
