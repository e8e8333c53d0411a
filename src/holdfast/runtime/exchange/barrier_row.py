"""How a barrier travels: as it is, compressed, or, where even that is too long for a row, in a file.

This is the *content* of a task, which goes to one task of the next stage, and that of the last stage to the driver::

    content = "{..."                                  JSON, of a barrier that carries none
            | "n" length "{..." (length content)*     followed by the contents that it carries; lengths of 4 bytes
            | "z" zlib(content)
            | "f" handle of a file with the content, as JSON

A task never reads the contents that it carries: only the driver does, each once. What makes a content long is what
nobody bounds: the committables of a user's sink, the names of staged files, many tasks above few. The file lies among
those that operators own; no checkpoint names it, so it is swept when its epoch is.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from holdfast.errors import CorruptFileError
from holdfast.kernel.malformed import MALFORMED
from holdfast.runtime.exchange.barrier import Barrier
from holdfast.runtime.exchange.owned_file import read_owned, write_owned
from holdfast.storage.job.job_directory import JobDirectory
from holdfast.storage.job.naming import FileName

TICK: Final = b""
"""Content of a tick row: it makes sure that a task without input still runs, and says nothing."""

LONGEST_ROW: Final = 60 * 1024
"""Bytes of a content in a row; with what Spark adds to it, it stays below 64 KB."""

_PLAIN_BYTES: Final = 4096
_CARRYING: Final = b"n"
_COMPRESSED: Final = b"z"
_FILED: Final = b"f"


def pack(
    barrier: Barrier, directory: JobDirectory, name: Callable[[], FileName], carried: Sequence[bytes] = ()
) -> bytes:
    """The content of a task; writes a file, durably, if it would be too long.

    Args:
        barrier: The task's own barrier.
        directory: The job's directory.
        name: Draws a new name for a file.
        carried: Contents of tasks above, as they came.
    """
    content = json.dumps(barrier.to_json(), separators=(",", ":")).encode()
    if carried:
        content = b"".join([_CARRYING, *(part for one in (content, *carried) for part in (_length(one), one))])
    if len(content) > _PLAIN_BYTES:  # the reports of subtasks are alike
        content = _COMPRESSED + zlib.compress(content, 1)
    if len(content) <= LONGEST_ROW:
        return content
    return _FILED + json.dumps(write_owned(directory, name, content)).encode()


def unpack(content: bytes, directory: JobDirectory) -> Barrier:
    """The barrier of a content that `pack` made, with all that it carries.

    Raises:
        NotExistError: The file that it is in is not there: the tasks do not share a disk.
        CorruptFileError: It is not what was written.
    """
    try:
        return _unpacked(content, directory)
    except (*MALFORMED, zlib.error) as error:
        raise CorruptFileError(directory.path, None, f"the report of a task cannot be read: {error!r:.300}.") from error


def _unpacked(content: bytes, directory: JobDirectory) -> Barrier:
    if content.startswith(_FILED):
        content = read_owned(directory, json.loads(content[len(_FILED) :]))
    if content.startswith(_COMPRESSED):
        content = zlib.decompress(content[len(_COMPRESSED) :])
    if not content.startswith(_CARRYING):
        return Barrier.from_json(json.loads(content))
    own, *carried = _parts(content)
    return Barrier.from_json(json.loads(own), tuple(_unpacked(one, directory) for one in carried))


def _length(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big")


def _parts(content: bytes) -> Iterator[bytes]:
    at = len(_CARRYING)
    while at < len(content):
        start = at + 4
        at = start + int.from_bytes(content[at:start], "big")
        if at > len(content):
            raise ValueError(f"a part of {at - start} bytes ends beyond the {len(content)} that there are")
        yield content[start:at]
