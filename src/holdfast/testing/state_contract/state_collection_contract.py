"""The contract of state backends: lists, maps, combining states, and time to live."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from holdfast.errors import ConfigurationError, OutputTypeError, StateError
from holdfast.state.descriptor import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.testing.state_contract.state_access_contract import LIST, MAP, MEAN, PATH, SUM, Mean, StateEpochs
from holdfast.types.row import Row

LISTS = ListStateDescriptor[Any]("lists", "array<bigint>")
UNTYPED_MAP = MapStateDescriptor[Any, Any]("untyped-map")


class StateCollectionContract:
    """Tests of lists, maps, and states that combine elements."""

    # Lists.

    def test_a_list_keeps_order_over_epochs(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            state = task.state("a", LIST)
            assert list(state.get()) == []
            state.add("one")
            state.add_all(["two", "three"])
        with epochs.epoch() as task:
            state = task.state("a", LIST)
            state.add("four")
            state.add_all([])
            assert list(state.get()) == ["one", "two", "three", "four"]
        with epochs.epoch() as task:
            assert list(task.state("a", LIST).get()) == ["one", "two", "three", "four"]
            task.state("a", LIST).update(["new"])
            task.state("a", LIST).add("newer")
        with epochs.epoch() as task:
            assert list(task.state("a", LIST).get()) == ["new", "newer"]

    def test_an_empty_update_clears_a_list_and_adding_nothing_makes_none(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            task.state("a", LIST).update(["x"])
            task.state("b", LIST).add_all([])
            assert task.backend.num_key_value_state_entries() == 1
        with epochs.epoch() as task:
            task.state("a", LIST).update([])
            assert task.backend.num_key_value_state_entries() == 0
        with epochs.epoch() as task:
            assert list(task.state("a", LIST).get()) == []
            assert task.backend.num_key_value_state_entries() == 0

    def test_none_is_no_element_and_refusing_it_changes_nothing(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            state = task.state("a", LIST)
            state.add("x")
            with pytest.raises(StateError):
                state.add(None)
            for refused in (None, ["y", None]):
                with pytest.raises(StateError):
                    state.add_all(refused)
                with pytest.raises(StateError):
                    state.update(refused)
            assert list(state.get()) == ["x"]

    def test_a_list_that_was_read_is_not_the_state(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            plain, nested = task.state("a", LIST), task.state("a", LISTS)
            plain.add("x")
            nested.add([1])
            plain.get().append("y")
            nested.get()[0].append(2)
            for element in plain.get():
                plain.add(element)
            assert list(plain.get()) == ["x", "x"]
            assert list(nested.get()) == [[1]]

    # Maps.

    def test_a_map_is_a_map_over_epochs(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            state = task.state("a", MAP)
            assert state.is_empty()
            assert list(state.keys()) == list(state.values()) == list(state.items()) == list(state) == []
            assert state.get("x") is None
            state.put("x", 1)
            state.put_all({"y": 2, "z": None})
        with epochs.epoch() as task:
            state = task.state("a", MAP)
            assert dict(state.items()) == {"x": 1, "y": 2, "z": None}
            state.remove("x")
            state.remove("never")
            state.put("y", 3)
            state.put("w", 4)
        with epochs.epoch() as task:
            state = task.state("a", MAP)
            assert sorted(state.keys()) == sorted(state) == ["w", "y", "z"]
            assert sorted(value for value in state.values() if value) == [3, 4]
            assert "y" in state
            assert not state.contains("x")

    def test_an_entry_may_have_no_value(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            task.state("a", MAP).put("x", None)
        with epochs.epoch() as task:
            state = task.state("a", MAP)
            assert state.contains("x")
            assert state.get("x") is None
            assert dict(state.items()) == {"x": None}
            assert not state.is_empty()

    def test_clearing_a_map_hides_older_entries_for_ever(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            task.state("a", MAP).put_all({"x": 1, "y": 2})
        with epochs.epoch() as task:
            task.state("a", MAP).clear()
            task.state("a", MAP).put("z", 3)
        with epochs.epoch() as task:
            assert dict(task.state("a", MAP).items()) == {"z": 3}

    def test_a_map_goes_with_its_last_entry(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            task.state("a", MAP).put("x", 1)
        with epochs.epoch() as task:
            task.state("a", MAP).remove("x")
            assert task.state("a", MAP).is_empty()
            assert task.backend.num_key_value_state_entries() == 0
        with epochs.epoch() as task:
            assert task.state("a", MAP).is_empty()

    def test_a_map_can_be_changed_while_it_is_read(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            state = task.state("a", MAP)
            state.put_all({"x": 1, "y": 2})
            for key, value in state.items():
                state.remove(key)
                state.put(key * 2, value)
            assert dict(state.items()) == {"xx": 1, "yy": 2}
            for entry in state.entries():
                assert entry == (entry.key, entry.value)
                before = entry.value
                assert entry.set_value(before * 10) == before
                assert entry.value == before * 10
            iterator = state.iterator()
            with pytest.raises(StateError):
                iterator.remove()
            gone = next(iterator)
            iterator.remove()
            with pytest.raises(StateError):
                iterator.remove()
            assert dict(state.items()) == dict({"xx": 10, "yy": 20}.items() - {gone})

    @pytest.mark.parametrize(
        ("key_type", "same", "other"),
        [
            ("string", ["a", "a"], "b"),
            ("bigint", [1, 1], 2),
            ("double", [0.0, -0.0, 0], 1.5),
            ("double", [float("nan"), float("nan")], 0.0),
            ("decimal(10,2)", [Decimal("1"), Decimal("1.00")], Decimal("2")),
            ("timestamp", [datetime(2020, 1, 1), datetime(2020, 1, 1, tzinfo=UTC)], datetime(2021, 1, 1, tzinfo=UTC)),
            ("a int, b string", [Row(a=1, b=None), (1, None)], (1, "x")),
            (None, [(1, "x"), (1, "x")], (True, "x")),
            (None, [1, 1], 1.0),
        ],
    )
    def test_keys_of_maps_are_the_same_if_their_canonical_bytes_are(
        self, epochs: StateEpochs, key_type: Any, same: list[Any], other: Any
    ) -> None:
        descriptor = MapStateDescriptor[Any, Any]("m", key_type, "bigint")
        with epochs.epoch() as task:
            for number, key in enumerate(same):
                task.state("a", descriptor).put(key, number)
        with epochs.epoch() as task:
            state = task.state("a", descriptor)
            assert [state.get(key) for key in same] == [len(same) - 1] * len(same)
            assert not state.contains(other)
            state.put(other, 5)
            assert len(list(state.keys())) == 2
            state.remove(same[0])
        with epochs.epoch() as task:
            assert dict(task.state("a", descriptor).items()) == {other: 5}

    def test_a_key_of_a_map_is_not_none_nor_anything(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            with pytest.raises(StateError):
                task.state("a", MAP).put(None, 1)
            with pytest.raises(StateError):
                task.state("a", MAP).put_all(None)
            with pytest.raises(OutputTypeError):
                task.state("a", UNTYPED_MAP).put(object(), 1)

    # Reducing, aggregating, folding.

    def test_elements_are_reduced(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            state = task.state("a", SUM)
            assert state.get() is None
            state.add(1)
            state.add(2)
            assert state.get() == 3
        with epochs.epoch() as task:
            task.state("a", SUM).add(4)
        with epochs.epoch() as task:
            assert task.state("a", SUM).get() == 7
            task.state("a", SUM).add(None)
            assert task.state("a", SUM).get() is None
        with epochs.epoch() as task:
            assert task.state("a", SUM).get() is None

    def test_the_first_element_is_not_reduced(self, epochs: StateEpochs) -> None:
        def never(first: Any, second: Any) -> Any:
            raise AssertionError

        with epochs.epoch() as task:
            task.state("a", ReducingStateDescriptor("r", never, "string")).add("x")

    def test_elements_are_aggregated(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            state = task.state("a", MEAN)
            assert state.get() is None
            state.add(1)
            state.add(2)
            assert state.get() == 1.5
        with epochs.epoch() as task:
            task.state("a", MEAN).add(6)
            task.state("b", MEAN).add(1)
        with epochs.epoch() as task:
            assert task.state("a", MEAN).get() == 3
            assert task.state("b", MEAN).get() == 1
            task.state("a", MEAN).clear()
            task.state("b", MEAN).add(None)
        with epochs.epoch() as task:
            assert task.state("a", MEAN).get() is None
            assert task.state("b", MEAN).get() is None

    def test_elements_are_folded(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            assert task.state("a", PATH).get() is None
            task.state("a", PATH).add(1)
        with epochs.epoch() as task:
            task.state("a", PATH).add(2)
            assert task.state("a", PATH).get() == "start/1/2"
        with epochs.epoch() as task:
            assert task.state("a", PATH).get() == "start/1/2"


TTL = 100
ON_READ = StateTtlConfig.new_builder(TTL).update_ttl_on_read_and_write()
SHOWING = StateTtlConfig.new_builder(TTL).return_expired_if_not_cleaned_up().disable_cleanup_in_background()


def expiring(descriptor: StateDescriptor[Any], builder: StateTtlConfig.Builder | None = None) -> Any:
    descriptor.enable_time_to_live((builder or StateTtlConfig.new_builder(TTL)).build())
    return descriptor


def kinds(builder: StateTtlConfig.Builder | None = None) -> list[Any]:
    """Return one state of each kind: its descriptor, functions that write and read it, and its content after."""
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
    """Tests of state with a time to live."""

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
    def test_a_very_long_time_to_live_never_ends(self, epochs: StateEpochs, ttl: Any) -> None:
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

    def test_expired_state_that_is_not_read_is_removed_at_a_snapshot(self, epochs: StateEpochs) -> None:
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
