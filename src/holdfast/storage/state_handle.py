r"""Documents, handles of state in storage, and the interface of stores that keep pointers to such state.

A document is a small JSON object whose first field is the checksum: the SHA-256, in hexadecimal, of every byte after
the closing quote of that field::

    {"checksum":"sha256:<64 digits>","format_version":1,"kind":"...", ... }\n

Python's ``json``, jq and every other JSON reader reads it; nothing in it is ever executed.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, Self, TypeVar

from holdfast.errors import (
    AlreadyExistError,
    ConfigurationError,
    CorruptFileError,
    FormatVersionError,
    HoldfastError,
    NotExistError,
    PossibleInconsistentStateError,
    StorageError,
)
from holdfast.kernel.ids import new_nonce
from holdfast.kernel.parsing import PARSE_ERRORS, parse_strict_json
from holdfast.storage.file_system import FileSystem, join

_HEAD: Final = b'{"checksum":"sha256:'
_DIGITS: Final = 64
_BODY: Final = len(_HEAD) + _DIGITS + 1
T = TypeVar("T")
_POINTER_KIND: Final = "state-handle"
_POINTER_VERSION: Final = 1


def encode_document(kind: str, format_version: int, body: dict[str, Any]) -> bytes:
    """Return a document as bytes; equal bodies give equal bytes.

    Args:
        kind: The kind of document, such as ``"checkpoint"``; a reader of another kind refuses it.
        format_version: Version of the form of this kind.
        body: Fields with JSON values; the names checksum, format_version and kind are reserved.

    Raises:
        ValueError: A number is NaN or infinite.
        TypeError: A value is not JSON.
    """
    fields = {**body, "format_version": format_version, "kind": kind}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    rest = b"," + text.encode("ascii")[1:] + b"\n"
    return _HEAD + hashlib.sha256(rest).hexdigest().encode() + b'"' + rest


def decode_document(data: bytes | memoryview, path: str, kind: str, supported: int) -> dict[str, Any]:
    """Return the body of a document after checking every byte of it.

    Args:
        data: The whole file.
        path: The file, for errors.
        kind: The expected kind.
        supported: The newest format version that the caller reads.

    Raises:
        CorruptFileError: Truncated, changed, or not a document of this kind.
        FormatVersionError: Written by a newer version.
    """
    data = bytes(data)
    if not data:
        raise CorruptFileError(path, 0, "the file is empty.")
    if not data.startswith(_HEAD) or len(data) <= _BODY or data[_BODY - 1 : _BODY] != b'"':
        raise CorruptFileError(path, 0, f"it does not begin as a {kind} document does.")
    if hashlib.sha256(data[_BODY:]).hexdigest().encode() != data[len(_HEAD) : _BODY - 1]:
        raise CorruptFileError(path, None, f"its checksum does not match its {len(data)} bytes (cut off or changed).")
    try:
        fields = parse_strict_json(data)
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(path, None, f"it is not JSON: {error}.") from error
    if not isinstance(fields, dict) or fields.pop("kind", None) != kind:
        raise CorruptFileError(path, None, f"it is not a {kind} document.")
    version = fields.pop("format_version", None)
    if type(version) is not int or version < 1:
        raise CorruptFileError(path, None, f"its format version is {version!r}, not a whole number from 1.")
    if version > supported:
        raise FormatVersionError(path, version, supported)
    del fields["checksum"]
    return fields


class StateObject(ABC):
    """State that is kept outside of this process."""

    @abstractmethod
    def discard_state(self) -> None:
        """Delete the state; fine if it is gone already. Blocks."""

    @abstractmethod
    def get_state_size(self) -> int:
        """Return the size of the state in bytes."""


class RetrievableStateHandle(StateObject, Generic[T]):
    """A handle from which the state can be read."""

    @abstractmethod
    def retrieve_state(self) -> T:
        """Read the state, anew at every call. Blocks.

        Raises:
            NotExistError: It is gone.
            CorruptFileError: It cannot be read.
            FormatVersionError: It was written by a newer version.
        """

    @abstractmethod
    def to_pointer(self) -> dict[str, Any]:
        """Return the pointer for a coordination store, as JSON of at most 1 KB."""


class StateSerializer(ABC, Generic[T]):
    """Turns state into bytes and back, without executing anything."""

    @abstractmethod
    def to_bytes(self, state: T) -> bytes:
        """Return the state as bytes."""

    @abstractmethod
    def from_bytes(self, data: bytes, path: str) -> T:
        """Return the state in bytes that were read from a path.

        Raises:
            CorruptFileError: They are not what was written.
            FormatVersionError: They were written by a newer version.
        """


class DocumentSerializer(StateSerializer[T]):
    """State as a document of one kind.

    Args:
        kind: The kind of document.
        format_version: The version of its form that is written, and the newest that is read.
        to_json: Returns a state as a JSON object.
        from_json: Returns the state of such an object; any of `PARSE_ERRORS` in it, or a ConfigurationError, means that
            the file is damaged.
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
        return encode_document(self._kind, self._format_version, self._to_json(state))

    def from_bytes(self, data: bytes, path: str) -> T:
        body = decode_document(data, path, self._kind, self._format_version)
        try:
            return self._from_json(body)
        except (*PARSE_ERRORS, ConfigurationError) as error:
            raise CorruptFileError(path, None, f"a field of the {self._kind} is wrong: {error!r}.") from error


