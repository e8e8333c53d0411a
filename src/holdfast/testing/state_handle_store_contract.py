"""The contract of state handle stores as a pytest class, `StateHandleStoreContract`."""

from __future__ import annotations

import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from holdfast.errors import (
    AlreadyExistError,
    ConflictError,
    CorruptFileError,
    FencedError,
    FormatVersionError,
    HoldfastError,
    NotExistError,
    PossibleInconsistentStateError,
    StorageError,
)
from holdfast.storage.local import LocalFileSystem
from holdfast.storage.state_handle import (
    DocumentSerializer,
    FileSystemStateStorageHelper,
    RetrievableStateHandle,
    RetrievableStateStorageHelper,
    StateHandleStore,
    encode_document,
)

Store = StateHandleStore[str, Any]


class ProcessDied(BaseException):
    """Simulates the death of a store's process: its memory is lost, what it wrote remains."""


class FaultMoment(Enum):
    """The outcomes of a write to a coordination store."""

    REFUSED = "the backend refuses it: nothing happened, and the caller knows"
    SILENT = "nothing happened, and no answer came"
    LOST = "it happened, and the answer got lost"
    DIED_BEFORE = "the process dies before it is sent"
    DIED_AFTER = "it happens, and the process dies"


class StateHandleStoreBackend(ABC):
    """One coordination store, which several processes open.

    Attributes:
        has_locks: Whether an entry that another process has locked cannot be removed.
        compares_versions: Whether `replace` refuses a stale version.
        overwrites_damage: Whether an entry whose pointer cannot be read counts as absent and may be overwritten.
    """

    has_locks: bool = False
    compares_versions: bool = True
    overwrites_damage: bool = True

    @abstractmethod
    def reset(self) -> None:
        """Start again with an empty store; stores opened before are not used any more."""

    @abstractmethod
    def open(self, storage: RetrievableStateStorageHelper[str], lock_identity: str | None = None) -> Store:
        """Open the store as one more process would."""

    @abstractmethod
    def crash(self, store: Store) -> None:
        """Kill the process of a store; return when the backend has noticed it."""

    @abstractmethod
    def elect(self, lock_identity: str) -> None:
        """Make this identity the leader, deposing the current one."""

    @abstractmethod
    def strike(self, store: Store, moment: FaultMoment, after: int = 0) -> None:
        """Apply a fault to one write of the store: the next one, or the one after `after` more.

        It stays armed until it has happened or `spare` is called.
        """

    @abstractmethod
    def interrupt(self, store: Store, action: Callable[[], None], after: int = 0) -> None:
        """Pause the store before one of its requests to the backend, and run an action meanwhile, once.

        The request is the next one, or the one after `after` more. Writes count; reads count where the backend can stop
        them.
        """

    @abstractmethod
    def spare(self, store: Store) -> None:
        """Cancel a fault or an interruption that has not happened."""

    @abstractmethod
    def read_pointer(self, name: str) -> bytes | None:
        """Return the raw content of an entry, None if there is none."""

    @abstractmethod
    def write_pointer(self, name: str, content: bytes) -> None:
        """Overwrite the raw content of an existing entry."""

    @abstractmethod
    def pointer_names(self) -> list[str]:
        """Return the names of all entries, those marked for deletion included."""


