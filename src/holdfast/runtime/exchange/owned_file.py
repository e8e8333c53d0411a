"""Files that tasks write beside runs: durable, and checked when they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.checkpoint.storage import FileCheckpointStreamFactory, stream_handle_from_json
from holdfast.errors import StorageError
from holdfast.kernel import fault
from holdfast.storage.job_directory import FileName, JobDirectory


def write_owned(directory: JobDirectory, name: Callable[[], FileName], data: bytes) -> dict[str, Any]:
    """Write a new file, durably. Return its handle as JSON, with a path relative to the job's directory.

    Raises:
        StorageError: It could not be written.
    """
    stream = FileCheckpointStreamFactory(directory, name, threshold=-1).create_checkpoint_state_output_stream()
    stream.write(data)
    try:
        with fault.point("run.write"):
            handle = stream.close_and_get_handle()
    except OSError as error:
        raise StorageError(f"A file of {directory.path!r} could not be written: {error}.") from error
    assert handle is not None
    return handle.to_json()  # type: ignore[attr-defined,no-any-return]


def read_owned(directory: JobDirectory, handle: Mapping[str, Any]) -> bytes:
    """Read a file and check it.

    Raises:
        NotExistError: The file does not exist.
        CorruptFileError: It was changed after it was written.
    """
    with stream_handle_from_json(handle, directory).open_input_stream() as stream:
        return stream.read()
