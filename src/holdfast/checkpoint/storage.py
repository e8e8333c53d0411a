"""Checkpoint storage: where checkpoints and savepoints are written, and the streams of operators into them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, BinaryIO, Final, Self

from holdfast.checkpoint.claim import delete_files
from holdfast.checkpoint.metadata import CheckpointMetadata, encode
from holdfast.errors import (
    AlreadyExistError,
    ConfigurationError,
    CorruptFileError,
    NotExistError,
    StateError,
    StorageError,
)
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID, new_nonce
from holdfast.storage.file_system import FileSystem, base_name, is_absolute, join, local_path, parent
from holdfast.storage.job_directory import (
    METADATA_NAME,
    REGISTER,
    SHARED,
    TASK_OWNED,
    FileName,
    JobDirectory,
    checkpoint_id_of,
)
from holdfast.storage.scheme import file_system_for
from holdfast.storage.state_handle import StateObject

_RESERVED_NAMES: Final = (SHARED, TASK_OWNED, REGISTER, "rest")
_MARKER: Final = "register.json"
MAX_INLINE_THRESHOLD: Final = 1024 * 1024
DEFAULT_INLINE_THRESHOLD: Final = 20 * 1024
DEFAULT_WRITE_BUFFER_SIZE: Final = 4096
_SAVEPOINT_ATTEMPTS: Final = 10
SUFFIX: Final = ".state"


@dataclass(frozen=True)
class CheckpointStorageLocationReference:
    """Reference to a location that tasks can resolve; the default is the job's own directory."""

    path: str | None = None

    @classmethod
    def get_default(cls) -> CheckpointStorageLocationReference:
        """Return the reference to the job's own directory."""
        return cls(None)

    def is_default_reference(self) -> bool:
        """Return whether it is the job's own directory."""
        return self.path is None

    def get_reference_bytes(self) -> bytes:
        """Return the path as UTF-8; empty for the default."""
        return (self.path or "").encode()


class CheckpointedStateScope(Enum):
    """Whether a file belongs to one checkpoint or may be shared by several."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


class CheckpointStateOutputStream(ABC):
    """Stream into a checkpoint."""

    @abstractmethod
    def write(self, data: bytes) -> int:
        """Append bytes and return their number."""

    @abstractmethod
    def get_pos(self) -> int:
        """Return the number of bytes written so far."""

    @abstractmethod
    def close_and_get_handle(self) -> StreamStateHandle | None:
        """Make the bytes durable and return their handle; None if nothing was written. Blocks."""

    @abstractmethod
    def close(self) -> None:
        """Discard the bytes, unless the handle was taken."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StreamStateHandle(StateObject):
    """Bytes of one closed stream."""

    @abstractmethod
    def open_input_stream(self) -> BinaryIO:
        """Open the bytes for reading."""


class CheckpointStreamFactory(ABC):
    """Creates the streams of one checkpoint."""

    @abstractmethod
    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> CheckpointStateOutputStream:
        """Open a new stream."""


class CheckpointStorageLocation(ABC):
    """Location of one checkpoint or savepoint, chosen when it is triggered."""

    @abstractmethod
    def get_location_reference(self) -> CheckpointStorageLocationReference:
        """Return the reference that tasks get."""

    @abstractmethod
    def get_external_pointer(self) -> str:
        """Return the path from which the checkpoint can be restored."""

    @abstractmethod
    def write_metadata(self, metadata: CheckpointMetadata) -> bytes:
        """Write the document once, atomically and durably, and return its bytes. Blocks.

        Raises:
            AlreadyExistError: There is a document already.
            StorageError: It could not be written.
        """

    @abstractmethod
    def dispose_on_failure(self) -> None:
        """Delete everything at this location, because the checkpoint did not complete."""