class FlakyStorage(RetrievableStateStorageHelper[str]):
    """Stores texts in files of one directory; storing and discarding fail, or kill the process, on request.

    Attributes:
        before_store: Called before a state is stored.
        before_discard: Called before a state is discarded.
        after_discard: Called after a state was discarded.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        serializer = DocumentSerializer[str]("text", 1, lambda text: {"text": text}, lambda body: str(body["text"]))
        self._helper = FileSystemStateStorageHelper[str](LocalFileSystem(), str(directory), "state", serializer)
        self.spare()

    def spare(self) -> None:
        """Cancel all failures."""
        self.before_store: Callable[[], None] = _nothing
        self.before_discard: Callable[[], None] = _nothing
        self.after_discard: Callable[[], None] = _nothing

    @property
    def files(self) -> list[str]:
        """The names of the files that hold state, sorted."""
        return sorted(path.name for path in self.directory.glob("state*"))

    def store(self, state: str) -> RetrievableStateHandle[str]:
        self.before_store()
        return _FlakyHandle(self, self._helper.store(state))

    def restore_handle(self, pointer: dict[str, Any]) -> RetrievableStateHandle[str]:
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
    """Raise the error of a full disk."""
    raise StorageError("No space left for this test.")


def die() -> None:
    raise ProcessDied


def _nothing() -> None:
    return None


# A model of state handle stores for Hypothesis: any history of writes, crashes and lost answers.
#
# The model has for every name the set of possible texts, with None for an absent entry. A write that succeeded or was
# refused leaves one possibility; a write whose answer was lost, or during which the process died, leaves two, and the
# next read decides. The main promise: whoever reads a pointer finds its state.

_numbers = itertools.count()
_processes = st.integers(0, 1)
_names = st.sampled_from(["a", "b"])
_faults = st.one_of(
    st.none(),
    st.tuples(st.sampled_from(list(FaultMoment)), st.integers(0, 3)),
    st.sampled_from(["discard fails", "dies before discard", "dies after discard"]),
)
Fault = tuple[FaultMoment, int] | str | None


class StateHandleStoreMachine(RuleBasedStateMachine):
    """A Hypothesis state machine: a leading and another process work on two entries."""

    def __init__(self, backend: StateHandleStoreBackend, directory: Path) -> None:
        super().__init__()
        self._backend = backend
        self._texts = itertools.count(1)
        backend.reset()
        self._storage = FlakyStorage(directory / f"example-{next(_numbers)}")
        self._leader = 0
        self._terms = 1
        self._identities = ["process-0", "process-1"]
        backend.elect(self._identities[0])
        self._stores: list[Store] = [backend.open(self._storage, identity) for identity in self._identities]
        self._possible: dict[str, set[str | None]] = {"a": {None}, "b": {None}}
        self._locked: dict[str, set[int]] = {"a": set(), "b": set()}  # who may hold a lock
        self._orphans_allowed = False

    @rule(process=_processes, name=_names, fault=_faults)
    def add(self, process: int, name: str, fault: Fault) -> None:
        text = f"text {next(self._texts)}"
        possible = self._possible[name]
        outcome = self._try(process, fault, lambda store: store.add_and_lock(name, text))
        if outcome is None:
            assert process == self._leader
            assert None in possible
            possible = {text}
        elif isinstance(outcome, AlreadyExistError):
            assert possible != {None}
            possible = possible - {None}
        elif isinstance(outcome, PossibleInconsistentStateError | ProcessDied):
            possible = possible | {text}
        self._possible[name] = possible
        if not isinstance(outcome, FencedError):
            self._locked[name].add(process)
        self._end_of(process, outcome)

    @rule(process=_processes, name=_names, fault=_faults)
    def replace(self, process: int, name: str, fault: Fault) -> None:
        text = f"text {next(self._texts)}"
        store = self._stores[process]
        if self._backend.has_locks and process == self._leader:
            self._read(process, name)
        version = store.exists(name)
        outcome = self._try(process, fault, lambda store: store.replace(name, version, text))
        possible = self._possible[name]
        if outcome is None:
            assert process == self._leader
            assert possible != {None}
            possible = {text}
        elif isinstance(outcome, NotExistError):
            assert None in possible
            possible = {None}
        elif isinstance(outcome, PossibleInconsistentStateError | ProcessDied):
            possible = possible | {text}
        elif fault == "discard fails":
            # The pointer is swapped, and the old file could not be deleted.
            possible = possible | {text}
        self._possible[name] = possible
        self._end_of(process, outcome)

    @rule(process=_processes, name=_names, fault=_faults)
    def remove(self, process: int, name: str, fault: Fault) -> None:
        results: list[bool] = []
        outcome = self._try(process, fault, lambda store: results.append(store.release_and_try_remove(name)))
        if outcome is None:
            assert process == self._leader
            if results[0]:
                self._possible[name] = {None}
                self._locked[name] = set()
            else:
                assert self._backend.has_locks
                assert self._locked[name] - {process}
            self._locked[name].discard(process)
        elif not isinstance(outcome, FencedError):
            self._possible[name] = self._possible[name] | {None}
        # Who was refused may still hold its lock: a removal without leadership changes nothing.
        self._end_of(process, outcome)

    @rule(process=_processes, name=_names)
    def read(self, process: int, name: str) -> None:
        self._read(process, name)

    @rule(process=_processes)
    def read_all(self, process: int) -> None:
        found = {name: handle.retrieve_state() for handle, name in self._stores[process].get_all_and_lock()}
        for name, possible in self._possible.items():
            text = found.get(name)
            assert text in possible, f"{name!r} is {text!r}, which is none of {possible!r}"
            self._possible[name] = {text}
            if text is not None:
                self._locked[name].add(process)

    @rule(process=_processes, name=_names)
    def release(self, process: int, name: str) -> None:
        """Release a lock."""
        self._stores[process].release(name)
        self._locked[name].discard(process)

    @rule(process=_processes)
    def crash(self, process: int) -> None:
        """Kill a process and start it again."""
        self._restart(process)

    @rule()
    def depose(self) -> None:
        """Elect the other process; the deposed one is not notified."""
        self._leader = 1 - self._leader
        self._backend.elect(self._identities[self._leader])

    @invariant()
    def every_pointer_that_is_seen_has_its_state(self) -> None:
        """Read as the leader: every answer must be possible. Locks are not taken, so the possibilities stay open."""
        for name, possible in self._possible.items():
            if not self._stores[self._leader].exists(name).is_existing():
                assert None in possible, f"{name!r} was lost; it should be one of {possible!r}"

    def teardown(self) -> None:
        """Remove everything without faults: only crashes and lost answers may leave anything behind."""
        for process in (0, 1):
            self._stores[process].release_all()
        leader = self._stores[self._leader]
        for name in self._possible:
            assert leader.release_and_try_remove(name) is True
        assert self._backend.pointer_names() == []
        if not self._orphans_allowed:
            assert self._storage.files == []

    def _read(self, process: int, name: str) -> None:
        possible = self._possible[name]
        try:
            text: str | None = self._stores[process].get_and_lock(name).retrieve_state()
            self._locked[name].add(process)
        except NotExistError:
            text = None
        assert text in possible, f"{name!r} is {text!r}, which is none of {possible!r}"
        assert self._stores[process].exists(name).is_existing() == (text is not None)
        self._possible[name] = {text}

    def _try(self, process: int, fault: Fault, action: object) -> BaseException | None:
        """Run an operation during a fault; only errors of Holdfast's hierarchy may escape."""
        store = self._stores[process]
        match fault:
            case (FaultMoment() as moment, int(after)):
                self._backend.strike(store, moment, after)
            case "discard fails":
                self._storage.before_discard = fail_storage
            case "dies before discard":
                self._storage.before_discard = die
            case "dies after discard":
                self._storage.after_discard = die
        try:
            assert callable(action)
            action(store)
        except (HoldfastError, ProcessDied) as error:
            outcome: BaseException | None = error
        else:
            outcome = None
        finally:
            self._storage.spare()
            self._backend.spare(store)
        if process != self._leader:
            assert isinstance(outcome, HoldfastError | ProcessDied), "a process that does not lead wrote something"
        if isinstance(outcome, PossibleInconsistentStateError | ProcessDied) or fault == "discard fails":
            self._orphans_allowed = True
        return outcome

    def _end_of(self, process: int, outcome: BaseException | None) -> None:
        if isinstance(outcome, ProcessDied):
            self._restart(process)

    def _restart(self, process: int) -> None:
        self._backend.crash(self._stores[process])
        for holders in self._locked.values():
            holders.discard(process)
        self._stores[process] = self._backend.open(self._storage, self._identities[process])


