"""`JobPositionFiles`: files in a job's directory that positions of sources name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import xxhash

from holdfast.errors import CorruptFileError
from holdfast.kernel import fault
from holdfast.storage.job_directory import SHARED, FileName, JobDirectory


class JobPositionFiles:
    """Writes each file once, into the shared directory. Retention keeps it while a checkpoint names it.

    Args:
        directory: The job's directory.
        token: Token of the attempt.

    Attributes:
        epoch: The running epoch, for the names of files: they are not deleted before its checkpoint is complete.
    """

    def __init__(self, directory: JobDirectory, token: int) -> None:
        self._directory = directory
        self._token = token
        self.epoch = 0

    def write(self, content: bytes) -> dict[str, Any]:
        """Write a file, and return its handle as JSON. Blocks.

        Raises:
            StorageError: It cannot be written.
        """
        name = FileName.new(self._token, self.epoch, 0, "source", 0).format(".src")
        relative = f"{SHARED}/{name}"
        with fault.point("source.copy"):
            self._directory.fs.create_exclusive(self._directory.absolute(relative), content)
        return {"path": relative, "size": len(content), "digest": xxhash.xxh3_64_hexdigest(content)}

    def read(self, handle: Mapping[str, Any]) -> bytes:
        """Read a file. Blocks.

        Raises:
            CorruptFileError: It is damaged.
            StorageError: It cannot be read.
        """
        path = self._directory.absolute(handle["path"])
        content = self._directory.fs.read(path, 0, handle["size"] + 1)
        if xxhash.xxh3_64_hexdigest(content) != handle["digest"]:
            raise CorruptFileError(
                path, 0, f"the copied source entry {path!r} is damaged: start from the checkpoint before (-s PATH)"
            )
        return content