class FileCheckpointLocation(CheckpointStorageLocation):
    """Directory with a `_metadata` file.

    Attributes:
        fs: Its file system.
        path: The directory.
        reference: The reference that tasks get.
    """

    def __init__(self, fs: FileSystem, path: str, reference: CheckpointStorageLocationReference) -> None:
        self.fs = fs
        self.path = path
        self.reference = reference

    @property
    def metadata_path(self) -> str:
        return join(self.path, METADATA_NAME)

    def get_location_reference(self) -> CheckpointStorageLocationReference:
        return self.reference

    def get_external_pointer(self) -> str:
        return self.path

    def write_metadata(self, metadata: CheckpointMetadata) -> bytes:
        """Write the document; creates the directory."""
        data = encode(metadata)
        self.fs.create_exclusive(self.metadata_path, data)
        return data

    def holds(self, data: bytes) -> bool:
        """Return whether the document exists with these bytes, durably.

        Raises:
            StorageError: It exists, but may not survive a power failure.
        """
        try:
            if self.fs.read(self.metadata_path) != data:
                return False
            self.fs.make_durable(self.metadata_path)
        except NotExistError:
            return False
        return True

    def dispose_on_failure(self) -> None:
        """Delete the directory and its files, including those that were copied for a savepoint."""
        for status in self.fs.list(self.path):
            if not status.is_directory:
                self.fs.delete_in(self.path, status.name)
        delete_files(self.fs, self.path)

    def __repr__(self) -> str:
        return f"FileCheckpointLocation({self.path!r})"


def check_savepoint_directory(directory: str, given: str | None = None) -> FileSystem:
    """Check where a directory for savepoints is, and return its file system. Blocks.

    Args:
        directory: The directory that holds, or is to hold, savepoints.
        given: The path that the user gave, if it is not the directory, for errors.

    Raises:
        ConfigurationError: The path is relative, so each process would resolve it differently; or a job sweeps the
            directory.
    """
    local = local_path(directory)
    if not (is_absolute(directory) if local is None else local.startswith("/")):
        raise ConfigurationError(
            f"The savepoint path {given or directory!r} is relative, and each process would resolve it differently. "
            "Give an absolute path or a URI."
        )
    fs = file_system_for(directory)
    for place in _ancestors(fs.resolved(directory)):
        name, job = base_name(place), parent(place)
        if name not in _RESERVED_NAMES and checkpoint_id_of(name) is None:
            continue
        versions = (name for name in fs.list_names(join(job, REGISTER)) if name.startswith("v-"))
        if any(versions) or fs.exists(join(job, _MARKER)):
            raise ConfigurationError(
                f"A savepoint cannot be written to {directory!r}: {place!r} belongs to a job, which deletes files "
                "there. Give a directory outside of all jobs."
            )
    return fs


def _ancestors(path: str) -> Iterator[str]:
    while base_name(path) and not path.endswith(":"):
        yield path
        above = parent(path)
        if above == path:
            return
        path = above


class CheckpointStorageAccess(ABC):
    """Storage of one job."""

    @abstractmethod
    def supports_highly_available_storage(self) -> bool:
        """Return whether another process finds the checkpoints."""

    @abstractmethod
    def has_default_savepoint_location(self) -> bool:
        """Return whether a directory for savepoints is configured."""

    @abstractmethod
    def initialize_base_locations_for_checkpoint(self) -> None:
        """Create the directories of periodic checkpoints."""

    @abstractmethod
    def initialize_location_for_checkpoint(self, checkpoint_id: int) -> CheckpointStorageLocation:
        """Return the location of a checkpoint."""

    @abstractmethod
    def initialize_location_for_savepoint(
        self, checkpoint_id: int, external_location_pointer: str | None
    ) -> CheckpointStorageLocation:
        """Create the location of a savepoint: a new directory in the given directory, or in the configured one.

        Raises:
            ConfigurationError: No directory is given or configured.
        """


class CheckpointStorage(ABC):
    """Kind of checkpoint storage, chosen by a program or an option."""

    @abstractmethod
    def create_checkpoint_storage(self, job_id: JobID, *, create_subdir: bool = True) -> CheckpointStorageAccess:
        """Return the storage of one job."""

    @abstractmethod
    def get_checkpoint_path(self) -> str | None:
        """Return the directory of checkpoints; None if there is none."""

    @abstractmethod
    def get_savepoint_path(self) -> str | None:
        """Return the directory of savepoints; None if there is none."""


class CheckpointStorageFactory(ABC):
    """Factory of a user-defined storage; options name it by its class path."""

    @abstractmethod
    def create_from_config(self, config: Configuration) -> CheckpointStorage:
        """Return the storage.

        Raises:
            ConfigurationError: The options are not valid for it.
        """


