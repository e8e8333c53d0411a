"""Handles of state that lies in storage, and the helpers that put it there.

State is written as a document (versioned, checksummed JSON); nothing that a server reads from a store is ever
unpickled. A handle knows size and digest of what it points to, so a file that was changed or exchanged is refused.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from holdfast.errors import (
    AlreadyExistError,
    ConfigurationError,
    CorruptFileError,
    HoldfastError,
    NotExistError,
    PossibleInconsistentStateError,
    StorageError,
)
from holdfast.kernel.ids import new_nonce
from holdfast.kernel.malformed import MALFORMED
from holdfast.storage.file_system.file import FileSystem
from holdfast.storage.file_system.path import join
from holdfast.storage.handle.document import decode_document, encode_document

T = TypeVar("T")
_POINTER_KIND: Final = "state-handle"
_POINTER_VERSION: Final = 1


class StateObject(ABC):
    """Something that holds state outside of this process."""

    @abstractmethod
    def discard_state(self) -> None:
        """Delete the state; succeeds if it is gone already."""

    @abstractmethod
    def get_state_size(self) -> int:
        """Return the size of the state in bytes."""


class RetrievableStateHandle(StateObject, Generic[T]):
    """A handle that can bring its state back."""

    @abstractmethod
    def retrieve_state(self) -> T:
        """Read the state; every call reads it again.

        Raises:
            NotExistError: It is gone.
            CorruptFileError: It cannot be read.
            FormatVersionError: It was written by a newer version.
        """

    @abstractmethod
    def to_pointer(self) -> dict[str, Any]:
        """Return what a coordination store keeps, as JSON of at most 1 KB."""


class StateSerializer(ABC, Generic[T]):
    """Turns state into bytes and back, without executing anything."""

    @abstractmethod
    def to_bytes(self, state: T) -> bytes:
        """Return the state as bytes."""

    @abstractmethod
    def from_bytes(self, data: bytes, path: str) -> T:
        """Return the state of bytes that were read from a path.

        Raises:
            CorruptFileError: They are not what was written.
            FormatVersionError: They were written by a newer version.
        """


class DocumentSerializer(StateSerializer[T]):
    """State as a document of one kind.

    Args:
        kind: The kind of document.
        format_version: The newest version of its form that this release reads, and the one it writes.
        to_json: State to a JSON object.
        from_json: The object back to state; any of `MALFORMED` in it, or a ConfigurationError, means
            that the file is damaged.
    """

    def __init__(
        self,
        kind: str,
        format_version: int,
        to_json: Callable[[T], dict[str, Any]],
        from_json: Callable[[dict[str, Any]], T],
    ) -> None:
        self._kind = kind
        self._format_version = format_version
        self._to_json = to_json
        self._from_json = from_json

    def to_bytes(self, state: T) -> bytes:
        """Return the state as a document."""
        return encode_document(self._kind, self._format_version, self._to_json(state))

    def from_bytes(self, data: bytes, path: str) -> T:
        """Return the state of a document."""
        body = decode_document(data, path, self._kind, self._format_version)
        try:
            return self._from_json(body)
        except (*MALFORMED, ConfigurationError) as error:
            raise CorruptFileError(path, None, f"a field of the {self._kind} is wrong: {error!r}.") from error


class FileStateHandle(RetrievableStateHandle[T]):
    """State in one file.

    Attributes:
        path: The file.
        size: Its size in bytes.
        digest: Its SHA-256 in hexadecimal.
    """

    def __init__(self, fs: FileSystem, path: str, size: int, digest: str, serializer: StateSerializer[T]) -> None:
        self._fs = fs
        self.path = path
        self.size = size
        self.digest = digest
        self._serializer = serializer

    def retrieve_state(self) -> T:
        """Read the file, compare it with the digest, and decode it."""
        data = self._fs.read(self.path, 0, self.size + 1)
        if len(data) != self.size or hashlib.sha256(data).hexdigest() != self.digest:
            raise CorruptFileError(
                self.path,
                None,
                f"its {len(data)} bytes are not the {self.size} bytes that were stored there.",
            )
        return self._serializer.from_bytes(data, self.path)

    def discard_state(self) -> None:
        """Delete the file."""
        self._fs.delete(self.path)

    def get_state_size(self) -> int:
        """Return the size of the file in bytes."""
        return self.size

    def to_pointer(self) -> dict[str, Any]:
        """Return path, size and digest."""
        return {"path": self.path, "size": self.size, "digest": self.digest}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FileStateHandle):
            return NotImplemented
        return (self.path, self.size, self.digest) == (other.path, other.size, other.digest)

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        return f"FileStateHandle({self.path!r}, {self.size} bytes)"


class RetrievableStateStorageHelper(ABC, Generic[T]):
    """Puts state where it can be retrieved by another process."""

    @abstractmethod
    def store(self, state: T) -> RetrievableStateHandle[T]:
        """Write the state, durably, and return its handle.

        Raises:
            StorageError: It could not be written.
        """

    @abstractmethod
    def restore_handle(self, pointer: dict[str, Any]) -> RetrievableStateHandle[T]:
        """Return the handle that a pointer of `RetrievableStateHandle.to_pointer` describes; reads nothing.

        Raises:
            Any of `MALFORMED`: It is not such a pointer.
        """


class FileSystemStateStorageHelper(RetrievableStateStorageHelper[T]):
    """State in files ``<prefix><random>`` of one directory.

    A crash between this and the writing of the pointer leaves a file that nothing points to; nobody deletes it.

    Args:
        fs: The file system.
        storage_dir: The directory; it is made when first needed.
        prefix: How the names begin, such as ``"completedCheckpoint"``.
        serializer: How the state becomes bytes.
    """

    ATTEMPTS: Final = 10

    def __init__(self, fs: FileSystem, storage_dir: str, prefix: str, serializer: StateSerializer[T]) -> None:
        self._fs = fs
        self._storage_dir = storage_dir
        self._prefix = prefix
        self._serializer = serializer

    def store(self, state: T) -> FileStateHandle[T]:
        """Write the state under a new random name; tries 10 names before it gives up."""
        data = self._serializer.to_bytes(state)
        digest = hashlib.sha256(data).hexdigest()
        last: HoldfastError | None = None
        for _ in range(self.ATTEMPTS):
            path = join(self._storage_dir, self._prefix + new_nonce())
            try:
                self._fs.create_exclusive(path, data)
            except (AlreadyExistError, NotExistError, StorageError, PossibleInconsistentStateError) as error:
                last = error
                continue
            return FileStateHandle(self._fs, path, len(data), digest, self._serializer)
        raise StorageError(
            f"Could not store state under {self._storage_dir!r} in {self.ATTEMPTS} attempts; the last one: {last}"
        ) from last

    def restore_handle(self, pointer: dict[str, Any]) -> FileStateHandle[T]:
        """Return the handle of a file in storage."""
        path, size, digest = pointer["path"], pointer["size"], pointer["digest"]
        if type(path) is not str or type(size) is not int or size < 0 or type(digest) is not str:
            raise TypeError(f"A pointer has a path, a size and a digest, not {pointer!r}.")
        return FileStateHandle(self._fs, path, size, digest, self._serializer)


def encode_pointer(handle: RetrievableStateHandle[Any], **marks: bool) -> bytes:
    """Return a handle as the bytes that a coordination store keeps.

    Args:
        handle: What the pointer points to.
        **marks: Flags beside it, such as ``marked_for_deletion=True``.
    """
    return encode_document(_POINTER_KIND, _POINTER_VERSION, {"handle": handle.to_pointer(), "marks": marks})


def decode_pointer(
    data: bytes, name: str, helper: RetrievableStateStorageHelper[T]
) -> tuple[RetrievableStateHandle[T], dict[str, bool]]:
    """Return handle and flags of the bytes of a coordination store.

    Args:
        data: The bytes.
        name: Where they were, for errors.
        helper: The helper that stored the state.

    Raises:
        CorruptFileError: They are not a pointer.
        FormatVersionError: They were written by a newer version.
    """
    body = decode_document(data, name, _POINTER_KIND, _POINTER_VERSION)
    try:
        marks = {str(mark): bool(value) for mark, value in body["marks"].items()}
        return helper.restore_handle(body["handle"]), marks
    except MALFORMED as error:
        raise CorruptFileError(name, None, f"it is not the pointer of a state handle: {error!r}.") from error
