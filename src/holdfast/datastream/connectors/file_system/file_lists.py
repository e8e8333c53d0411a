"""What lies in the places of a `FileSource`, as Spark's file source would list it, without asking Spark.

This only counts what waits: which files are read is what Spark says. So what would need Spark's own rules, such as
globs with alternatives, is not counted at all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from holdfast.runtime.function.splits import ListedFile
from holdfast.storage.file_system.path import local_path

_AGE: Final = re.compile(r"\s*([0-9]+)\s*(ms|s|min|m|h|d)\s*")
_MILLISECONDS: Final = {"ms": 1, "s": 1_000, "min": 60_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DEFAULT_AGE: Final = "7d"
_ODD: Final = frozenset("{}\\^")
"""What globs of Hadoop have and those of Python have not."""


class FileLists:
    """The files of a source.

    Args:
        paths: Directories, files and globs.
        options: Of Spark's file source.
    """

    def __init__(self, paths: Sequence[str], options: Mapping[str, str]) -> None:
        self._paths = tuple(paths)
        self._pattern = options.get("pathGlobFilter")
        self._age = _age(options)

    def listed(self, place: int, newest: int | None) -> Iterator[ListedFile] | None:
        """The files of a path that Spark would read if it has not; None if nobody can tell. Blocks.

        Args:
            place: Number of the path.
            newest: The time of the newest file that was read, in milliseconds since 1970; Spark leaves those out that
                are a certain time older.
        """
        path = local_path(self._paths[place])
        if path is None or self._age is None or not _ODD.isdisjoint(f"{path}{self._pattern or ''}"):
            return None
        oldest = None if newest is None or self._age < 0 else newest - self._age
        return self._files(os.path.normpath(Path(path).absolute()), oldest)

    def _files(self, path: str, oldest: int | None) -> Iterator[ListedFile]:
        for root in Path("/").glob(path.removeprefix("/")):
            for folder, name in _below(root) if root.is_dir() else iter([(str(root.parent), root.name)]):
                if _is_hidden(name) or (self._pattern is not None and not fnmatchcase(name, self._pattern)):
                    continue
                file = Path(folder, name)
                try:
                    found = file.stat()
                except OSError:  # gone since it was listed
                    continue
                time = found.st_mtime_ns // 1_000_000
                if oldest is None or time >= oldest:
                    yield ListedFile(str(file), time, found.st_size)


def _below(directory: Path) -> Iterator[tuple[str, str]]:
    for folder, folders, files in os.walk(directory, followlinks=True):
        folders[:] = [name for name in folders if not _is_hidden(name)]
        yield from ((folder, name) for name in files)


def _is_hidden(name: str) -> bool:
    """Whether Spark leaves a file or directory out."""
    if name.startswith(("_common_metadata", "_metadata")):
        return False
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


def _age(options: Mapping[str, str]) -> int | None:
    """By how much a file may be older than the newest that was read, in milliseconds; -1 for any, None if unknown."""
    is_limited = any(name in options for name in ("maxFilesPerTrigger", "maxBytesPerTrigger"))
    if options.get("latestFirst", "false").lower() == "true" and is_limited:
        return -1
    match = _AGE.fullmatch(options.get("maxFileAge", _DEFAULT_AGE).lower())
    return None if match is None else int(match[1]) * _MILLISECONDS[match[2]]