class FileSystemCheckpointStorage(CheckpointStorage):
    """Checkpoints in a directory that all processes of the job share.

    Args:
        checkpoint_path: Path or URI of the directory of all jobs' checkpoints.
        file_state_size_threshold: Operator state up to this many bytes is kept in the document, larger state in a file;
            None or a negative number for the default, 20 KB.
        write_buffer_size: No effect: a stream is collected as a whole and written at once.
        savepoint_directory: Directory of savepoints that are requested without one.

    Raises:
        ConfigurationError: The threshold is above 1 MB.
    """

    MAX_FILE_STATE_THRESHOLD: Final = MAX_INLINE_THRESHOLD

    def __init__(
        self,
        checkpoint_path: str | os.PathLike[str],
        file_state_size_threshold: int | None = None,
        write_buffer_size: int = -1,
        *,
        savepoint_directory: str | os.PathLike[str] | None = None,
    ) -> None:
        threshold = -1 if file_state_size_threshold is None else file_state_size_threshold
        if threshold > MAX_INLINE_THRESHOLD:
            raise ConfigurationError(
                f"The threshold for state in the checkpoint's document must be at most {MAX_INLINE_THRESHOLD} bytes, "
                f"not {file_state_size_threshold!r}."
            )
        self._path = os.fspath(checkpoint_path)
        self._fs = file_system_for(self._path)
        self._savepoint_directory = None if savepoint_directory is None else os.fspath(savepoint_directory)
        self._threshold = threshold
        self._write_buffer_size = write_buffer_size

    def create_checkpoint_storage(self, job_id: JobID, *, create_subdir: bool = True) -> FileCheckpointStorageAccess:
        """Return the storage of one job."""
        directory = JobDirectory(self._fs, self._path, job_id, create_subdir=create_subdir)
        return FileCheckpointStorageAccess(directory, self._savepoint_directory)

    def get_checkpoint_path(self) -> str:
        """Return the directory of checkpoints."""
        return self._path

    def get_savepoint_path(self) -> str | None:
        """Return the directory of savepoints."""
        return self._savepoint_directory

    @property
    def file_state_size_threshold(self) -> int | None:
        """The threshold that was given; None for the default."""
        return self._threshold if self._threshold >= 0 else None

    def get_min_file_size_threshold(self) -> int:
        """Return the largest size of operator state in the document, in bytes."""
        return self._threshold if self._threshold >= 0 else DEFAULT_INLINE_THRESHOLD

    def get_write_buffer_size(self) -> int:
        """Return the buffer size in bytes; never below the threshold. It has no effect."""
        size = self._write_buffer_size if self._write_buffer_size >= 0 else DEFAULT_WRITE_BUFFER_SIZE
        return max(size, self.get_min_file_size_threshold())

    def __repr__(self) -> str:
        return f"FileSystemCheckpointStorage({self._path!r})"


class FileCheckpointStorageAccess(CheckpointStorageAccess):
    """Checkpoints in ``<job directory>/chk-<n>``, savepoints in ``<directory>/savepoint-<job>-<random>``.

    Attributes:
        directory: The job's directory.
    """

    def __init__(self, directory: JobDirectory, savepoint_directory: str | None = None) -> None:
        self.directory = directory
        self._savepoint_directory = savepoint_directory

    def supports_highly_available_storage(self) -> bool:
        return True

    def has_default_savepoint_location(self) -> bool:
        return self._savepoint_directory is not None

    def initialize_base_locations_for_checkpoint(self) -> None:
        self.directory.create()

    def initialize_location_for_checkpoint(self, checkpoint_id: int) -> FileCheckpointLocation:
        """Return the location of a checkpoint; the write of the document creates the directory."""
        path = self.directory.chk_dir(checkpoint_id)
        return FileCheckpointLocation(self.directory.fs, path, CheckpointStorageLocationReference.get_default())

    def initialize_location_for_savepoint(
        self, checkpoint_id: int, external_location_pointer: str | None
    ) -> FileCheckpointLocation:
        """Create a directory with a new name; tries up to 10 names."""
        base = external_location_pointer or self._savepoint_directory
        if base is None:
            raise ConfigurationError(
                "There is no directory for the savepoint: pass one, or set execution.checkpointing.savepoint-dir."
            )
        fs = check_savepoint_directory(base)
        for _ in range(_SAVEPOINT_ATTEMPTS):
            path = join(base, f"savepoint-{str(self.directory.job_id)[:6]}-{new_nonce()}")
            if _create_directory(fs, path):
                return FileCheckpointLocation(fs, path, CheckpointStorageLocationReference(path))
        raise StorageError(
            f"Could not create a directory for the savepoint in {base!r}. Make sure that it is writable."
        )


