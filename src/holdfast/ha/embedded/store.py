"""The state handle store in the memory of one process."""

from __future__ import annotations

import threading
from typing import TypeVar

from holdfast.errors import ConflictError
from holdfast.ha.election.leadership import Leadership
from holdfast.ha.job_manager_store.entry_map import EMPTY, EntryMap, EntryMapBackend
from holdfast.ha.job_manager_store.entry_map_store import EntryMapStateHandleStore
from holdfast.storage.handle.state_handle import RetrievableStateStorageHelper

T = TypeVar("T")


class MemoryEntryMapBackend(EntryMapBackend):
    """An entry map in memory; those who share the object share the map."""

    def __init__(self) -> None:
        self._newest = EMPTY
        self._lock = threading.Lock()

    def load(self) -> EntryMap:
        """Return the newest version."""
        with self._lock:
            return self._newest

    def swap(self, base: EntryMap, new: EntryMap) -> None:
        """Make a version the newest."""
        with self._lock:
            if self._newest.version != base.version:
                raise ConflictError(f"{self} has changed meanwhile.")
            self._newest = EntryMap(base.version + 1, new.term, dict(new.entries))

    def clear(self) -> None:
        """Forget all entries."""
        with self._lock:
            self._newest = EntryMap(self._newest.version + 1, self._newest.term, {})

    def __repr__(self) -> str:
        return "memory"


class EmbeddedStateHandleStore(EntryMapStateHandleStore[T]):
    """Pointers in memory, state in storage.

    Args:
        entries: The map; stores that are to see each other share it.
        storage: Where the states are.
        lock_identity: Who must lead for a change to be allowed; None skips the check.
        leadership: Who leads; needed with a lock identity.
    """

    def __init__(
        self,
        entries: MemoryEntryMapBackend,
        storage: RetrievableStateStorageHelper[T],
        *,
        lock_identity: str | None = None,
        leadership: Leadership | None = None,
    ) -> None:
        super().__init__(entries, storage, lock_identity=lock_identity, leadership=leadership)
