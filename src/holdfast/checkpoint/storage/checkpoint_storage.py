"""Where checkpoints and savepoints go: `FileSystemCheckpointStorage`, `JobManagerCheckpointStorage`."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Final

from holdfast.checkpoint.document.metadata import CheckpointMetadata, encode
from holdfast.checkpoint.storage.location import (
    CheckpointStorageLocation,
    CheckpointStorageLocationReference,
    FileCheckpointLocation,
)
from holdfast.checkpoint.storage.savepoint_place import check_place
from holdfast.errors import AlreadyExistError, ConfigurationError, StorageError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.ids import JobID, new_nonce
from holdfast.storage.file_system.scheme import FileSystem, file_system_for, join
from holdfast.storage.job.job_directory import JobDirectory

MAX_INLINE_THRESHOLD: Final = 1024 * 1024
DEFAULT_INLINE_THRESHOLD: Final = 20 * 1024
DEFAULT_WRITE_BUFFER_SIZE: Final = 4096
_SAVEPOINT_ATTEMPTS: Final = 10


class CheckpointStorageAccess(ABC):
    """The storage of one job."""

    @abstractmethod
    def supports_highly_available_storage(self) -> bool:
        """Whether another process finds the checkpoints."""

    @abstractmethod
    def has_default_savepoint_location(self) -> bool:
        """Whether a savepoint can be taken without naming a directory."""

    @abstractmethod
    def initialize_base_locations_for_checkpoint(self) -> None:
        """Make the directories that periodic checkpoints need."""

    @abstractmethod
    def initialize_location_for_checkpoint(self, checkpoint_id: int) -> CheckpointStorageLocation:
        """Return the place of a checkpoint."""

    @abstractmethod
    def initialize_location_for_savepoint(
        self, checkpoint_id: int, external_location_pointer: str | None
    ) -> CheckpointStorageLocation:
        """Return the place of a savepoint: a new directory in the given one, or in the configured one.

        Raises:
            ConfigurationError: Neither is there.
        """


class CheckpointStorage(ABC):
    """A kind of storage, as a program or an option chooses it."""

    @abstractmethod
    def create_checkpoint_storage(self, job_id: JobID, *, create_subdir: bool = True) -> CheckpointStorageAccess:
        """Return the storage of one job."""

    @abstractmethod
    def get_checkpoint_path(self) -> str | None:
        """Return the directory of checkpoints."""

    @abstractmethod
    def get_savepoint_path(self) -> str | None:
        """Return the directory of savepoints."""


class CheckpointStorageFactory(ABC):
    """Makes a kind of storage that somebody else wrote; named by its class path in the options."""

    @abstractmethod
    def create_from_config(self, config: Configuration) -> CheckpointStorage:
        """Return the storage.

        Raises:
            ConfigurationError: The options do not suit it.
        """


class FileSystemCheckpointStorage(CheckpointStorage):
    """Checkpoints in a directory that all processes of the job share.

    Args:
        checkpoint_path: Path or URI of the directory of all jobs' checkpoints.
        file_state_size_threshold: Operator state up to this many bytes is kept in the document, more goes to a file;
            None or less than 0 for the default.
        write_buffer_size: Without meaning: a stream is collected as a whole and written at once.
        savepoint_directory: Where savepoints go if none is named.
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
                f"The threshold for state in the checkpoint's document is at most {MAX_INLINE_THRESHOLD} bytes, not "
                f"{file_state_size_threshold!r}."
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
        """The threshold that was given, None for the default."""
        return self._threshold if self._threshold >= 0 else None

    def get_min_file_size_threshold(self) -> int:
        """Return up to how many bytes of operator state are kept in the document."""
        return self._threshold if self._threshold >= 0 else DEFAULT_INLINE_THRESHOLD

    def get_write_buffer_size(self) -> int:
        """Return the size that was given; never less than the threshold."""
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
        """Files outlive the process."""
        return True

    def has_default_savepoint_location(self) -> bool:
        """Whether a directory for savepoints is configured."""
        return self._savepoint_directory is not None

    def initialize_base_locations_for_checkpoint(self) -> None:
        """Make the job's directories."""
        self.directory.create()

    def initialize_location_for_checkpoint(self, checkpoint_id: int) -> FileCheckpointLocation:
        """Return the place of a checkpoint; its directory is made when its document is written."""
        path = self.directory.chk_dir(checkpoint_id)
        return FileCheckpointLocation(self.directory.fs, path, CheckpointStorageLocationReference.get_default())

    def initialize_location_for_savepoint(
        self, checkpoint_id: int, external_location_pointer: str | None
    ) -> FileCheckpointLocation:
        """Make a directory with a new name; tries 10 names before it gives up."""
        base = external_location_pointer or self._savepoint_directory
        if base is None:
            raise ConfigurationError(
                "No directory for the savepoint: name one, or set execution.checkpointing.savepoint-dir."
            )
        fs = check_place(base)
        for _ in range(_SAVEPOINT_ATTEMPTS):
            path = join(base, f"savepoint-{str(self.directory.job_id)[:6]}-{new_nonce()}")
            if _make_new(fs, path):
                return FileCheckpointLocation(fs, path, CheckpointStorageLocationReference(path))
        raise StorageError(f"Could not make a new directory for the savepoint in {base!r}; is it writable?")


