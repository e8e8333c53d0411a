"""File systems and object stores, blobs, retrievable handles, the StateHandleStore interface, the fenced register."""

from holdfast.errors import (
    AlreadyExistError,
    AlreadyExistException,
    NotExistError,
    NotExistException,
    PossibleInconsistentStateError,
    PossibleInconsistentStateException,
)
from holdfast.storage.file_system import FileStatus, FileSystem
from holdfast.storage.local import LocalFileSystem
from holdfast.storage.register import CheckpointPointer, FencedRegister, Lease, RegisterState
from holdfast.storage.scheme import file_system_for
from holdfast.storage.state_handle import (
    DocumentSerializer,
    FileStateHandle,
    FileSystemStateStorageHelper,
    IntegerResourceVersion,
    ResourceVersion,
    RetrievableStateHandle,
    RetrievableStateStorageHelper,
    StateHandleStore,
    StateObject,
    StateSerializer,
    StringResourceVersion,
)

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
