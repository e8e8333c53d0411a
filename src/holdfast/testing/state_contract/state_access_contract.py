"""The part of the contract of state backends that is about reading and writing state of a key."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, cast

import pytest

from holdfast.errors import NullKeyError, OutputTypeError, StateError
from holdfast.state.backend import BACKEND_MEMO_KEY
from holdfast.state.declaration.descriptor import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.state.declaration.function import AggregateFunction
from holdfast.testing.state_contract.state_epochs import StateEpochs, StateTask
from holdfast.types.row import Row
from holdfast.types.serializer import TypeSerializer

COUNT = ValueStateDescriptor[Any]("count", "bigint")
ANYTHING = ValueStateDescriptor[Any]("anything")
DEFAULTED = ValueStateDescriptor[Any]("defaulted", "array<bigint>", [7])
LIST = ListStateDescriptor[Any]("list", "string")
LISTS = ListStateDescriptor[Any]("lists", "array<bigint>")
MAP = MapStateDescriptor[Any, Any]("map", "string", "bigint")
UNTYPED_MAP = MapStateDescriptor[Any, Any]("untyped-map")
SUM = ReducingStateDescriptor[Any]("sum", lambda a, b: a + b, "bigint")


class Mean(AggregateFunction):
    """Has a list as its accumulator and changes it in place."""

    def create_accumulator(self) -> Any:
        return [0, 0]

    def add(self, value: Any, accumulator: Any) -> Any:
        accumulator[0] += value
        accumulator[1] += 1
        return accumulator

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return [acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]]


MEAN = AggregatingStateDescriptor[Any, Any, Any]("mean", Mean(), "array<bigint>")
PATH = FoldingStateDescriptor[Any, Any]("path", "start", lambda path, step: f"{path}/{step}", "string")


class Reversed(TypeSerializer[str]):
    """A serializer of a user's own."""

    def serialize(self, value: str) -> bytes:
        return value[::-1].encode()

    def deserialize(self, data: bytes) -> str:
        return data.decode()[::-1]


# Type, a value, and what is read back where that is not the value itself.
VALUES: list[tuple[Any, Any, Any]] = [
    ("boolean", True, True),
    ("tinyint", -128, -128),
    ("smallint", 32767, 32767),
    ("int", -(2**31), -(2**31)),
    ("bigint", 2**63 - 1, 2**63 - 1),
    ("float", 0.1, 0.10000000149011612),
    ("double", 0.1, 0.1),
    ("double", 3, 3.0),
    ("decimal(10,2)", Decimal("1.5"), Decimal("1.50")),
    ("string", "tide 🌊", "tide 🌊"),
    ("char(4)", "ab", "ab  "),
    ("binary", b"\x00\xff", b"\x00\xff"),
    ("date", date(1969, 12, 31), date(1969, 12, 31)),
    ("timestamp", datetime(2013, 1, 1, 5), datetime(2013, 1, 1, 5, tzinfo=UTC)),
    ("timestamp_ntz", datetime(2013, 1, 1, 5), datetime(2013, 1, 1, 5)),
    (time, time(1, 2, 3, 4), time(1, 2, 3, 4)),
    (timedelta, timedelta(days=-1, microseconds=5), timedelta(days=-1, microseconds=5)),
    ("array<int>", [1, None, 3], [1, None, 3]),
    ("map<string, array<int>>", {"a": [1], "b": None}, {"a": [1], "b": None}),
    ("a int, b string", Row(a=1, b="x"), Row(a=1, b="x")),
    ("a int, b string", (1, "x"), Row(a=1, b="x")),
    ("a double, b array<string>", {"a": 1, "b": ["x"]}, Row(a=1.0, b=["x"])),
    (tuple[int, str], (1, "x"), (1, "x")),
    (Reversed(), "forth", "forth"),
    (None, {"any": {1, 2}}, {"any": {1, 2}}),
    (None, 5, 5),
    (None, Row(a=1), Row(a=1)),
]


