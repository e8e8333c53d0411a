"""The part of the contract of state backends that is about state with a time to live."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import ConfigurationError, StateError
from holdfast.state.declaration.descriptor import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from holdfast.state.declaration.ttl_config import StateTtlConfig
from holdfast.testing.state_contract.state_access_contract import Mean
from holdfast.testing.state_contract.state_epochs import StateEpochs

TTL = 100
ON_READ = StateTtlConfig.new_builder(TTL).update_ttl_on_read_and_write()
SHOWING = StateTtlConfig.new_builder(TTL).return_expired_if_not_cleaned_up().disable_cleanup_in_background()


def expiring(descriptor: StateDescriptor[Any], builder: StateTtlConfig.Builder | None = None) -> Any:
    """Let a state expire."""
    descriptor.enable_time_to_live((builder or StateTtlConfig.new_builder(TTL)).build())
    return descriptor


def kinds(builder: StateTtlConfig.Builder | None = None) -> list[Any]:
    """One state of each kind: descriptor, what writes a number, what reads it back as a list, its content after."""
    return [
        (
            expiring(ValueStateDescriptor("v", "bigint"), builder),
            lambda state, number: state.update(number),
            lambda state: [] if state.value() is None else [state.value()],
        ),
        (
            expiring(ListStateDescriptor("l"), builder),
            lambda state, number: state.add(number),
            lambda state: list(state.get()),
        ),
        (
            expiring(MapStateDescriptor("m", "bigint", "bigint"), builder),
            lambda state, number: state.put(number, number),
            lambda state: sorted(state.keys()),
        ),
        (
            expiring(ReducingStateDescriptor("r", lambda a, b: a + b, "bigint"), builder),
            lambda state, number: state.add(number),
            lambda state: [] if state.get() is None else [state.get()],
        ),
        (
            expiring(AggregatingStateDescriptor("a", Mean(), "array<bigint>"), builder),
            lambda state, number: state.add(number),
            lambda state: [] if state.get() is None else [state.get()],
        ),
        (
            expiring(FoldingStateDescriptor("f", 0, lambda a, b: a + b, "bigint"), builder),
            lambda state, number: state.add(number),
            lambda state: [] if state.get() is None else [state.get()],
        ),
    ]


class StateExpiryContract:
    """State with a time to live."""

    @pytest.mark.parametrize(("descriptor", "write", "read"), kinds(), ids=lambda item: getattr(item, "name", ""))
    def test_state_expires_after_its_last_write(
        self, epochs: StateEpochs, descriptor: Any, write: Any, read: Any
    ) -> None:
        with epochs.epoch() as task:
            assert read(task.state("a", descriptor)) == []
            write(task.state("a", descriptor), 5)
            assert read(task.state("a", descriptor)) == [5]
        epochs.processing_time = TTL - 1
        with epochs.epoch() as task:
            assert read(task.state("a", descriptor)) == [5]
        epochs.processing_time = TTL
        with epochs.epoch() as task:
            assert read(task.state("a", descriptor)) == []
        with epochs.epoch() as task:
            assert task.backend.num_key_value_state_entries() == 0
            assert read(task.state("a", descriptor)) == []

    @pytest.mark.parametrize(
        ("descriptor", "write", "read"), kinds(ON_READ), ids=lambda item: getattr(item, "name", "")
    )
    def test_reading_keeps_state_alive_if_it_is_to(
        self, epochs: StateEpochs, descriptor: Any, write: Any, read: Any
    ) -> None:
        with epochs.epoch() as task:
            write(task.state("a", descriptor), 5)
        for time in (60, 120, 180):
            epochs.processing_time = time
            with epochs.epoch() as task:
                assert read(task.state("a", descriptor)) == [5]
        epochs.processing_time = 280
        with epochs.epoch() as task:
            assert read(task.state("a", descriptor)) == []

    @pytest.mark.parametrize(
        ("descriptor", "write", "read"), kinds(SHOWING), ids=lambda item: getattr(item, "name", "")
    )
    def test_expired_state_may_be_shown_once(self, epochs: StateEpochs, descriptor: Any, write: Any, read: Any) -> None:
        with epochs.epoch() as task:
            write(task.state("a", descriptor), 5)
        epochs.processing_time = 500
        with epochs.epoch() as task:
            handle = task.state("a", descriptor)
            shown = {"v": "value", "m": "keys"}.get(descriptor.name, "get")
            found = getattr(handle, shown)()
            assert (found if isinstance(found, (int, float)) else next(iter(found))) == 5
            assert read(handle) == []

    @pytest.mark.parametrize("ttl", [2**63 - 1, 2**64, "300000000 d"])
    def test_a_time_to_live_longer_than_anybody_lives_never_ends(self, epochs: StateEpochs, ttl: Any) -> None:
        states = kinds(StateTtlConfig.new_builder(ttl))
        epochs.processing_time = 1_700_000_000_000
        with epochs.epoch() as task:
            for descriptor, write, _ in states:
                write(task.state("a", descriptor), 5)
        epochs.processing_time *= 100
        with epochs.epoch() as task:
            assert [read(task.state("a", descriptor)) for descriptor, _, read in states] == [[5]] * 6

    def test_writing_into_expired_state_starts_anew(self, epochs: StateEpochs) -> None:
        states = kinds()
        with epochs.epoch() as task:
            for descriptor, write, _ in states:
                write(task.state("a", descriptor), 5)
        epochs.processing_time = 150
        with epochs.epoch() as task:
            for descriptor, write, _ in states:
                write(task.state("a", descriptor), 7)
        epochs.processing_time = 200
        with epochs.epoch() as task:
            assert [read(task.state("a", descriptor)) for descriptor, _, read in states] == [[7]] * 6

    def test_elements_and_entries_expire_one_by_one(self, epochs: StateEpochs) -> None:
        (_, (lists, add, get), (maps, put, keys), *_) = kinds()
        for number, time in enumerate((0, 50, 90)):
            epochs.processing_time = time
            with epochs.epoch() as task:
                add(task.state("a", lists), number)
                put(task.state("a", maps), number)
                if number == 2:
                    task.state("a", maps).put(0, None)
        epochs.processing_time = 150
        with epochs.epoch() as task:
            assert get(task.state("a", lists)) == [2]
            assert keys(task.state("a", maps)) == [0, 2]
            assert task.state("a", maps).contains(0)
            assert not task.state("a", maps).contains(1)
        with epochs.epoch() as task:
            assert get(task.state("a", lists)) == [2]
            task.state("a", lists).update([8, 9])
            task.state("a", maps).put_all({1: 1, 3: 3})
            task.state("a", maps).remove(2)
        epochs.processing_time = 200
        with epochs.epoch() as task:
            assert get(task.state("a", lists)) == [8, 9]
            assert keys(task.state("a", maps)) == [1, 3]
            assert not task.state("a", maps).is_empty()
        epochs.processing_time = 300
        with epochs.epoch() as task:
            assert task.state("a", maps).is_empty()

    def test_what_nobody_reads_is_removed_at_a_snapshot(self, epochs: StateEpochs) -> None:
        states = kinds()
        with epochs.epoch() as task:
            for descriptor, write, _ in states:
                write(task.state("a", descriptor), 5)
        epochs.processing_time = 500
        with epochs.epoch() as task:
            for descriptor, _, _ in states:
                task.state("a", descriptor)
        deleted = epochs.version.runs[-1]
        assert deleted.rows == {"a": 1, "f": 1, "l": 1, "m": 1, "r": 1, "v": 1}
        with epochs.epoch() as task:
            assert [read(task.state("a", descriptor)) for descriptor, _, read in states] == [[]] * 6

    def test_values_that_can_change_are_copied_as_elsewhere(self, epochs: StateEpochs) -> None:
        descriptor = expiring(ValueStateDescriptor[Any]("v", None, [0]))
        with epochs.epoch() as task:
            given = [1]
            state = task.state("a", descriptor)
            assert state.value() == [0]
            state.update(given)
            given.append(2)
            state.value().append(3)
        with epochs.epoch() as task:
            assert task.state("a", descriptor).value() == [1]

    def test_another_duration_is_no_change(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            task.state("a", expiring(ValueStateDescriptor("v", "bigint"))).update(1)
        epochs.processing_time = 500
        longer = expiring(ValueStateDescriptor("v", "bigint"), StateTtlConfig.new_builder("1 s"))
        with epochs.epoch() as task:
            assert task.state("a", longer).value() == 1

    def test_expiring_state_is_not_queryable(self, epochs: StateEpochs) -> None:
        queryable = ValueStateDescriptor[Any]("q")
        queryable.set_queryable("name")
        with pytest.raises(StateError):
            queryable.set_queryable("again")
        with pytest.raises(ConfigurationError):
            expiring(queryable)
        with pytest.raises(ConfigurationError):
            expiring(ValueStateDescriptor("q")).set_queryable("name")
        with pytest.raises(ConfigurationError, match="positive"):
            StateTtlConfig.new_builder(0)
