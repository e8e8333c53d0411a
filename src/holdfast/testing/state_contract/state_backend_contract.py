"""The contract of state backends as a pytest class, `StateBackendContract`, and a model test by Hypothesis."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from holdfast.state.backend import StateBackend
from holdfast.state.descriptor import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.state.version import STATE_CACHE, StateCache
from holdfast.testing.state_contract.state_access_contract import (
    Mean,
    StateAccessContract,
    StateEpochs,
    StateRegistrationContract,
    StateTask,
    WindowSerializer,
)
from holdfast.testing.state_contract.state_collection_contract import StateCollectionContract, StateExpiryContract
from holdfast.testing.state_contract.state_evolution_contract import StateEvolutionContract, StateRedeclarationContract
from holdfast.testing.state_contract.state_version_contract import (
    CollidingKeyCodec,
    StateTimerContract,
    StateVersionContract,
)

KEYS = [f"{number}{'x' * (number % 2)}" for number in range(5)]
WINDOWS = WindowSerializer()
_SHARED_MEMORY = Path("/dev/shm")
NAMES = ["value", "default", "list", "map", "sum", "mean", "path"]
keys = st.sampled_from(KEYS)
numbers = st.integers(-1, 2)
windows = st.integers(1, 3)
writes = st.one_of(
    st.tuples(st.just("update"), keys, st.tuples(st.none() | numbers)),
    st.tuples(st.just("add"), keys, st.tuples(numbers)),
    st.tuples(st.just("add_all"), keys, st.tuples(st.lists(numbers, max_size=3))),
    st.tuples(st.just("replace"), keys, st.tuples(st.lists(numbers, max_size=3))),
    st.tuples(st.just("put"), keys, st.tuples(numbers, st.none() | st.lists(numbers, max_size=2))),
    st.tuples(st.just("remove"), keys, st.tuples(numbers)),
    st.tuples(st.just("add_to_window"), keys, st.tuples(windows, numbers)),
    st.tuples(st.just("merge_windows"), keys, st.tuples(windows, windows)),
    st.tuples(st.just("clear"), keys, st.tuples(st.sampled_from(NAMES))),
    st.tuples(st.just("clear_window"), keys, st.tuples(windows)),
)

Write = tuple[str, str, tuple[Any, ...]]
Model = dict[tuple[str, str], Any]


def _descriptors() -> dict[str, Any]:
    return {
        "value": ValueStateDescriptor("value", "bigint"),
        "default": ValueStateDescriptor("default", None, [0]),
        "list": ListStateDescriptor("list", "bigint"),
        "map": MapStateDescriptor("map", "bigint", "array<bigint>"),
        "sum": ReducingStateDescriptor("sum", lambda a, b: a + b, "bigint"),
        "mean": AggregatingStateDescriptor("mean", Mean(), "array<bigint>"),
        "path": FoldingStateDescriptor("path", "", lambda path, step: f"{path}{step}", "string"),
        "window": ListStateDescriptor("window", "bigint"),
    }


class StateBackendMachine(RuleBasedStateMachine):
    """A Hypothesis state machine: it writes all kinds of state, ends epochs in all ways, and compares with a model."""

    def __init__(self, backend: StateBackend, directory: Path, between_epochs: Callable[[], None]) -> None:
        super().__init__()
        STATE_CACHE.clear()
        self._between_epochs = between_epochs
        # In shared memory if there is any: a thousand epochs would wait for a disk.
        self._directory = tempfile.mkdtemp(
            prefix="holdfast-", dir=_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else directory
        )
        self._epochs = StateEpochs(backend, self._directory, codec=CollidingKeyCodec(), max_parallelism=6)
        self._descriptors = _descriptors()
        self._tasks: dict[int, StateTask] = {}
        self._other_process = StateCache()
        # Content of the version; of the current epoch; and all completed versions with their content.
        self._model: Model = {}
        self._working: Model = {}
        self._history: list[tuple[Any, Model]] = [(self._epochs.version, {})]

    def teardown(self) -> None:
        """Delete the runs."""
        for task in self._tasks.values():
            self._epochs.fail(task)
        shutil.rmtree(self._directory)

    def _handle(self, key: str, name: str, window: int = 0) -> Any:
        subtask = self._epochs.subtask_of(key)
        if subtask not in self._tasks:
            self._tasks[subtask] = self._epochs.open(subtask)
        task = self._tasks[subtask]
        if name == "window":
            return task.state(key, self._descriptors[name], window, WINDOWS)
        return task.state(key, self._descriptors[name])

    @initialize(parallelism=st.sampled_from([1, 2, 6]))
    def begin(self, parallelism: int) -> None:
        self._epochs.parallelism = parallelism

    # Work of an epoch.

    @rule(
        before=st.sets(keys),
        writes=st.lists(writes, max_size=10),
        after=st.sets(keys),
        ending=st.sampled_from(["complete"] * 6 + ["abandon", "abandon", "fail", "fail late"]),
    )
    def epoch(self, before: set[str], writes: list[Write], after: set[str], ending: str) -> None:
        """Read, write and read again, then end the epoch in some way."""
        self._run_epoch(before, writes, after, ending)

    def _run_epoch(self, before: set[str], writes: list[Write], after: set[str], ending: str) -> None:
        for key in sorted(before):
            self._compare(key)
        for kind, key, arguments in writes:
            getattr(self, f"_{kind}")(key, *arguments)
            for task in self._tasks.values():
                task.backend.release()
        for key in sorted(after):
            self._compare(key)
        if ending == "complete":
            self._complete()
        else:
            self._give_up(ending)

    @rule(parallelism=st.sampled_from([1, 1, 2, 3, 6]))
    def rescale(self, parallelism: int) -> None:
        """Continue at another parallelism."""
        self._epochs.parallelism = parallelism

    @rule()
    def go_to_another_process(self) -> None:
        """Continue in a process that still has the caches of its last epoch."""
        STATE_CACHE.swap(self._other_process)

    @rule(back=st.integers(1, 3))
    def go_back(self, back: int) -> None:
        """Continue from an older version."""
        self._epochs.version, self._model = self._history[max(0, len(self._history) - 1 - back)]
        self._working = copy.deepcopy(self._model)

    @rule()
    def read_everything(self) -> None:
        """Compare all keys, in an epoch that changes nothing."""
        self._run_epoch(set(KEYS), [], set(), "complete")

    def _update(self, key: str, number: int | None) -> None:
        self._handle(key, "value").update(number)
        self._handle(key, "default").update(None if number is None else [number])
        for name, value in (("value", number), ("default", [number])):
            if number is None:
                self._working.pop((name, key), None)
            else:
                self._working[name, key] = value

    def _add(self, key: str, number: int) -> None:
        for name in ("list", "sum", "mean", "path"):
            self._handle(key, name).add(number)
            self._working.setdefault((name, key), []).append(number)

    def _add_all(self, key: str, several: list[int]) -> None:
        self._handle(key, "list").add_all(several)
        if several:
            self._working.setdefault(("list", key), []).extend(several)

    def _replace(self, key: str, several: list[int]) -> None:
        self._handle(key, "list").update(several)
        self._working[("list", key)] = list(several)

    def _put(self, key: str, entry: int, value: Any) -> None:
        self._handle(key, "map").put(entry, value)
        self._working.setdefault(("map", key), {})[entry] = value

    def _remove(self, key: str, entry: int) -> None:
        self._handle(key, "map").remove(entry)
        self._working.get(("map", key), {}).pop(entry, None)

    def _add_to_window(self, key: str, window: int, number: int) -> None:
        self._handle(key, "window", window).add(number)
        self._working.setdefault((f"window {window}", key), []).append(number)

    def _merge_windows(self, key: str, into: int, source: int) -> None:
        if into != source:
            self._handle(key, "window", into).merge_namespaces(into, [source])
            moved = self._working.pop((f"window {source}", key), [])
            self._working.setdefault((f"window {into}", key), []).extend(moved)

    def _clear(self, key: str, name: str) -> None:
        self._handle(key, name).clear()
        self._working.pop((name, key), None)

    def _clear_window(self, key: str, window: int) -> None:
        self._handle(key, "window", window).clear()
        self._working.pop((f"window {window}", key), None)

    def _compare(self, key: str) -> None:
        working = self._working
        assert self._handle(key, "value").value() == working.get(("value", key))
        assert self._handle(key, "default").value() == working.get(("default", key), [0])
        added = {name: working.get((name, key), []) for name in ("list", "sum", "mean", "path")}
        assert list(self._handle(key, "list").get()) == added["list"]
        assert self._handle(key, "sum").get() == (sum(added["sum"]) if added["sum"] else None)
        mean = added["mean"]
        assert self._handle(key, "mean").get() == (sum(mean) / len(mean) if mean else None)
        assert self._handle(key, "path").get() == ("".join(map(str, added["path"])) or None)
        entries = working.get(("map", key), {})
        state = self._handle(key, "map")
        assert dict(state.items()) == entries
        assert state.is_empty() == (not entries)
        for entry in range(-1, 3):
            assert state.contains(entry) == (entry in entries)
        for window in (1, 2, 3):
            assert list(self._handle(key, "window", window).get()) == working.get((f"window {window}", key), [])

    # The end of an epoch.

    def _complete(self) -> None:
        for task in self._tasks.values():
            self._epochs.succeed(task)
        self._tasks.clear()
        self._epochs.complete()
        self._model = self._working
        self._working = copy.deepcopy(self._model)
        self._history.append((self._epochs.version, self._model))
        self._between_epochs()

    def _give_up(self, ending: str) -> None:
        """End an epoch that is not completed: all tasks fail, or all succeed and are discarded."""
        for task in self._tasks.values():
            if ending == "abandon":
                self._epochs.succeed(task)
            else:
                self._epochs.fail(task, after_flush=ending == "fail late")
        self._tasks.clear()
        self._epochs.abandon()
        self._working = copy.deepcopy(self._model)
        self._between_epochs()


@pytest.mark.timeout(300)
class StateBackendContract(
    StateAccessContract,
    StateCollectionContract,
    StateRegistrationContract,
    StateVersionContract,
    StateTimerContract,
    StateExpiryContract,
    StateEvolutionContract,
    StateRedeclarationContract,
):
    """The tests that every state backend must pass. Derive a test class and override the fixture `state_backend`.

    Override `between_epochs` as well to lose what the process has cached.

    >>> class TestMyStateBackend(StateBackendContract):
    ...     @pytest.fixture
    ...     def state_backend(self):
    ...         return MyStateBackend()
    """

    # How many histories the state machine tries, and how long each is.
    machine_examples = 150
    machine_steps = 20

    @pytest.fixture
    def state_backend(self) -> StateBackend:
        """Return the backend under test."""
        pytest.skip("derive from StateBackendContract and override the fixture state_backend")

    def between_epochs(self) -> None:
        """Run after each epoch; override it to clear what the process has cached."""
        return

    @pytest.fixture
    def epochs(self, state_backend: StateBackend, tmp_path: Path) -> StateEpochs:
        """Return an operator with string keys and one subtask."""
        return StateEpochs(state_backend, str(tmp_path), after=self.between_epochs)

    def test_every_history_ends_as_in_plain_dicts(self, state_backend: StateBackend, tmp_path: Path) -> None:
        """Any mix of all kinds of state, failures, abandoned epochs, returns to older versions and rescaling."""

        def machine() -> StateBackendMachine:
            return StateBackendMachine(state_backend, tmp_path, self.between_epochs)

        run_state_machine_as_test(
            cast("type[StateBackendMachine]", machine),
            settings=settings(
                max_examples=self.machine_examples,
                stateful_step_count=self.machine_steps,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                print_blob=True,
            ),
        )