class StateHandleStoreFaultContract:
    """Tests of stores under faults; `StateHandleStoreContract` includes them."""

    # How many histories the state machine tries; slow backends try fewer.
    machine_examples = 60
    machine_steps = 25

    @pytest.fixture
    def store_backend(self) -> Iterator[StateHandleStoreBackend]:
        """Return the backend under test."""
        raise RuntimeError("A class derived from StateHandleStoreContract gives the fixture store_backend.")

    @pytest.fixture
    def storage(self, tmp_path: Path) -> FlakyStorage:
        """Return the storage of states."""
        return FlakyStorage(tmp_path / "states")

    @pytest.fixture
    def store(self, store_backend: StateHandleStoreBackend, storage: FlakyStorage) -> Store:
        """Return a store that checks no leadership."""
        return store_backend.open(storage)

    # Damage.

    def test_a_damaged_pointer_is_an_error_by_name_and_skipped_in_a_listing(
        self, store_backend: StateHandleStoreBackend, store: Store
    ) -> None:
        store.add_and_lock("job-1", "one")
        store.add_and_lock("job-2", "two")
        store.release_all()
        store_backend.write_pointer("job-1", b"\x00 not a pointer")
        with pytest.raises(CorruptFileError, match="job-1"):
            store.get_and_lock("job-1")
        assert [name for _, name in store.get_all_and_lock()] == ["job-2"]
        assert store.release_and_try_remove("job-1") is True
        assert store_backend.pointer_names() == ["job-2"]

    def test_a_damaged_pointer_may_be_overwritten_where_it_counts_as_absent(
        self, store_backend: StateHandleStoreBackend, store: Store
    ) -> None:
        store.add_and_lock("job-1", "one")
        store.release_all()
        store_backend.write_pointer("job-1", b"{}")
        if store_backend.overwrites_damage:
            assert not store.exists("job-1").is_existing()
            store.add_and_lock("job-1", "again")
            assert store.get_and_lock("job-1").retrieve_state() == "again"
        else:
            with pytest.raises(AlreadyExistError):
                store.add_and_lock("job-1", "again")

    def test_a_pointer_of_a_newer_version_is_refused_and_kept(
        self, store_backend: StateHandleStoreBackend, storage: FlakyStorage, store: Store
    ) -> None:
        store.add_and_lock("job-1", "one")
        store.release_all()
        written = store_backend.read_pointer("job-1")
        assert written is not None
        body = json.loads(written)
        newer = encode_document(body["kind"], 99, {"handle": body["handle"], "surprise": True})
        store_backend.write_pointer("job-1", newer)
        for refused in (
            lambda: store.get_and_lock("job-1"),
            store.get_all_and_lock,
            lambda: store.release_and_try_remove("job-1"),
        ):
            with pytest.raises(FormatVersionError, match="job-1"):
                refused()
        assert len(storage.files) == 1
        assert store_backend.read_pointer("job-1") == newer

    # Lost answers.

    @pytest.mark.parametrize("moment", [FaultMoment.REFUSED, FaultMoment.SILENT, FaultMoment.LOST])
    def test_an_add_with_an_unknown_outcome_discards_nothing(
        self, store_backend: StateHandleStoreBackend, storage: FlakyStorage, store: Store, moment: FaultMoment
    ) -> None:
        store_backend.strike(store, moment)
        try:
            store.add_and_lock("job-1", "plan")
            outcome = "added"
        except PossibleInconsistentStateError:
            outcome = "unknown"
        except HoldfastError:
            outcome = "failed"
        store_backend.spare(store)
        present = store.exists("job-1").is_existing()
        if outcome == "added":
            assert present
        if outcome == "failed":
            assert moment is not FaultMoment.LOST
            assert not present
            assert storage.files == []
        if outcome == "unknown":
            assert moment is not FaultMoment.REFUSED
            assert len(storage.files) == 1
        if present:
            assert store.get_and_lock("job-1").retrieve_state() == "plan"

    @pytest.mark.parametrize("moment", [FaultMoment.REFUSED, FaultMoment.SILENT, FaultMoment.LOST])
    def test_a_replacement_with_an_unknown_outcome_discards_nothing(
        self, store_backend: StateHandleStoreBackend, storage: FlakyStorage, store: Store, moment: FaultMoment
    ) -> None:
        store.add_and_lock("job-1", "old")
        version = store.exists("job-1")
        store_backend.strike(store, moment)
        try:
            store.replace("job-1", version, "new")
            expected, files = {"new"}, 1
        except PossibleInconsistentStateError:
            assert moment is not FaultMoment.REFUSED
            expected, files = {"old", "new"}, 2
        except HoldfastError:
            assert moment is not FaultMoment.LOST
            expected, files = {"old"}, 1
        store_backend.spare(store)
        assert store.get_and_lock("job-1").retrieve_state() in expected
        assert len(storage.files) == files

    @pytest.mark.parametrize("moment", [FaultMoment.REFUSED, FaultMoment.SILENT, FaultMoment.LOST])
    @pytest.mark.parametrize("after", [0, 1, 2])
    def test_a_removal_with_an_unknown_outcome_can_be_repeated(
        self,
        store_backend: StateHandleStoreBackend,
        storage: FlakyStorage,
        store: Store,
        moment: FaultMoment,
        after: int,
    ) -> None:
        store.add_and_lock("job-1", "plan")
        store_backend.strike(store, moment, after)
        try:
            assert store.release_and_try_remove("job-1") is True
        except HoldfastError:
            if store.exists("job-1").is_existing():
                assert store.get_and_lock("job-1").retrieve_state() == "plan"
        store_backend.spare(store)
        assert store.release_and_try_remove("job-1") is True
        assert storage.files == []
        assert store_backend.pointer_names() == []

    def test_any_history_of_writes_crashes_and_lost_answers_keeps_the_promises(
        self, store_backend: StateHandleStoreBackend, tmp_path: Path
    ) -> None:
        """Compares two-phase deletion and all other operations with a model, step by step (Hypothesis)."""
        run_state_machine_as_test(
            lambda: StateHandleStoreMachine(store_backend, tmp_path),  # type: ignore[arg-type]  # any factory does
            settings=settings(
                max_examples=self.machine_examples,
                stateful_step_count=self.machine_steps,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )


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
    """The tests that every state handle store must pass. Derive a test class and override the fixture `store_backend`.

    >>> class TestMyStore(StateHandleStoreContract):
    ...     @pytest.fixture
    ...     def store_backend(self):
    ...         yield MyStoreBackend()
    """

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