class FileStateHandle(RetrievableStateHandle[T]):
    """State in one file; a file that was changed or exchanged is refused.

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
        data = self._fs.read(self.path, 0, self.size + 1)
        if len(data) != self.size or hashlib.sha256(data).hexdigest() != self.digest:
            raise CorruptFileError(
                self.path,
                None,
                f"its {len(data)} bytes are not the {self.size} bytes that were stored there.",
            )
        return self._serializer.from_bytes(data, self.path)

    def discard_state(self) -> None:
        self._fs.delete(self.path)

    def get_state_size(self) -> int:
        return self.size

    def to_pointer(self) -> dict[str, Any]:
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
    """Stores state where another process can retrieve it."""

    @abstractmethod
    def store(self, state: T) -> RetrievableStateHandle[T]:
        """Write the state, durably, and return its handle. Blocks.

        Raises:
            StorageError: It could not be written.
        """

    @abstractmethod
    def restore_handle(self, pointer: dict[str, Any]) -> RetrievableStateHandle[T]:
        """Return the handle of a pointer made by `RetrievableStateHandle.to_pointer`; reads nothing.

        Raises:
            Any of `PARSE_ERRORS`: It is not such a pointer.
        """


class FileSystemStateStorageHelper(RetrievableStateStorageHelper[T]):
    """State in files ``<prefix><random>`` of one directory, readable only for the user of this process.

    A crash between the writing of the state and that of its pointer leaves a file without a pointer, which is never
    deleted.

    Args:
        fs: The file system.
        storage_dir: The directory; it is made when first needed.
        prefix: Prefix of the names, such as ``"completedCheckpoint"``.
        serializer: Turns the state into bytes.
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
                self._fs.create_private(path, data)
            except (AlreadyExistError, NotExistError, StorageError, PossibleInconsistentStateError) as error:
                last = error
                continue
            return FileStateHandle(self._fs, path, len(data), digest, self._serializer)
        raise StorageError(
            f"Could not store state under {self._storage_dir!r} in {self.ATTEMPTS} attempts; the last one: {last}"
        ) from last

    def restore_handle(self, pointer: dict[str, Any]) -> FileStateHandle[T]:
        path, size, digest = pointer["path"], pointer["size"], pointer["digest"]
        if type(path) is not str or type(size) is not int or size < 0 or type(digest) is not str:
            raise TypeError(f"A pointer has a path, a size and a digest, not {pointer!r}.")
        return FileStateHandle(self._fs, path, size, digest, self._serializer)


def encode_pointer(handle: RetrievableStateHandle[Any], **marks: bool) -> bytes:
    """Return the pointer to a state as bytes.

    Args:
        handle: The state.
        **marks: Flags beside it, such as ``marked_for_deletion=True``.
    """
    return encode_document(_POINTER_KIND, _POINTER_VERSION, {"handle": handle.to_pointer(), "marks": marks})


