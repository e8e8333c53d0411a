"""How a barrier travels: as it is, compressed, or, where even that is too long for a row, in a file.

A row goes to every task of the next stage, and those of the last stage to the driver, so its length is bounded. What
makes a barrier long is what nobody bounds: the committables of a user's sink, the names of staged files, tasks without
number above. The file lies among those that operators own; no checkpoint names it, so it is swept when its epoch is.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
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
"""Bytes of a barrier row; with what Spark adds to it, it stays below 64 KB."""

_PLAIN_BYTES: Final = 4096
_COMPRESSED: Final = b"z"
_FILED: Final = b"f"


def pack(barrier: Barrier, directory: JobDirectory, name: Callable[[], FileName]) -> bytes:
    """The content of the control column; writes a file, durably, if it would be too long.

    Args:
        barrier: The barrier.
        directory: The job's directory.
        name: Draws a new name for a file.
    """
    content = json.dumps(barrier.to_json(), separators=(",", ":")).encode()
    if len(content) > _PLAIN_BYTES:  # the reports of subtasks are alike
        content = _COMPRESSED + zlib.compress(content, 1)
    if len(content) <= LONGEST_ROW:
        return content
    return _FILED + json.dumps(write_owned(directory, name, content)).encode()


def unpack(content: bytes, directory: JobDirectory) -> Barrier:
    """The barrier of a row that `pack` made.

    Raises:
        NotExistError: The file that it is in is not there: the tasks do not share a disk.
        CorruptFileError: It is not what was written.
    """
    try:
        if content.startswith(_FILED):
            content = read_owned(directory, json.loads(content[len(_FILED) :]))
        if content.startswith(_COMPRESSED):
            content = zlib.decompress(content[len(_COMPRESSED) :])
        return Barrier.from_json(json.loads(content))
    except (*MALFORMED, zlib.error) as error:
        raise CorruptFileError(
            directory.path, None, f"a barrier row of a task cannot be read: {error!r:.300}."
        ) from error