class JobManagerCheckpointStorage(CheckpointStorage):
    """Checkpoints in the memory of the job master, for tests; they are lost with the process.

    Args:
        checkpoint_path: Must be None; use `FileSystemCheckpointStorage` for checkpoints in a directory.
        max_state_size: Size of the largest document in bytes; None for 5 MB.

    Raises:
        ConfigurationError: A path is given, or the size is below 1.
    """

    DEFAULT_MAX_STATE_SIZE: Final = 5 * 1024 * 1024

    def __init__(self, checkpoint_path: str | None = None, max_state_size: int | None = None) -> None:
        if checkpoint_path is not None:
            raise ConfigurationError(
                f"JobManagerCheckpointStorage({checkpoint_path!r}) would keep checkpoints in memory. To keep them in "
                f"that directory, use FileSystemCheckpointStorage({checkpoint_path!r})."
            )
        max_state_size = self.DEFAULT_MAX_STATE_SIZE if max_state_size is None else max_state_size
        if max_state_size < 1:
            raise ConfigurationError(f"The largest state size must be at least 1 byte, not {max_state_size!r}.")
        self._max_state_size = max_state_size

    def create_checkpoint_storage(self, job_id: JobID, *, create_subdir: bool = True) -> MemoryCheckpointStorageAccess:
        """Return the storage of one job."""
        return MemoryCheckpointStorageAccess(self._max_state_size)

    def get_max_state_size(self) -> int:
        """Return the size of the largest document in bytes."""
        return self._max_state_size

    def get_checkpoint_path(self) -> None:
        """Return None."""

    def get_savepoint_path(self) -> None:
        """Return None."""

    def __repr__(self) -> str:
        return f"JobManagerCheckpointStorage(max_state_size={self._max_state_size})"


class MemoryCheckpointStorageAccess(CheckpointStorageAccess):
    """Checkpoints in memory; savepoints go to the directory that is given."""

    def __init__(self, max_state_size: int) -> None:
        self._max_state_size = max_state_size

    def supports_highly_available_storage(self) -> bool:
        return False

    def has_default_savepoint_location(self) -> bool:
        return False

    def initialize_base_locations_for_checkpoint(self) -> None:
        """Do nothing."""

    def initialize_location_for_checkpoint(self, checkpoint_id: int) -> MemoryCheckpointLocation:
        return MemoryCheckpointLocation(checkpoint_id, self._max_state_size)

    def initialize_location_for_savepoint(
        self, checkpoint_id: int, external_location_pointer: str | None
    ) -> FileCheckpointLocation:
        if external_location_pointer is None:
            raise ConfigurationError("There is no directory for the savepoint: pass one.")
        fs = check_savepoint_directory(external_location_pointer)
        path = join(external_location_pointer, f"savepoint-{checkpoint_id:06d}-{new_nonce()}")
        fs.mkdirs(path)
        return FileCheckpointLocation(fs, path, CheckpointStorageLocationReference(path))


class MemoryCheckpointLocation(CheckpointStorageLocation):
    """Location in memory of one document."""

    def __init__(self, checkpoint_id: int, max_state_size: int) -> None:
        self._checkpoint_id = checkpoint_id
        self._max_state_size = max_state_size
        self.data: bytes | None = None

    def get_location_reference(self) -> CheckpointStorageLocationReference:
        return CheckpointStorageLocationReference.get_default()

    def get_external_pointer(self) -> str:
        """Return a text that is no path: the checkpoint cannot be restored from elsewhere."""
        return f"<checkpoint-not-externally-addressable>/chk-{self._checkpoint_id}"

    def write_metadata(self, metadata: CheckpointMetadata) -> bytes:
        if self.data is not None:
            raise AlreadyExistError(f"Checkpoint {self._checkpoint_id} has a document already.")
        data = encode(metadata)
        if len(data) > self._max_state_size:
            raise StorageError(
                f"Size of the state is larger than the maximum permitted memory-backed state. Size={len(data)}, "
                f"maxSize={self._max_state_size}. Use FileSystemCheckpointStorage."
            )
        self.data = data
        return data

    def dispose_on_failure(self) -> None:
        self.data = None


