"""The part of the contract of state backends that is about asking for state: names, types, namespaces."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import StateError, StateMigrationError
from holdfast.state.backend import StateBackend
from holdfast.state.declaration.descriptor import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.testing.state_contract.state_access_contract import COUNT, LIST, MEAN, SUM
from holdfast.testing.state_contract.state_epochs import StateEpochs
from holdfast.types.serializer import TypeSerializer


class WindowSerializer(TypeSerializer[int]):
    """Namespaces that are numbers."""

    def serialize(self, value: int) -> bytes:
        return value.to_bytes(8, "big")

    def deserialize(self, data: bytes) -> int:
        return int.from_bytes(data, "big")

    def is_immutable_type(self) -> bool:
        return True


class StateRegistrationContract:
    """Asking for state."""

    # Registration.

    def test_a_state_that_nobody_asks_for_is_carried_on(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            task.state("a", LIST).add("x")
            task.state("a", COUNT).update(1)
        for _ in range(3):
            with epochs.epoch() as task:
                task.state("a", COUNT).update(task.state("a", COUNT).value() + 1)
        with epochs.epoch() as task:
            assert list(task.state("a", LIST).get()) == ["x"]
            assert list(task.state("b", LIST).get()) == []
            assert task.state("a", COUNT).value() == 4

    def test_a_state_may_be_asked_for_late(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            task.state("a", LIST).add("x")
            task.state("b", LIST).add("y")
        with epochs.epoch() as task:
            task.state("a", COUNT).update(1)
            assert list(task.state("a", LIST).get()) == ["x"]
            assert list(task.state("b", LIST).get()) == ["y"]

    @pytest.mark.parametrize(
        "other",
        [
            ListStateDescriptor("count", "bigint"),
            ReducingStateDescriptor("count", lambda a, b: a, "bigint"),
            MapStateDescriptor("count", "string", "bigint"),
            ValueStateDescriptor("count", "string"),
        ],
        ids=repr,
    )
    def test_another_kind_or_type_under_a_name_is_refused(self, epochs: StateEpochs, other: Any) -> None:
        with epochs.epoch() as task:
            task.state("a", COUNT).update(1)
        task = epochs.open()
        with pytest.raises(StateMigrationError, match="count"):
            task.state("a", other)
        epochs.fail(task)
        assert epochs.values(["a"], COUNT) == [1]

    def test_other_keys_are_refused(self, epochs: StateEpochs, state_backend: StateBackend) -> None:
        with epochs.epoch() as task:
            task.state("a", COUNT).update(1)
        changes: list[dict[str, Any]] = [{"key_type": "bigint"}, {"max_parallelism": 16}]
        for change in changes:
            other = StateEpochs(state_backend, epochs.directory, **change)
            other.version = epochs.version
            with pytest.raises(StateMigrationError):
                other.open()

    # Namespaces.

    def test_namespaces_are_kept_apart_and_can_be_merged(self, epochs: StateEpochs) -> None:
        def at(task: Any, descriptor: Any, window: int) -> Any:
            return task.state("a", descriptor, window, WindowSerializer())

        with epochs.epoch() as task:
            for window in (1, 2, 3):
                at(task, LIST, window).add(f"w{window}")
                at(task, SUM, window).add(window)
                at(task, MEAN, window).add(window)
            at(task, LIST, 4)
            assert list(at(task, LIST, 1).get()) == ["w1"]
        with epochs.epoch() as task:
            assert [list(at(task, LIST, window).get()) for window in (1, 2, 3, 4)] == [["w1"], ["w2"], ["w3"], []]
            for descriptor in (LIST, SUM, MEAN):
                state = at(task, descriptor, 9)
                state.merge_namespaces(3, [])
                state.merge_namespaces(3, [7, 8])
                state.merge_namespaces(3, [2, 7, 1])
        with epochs.epoch() as task:
            assert [list(at(task, LIST, window).get()) for window in (1, 2, 3)] == [[], [], ["w3", "w2", "w1"]]
            assert [at(task, SUM, window).get() for window in (1, 2, 3)] == [None, None, 6]
            assert [at(task, MEAN, window).get() for window in (1, 2, 3)] == [None, None, 2]
            task.state("b", SUM, 5, WindowSerializer()).add(1)
            assert sorted(task.backend.get_keys_and_namespaces("sum")) == [("a", 3), ("b", 5)]
            assert list(task.backend.get_keys("sum", 5)) == ["b"]
            with pytest.raises(StateError):
                task.backend.get_partitioned_state(None, WindowSerializer(), SUM)

    def test_state_with_and_without_namespaces_is_not_the_same(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            task.state("a", SUM).add(1)
            with pytest.raises(StateError):
                task.state("a", SUM, 1, WindowSerializer())
        task = epochs.open()
        with pytest.raises(StateMigrationError):
            task.state("a", SUM, 1, WindowSerializer())
        epochs.fail(task)
