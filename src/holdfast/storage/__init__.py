"""File systems and object stores, blobs, retrievable handles, the StateHandleStore interface, the fenced register."""

from holdfast.errors import (
    AlreadyExistError,
    AlreadyExistException,
    NotExistError,
    NotExistException,
    PossibleInconsistentStateError,
    PossibleInconsistentStateException,
)
from holdfast.storage.file_system.scheme import FileStatus, FileSystem, LocalFileSystem, file_system_for
from holdfast.storage.handle.state_handle import (
    DocumentSerializer,
    FileStateHandle,
    FileSystemStateStorageHelper,
    RetrievableStateHandle,
    RetrievableStateStorageHelper,
    StateObject,
    StateSerializer,
)
from holdfast.storage.handle.state_handle_store import (
    IntegerResourceVersion,
    ResourceVersion,
    StateHandleStore,
    StringResourceVersion,
)
from holdfast.storage.register.fenced_register import CheckpointPointer, FencedRegister, Lease, RegisterState

__all__ = [
    "AlreadyExistError",
    "AlreadyExistException",
    "CheckpointPointer",
    "DocumentSerializer",
    "FencedRegister",
    "FileStateHandle",
    "FileStatus",
    "FileSystem",
    "FileSystemStateStorageHelper",
    "IntegerResourceVersion",
    "Lease",
    "LocalFileSystem",
    "NotExistError",
    "NotExistException",
    "PossibleInconsistentStateError",
    "PossibleInconsistentStateException",
    "RegisterState",
    "ResourceVersion",
    "RetrievableStateHandle",
    "RetrievableStateStorageHelper",
    "StateHandleStore",
    "StateObject",
    "StateSerializer",
    "StringResourceVersion",
    "file_system_for",
]