def _create_directory(fs: FileSystem, path: str) -> bool:
    if fs.exists(path):
        return False
    fs.mkdirs(path)
    return True


# Small streams of operators are kept in the document, larger ones in files of their own. A stream's handle is JSON and
# part of the subtask's state in the document: ``{"inline": <base64>}`` or ``{"path", "size", "digest"}`` with a path
# relative to the job directory. The file's name tells the sweep which token and epoch wrote it.


class InlineStateHandle(StreamStateHandle):
    """Bytes in the document."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def open_input_stream(self) -> BinaryIO:
        return io.BytesIO(self.data)

    def discard_state(self) -> None:
        """Do nothing: the bytes are deleted with the document."""

    def get_state_size(self) -> int:
        return len(self.data)

    def to_json(self) -> dict[str, Any]:
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
        """Read and check the file, and return its bytes as a stream.

        Raises:
            NotExistError: The file is missing.
            CorruptFileError: The file was changed.
        """
        path = self._directory.absolute(self.path)
        data = self._directory.fs.read(path, 0, self.size + 1)
        if len(data) != self.size or hashlib.sha256(data).hexdigest() != self.digest:
            raise CorruptFileError(path, None, f"it differs from the {self.size} bytes that were written.")
        return io.BytesIO(data)

    def discard_state(self) -> None:
        path = self._directory.absolute(self.path)
        self._directory.fs.delete_in(parent(path), base_name(path))

    def get_state_size(self) -> int:
        return self.size

    def to_json(self) -> dict[str, Any]:
        return {"path": self.path, "size": self.size, "digest": self.digest}


def stream_handle_from_json(value: Mapping[str, Any], directory: JobDirectory) -> StreamStateHandle:
    """Return the handle in a document.

    Args:
        value: The result of `to_json`.
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
    """Stream that collects all bytes and passes them on when it is closed."""

    def __init__(self, finish: Callable[[bytes], StreamStateHandle]) -> None:
        self._finish = finish
        self._buffer: io.BytesIO | None = io.BytesIO()

    def write(self, data: bytes) -> int:
        return self._open().write(data)

    def get_pos(self) -> int:
        return self._open().tell()

    def close_and_get_handle(self) -> StreamStateHandle | None:
        data = self._open().getvalue()
        self._buffer = None
        return self._finish(data) if data else None

    def close(self) -> None:
        self._buffer = None

    def _open(self) -> io.BytesIO:
        if self._buffer is None:
            raise StateError("The stream into the checkpoint is closed.")
        return self._buffer


class FileCheckpointStreamFactory(CheckpointStreamFactory):
    """Streams of one subtask in one epoch.

    Args:
        directory: The job's directory.
        name: Returns a new file name, with token and epoch.
        threshold: Largest size in bytes of a stream that is kept in the document.
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
        """Open a new stream. Files of either scope are kept until no checkpoint names them."""
        return BufferedStream(self._finish)

    def _finish(self, data: bytes) -> StreamStateHandle:
        if len(data) <= self._threshold:
            return InlineStateHandle(data)
        relative = f"{TASK_OWNED}/{self._name().format(SUFFIX)}"
        self._directory.fs.create_exclusive(self._directory.absolute(relative), data)
        return FileStreamStateHandle(self._directory, relative, len(data), hashlib.sha256(data).hexdigest())


class MemoryCheckpointStreamFactory(CheckpointStreamFactory):
    """Streams in memory.

    Args:
        max_state_size: Size of the largest stream in bytes.
    """

    def __init__(self, max_state_size: int = JobManagerCheckpointStorage.DEFAULT_MAX_STATE_SIZE) -> None:
        self._max_state_size = max_state_size

    def create_checkpoint_state_output_stream(
        self, scope: CheckpointedStateScope = CheckpointedStateScope.EXCLUSIVE
    ) -> CheckpointStateOutputStream:
        return BufferedStream(self._finish)

    def _finish(self, data: bytes) -> StreamStateHandle:
        if len(data) > self._max_state_size:
            raise StorageError(
                f"Size of the state is larger than the maximum permitted memory-backed state. Size={len(data)}, "
                f"maxSize={self._max_state_size}. Use FileSystemCheckpointStorage."
            )
        return InlineStateHandle(data)
