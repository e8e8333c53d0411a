"""Compaction changes no state: the contract of state backends, with runs merged between epochs."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from holdfast.state import HashMapStateBackend, StateBackend
from holdfast.state.version import STATE_CACHE
from holdfast.testing.state_contract import state_backend_contract
from holdfast.testing.state_contract.state_access_contract import StateEpochs
from holdfast.testing.state_contract.state_backend_contract import StateBackendContract, StateBackendMachine
from tests.contract.compacting import compact_layers, compact_some


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    STATE_CACHE.clear()
    yield
    STATE_CACHE.clear()


class TestEverythingCompacted(StateBackendContract):
    """After each epoch all runs become one for each subtask."""

    machine_examples = 1

    @pytest.fixture
    def state_backend(self) -> StateBackend:
        return HashMapStateBackend()

    @pytest.fixture
    def epochs(self, state_backend: StateBackend, tmp_path: Path) -> StateEpochs:
        def compact() -> None:
            compact_layers(epochs, 0, 1 << 30)

        epochs = StateEpochs(state_backend, str(tmp_path), after=compact)
        return epochs

    @pytest.mark.skip(reason="looks at the newest run as it was written")
    def test_expired_state_that_is_not_read_is_removed_at_a_snapshot(self, *_: object) -> None: ...

    @pytest.mark.skip(reason="looks at runs as they were written")
    def test_appends_are_written_as_what_was_added(self, *_: object) -> None: ...


class TestSomethingCompacted(StateBackendContract):
    """After each epoch some runs that stand together become one, read by processes that have kept something or not."""

    machine_examples = 1

    @pytest.fixture
    def state_backend(self) -> StateBackend:
        return HashMapStateBackend()

    @pytest.fixture
    def epochs(self, state_backend: StateBackend, tmp_path: Path) -> StateEpochs:
        rng = random.Random(5)  # of each test, so that its result does not depend on the tests before it

        def compact() -> None:
            compact_some(epochs, rng)
            if rng.random() < 0.4:
                STATE_CACHE.clear()

        epochs = StateEpochs(state_backend, str(tmp_path), after=compact)
        return epochs

    @pytest.mark.skip(reason="looks at the newest run as it was written")
    def test_expired_state_that_is_not_read_is_removed_at_a_snapshot(self, *_: object) -> None: ...

    @pytest.mark.skip(reason="looks at runs as they were written")
    def test_appends_are_written_as_what_was_added(self, *_: object) -> None: ...


class CompactingMachine(StateBackendMachine):
    """Histories in which runs are merged at any time."""

    @rule(start=st.integers(0, 3), count=st.integers(2, 6))
    def compact(self, start: int, count: int) -> None:
        """Merge some layers of each component, in the newest version and in what is remembered of it."""
        before = self._epochs.version
        compact_layers(self._epochs, start, start + count)
        self._history = [(self._epochs.version if v is before else v, model) for v, model in self._history]


class TestHistoriesWithCompactions(StateBackendContract):
    """The state machine over versions whose runs are merged meanwhile; caches follow, or notice that they cannot."""

    @pytest.fixture
    def state_backend(self) -> StateBackend:
        return HashMapStateBackend()

    @pytest.fixture(autouse=True)
    def compacting_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(state_backend_contract, "StateBackendMachine", CompactingMachine)
