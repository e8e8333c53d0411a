"""The part of the contract of state handle stores that is about damage, lost answers and crashes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.errors import (
    AlreadyExistError,
    CorruptFileError,
    FormatVersionError,
    HoldfastError,
    PossibleInconsistentStateError,
)
from holdfast.storage.handle.document import encode_document
from holdfast.testing.contract.state_handle_store_backend import (
    FaultMoment,
    FlakyStorage,
    StateHandleStoreBackend,
    Store,
)
from holdfast.testing.contract.state_handle_store_machine import StateHandleStoreMachine


class StateHandleStoreFaultContract:
    """What stores do when something goes wrong; :class:`StateHandleStoreContract` has it all."""

    # How many histories the state machine tries; slow backends try fewer.
    machine_examples = 60
    machine_steps = 25

    @pytest.fixture
    def store_backend(self) -> Iterator[StateHandleStoreBackend]:
        """The backend under test; the one fixture that a derived class gives."""
        raise RuntimeError("A class derived from StateHandleStoreContract gives the fixture store_backend.")

    @pytest.fixture
    def storage(self, tmp_path: Path) -> FlakyStorage:
        """Where the states go."""
        return FlakyStorage(tmp_path / "states")

    @pytest.fixture
    def store(self, store_backend: StateHandleStoreBackend, storage: FlakyStorage) -> Store:
        """A store that checks no leadership."""
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
            lambda: store.get_all_and_lock(),
            lambda: store.release_and_try_remove("job-1"),
        ):
            with pytest.raises(FormatVersionError, match="job-1"):
                refused()
        assert len(storage.files) == 1
        assert store_backend.read_pointer("job-1") == newer

    # Lost answers.

    @pytest.mark.parametrize("moment", [FaultMoment.REFUSED, FaultMoment.SILENT, FaultMoment.LOST])
    def test_an_add_whose_fate_is_unknown_discards_nothing(
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
    def test_a_replacement_whose_fate_is_unknown_discards_nothing(
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
    def test_a_removal_whose_fate_is_unknown_can_be_repeated(
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
        """Two-phase deletion and everything else, step by step, against a model (Hypothesis)."""
        run_state_machine_as_test(
            lambda: StateHandleStoreMachine(store_backend, tmp_path),  # type: ignore[arg-type]  # any factory does
            settings=settings(
                max_examples=self.machine_examples,
                stateful_step_count=self.machine_steps,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
