"""What a function has beside its fields belongs to the copy, too: fields in slots, and the functions of its states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.common import Time
from holdfast.datastream import AggregateFunction, KeyedProcessFunction
from holdfast.datastream.state import AggregatingStateDescriptor, ReducingStateDescriptor, StateTtlConfig
from holdfast.testing import OperatorHarness


class InSlots(KeyedProcessFunction):
    __slots__ = ("__hidden", "handlers", "never_set")

    def open(self, runtime_context: Any) -> None:
        self.__hidden = 0
        self.handlers = {"count": self.count}

    def count(self) -> int:
        return self.__hidden

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[int, int]]:
        self.__hidden += 1
        yield self.__hidden, self.handlers["count"]()


def test_fields_in_slots_are_copied_as_all_are() -> None:
    function = InSlots()
    with OperatorHarness(function, key_by="k", key_type="string", output_type="a int, b int") as harness:
        for _ in range(2):
            harness.process_element({"k": "x"})
        assert [tuple(row) for row in harness.output] == [(1, 1), (2, 2)]


class Sum(AggregateFunction):
    """Adds, and looks at the function that made it."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + value + 100 * self.owner.seen  # type: ignore[no-any-return]

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


class AddsUp(KeyedProcessFunction):
    """The functions of its states are its own methods, or point back to it."""

    def __init__(self, days: int) -> None:
        self.days = days

    def open(self, runtime_context: Any) -> None:
        self.seen = 0
        reducing = ReducingStateDescriptor("reduced", self.add, "bigint")
        aggregating = AggregatingStateDescriptor("aggregated", Sum(self), "bigint")
        if self.days:
            for descriptor in (reducing, aggregating):
                descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.days(self.days)).build())
        self.reduced = runtime_context.get_reducing_state(reducing)
        self.aggregated = runtime_context.get_aggregating_state(aggregating)

    def add(self, first: int, second: int) -> int:
        return first + second + 100 * self.seen

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[int, int]]:
        self.seen += 1
        self.reduced.add(1)
        self.aggregated.add(1)
        yield self.reduced.get(), self.aggregated.get()


@pytest.mark.parametrize("days", [0, 1])
def test_the_functions_of_states_know_the_copy(days: int) -> None:
    with OperatorHarness(AddsUp(days), key_by="k", key_type="string", output_type="a bigint, b bigint") as harness:
        for _ in range(3):
            harness.process_element({"k": "x"})
        assert [tuple(row) for row in harness.output] == [(1, 101), (202, 302), (503, 603)]
