"""Streams of operators into a checkpoint: small ones end up in the document, larger ones in files of their own.

A stream's handle is JSON and becomes part of the subtask's state in the document: ``{"inline": <base64>}`` or
``{"path", "size", "digest"}`` with a path relative to the job directory, whose name tells the sweep whose it is.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, Final

from holdfast.checkpoint.storage.checkpoint_storage import DEFAULT_INLINE_THRESHOLD, JobManagerCheckpointStorage
from holdfast.checkpoint.storage.location import (
    CheckpointedStateScope,
    CheckpointStateOutputStream,
    CheckpointStreamFactory,
    StreamStateHandle,
)
from holdfast.errors import CorruptFileError, StateError, StorageError
from holdfast.storage.file_system.path import base_name, parent
from holdfast.storage.job.job_directory import TASK_OWNED, JobDirectory
from holdfast.storage.job.naming import FileName

SUFFIX: Final = ".state"


class InlineStateHandle(StreamStateHandle):
    """Bytes that are kept in the document."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def open_input_stream(self) -> BinaryIO:
        """Open the bytes for reading."""
        return io.BytesIO(self.data)

    def discard_state(self) -> None:
        """They go with the document."""

    def get_state_size(self) -> int:
        """Return the number of bytes."""
        return len(self.data)

    def to_json(self) -> dict[str, Any]:
        """Return the handle as it is written into the document."""
        return {"inline": base64.b64encode(self.data).decode("ascii")}


class FileStreamStateHandle(StreamStateHandle):
    """Bytes in a file.

    Attributes:
        path: Relative to the job directory.
        size: In bytes.
        digest: SHA-256 in hexadecimal.
    """

    def __init__(self, directory: JobDirectory, path: str, size: int, digest: str) -> None:
        self._directory = directory
        self.path = path
        self.size = size
        self.digest = digest

    def open_input_stream(self) -> BinaryIO:
        """Read and check the file, and open its bytes for reading.

        Raises:
            NotExistError: It is gone.
            CorruptFileError: It is not what was written.
        """
        path = self._directory.absolute(self.path)
        data = self._directory.fs.read(path, 0, self.size + 1)
        if len(data) != self.size or hashlib.sha256(data).hexdigest() != self.digest:
            raise CorruptFileError(path, None, f"it does not hold the {self.size} bytes that were written.")
        return io.BytesIO(data)

    def discard_state(self) -> None:
        """Delete the file."""
        path = self._directory.absolute(self.path)
        self._directory.fs.delete_in(parent(path), base_name(path))

    def get_state_size(self) -> int:
        """Return the size of the file."""
        return self.size

    def to_json(self) -> dict[str, Any]:
        """Return the handle as it is written into the document."""
        return {"path": self.path, "size": self.size, "digest": self.digest}


def stream_handle_from_json(value: Mapping[str, Any], directory: JobDirectory) -> StreamStateHandle:
    """Return the handle that a document holds.

    Args:
        value: What `to_json` returned.
        directory: The directory to which paths are relative.

    Raises:
        ValueError: It is not a handle.
    """
    try:
        if "inline" in value:
            return InlineStateHandle(base64.b64decode(value["inline"], validate=True))
        path, size, digest = value["path"], value["size"], value["digest"]
    except (KeyError, TypeError, binascii.Error) as error:
        raise ValueError(f"not the handle of a stream: {value!r}") from error
    if type(path) is not str or type(size) is not int or size < 0 or type(digest) is not str:
        raise ValueError(f"not the handle of a stream: {value!r}")
    return FileStreamStateHandle(directory, path, size, digest)


class BufferedStream(CheckpointStateOutputStream):
    """Collects what is written and hands it over when it is closed."""

    def __init__(self, finish: Callable[[bytes], StreamStateHandle]) -> None:
        self._finish = finish
        self._buffer: io.BytesIO | None = io.BytesIO()

    def write(self, data: bytes) -> int:
        """Append bytes."""
        return self._open().write(data)

    def get_pos(self) -> int:
        """Return the number of bytes written so far."""
        return self._open().tell()

    def close_and_get_handle(self) -> StreamStateHandle | None:
        """Make what was written durable and return its handle; None if nothing was written."""
        data = self._open().getvalue()
        self._buffer = None
        return self._finish(data) if data else None

    def close(self) -> None:
        """Throw away what was written, unless the handle was taken."""
        self._buffer = None

    def _open(self) -> io.BytesIO:
        if self._buffer is None:
            raise StateError("The stream into the checkpoint is closed.")
        return self._buffer


class FileCheckpointStreamFactory(CheckpointStreamFactory):
    """The streams of one subtask in one epoch.

    Args:
        directory: The job's directory.
        name: Draws a new name for a file; it carries token and epoch.
        threshold: Up to how many bytes a stream is kept in the document.
    """

    def __init__(
        self, directory: JobDirectory, name: Callable[[], FileName], threshold: int = DEFAULT_INLINE_THRESHOLD
    ) -> None:
        self._directory = directory
        self._name = name
        self._threshold = threshold

    def create_checkpoint_state_output_stream(
        self, scope: CheckpointedStateScope = CheckpointedStateScope.EXCLUSIVE
    ) -> CheckpointStateOutputStream:
        """Open a new stream; files of either scope live until no checkpoint names them."""
        return BufferedStream(self._finish)

    def _finish(self, data: bytes) -> StreamStateHandle:
        if len(data) <= self._threshold:
            return InlineStateHandle(data)
        relative = f"{TASK_OWNED}/{self._name().format(SUFFIX)}"
        self._directory.fs.create_exclusive(self._directory.absolute(relative), data)
        return FileStreamStateHandle(self._directory, relative, len(data), hashlib.sha256(data).hexdigest())


class MemoryCheckpointStreamFactory(CheckpointStreamFactory):
    """Streams that are kept in memory.

    Args:
        max_state_size: Largest stream in bytes.
    """

    def __init__(self, max_state_size: int = JobManagerCheckpointStorage.DEFAULT_MAX_STATE_SIZE) -> None:
        self._max_state_size = max_state_size

    def create_checkpoint_state_output_stream(
        self, scope: CheckpointedStateScope = CheckpointedStateScope.EXCLUSIVE
    ) -> CheckpointStateOutputStream:
        """Open a new stream."""
        return BufferedStream(self._finish)

    def _finish(self, data: bytes) -> StreamStateHandle:
        if len(data) > self._max_state_size:
            raise StorageError(
                f"Size of the state is larger than the maximum permitted memory-backed state. Size={len(data)}, "
                f"maxSize={self._max_state_size}. Use FileSystemCheckpointStorage."
            )
        return InlineStateHandle(data)
