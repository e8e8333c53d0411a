"""The contract of state handle stores over memory and over files."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.errors import PossibleInconsistentStateError, StorageError
from holdfast.ha.embedded import EmbeddedStateHandleStore
from holdfast.ha.entry_map import ENTRY_MAP_FORMAT, EntryMap
from holdfast.ha.leader_election import Leadership
from holdfast.ha.shared_directory import FileSystemStateHandleStore
from holdfast.storage.local import LocalFileSystem
from holdfast.storage.state_handle import RetrievableStateStorageHelper
from holdfast.storage.versioned_document import FileDocument, MemoryDocument, VersionedDocument
from holdfast.testing.state_handle_store_contract import (
    FaultMoment,
    ProcessDied,
    StateHandleStoreBackend,
    StateHandleStoreContract,
    Store,
)
from tests.examples import examples


class Terms(Leadership):
    """Who leads, by decree."""

    def __init__(self) -> None:
        self.leader: str | None = None
        self.term = 0

    def elect(self, lock_identity: str) -> None:
        self.leader = lock_identity
        self.term += 1

    def term_of(self, lock_identity: str) -> int | None:
        return self.term if lock_identity == self.leader else None


class Striker:
    """Makes one of several writes go wrong."""

    def __init__(self) -> None:
        self._action: FaultMoment | Callable[[], None] | None = None
        self._after = 0

    def arm(self, moment: FaultMoment | Callable[[], None] | None, after: int = 0) -> None:
        self._action, self._after = moment, after

    def read(self) -> None:
        if isinstance(self._action, FaultMoment) or self._action is None:
            return
        if self._after > 0:
            self._after -= 1
            return
        action, self._action = self._action, None
        action()

    def write(self, action: Callable[[], None]) -> None:
        if self._action is None or self._after > 0:
            self._after -= 1
            return action()
        moment, self._action = self._action, None
        if not isinstance(moment, FaultMoment):
            moment()
            return action()
        if moment is FaultMoment.REFUSED:
            raise StorageError("refused by this test")
        if moment is FaultMoment.SILENT:
            raise PossibleInconsistentStateError("no answer in this test")
        if moment is FaultMoment.DIED_BEFORE:
            raise ProcessDied
        action()
        if moment is FaultMoment.LOST:
            raise PossibleInconsistentStateError("the answer was lost in this test")
        raise ProcessDied


class StruckDocument(VersionedDocument[EntryMap]):
    """The connection of one process to a shared map."""

    def __init__(self, shared: VersionedDocument[EntryMap]) -> None:
        super().__init__(shared.format)
        self.shared = shared
        self.striker = Striker()

    def read(self) -> EntryMap:
        self.striker.read()
        return self.shared.read()

    def _write_next(self, base: EntryMap, new: EntryMap) -> None:
        self.striker.write(lambda: self.shared.replace(base, new))


class StruckFileSystem(LocalFileSystem):
    """The mount of one process."""

    def __init__(self) -> None:
        self.striker = Striker()

    def list_names(self, path: str) -> list[str]:
        self.striker.read()
        return super().list_names(path)

    def create_exclusive(self, path: str, data: bytes) -> None:
        create = super().create_exclusive
        self.striker.write(lambda: create(path, data))


class EntryMapHarness(StateHandleStoreBackend):
    """What both have in common."""

    def __init__(self) -> None:
        self.terms = Terms()
        self.strikers: dict[int, Striker] = {}

    def elect(self, lock_identity: str) -> None:
        self.terms.elect(lock_identity)

    def crash(self, store: Store) -> None:
        self.strikers.pop(id(store))

    def strike(self, store: Store, moment: FaultMoment, after: int = 0) -> None:
        self.strikers[id(store)].arm(moment, after)

    def interrupt(self, store: Store, action: Callable[[], None], after: int = 0) -> None:
        self.strikers[id(store)].arm(action, after)

    def spare(self, store: Store) -> None:
        self.strikers[id(store)].arm(None)

    def shared(self) -> VersionedDocument[EntryMap]:
        raise AssertionError("each harness has one")

    def read_pointer(self, name: str) -> bytes | None:
        entry = self.shared().read().entries.get(name)
        return None if entry is None else entry.content.encode()

    def write_pointer(self, name: str, content: bytes) -> None:
        current = self.shared().read()
        assert name in current.entries
        self.shared().replace(current, current.with_entry(name, content.decode()).successor())

    def pointer_names(self) -> list[str]:
        return sorted(self.shared().read().entries)


class EmbeddedHarness(EntryMapHarness):
    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def reset(self) -> None:
        self._shared = MemoryDocument(ENTRY_MAP_FORMAT)

    def shared(self) -> VersionedDocument[EntryMap]:
        return self._shared

    def open(self, storage: RetrievableStateStorageHelper[str], lock_identity: str | None = None) -> Store:
        struck = StruckDocument(self._shared)
        store = EmbeddedStateHandleStore(struck, storage, lock_identity=lock_identity, leadership=self.terms)
        self.strikers[id(store)] = struck.striker
        return store


class FileSystemHarness(EntryMapHarness):
    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directories = (directory / f"store-{number}" for number in itertools.count())
        self.reset()

    def reset(self) -> None:
        self._directory = str(next(self._directories))

    def shared(self) -> VersionedDocument[EntryMap]:
        return FileDocument(LocalFileSystem(), self._directory, ENTRY_MAP_FORMAT)

    def open(self, storage: RetrievableStateStorageHelper[str], lock_identity: str | None = None) -> Store:
        fs = StruckFileSystem()
        store = FileSystemStateHandleStore(
            fs, self._directory, storage, lock_identity=lock_identity, leadership=self.terms
        )
        self.strikers[id(store)] = fs.striker
        return store


class TestEmbeddedStateHandleStore(StateHandleStoreContract):
    @pytest.fixture
    def store_backend(self) -> Iterator[StateHandleStoreBackend]:
        yield EmbeddedHarness()


class TestFileSystemStateHandleStore(StateHandleStoreContract):
    machine_examples = examples(40)

    @pytest.fixture
    def store_backend(self, tmp_path: Path) -> Iterator[StateHandleStoreBackend]:
        yield FileSystemHarness(tmp_path)
