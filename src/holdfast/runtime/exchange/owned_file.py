"""Files that tasks write beside runs: durable, and checked when they are read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.checkpoint.storage import SUFFIX, FileStreamStateHandle, stream_handle_from_json
from holdfast.storage.job_directory import TASK_OWNED, FileName, JobDirectory


def write_owned(directory: JobDirectory, name: Callable[[], FileName], data: bytes) -> dict[str, Any]:
    """Write a new file, durably. Return its handle as JSON, with a path relative to the job's directory.

    Raises:
        StorageError: It could not be written.
    """
    relative = f"{TASK_OWNED}/{name().format(SUFFIX)}"
    directory.fs.write_state(directory.absolute(relative), data)
    return FileStreamStateHandle(directory, relative, len(data), hashlib.sha256(data).hexdigest()).to_json()


def read_owned(directory: JobDirectory, handle: Mapping[str, Any]) -> bytes:
    """Read a file and check it.

    Raises:
        NotExistError: The file does not exist.
        CorruptFileError: It was changed after it was written.
    """
    with stream_handle_from_json(handle, directory).open_input_stream() as stream:
        return stream.read()
