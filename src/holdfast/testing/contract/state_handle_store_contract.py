"""What every state handle store must do, as a pytest class.

A test module derives from :class:`StateHandleStoreContract` and gives the fixture ``store_backend``::

    class TestZooKeeperStateHandleStore(StateHandleStoreContract):
        @pytest.fixture
        def store_backend(self): ...
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.errors import (
    AlreadyExistError,
    ConflictError,
    FencedError,
    HoldfastError,
    NotExistError,
    StorageError,
)
from holdfast.testing.contract.state_handle_store_backend import (
    FlakyStorage,
    ProcessDied,
    StateHandleStoreBackend,
    Store,
    die,
    fail_storage,
)
from holdfast.testing.contract.state_handle_store_fault_contract import StateHandleStoreFaultContract

_MUTATORS: dict[str, Callable[[Store], object]] = {
    "add_and_lock": lambda store: store.add_and_lock("new", "fresh"),
    "replace": lambda store: store.replace("kept", store.exists("kept"), "changed"),
    "release_and_try_remove": lambda store: store.release_and_try_remove("kept"),
    "clear_entries": lambda store: store.clear_entries(),
}


def _content(store: Store) -> dict[str, str]:
    return {name: handle.retrieve_state() for handle, name in store.get_all_and_lock()}


@pytest.mark.timeout(180)
class StateHandleStoreContract(StateHandleStoreFaultContract):
    """The behaviour of state handle stores over any backend."""

    # Adding and reading.

    def test_what_was_added_is_read_by_every_process(
        self, store_backend: StateHandleStoreBackend, storage: FlakyStorage, store: Store
    ) -> None:
        handle = store.add_and_lock("job-1", "plan one")
        assert handle.retrieve_state() == "plan one"
        other = store_backend.open(storage)
        assert other.get_and_lock("job-1").retrieve_state() == "plan one"
        assert other.exists("job-1").is_existing()
        assert other.get_all_handles() == ["job-1"]
        assert len(storage.files) == 1

    def test_a_pointer_is_small_however_large_the_state(
        self, store_backend: StateHandleStoreBackend, store: Store
    ) -> None:
        store.add_and_lock("large", "x" * 3_000_000)
        pointer = store_backend.read_pointer("large")
        assert pointer is not None and len(pointer) <= 1024
        assert len(store.get_and_lock("large").retrieve_state()) == 3_000_000

    def test_a_name_is_added_once(self, storage: FlakyStorage, store: Store) -> None:
        store.add_and_lock("job-1", "first")
        with pytest.raises(AlreadyExistError, match="job-1"):
            store.add_and_lock("job-1", "second")
        assert store.get_and_lock("job-1").retrieve_state() == "first"
        assert len(storage.files) == 1

    def test_what_was_never_added_does_not_exist(self, storage: FlakyStorage, store: Store) -> None:
        assert not store.exists("nobody").is_existing()
        with pytest.raises(NotExistError, match="nobody"):
            store.get_and_lock("nobody")
        with pytest.raises(NotExistError, match="nobody"):
            store.replace("nobody", store.exists("nobody"), "something")
        assert store.release_and_try_remove("nobody") is True
        store.release("nobody")
        assert store.get_all_and_lock() == []
        assert storage.files == []

    def test_all_entries_are_found(self, store: Store) -> None:
        for number in (3, 1, 2):
            store.add_and_lock(f"{number:019d}", f"checkpoint {number}")
        found = sorted((name, handle.retrieve_state()) for handle, name in store.get_all_and_lock())
        assert found == [(f"{number:019d}", f"checkpoint {number}") for number in (1, 2, 3)]
        assert sorted(store.get_all_handles()) == [name for name, _ in found]

    def test_a_state_that_cannot_be_stored_leaves_no_pointer(
        self, store_backend: StateHandleStoreBackend, storage: FlakyStorage, store: Store
    ) -> None:
        storage.before_store = fail_storage
        with pytest.raises(StorageError):
            store.add_and_lock("job-1", "plan")
        assert store_backend.pointer_names() == []

    # Replacing.

    def test_replacing_swaps_the_pointer_and_discards_the_old_state(self, storage: FlakyStorage, store: Store) -> None:
        store.add_and_lock("job-1", "old")
        before = storage.files
        store.replace("job-1", store.exists("job-1"), "new")
        assert store.get_and_lock("job-1").retrieve_state() == "new"
        assert len(storage.files) == 1
        assert storage.files != before

    def test_replacing_a_stale_version_is_refused_where_versions_are_compared(
        self, store_backend: StateHandleStoreBackend, storage: FlakyStorage, store: Store
    ) -> None:
        store.add_and_lock("job-1", "first")
        stale = store.exists("job-1")
        store.replace("job-1", stale, "second")
        if store_backend.compares_versions:
            with pytest.raises(ConflictError, match="job-1"):
                store.replace("job-1", stale, "third")
        else:
            store.replace("job-1", stale, "second")
        assert store.get_and_lock("job-1").retrieve_state() == "second"
        assert len(storage.files) == 1

    # Removing, in three steps.

    def test_removing_deletes_pointer_and_state(
        self, store_backend: StateHandleStoreBackend, storage: FlakyStorage, store: Store
    ) -> None:
        store.add_and_lock("job-1", "plan")
        assert store.release_and_try_remove("job-1") is True
        assert storage.files == []
        assert store_backend.pointer_names() == []
        assert store.release_and_try_remove("job-1") is True
        store.add_and_lock("job-1", "another plan")
        assert store.get_and_lock("job-1").retrieve_state() == "another plan"

    def test_an_entry_whose_state_cannot_be_discarded_is_hidden_until_it_can(
        self, store_backend: StateHandleStoreBackend, storage: FlakyStorage, store: Store
    ) -> None:
        store.add_and_lock("job-1", "plan")
        storage.before_discard = fail_storage
        with pytest.raises(StorageError):
            store.release_and_try_remove("job-1")
        self._is_hidden(store_backend, store, "job-1")
        with pytest.raises(StorageError):
            store.release_and_try_remove("job-1")
        storage.spare()
        assert store.release_and_try_remove("job-1") is True
        assert storage.files == []
        assert store_backend.pointer_names() == []

    @pytest.mark.parametrize("step", ["before_discard", "after_discard"])
    def test_a_removal_that_a_crash_cut_short_is_finished_by_a_deleter(
        self, store_backend: StateHandleStoreBackend, storage: FlakyStorage, store: Store, step: str
    ) -> None:
        self._half_delete(store_backend, storage, store, step)
        other = store_backend.open(storage)
        self._is_hidden(store_backend, other, "job-1")
        assert other.release_and_try_remove("job-1") is True
        assert storage.files == []
        assert store_backend.pointer_names() == []

    @pytest.mark.parametrize("step", ["before_discard", "after_discard"])
    def test_a_removal_that_a_crash_cut_short_is_finished_by_an_add(
        self, store_backend: StateHandleStoreBackend, storage: FlakyStorage, store: Store, step: str
    ) -> None:
        self._half_delete(store_backend, storage, store, step)
        other = store_backend.open(storage)
        other.add_and_lock("job-1", "the next plan")
        assert other.get_and_lock("job-1").retrieve_state() == "the next plan"
        assert len(storage.files) == 1

    def test_a_half_deleted_entry_cannot_be_replaced(
        self, store_backend: StateHandleStoreBackend, storage: FlakyStorage, store: Store
    ) -> None:
        self._half_delete(store_backend, storage, store, "before_discard")
        other = store_backend.open(storage)
        with pytest.raises(HoldfastError):
            other.replace("job-1", other.exists("job-1"), "the next plan")
        assert not other.exists("job-1").is_existing()
        assert len(storage.files) <= 1

    def test_clearing_removes_pointers_and_keeps_state(
        self, store_backend: StateHandleStoreBackend, storage: FlakyStorage, store: Store
    ) -> None:
        store.add_and_lock("job-1", "one")
        store.add_and_lock("job-2", "two")
        store.clear_entries()
        assert store_backend.pointer_names() == []
        assert store.get_all_and_lock() == []
        assert len(storage.files) == 2

    # Locks.

    def test_what_another_process_has_locked_is_not_removed(
        self, store_backend: StateHandleStoreBackend, storage: FlakyStorage, store: Store
    ) -> None:
        if not store_backend.has_locks:
            pytest.skip("this store has no locks: only the leader removes")
        store.add_and_lock("job-1", "plan")
        other = store_backend.open(storage)
        other.get_and_lock("job-1")
        assert store.release_and_try_remove("job-1") is False
        assert other.get_and_lock("job-1").retrieve_state() == "plan"
        other.release("job-1")
        assert store.release_and_try_remove("job-1") is True
        assert storage.files == []

    def test_a_removal_that_is_fenced_keeps_the_lock_until_its_process_releases_it(
        self, store_backend: StateHandleStoreBackend, storage: FlakyStorage
    ) -> None:
        store_backend.elect("leader-a")
        leader = store_backend.open(storage, "leader-a")
        leader.add_and_lock("job-1", "plan")
        deposed = store_backend.open(storage, "leader-b")
        deposed.get_and_lock("job-1")
        with pytest.raises(FencedError):
            deposed.release_and_try_remove("job-1")
        assert leader.release_and_try_remove("job-1") is not store_backend.has_locks
        deposed.release_all()
        assert leader.release_and_try_remove("job-1") is True
        assert storage.files == []

    def test_the_locks_of_a_dead_process_go_with_it(
        self, store_backend: StateHandleStoreBackend, storage: FlakyStorage, store: Store
    ) -> None:
        other = store_backend.open(storage)
        other.add_and_lock("job-1", "plan")
        other.get_all_and_lock()
        store_backend.crash(other)
        assert store.get_and_lock("job-1").retrieve_state() == "plan"
        assert store.release_and_try_remove("job-1") is True

    def test_releasing_keeps_everything(self, storage: FlakyStorage, store: Store) -> None:
        for name in ("job-1", "job-2", "job-3"):
            store.add_and_lock(name, name)
        store.release("job-1")
        store.release("job-1")
        store.release_all()
        assert sorted(store.get_all_handles()) == ["job-1", "job-2", "job-3"]
        assert all(store.exists(name).is_existing() for name in ("job-1", "job-2", "job-3"))
        assert len(storage.files) == 3

    # Fencing.

    @pytest.mark.parametrize("mutator", _MUTATORS)
    def test_without_leadership_every_mutator_is_fenced_and_changes_nothing(
        self, store_backend: StateHandleStoreBackend, storage: FlakyStorage, mutator: str
    ) -> None:
        store_backend.elect("leader-a")
        store = store_backend.open(storage, "leader-a")
        store.add_and_lock("kept", "as it was")
        store.release_all()
        store_backend.elect("leader-b")
        files, pointers = storage.files, store_backend.pointer_names()
        with pytest.raises(FencedError):
            _MUTATORS[mutator](store)
        assert storage.files == files
        assert store_backend.pointer_names() == pointers
        successor = store_backend.open(storage, "leader-b")
        assert successor.get_and_lock("kept").retrieve_state() == "as it was"
        _MUTATORS[mutator](successor)

    @pytest.mark.parametrize("after", range(6))
    @pytest.mark.parametrize("mutator", _MUTATORS)
    def test_a_leader_that_is_deposed_between_two_of_its_steps_is_fenced(
        self, store_backend: StateHandleStoreBackend, storage: FlakyStorage, mutator: str, after: int
    ) -> None:
        store_backend.elect("leader-a")
        store = store_backend.open(storage, "leader-a")
        store.add_and_lock("kept", "as it was")
        found: list[dict[str, str]] = []

        def depose() -> None:
            store_backend.elect("leader-b")
            successor = store_backend.open(storage, "leader-b")
            found.append(_content(successor))
            successor.release_all()

        store_backend.interrupt(store, depose, after)
        try:
            _MUTATORS[mutator](store)
        except FencedError:
            assert found, "fenced by nobody"
        else:
            assert not found, "a deposed leader changed something after its successor had read"
        store_backend.spare(store)
        assert found or after > 0
        if found:
            successor = store_backend.open(storage, "leader-b")
            assert _content(successor) == found[0]
            store.release_all()
            for name in ("kept", "new"):
                assert successor.release_and_try_remove(name) is True
            assert len(storage.files) <= (1 if mutator == "clear_entries" else 0)

    def test_reading_needs_no_leadership(self, store_backend: StateHandleStoreBackend, storage: FlakyStorage) -> None:
        store_backend.elect("leader-a")
        store_backend.open(storage, "leader-a").add_and_lock("job-1", "plan")
        store_backend.elect("leader-b")
        reader = store_backend.open(storage, "leader-a")
        assert reader.get_and_lock("job-1").retrieve_state() == "plan"
        assert [name for _, name in reader.get_all_and_lock()] == ["job-1"]
        assert reader.exists("job-1").is_existing()

    def _is_hidden(self, backend: StateHandleStoreBackend, store: Store, name: str) -> None:
        assert name in backend.pointer_names()
        assert not store.exists(name).is_existing()
        assert store.get_all_and_lock() == []
        with pytest.raises(NotExistError, match=name):
            store.get_and_lock(name)

    def _half_delete(self, backend: StateHandleStoreBackend, storage: FlakyStorage, store: Store, step: str) -> None:
        store.add_and_lock("job-1", "plan")
        setattr(storage, step, die)
        with pytest.raises(ProcessDied):
            store.release_and_try_remove("job-1")
        storage.spare()
        backend.crash(store)
