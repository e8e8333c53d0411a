"""The contract of state backends over hashmap with and without its cache, columnar, and a user-defined backend."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.kernel.configuration import Configuration
from holdfast.state import ColumnarStateBackend, HashMapStateBackend, StateBackend, columnar, load_state_backend
from holdfast.state.hashmap import backend as keyed_backend
from holdfast.state.hashmap import columns
from holdfast.state.hashmap.backend import LoadedState
from holdfast.state.run_file import forget_runs
from holdfast.state.version import STATE_CACHE
from holdfast.testing.state_contract.state_backend_contract import StateBackendContract
from tests.examples import examples


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    STATE_CACHE.clear()
    yield
    STATE_CACHE.clear()


class TestWarmHashMap(StateBackendContract):
    machine_examples = examples(150)

    @pytest.fixture
    def state_backend(self) -> StateBackend:
        return HashMapStateBackend()


class TestColdHashMap(StateBackendContract):
    """Every epoch runs in a process that has never seen the operator."""

    @pytest.fixture
    def state_backend(self) -> StateBackend:
        return HashMapStateBackend()

    def between_epochs(self) -> None:
        STATE_CACHE.clear()
        forget_runs()


class TestForgetfulHashMap(StateBackendContract):
    """Epochs run in processes that have kept something, or have not."""

    rng = random.Random(5)

    @pytest.fixture
    def state_backend(self) -> StateBackend:
        return HashMapStateBackend()

    def between_epochs(self) -> None:
        if self.rng.random() < 0.4:
            STATE_CACHE.clear()


class TestColumnar(StateBackendContract):
    machine_examples = examples(150)

    @pytest.fixture
    def state_backend(self) -> StateBackend:
        return ColumnarStateBackend()


class TestColumnarWithLargeMaps(StateBackendContract):
    """Every map counts as a large one, so that its entries are read one by one."""

    @pytest.fixture
    def state_backend(self, monkeypatch: pytest.MonkeyPatch) -> StateBackend:
        monkeypatch.setattr(columnar, "_SMALL_MAP", 0)
        return ColumnarStateBackend()


def check_at_every_release(patch: pytest.MonkeyPatch) -> None:
    """Look for keys, namespaces and entries that have come and gone as often as possible."""
    forget = LoadedState.forget_undone_changes
    # It says that no change is left, so that the next check comes at once.
    patch.setattr(LoadedState, "forget_undone_changes", lambda store: forget(store) * 0)
    patch.setattr(keyed_backend, "_ELEMENTS_BETWEEN_CHECKS", 0)
    patch.setattr(columns, "_CELLS_BETWEEN_CHECKS", 0)
    patch.setattr(columns, "_FEW_ENTRIES", 0)


class TestHashMapThatForgetsAtOnce(StateBackendContract):
    machine_examples = examples(150)

    @pytest.fixture
    def state_backend(self, monkeypatch: pytest.MonkeyPatch) -> StateBackend:
        check_at_every_release(monkeypatch)
        return HashMapStateBackend()


class TestColumnarThatForgetsAtOnce(StateBackendContract):
    @pytest.fixture
    def state_backend(self, monkeypatch: pytest.MonkeyPatch) -> StateBackend:
        check_at_every_release(monkeypatch)
        return ColumnarStateBackend()


class Alternating(HashMapStateBackend):
    """Every other task uses the other backend: they open each other's checkpoints."""

    def __init__(self) -> None:
        self.backends: list[StateBackend] = [HashMapStateBackend(), ColumnarStateBackend()]

    def create_keyed_state_backend(self, *arguments: Any) -> Any:
        self.backends.reverse()
        return self.backends[0].create_keyed_state_backend(*arguments)


class TestBackendsThatTakeTurns(StateBackendContract):
    @pytest.fixture
    def state_backend(self) -> StateBackend:
        return Alternating()


class TestUsersOwn(StateBackendContract):
    """A backend that is found by its class path."""

    machine_examples = examples(10)

    @pytest.fixture
    def state_backend(self) -> StateBackend:
        path = "tests.contract.plain_state_backend:PlainStateBackendFactory"
        return load_state_backend(Configuration({"state.backend.type": path}))
