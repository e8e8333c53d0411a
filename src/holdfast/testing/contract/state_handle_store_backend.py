"""What a state handle store's contract suite needs of a backend, and storage that fails on request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

from holdfast.errors import StorageError
from holdfast.storage.file_system.scheme import LocalFileSystem
from holdfast.storage.handle.state_handle import (
    DocumentSerializer,
    FileSystemStateStorageHelper,
    RetrievableStateHandle,
    RetrievableStateStorageHelper,
)
from holdfast.storage.handle.state_handle_store import StateHandleStore

Store = StateHandleStore[str, Any]


class ProcessDied(BaseException):
    """The process of a store died at this step; its memory is gone, what it wrote is not."""


class FaultMoment(Enum):
    """What becomes of a write to a coordination store."""

    REFUSED = "the backend refuses it: nothing happened, and the caller knows"
    SILENT = "nothing happened, and no answer came"
    LOST = "it happened, and the answer got lost"
    DIED_BEFORE = "the process dies before it is sent"
    DIED_AFTER = "it happens, and the process dies"


class StateHandleStoreBackend(ABC):
    """One coordination store, with several processes that open it.

    Attributes:
        has_locks: Whether an entry that another process has locked cannot be removed.
        compares_versions: Whether ``replace`` refuses a stale version.
        overwrites_damage: Whether an entry whose pointer cannot be read counts as absent and may be overwritten.
    """

    has_locks: bool = False
    compares_versions: bool = True
    overwrites_damage: bool = True

    @abstractmethod
    def reset(self) -> None:
        """Begin anew with an empty store; stores opened before are not used any more."""

    @abstractmethod
    def open(self, storage: RetrievableStateStorageHelper[str], lock_identity: str | None = None) -> Store:
        """Open the store as one more process would."""

    @abstractmethod
    def crash(self, store: Store) -> None:
        """Let the process of a store die; returns when the backend has noticed it."""

    @abstractmethod
    def elect(self, lock_identity: str) -> None:
        """Make this identity the leader, deposing whoever leads."""

    @abstractmethod
    def strike(self, store: Store, moment: FaultMoment, after: int = 0) -> None:
        """Do this to one write of the store to the backend: the next one, or that after ``after`` more.

        Holds until it has struck or :meth:`spare` is called.
        """

    @abstractmethod
    def interrupt(self, store: Store, action: Callable[[], None], after: int = 0) -> None:
        """Pause the store just before one of its requests to the backend, and do this meanwhile, once.

        The request that is meant is the next one, or that after ``after`` more. Reads count as well where the backend
        can stop them; writes always count.
        """

    @abstractmethod
    def spare(self, store: Store) -> None:
        """Forget a strike or an interruption that has not happened."""

    @abstractmethod
    def read_pointer(self, name: str) -> bytes | None:
        """The raw content of an entry, None if there is none."""

    @abstractmethod
    def write_pointer(self, name: str, content: bytes) -> None:
        """Overwrite the raw content of an entry that exists."""

    @abstractmethod
    def pointer_names(self) -> list[str]:
        """The names of all entries, those marked for deletion too."""


class FlakyStorage(RetrievableStateStorageHelper[str]):
    """Texts in files of one directory; storing and discarding fail, or kill the process, on request.

    Attributes:
        before_store: Called before a state is stored.
        before_discard: Called before a state is discarded.
        after_discard: Called when a state was discarded.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        serializer = DocumentSerializer[str]("text", 1, lambda text: {"text": text}, lambda body: str(body["text"]))
        self._helper = FileSystemStateStorageHelper[str](LocalFileSystem(), str(directory), "state", serializer)
        self.spare()

    def spare(self) -> None:
        """Fail no more."""
        self.before_store: Callable[[], None] = _nothing
        self.before_discard: Callable[[], None] = _nothing
        self.after_discard: Callable[[], None] = _nothing

    @property
    def files(self) -> list[str]:
        """The names of the files that hold state, sorted."""
        return sorted(path.name for path in self.directory.glob("state*"))

    def store(self, state: str) -> RetrievableStateHandle[str]:
        """Store a text."""
        self.before_store()
        return _FlakyHandle(self, self._helper.store(state))

    def restore_handle(self, pointer: dict[str, Any]) -> RetrievableStateHandle[str]:
        """Make a handle of a pointer."""
        return _FlakyHandle(self, self._helper.restore_handle(pointer))


class _FlakyHandle(RetrievableStateHandle[str]):
    def __init__(self, storage: FlakyStorage, handle: RetrievableStateHandle[str]) -> None:
        self._storage = storage
        self._handle = handle

    def retrieve_state(self) -> str:
        return self._handle.retrieve_state()

    def discard_state(self) -> None:
        self._storage.before_discard()
        self._handle.discard_state()
        self._storage.after_discard()

    def get_state_size(self) -> int:
        return self._handle.get_state_size()

    def to_pointer(self) -> dict[str, Any]:
        return self._handle.to_pointer()


def fail_storage() -> None:
    """Raise what a full disk raises."""
    raise StorageError("No space left for this test.")


def die() -> None:
    """End the process."""
    raise ProcessDied


def _nothing() -> None:
    return None
