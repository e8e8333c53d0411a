"""Places of checkpoints, and streams into them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import BinaryIO, Self

from holdfast.checkpoint.document.metadata import CheckpointMetadata, encode
from holdfast.checkpoint.recovery.disposal import delete_files
from holdfast.errors import NotExistError
from holdfast.storage.file_system.file import FileSystem
from holdfast.storage.file_system.path import join
from holdfast.storage.handle.state_handle import StateObject
from holdfast.storage.job.job_directory import METADATA_NAME


@dataclass(frozen=True)
class CheckpointStorageLocationReference:
    """Names a place in a way that tasks can resolve; the default one is the job's own directory."""

    path: str | None = None

    @classmethod
    def get_default(cls) -> CheckpointStorageLocationReference:
        """Return the reference of the job's own directory."""
        return cls(None)

    def is_default_reference(self) -> bool:
        """Whether it is the job's own directory."""
        return self.path is None

    def get_reference_bytes(self) -> bytes:
        """Return the path as UTF-8, empty for the default."""
        return (self.path or "").encode()


class CheckpointedStateScope(Enum):
    """Whether a file belongs to one checkpoint or may be shared by several."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


class CheckpointStateOutputStream(ABC):
    """A stream into a checkpoint."""

    @abstractmethod
    def write(self, data: bytes) -> int:
        """Append bytes."""

    @abstractmethod
    def get_pos(self) -> int:
        """Return the number of bytes written so far."""

    @abstractmethod
    def close_and_get_handle(self) -> StreamStateHandle | None:
        """Make what was written durable and return its handle; None if nothing was written."""

    @abstractmethod
    def close(self) -> None:
        """Throw away what was written, unless the handle was taken."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StreamStateHandle(StateObject):
    """The bytes of one closed stream."""

    @abstractmethod
    def open_input_stream(self) -> BinaryIO:
        """Open the bytes for reading."""


class CheckpointStreamFactory(ABC):
    """Makes the streams of one checkpoint."""

    @abstractmethod
    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> CheckpointStateOutputStream:
        """Open a new stream."""


class CheckpointStorageLocation(ABC):
    """The place of one checkpoint or savepoint, made when it is triggered."""

    @abstractmethod
    def get_location_reference(self) -> CheckpointStorageLocationReference:
        """Return what tasks are told."""

    @abstractmethod
    def get_external_pointer(self) -> str:
        """Return the path by which the checkpoint can be restored."""

    @abstractmethod
    def write_metadata(self, metadata: CheckpointMetadata) -> bytes:
        """Write the document, once, whole and durable, and return its bytes.

        Raises:
            AlreadyExistError: There is a document already.
            StorageError: It could not be written.
        """

    @abstractmethod
    def dispose_on_failure(self) -> None:
        """Delete what was made here for a checkpoint that did not complete."""


class FileCheckpointLocation(CheckpointStorageLocation):
    """A directory with a `_metadata` file.

    Attributes:
        fs: Its file system.
        path: The directory.
        reference: What tasks are told.
    """

    def __init__(self, fs: FileSystem, path: str, reference: CheckpointStorageLocationReference) -> None:
        self.fs = fs
        self.path = path
        self.reference = reference

    @property
    def metadata_path(self) -> str:
        """The document."""
        return join(self.path, METADATA_NAME)

    def get_location_reference(self) -> CheckpointStorageLocationReference:
        """Return what tasks are told."""
        return self.reference

    def get_external_pointer(self) -> str:
        """Return the directory."""
        return self.path

    def write_metadata(self, metadata: CheckpointMetadata) -> bytes:
        """Write the document; the directory is made with it."""
        data = encode(metadata)
        self.fs.create_exclusive(self.metadata_path, data)
        return data

    def holds(self, data: bytes) -> bool:
        """Whether the document is there with these bytes, durably.

        Raises:
            StorageError: It is there, but may not survive a power failure.
        """
        try:
            if self.fs.read(self.metadata_path) != data:
                return False
            self.fs.make_durable(self.metadata_path)
        except NotExistError:
            return False
        return True

    def dispose_on_failure(self) -> None:
        """Delete the files of the directory, those that a savepoint has got already, and the directory."""
        for status in self.fs.list(self.path):
            if not status.is_directory:
                self.fs.delete_in(self.path, status.name)
        delete_files(self.fs, self.path)

    def __repr__(self) -> str:
        return f"FileCheckpointLocation({self.path!r})"