class StateAccessContract:
    """Reading and writing state of a key."""

    # Values.

    def test_an_absent_value_is_none_or_the_default(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            assert task.state("a", COUNT).value() is None
            assert task.state("a", DEFAULTED).value() == [7]

    def test_a_value_is_there_in_its_epoch_and_later(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            state = task.state("a", COUNT)
            state.update(5)
            assert state.value() == 5
            assert task.state("b", COUNT).value() is None
        with epochs.epoch() as task:
            assert task.state("a", COUNT).value() == 5
            assert task.state("b", COUNT).value() is None

    @pytest.mark.parametrize("clear", ["clear", "update"])
    def test_clearing_and_none_make_a_value_absent(self, epochs: StateEpochs, clear: str) -> None:
        with epochs.epoch() as task:
            task.state("a", DEFAULTED).update([1])
            task.state("b", DEFAULTED).update([2])
        with epochs.epoch() as task:
            state = task.state("a", DEFAULTED)
            arguments = [] if clear == "clear" else [None]
            getattr(state, clear)(*arguments)
            assert state.value() == [7]
            getattr(task.state("never", DEFAULTED), clear)(*arguments)
        with epochs.epoch() as task:
            assert task.state("a", DEFAULTED).value() == [7]
            assert task.state("b", DEFAULTED).value() == [2]

    def test_a_default_is_a_copy_and_is_not_kept(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            task.state("a", DEFAULTED).value().append(8)
            assert task.state("a", DEFAULTED).value() == [7]
        newer = ValueStateDescriptor[Any]("defaulted", "array<bigint>", [1, 2])
        with epochs.epoch() as task:
            assert task.state("a", newer).value() == [1, 2]

    @pytest.mark.parametrize(("type_info", "value", "expected"), VALUES, ids=lambda item: str(item)[:30])
    def test_a_value_reads_the_same_at_once_and_after_a_restart(
        self, epochs: StateEpochs, type_info: Any, value: Any, expected: Any
    ) -> None:
        states: list[tuple[Any, Any, Any]] = [
            (ValueStateDescriptor("v", type_info), lambda s: s.update(value), lambda s: s.value()),
            (ListStateDescriptor("l", type_info), lambda s: s.add(value), lambda s: next(iter(s.get()))),
            (MapStateDescriptor("m", "int", type_info), lambda s: s.put(1, value), lambda s: s.get(1)),
        ]
        for restart in range(2):
            with epochs.epoch() as task:
                for descriptor, write, read in states:
                    state = task.state("a", descriptor)
                    if not restart:
                        write(state)
                    assert read(state) == expected
                    assert type(read(state)) is type(expected)

    @pytest.mark.parametrize("descriptor", [ANYTHING, ValueStateDescriptor("declared", "array<bigint>")])
    def test_nobody_can_change_a_value_from_outside(self, epochs: StateEpochs, descriptor: Any) -> None:
        with epochs.epoch() as task:
            given = [1]
            state = task.state("a", descriptor)
            state.update(given)
            given.append(2)
            state.value().append(3)
            assert state.value() == [1]
        with epochs.epoch() as task:
            task.state("a", descriptor).value().append(4)
        with epochs.epoch() as task:
            assert task.state("a", descriptor).value() == [1]

    @pytest.mark.parametrize(
        ("descriptor", "write"),
        [
            (COUNT, lambda state: state.update("three")),
            (COUNT, lambda state: state.update(2**63)),
            (ValueStateDescriptor("rows", "a int"), lambda state: state.update(Row(b=1))),
            (ValueStateDescriptor("arrays", "array<int>"), lambda state: state.update([1, "x"])),
            (LIST, lambda state: state.add_all(["x", 5])),
            (MAP, lambda state: state.put("entry", "three")),
            (MAP, lambda state: state.put(5, 5)),
            (MapStateDescriptor("m", "tinyint"), lambda state: state.put(1000, 5)),
            (SUM, lambda state: state.add("three")),
        ],
    )
    def test_a_value_that_does_not_fit_is_refused_by_the_names_of_state_and_key(
        self, epochs: StateEpochs, descriptor: Any, write: Any
    ) -> None:
        task = epochs.open()
        task.state("fine", COUNT).update(1)
        with pytest.raises(OutputTypeError) as error:
            write(task.state("the key", descriptor))
            epochs.succeed(task)
        epochs.fail(task)
        assert repr(descriptor.name) in str(error.value)
        assert "'the key'" in str(error.value)
        assert error.value.uid == "operator"

    # Handles.

    def test_a_name_is_one_state_of_one_kind(self, epochs: StateEpochs) -> None:
        with epochs.task() as task:
            assert task.state("a", COUNT) is task.state("b", COUNT)
            with pytest.raises(StateError, match="count"):
                task.state("a", ListStateDescriptor("count", "bigint"))

    def test_without_a_current_key_there_is_no_state(self, epochs: StateEpochs) -> None:
        task = epochs.open()
        state = task.backend.get_state(COUNT)
        for use in (state.value, lambda: state.update(1), state.clear, task.backend.get_current_key):
            with pytest.raises(StateError, match="no current key"):
                use()
        with pytest.raises(NullKeyError):
            task.backend.set_current_key(None)
        epochs.fail(task)

    def test_a_deep_copy_moves_to_another_backend(self, epochs: StateEpochs) -> None:
        """As in a function that was opened once and is copied for each task."""
        template = epochs.new_backend()
        handles: dict[str, Any] = {"count": template.get_state(COUNT), "map": [template.get_map_state(MAP)]}
        for expected in (None, 1, 2):
            with epochs.epoch() as task:
                bound = copy.deepcopy(handles, cast(Any, {BACKEND_MEMO_KEY: task.backend}))
                task.backend.set_current_key("a")
                assert bound["count"].value() == expected
                bound["count"].update((expected or 0) + 1)
                bound["map"][0].put("x", expected)
                assert task.backend.get_state(COUNT) is bound["count"]

    def test_a_handle_cannot_be_pickled(self, epochs: StateEpochs) -> None:
        with epochs.task() as task, pytest.raises(StateError, match=r"open\(\)"):
            pickle.dumps(task.state("a", COUNT))

    def test_a_handle_of_a_task_that_has_ended_is_of_no_use(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            state = task.state("a", COUNT)
        with pytest.raises(StateError, match="ended"):
            state.value()

    def test_the_current_key_is_what_slots_stand_for(self, epochs: StateEpochs) -> None:
        with epochs.epoch() as task:
            keys = ["a", "b", "a", "c", "a"]
            state = task.backend.get_state(COUNT)
            for key, slot in zip(keys, task.prepare(keys), strict=True):
                task.backend.slot = slot
                assert task.backend.get_current_key() == key
                state.update((state.value() or 0) + 1)
        with epochs.epoch() as task:
            assert self._values(task, ["a", "b", "c", "d"]) == [3, 1, 1, None]

    @staticmethod
    def _values(task: StateTask, keys: list[str]) -> list[Any]:
        return [task.state(key, COUNT).value() for key in keys]
