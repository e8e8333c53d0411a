"""The state handle store in a directory that several processes share."""

from __future__ import annotations

from typing import Final, TypeVar

from holdfast.errors import CorruptFileError
from holdfast.ha.election.leadership import Leadership
from holdfast.ha.file_system.versioned_file import NEVER_WRITTEN, FileVersion, VersionedFile
from holdfast.ha.job_manager_store.entry_map import Entry, EntryMap, EntryMapBackend
from holdfast.ha.job_manager_store.entry_map_store import EntryMapStateHandleStore
from holdfast.kernel.malformed import MALFORMED
from holdfast.storage.file_system.scheme import FileSystem
from holdfast.storage.handle.state_handle import RetrievableStateStorageHelper

T = TypeVar("T")
_KIND: Final = "state-handle-store"
_FORMAT_VERSION: Final = 1


class FileEntryMapBackend(EntryMapBackend):
    """An entry map whose versions are files of one directory."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._file = VersionedFile(fs, directory, _KIND, _FORMAT_VERSION)

    def load(self) -> EntryMap:
        """Read the newest version."""
        found = self._file.load()
        if found is NEVER_WRITTEN:
            return EntryMap(0, 0, {}, found)
        try:
            entries = {
                str(name): Entry(str(entry["content"]), int(entry["version"]))
                for name, entry in found.body["entries"].items()
            }
            return EntryMap(found.number, int(found.body["term"]), entries, found)
        except MALFORMED as error:
            raise CorruptFileError(self._file.directory, None, f"a field is missing or wrong: {error!r}.") from error

    def swap(self, base: EntryMap, new: EntryMap) -> None:
        """Create the next version exclusively."""
        assert isinstance(base.base, FileVersion)
        entries = {name: {"content": entry.content, "version": entry.version} for name, entry in new.entries.items()}
        self._file.swap(base.base, {"term": new.term, "entries": entries})

    def remove(self) -> None:
        """Delete everything; only for a store that nobody writes any more."""
        self._file.remove()

    def __repr__(self) -> str:
        return repr(self._file.directory)


class FileSystemStateHandleStore(EntryMapStateHandleStore[T]):
    """Pointers in the versions of one file, state in storage; for processes that share a directory.

    A change is a new version that is created exclusively, so no lock of the operating system is needed, and any file
    system or object store will do that can create a file only if it does not exist.

    Args:
        fs: The file system of the directory.
        directory: Where the versions are.
        storage: Where the states are.
        lock_identity: Who must lead for a change to be allowed; None skips the check.
        leadership: Who leads; needed with a lock identity.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        storage: RetrievableStateStorageHelper[T],
        *,
        lock_identity: str | None = None,
        leadership: Leadership | None = None,
    ) -> None:
        backend = FileEntryMapBackend(fs, directory)
        super().__init__(backend, storage, lock_identity=lock_identity, leadership=leadership)
