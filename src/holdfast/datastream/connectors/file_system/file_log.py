"""`FileLog`: the files that a source has read, in the form in which Spark's file source keeps them.

An entry has a number, and a line for each file that was read with it. Each tenth one is compact: it has the lines of
all entries before as well::

    v1
    {"path":"file:///data/a.txt","timestamp":1764000000000,"batchId":7}

Jobs by epochs continue from the number of the last entry, and real-time jobs from what these have written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from holdfast.errors import CorruptFileError
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.runtime.function.source import EpochOffset, ListedFile, PositionFiles

_NAME: Final = re.compile(r"([0-9]{1,19})(\.compact)?")
_VERSION: Final = "v1"
_INTERVAL: Final = 10
"""Spark's own, of `spark.sql.streaming.fileSource.log.compactInterval`."""
_KEPT: Final = 2
_PLAIN: Final = "/-_.!~*'();:@&=+$,"
"""Characters that Java leaves in the path of a URI, beside letters and digits."""
_ASCII: Final = 128
_HADOOP_S3: Final = re.compile(r"s3[an]://")


class LoggedFile(NamedTuple):
    """A file that was read.

    Attributes:
        path: Its path, without a scheme if it is local.
        time: Time of its last change, in milliseconds since 1970.
    """

    path: str
    time: int


class _Entry(NamedTuple):
    number: int
    is_compact: bool
    name: str


class FileLog:
    """The files that were read of one path.

    Args:
        files: Where entries are kept.
        position: The position of a checkpoint; None for nothing read.
        scheme: Scheme of the path as Spark has it; empty for local files.

    Raises:
        CorruptFileError: An entry is damaged or missing.
    """

    def __init__(self, files: PositionFiles, position: EpochOffset | None, scheme: str = "") -> None:
        self._files = files
        self._scheme = scheme
        self._number = -1
        self._handles: dict[str, Any] = {}
        self._lines: list[str] = []
        self._interval = _INTERVAL
        if position is not None and position.offset is not None:
            self._restore(position)

    def _restore(self, position: EpochOffset) -> None:
        try:
            self._number = int(position.offset["logOffset"])
        except PARSE_ERRORS as error:
            raise CorruptFileError("positions", None, f"{position.offset!r:.200} is no position of files") from error
        entries = sorted(
            entry for name in position.files if (entry := _parsed(name)) is not None and entry.number <= self._number
        )
        compact = [entry for entry in entries if entry.is_compact]
        self._interval = _interval(compact)
        begin = compact[-1].number if compact else -1
        read = [*compact[-1:], *(entry for entry in entries if entry.number > begin and not entry.is_compact)]
        missing = set(range(max(begin, 0), self._number + 1)) - {entry.number for entry in read}
        if missing:
            raise CorruptFileError("positions", None, f"entry {min(missing)} of the list of files is missing")
        for entry in read:
            content = self._files.read(position.files[entry.name])
            self._lines += content.decode("utf-8").splitlines()[1:]
        kept = [*compact[-_KEPT:-1], *read]
        self._handles = {entry.name: position.files[entry.name] for entry in kept}

    def read_files(self) -> list[LoggedFile]:
        """Return all files that were read.

        Raises:
            CorruptFileError: An entry is damaged.
        """
        try:
            parsed = [json.loads(line) for line in self._lines]
            return [LoggedFile(_from_uri(one["path"]), int(one["timestamp"])) for one in parsed]
        except PARSE_ERRORS as error:
            raise CorruptFileError("positions", None, f"the list of files is damaged: {error!r:.200}") from error

    def append(self, read: Sequence[ListedFile]) -> None:
        """Add files that were read. Blocks.

        Raises:
            StorageError: The entry cannot be written.
        """
        number = self._number + 1
        added = [self._line(file, number) for file in read]
        if (number + 1) % self._interval:
            name, content = str(number), added
            handle = self._files.write(_content(content))
            self._handles[name] = handle
        else:
            name = f"{number}.compact"
            handle = self._files.write(_content([*self._lines, *added]))
            compact = sorted(entry for one in self._handles if (entry := _parsed(one)) is not None and entry.is_compact)
            kept = {entry.name: self._handles[entry.name] for entry in compact[1 - _KEPT :]}
            self._handles = {**kept, name: handle}
        self._lines += added
        self._number = number

    def _line(self, file: ListedFile, number: int) -> str:
        path = f"file://{_quoted(file.path)}"
        if self._scheme:
            path = f"{self._scheme}://{_quoted(file.path.partition('://')[2])}"
        entry = {"path": path, "timestamp": file.time, "batchId": number}
        return json.dumps(entry, ensure_ascii=False, separators=(",", ":"))

    def position(self) -> EpochOffset:
        """Return the position, as a checkpoint has it."""
        if self._number < 0:
            return EpochOffset(None)
        return EpochOffset({"logOffset": self._number}, dict(self._handles))


def _parsed(name: str) -> _Entry | None:
    """Return the entry with a name; None for the record of an epoch's splits, which is beside the entries."""
    match = _NAME.fullmatch(name)
    return None if match is None else _Entry(int(match[1]), match[2] is not None, name)


def _interval(compact: Sequence[_Entry]) -> int:
    """Return the number of entries from one compact one to the next, as Spark does."""
    if len(compact) > 1:
        return compact[-1].number - compact[-2].number
    if not compact:
        return _INTERVAL
    count = compact[-1].number + 1
    if count / 2 > _INTERVAL:
        return next((n for n in range(_INTERVAL, count // 2 + 1) if count % n == 0), count)
    return count


def _content(lines: Iterable[str]) -> bytes:
    return "\n".join([_VERSION, *lines]).encode()


def _quoted(path: str) -> str:
    """Encode a path as Java does, which leaves letters of all languages."""
    return "".join(
        character if ord(character) >= _ASCII and not character.isspace() else quote(character, safe=_PLAIN)
        for character in path
    )


def _from_uri(uri: str) -> str:
    text = unquote(uri)
    if text.startswith("file:"):
        return "/" + text.removeprefix("file:").lstrip("/")
    return _HADOOP_S3.sub("s3://", text, count=1)