class JobManagerCheckpointStorage(CheckpointStorage):
    """Checkpoints in the memory of the job master: for tests, gone with the process.

    Args:
        checkpoint_path: Refused: a checkpoint that others can find is that of `FileSystemCheckpointStorage`.
        max_state_size: Largest document in bytes.
    """

    DEFAULT_MAX_STATE_SIZE: Final = 5 * 1024 * 1024

    def __init__(self, checkpoint_path: str | None = None, max_state_size: int | None = None) -> None:
        if checkpoint_path is not None:
            raise ConfigurationError(
                f"JobManagerCheckpointStorage({checkpoint_path!r}) would keep checkpoints in the memory of the job "
                f"master, and only a document in that directory: use FileSystemCheckpointStorage({checkpoint_path!r})."
            )
        max_state_size = self.DEFAULT_MAX_STATE_SIZE if max_state_size is None else max_state_size
        if max_state_size < 1:
            raise ConfigurationError(f"The largest state must have at least one byte, not {max_state_size!r}.")
        self._max_state_size = max_state_size

    def create_checkpoint_storage(self, job_id: JobID, *, create_subdir: bool = True) -> MemoryCheckpointStorageAccess:
        """Return the storage of one job."""
        return MemoryCheckpointStorageAccess(self._max_state_size)

    def get_max_state_size(self) -> int:
        """Return the size of the largest document in bytes."""
        return self._max_state_size

    def get_checkpoint_path(self) -> None:
        """There is no directory."""

    def get_savepoint_path(self) -> None:
        """There is no directory."""

    def __repr__(self) -> str:
        return f"JobManagerCheckpointStorage(max_state_size={self._max_state_size})"


class MemoryCheckpointStorageAccess(CheckpointStorageAccess):
    """Checkpoints in memory; savepoints can still be written to a directory that is named."""

    def __init__(self, max_state_size: int) -> None:
        self._max_state_size = max_state_size

    def supports_highly_available_storage(self) -> bool:
        """Nobody else sees this memory."""
        return False

    def has_default_savepoint_location(self) -> bool:
        """There is no directory."""
        return False

    def initialize_base_locations_for_checkpoint(self) -> None:
        """Memory needs none."""

    def initialize_location_for_checkpoint(self, checkpoint_id: int) -> MemoryCheckpointLocation:
        """Return a place in memory."""
        return MemoryCheckpointLocation(checkpoint_id, self._max_state_size)

    def initialize_location_for_savepoint(
        self, checkpoint_id: int, external_location_pointer: str | None
    ) -> FileCheckpointLocation:
        """Make a directory in the one that is named."""
        if external_location_pointer is None:
            raise ConfigurationError("No directory for the savepoint: name one.")
        fs = check_place(external_location_pointer)
        path = join(external_location_pointer, f"savepoint-{checkpoint_id:06d}-{new_nonce()}")
        fs.mkdirs(path)
        return FileCheckpointLocation(fs, path, CheckpointStorageLocationReference(path))


class MemoryCheckpointLocation(CheckpointStorageLocation):
    """A place in memory for one document."""

    def __init__(self, checkpoint_id: int, max_state_size: int) -> None:
        self._checkpoint_id = checkpoint_id
        self._max_state_size = max_state_size
        self.data: bytes | None = None

    def get_location_reference(self) -> CheckpointStorageLocationReference:
        """Return what tasks are told."""
        return CheckpointStorageLocationReference.get_default()

    def get_external_pointer(self) -> str:
        """Return a text that says that it cannot be restored from elsewhere."""
        return f"<checkpoint-not-externally-addressable>/chk-{self._checkpoint_id}"

    def write_metadata(self, metadata: CheckpointMetadata) -> bytes:
        """Keep the document."""
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
        """Forget the document."""
        self.data = None


def _make_new(fs: FileSystem, path: str) -> bool:
    if fs.exists(path):
        return False
    fs.mkdirs(path)
    return True
