"""File systems and object stores, versioned documents, state handles, and the fenced register of a job."""

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
from holdfast.storage.register import CheckpointPointer, FencedRegister, RegisterState, RegisterWriter
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
from holdfast.storage.versioned_document import FileDocument, VersionedDocument

__all__ = [
    "AlreadyExistError",
    "AlreadyExistException",
    "CheckpointPointer",
    "DocumentSerializer",
    "FencedRegister",
    "FileDocument",
    "FileStateHandle",
    "FileStatus",
    "FileSystem",
    "FileSystemStateStorageHelper",
    "IntegerResourceVersion",
    "LocalFileSystem",
    "NotExistError",
    "NotExistException",
    "PossibleInconsistentStateError",
    "PossibleInconsistentStateException",
    "RegisterState",
    "RegisterWriter",
    "ResourceVersion",
    "RetrievableStateHandle",
    "RetrievableStateStorageHelper",
    "StateHandleStore",
    "StateObject",
    "StateSerializer",
    "StringResourceVersion",
    "VersionedDocument",
    "file_system_for",
]