def decode_pointer(
    data: bytes, name: str, helper: RetrievableStateStorageHelper[T]
) -> tuple[RetrievableStateHandle[T], dict[str, bool]]:
    """Return handle and flags of a pointer.

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
    except PARSE_ERRORS as error:
        raise CorruptFileError(name, None, f"it is not the pointer of a state handle: {error!r}.") from error


class ResourceVersion(ABC):
    """The version of an entry, as an optimistic lock."""

    @abstractmethod
    def is_existing(self) -> bool:
        """Return whether the entry exists (and is not marked for deletion)."""


@dataclass(frozen=True, slots=True)
class IntegerResourceVersion(ResourceVersion):
    """A version that counts, as in ZooKeeper; -1 means that the entry does not exist."""

    value: int

    @classmethod
    def not_existing(cls) -> Self:
        """Return the version of an entry that does not exist."""
        return cls(-1)

    @classmethod
    def value_of(cls, value: int) -> Self:
        """Return the version with a number of 0 or more; raises ValueError for others."""
        if value < 0:
            raise ValueError(f"The version of an existing entry is 0 or more, not {value!r}.")
        return cls(value)

    def get_value(self) -> int:
        return self.value

    def is_existing(self) -> bool:
        return self.value != -1


@dataclass(frozen=True, slots=True)
class StringResourceVersion(ResourceVersion):
    """An opaque version, as in Kubernetes; ``"-1"`` means that the entry does not exist."""

    value: str

    @classmethod
    def not_existing(cls) -> Self:
        """Return the version of an entry that does not exist."""
        return cls("-1")

    @classmethod
    def value_of(cls, value: str) -> Self:
        """Return the version with the text of a store; raises ValueError for ``"-1"``."""
        if value == "-1":
            raise ValueError("The version '-1' is kept for what does not exist; use not_existing().")
        return cls(value)

    def get_value(self) -> str:
        return self.value

    def is_existing(self) -> bool:
        return self.value != "-1"


V = TypeVar("V", bound=ResourceVersion)


class StateHandleStore(ABC, Generic[T, V]):
    """Named pointers to state. All methods block; zero-padded names sort as their numbers do.

    The state is stored first, then a pointer to it, a few hundred bytes, in a coordination store (ZooKeeper nodes, a
    Kubernetes ConfigMap, files, memory). Three rules hold in every implementation:

    - Persist before you point; delete the pointer before, or marked before, the state.
    - If it is not known whether a pointer was written, nothing is discarded: `PossibleInconsistentStateError`.
    - Without leadership every method that changes something raises `FencedError`.

    Deleting has three steps: mark the pointer (readers no longer see it), discard the state, remove the pointer. A
    crash between two of them leaves a marked entry, which readers do not see, and which a later removal, or an add of
    the same name, finishes.
    """

    @abstractmethod
    def add_and_lock(self, name: str, state: T) -> RetrievableStateHandle[T]:
        """Store new state, then its pointer, and lock it for this store instance.

        Raises:
            AlreadyExistError: The name exists and is not marked for deletion.
            PossibleInconsistentStateError: It is not known whether the pointer was written; nothing was discarded.
            FencedError: Without leadership; the new state was discarded.
        """

    @abstractmethod
    def replace(self, name: str, expected_version: V, state: T) -> None:
        """Store new state, swap the pointer, then discard the old state.

        Raises:
            NotExistError: There is no such entry; the new state was discarded.
            ConflictError: The entry has another version, in stores that compare it; the new state was discarded.
            PossibleInconsistentStateError: It is not known whether the pointer was swapped; nothing was discarded.
            FencedError: Without leadership; the new state was discarded.
        """

    @abstractmethod
    def exists(self, name: str) -> V:
        """Return the version of an entry; changes nothing."""

    @abstractmethod
    def get_and_lock(self, name: str) -> RetrievableStateHandle[T]:
        """Return the handle of an entry and lock it.

        Raises:
            NotExistError: There is no such entry, or it is marked for deletion.
            CorruptFileError: The pointer cannot be read.
        """

    @abstractmethod
    def get_all_and_lock(self) -> list[tuple[RetrievableStateHandle[T], str]]:
        """Return handle and name of all entries, and lock them; pointers that cannot be read are logged and skipped.

        Returns:
            The entries in no order: sort them by name.
        """

    @abstractmethod
    def get_all_handles(self) -> list[str]:
        """Return the names of the entries; may contain those marked for deletion."""

    @abstractmethod
    def release_and_try_remove(self, name: str) -> bool:
        """Release the own lock and, if no other process has one, delete pointer and state in three steps.

        If discarding the state fails, the error is raised, the entry stays marked, and the call can be repeated.

        Returns:
            Whether the entry is gone, or never existed; False if another process has a lock on it.

        Raises:
            FencedError: Without leadership; the own lock may still be there, until it is released.
        """

    @abstractmethod
    def clear_entries(self) -> None:
        """Remove all pointers; the state they point to is kept.

        Raises:
            FencedError: Without leadership.
        """

    @abstractmethod
    def release(self, name: str) -> None:
        """Release the own lock on an entry; nothing happens if there is none."""

    @abstractmethod
    def release_all(self) -> None:
        """Release all own locks; tries each, then raises the errors."""
