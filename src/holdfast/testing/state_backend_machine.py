"""A Hypothesis state machine that compares a state backend with plain dicts over any history."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.state.backend import StateBackend
from holdfast.state.cache import STATE_CACHE
from holdfast.state.descriptor import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.testing.state_access_contract import Mean
from holdfast.testing.state_epochs import StateEpochs, StateTask
from holdfast.testing.state_registration_contract import WindowSerializer
from holdfast.testing.state_version_contract import CollidingKeyCodec

KEYS = [f"{number}{'x' * (number % 3)}" for number in range(9)]
WINDOWS = WindowSerializer()
keys = st.sampled_from(KEYS)
numbers = st.integers(-3, 3)

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
    """Writes to all kinds of state, ends epochs in all ways, and reads everything back."""

    def __init__(self, backend: StateBackend, directory: Path, between_epochs: Callable[[], None]) -> None:
        super().__init__()
        STATE_CACHE.clear()
        self._between_epochs = between_epochs
        self._directory = tempfile.mkdtemp(dir=directory)
        self._epochs = StateEpochs(backend, self._directory, codec=CollidingKeyCodec(), max_parallelism=6)
        self._descriptors = _descriptors()
        self._tasks: dict[int, StateTask] = {}
        # What the version has; what the epoch has made of it; and all completed versions with what they have.
        self._model: Model = {}
        self._working: Model = {}
        self._history: list[tuple[Any, Model]] = [(self._epochs.version, {})]

    def teardown(self) -> None:
        """Remove the runs."""
        self._abandon_tasks()
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
        """Choose the first parallelism."""
        self._epochs.parallelism = parallelism

    # Writing.

    @rule(key=keys, number=st.none() | numbers)
    def update_value(self, key: str, number: int | None) -> None:
        """Update both values, None clears."""
        self._handle(key, "value").update(number)
        self._handle(key, "default").update(None if number is None else [number])
        for name, value in (("value", number), ("default", [number])):
            if number is None:
                self._working.pop((name, key), None)
            else:
                self._working[name, key] = value

    @rule(key=keys, number=numbers)
    def add_everywhere(self, key: str, number: int) -> None:
        """Add to all states that take elements."""
        for name in ("list", "sum", "mean", "path"):
            self._handle(key, name).add(number)
            self._working.setdefault((name, key), []).append(number)

    @rule(key=keys, several=st.lists(numbers, max_size=4))
    def add_all(self, key: str, several: list[int]) -> None:
        """Append to a list."""
        self._handle(key, "list").add_all(several)
        if several:
            self._working.setdefault(("list", key), []).extend(several)

    @rule(key=keys, several=st.lists(numbers, max_size=3))
    def replace_list(self, key: str, several: list[int]) -> None:
        """Replace a list."""
        self._handle(key, "list").update(several)
        self._working[("list", key)] = list(several)

    @rule(key=keys, entry=numbers, value=st.none() | st.lists(numbers, max_size=2))
    def put(self, key: str, entry: int, value: Any) -> None:
        """Set an entry of a map."""
        self._handle(key, "map").put(entry, value)
        self._working.setdefault(("map", key), {})[entry] = value

    @rule(key=keys, entry=numbers)
    def remove(self, key: str, entry: int) -> None:
        """Remove an entry of a map."""
        self._handle(key, "map").remove(entry)
        self._working.get(("map", key), {}).pop(entry, None)

    @rule(key=keys, window=st.integers(1, 3), number=numbers)
    def add_to_window(self, key: str, window: int, number: int) -> None:
        """Append to a list in a namespace."""
        self._handle(key, "window", window).add(number)
        self._working.setdefault((f"window {window}", key), []).append(number)

    @rule(key=keys, into=st.integers(1, 3), source=st.integers(1, 3))
    def merge_windows(self, key: str, into: int, source: int) -> None:
        """Move a window's list behind another's."""
        if into != source:
            self._handle(key, "window", into).merge_namespaces(into, [source])
            moved = self._working.pop((f"window {source}", key), [])
            self._working.setdefault((f"window {into}", key), []).extend(moved)

    @rule(key=keys, name=st.sampled_from(["value", "default", "list", "map", "sum", "mean", "path"]))
    def clear(self, key: str, name: str) -> None:
        """Clear one state of a key."""
        self._handle(key, name).clear()
        self._working.pop((name, key), None)

    # Reading.

    @rule(key=keys)
    def read(self, key: str) -> None:
        """Compare all that a key has."""
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
        for entry in range(-3, 4):
            assert state.contains(entry) == (entry in entries)
        for window in (1, 2, 3):
            assert list(self._handle(key, "window", window).get()) == working.get((f"window {window}", key), [])

    # The end of an epoch.

    @rule(keep=st.booleans())
    def complete(self, keep: bool) -> None:
        """All tasks succeed and the epoch is completed."""
        for task in self._tasks.values():
            self._epochs.succeed(task, keep=keep)
        self._tasks.clear()
        self._epochs.complete()
        self._model = self._working
        self._working = copy.deepcopy(self._model)
        self._history.append((self._epochs.version, self._model))
        self._between_epochs()

    @rule(after_flush=st.booleans())
    def fail(self, after_flush: bool) -> None:
        """All tasks fail."""
        for task in self._tasks.values():
            self._epochs.fail(task, after_flush=after_flush)
        self._tasks.clear()
        self._start_again()

    @rule()
    def abandon(self) -> None:
        """All tasks succeed, but the epoch is not completed."""
        for task in self._tasks.values():
            self._epochs.succeed(task)
        self._tasks.clear()
        self._start_again()

    @rule(data=st.data())
    def go_back(self, data: st.DataObject) -> None:
        """Go on from an older version."""
        self._abandon_tasks()
        version, model = data.draw(st.sampled_from(self._history))
        self._epochs.version, self._model = version, model
        self._start_again()

    @precondition(lambda self: not self._tasks)
    @rule(parallelism=st.sampled_from([1, 2, 3, 6]))
    def rescale(self, parallelism: int) -> None:
        """Go on at another parallelism."""
        self._epochs.parallelism = parallelism

    @rule()
    def forget(self) -> None:
        """Lose what the process has kept."""
        STATE_CACHE.clear()

    @invariant()
    def models_do_not_share(self) -> None:
        """The model itself must not be changed by the epoch."""
        assert self._working is not self._model

    def _abandon_tasks(self) -> None:
        for task in self._tasks.values():
            self._epochs.fail(task)
        self._tasks.clear()

    def _start_again(self) -> None:
        self._epochs.abandon()
        self._working = copy.deepcopy(self._model)
        self._between_epochs()
