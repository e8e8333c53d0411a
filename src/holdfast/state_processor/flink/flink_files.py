"""The files of a savepoint of Flink."""

from __future__ import annotations

from holdfast.errors import ConfigurationError, CorruptFileError
from holdfast.state_processor.flink.flink_metadata import StreamHandle
from holdfast.storage.file_system.file import FileSystem
from holdfast.storage.file_system.path import join


class FlinkFiles:
    """Reads what a document names, in its directory and nowhere else."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self.directory = directory

    def read(self, stream: StreamHandle) -> tuple[bytes, str]:
        """Return the bytes of a handle, and where they are.

        Raises:
            ConfigurationError: They are in a file of another directory.
            NotExistError, StorageError: They cannot be read.
        """
        if stream.data is not None:
            return stream.data, stream.path
        if not stream.is_relative:
            raise ConfigurationError(
                f"The savepoint of Flink names the file {stream.path!r:.500}, which is not its own. Take one in the "
                "canonical format, which has all of its files."
            )
        if not stream.path or "/" in stream.path or "\0" in stream.path or stream.path in (".", ".."):
            raise CorruptFileError(self.directory, None, f"{stream.path!r:.200} is no file of a savepoint.")
        path = join(self.directory, stream.path)
        return self._fs.read(path), path
