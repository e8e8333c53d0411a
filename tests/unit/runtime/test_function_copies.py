"""A task runs on a copy of the opened function, and all that the copy holds belongs to it: there is one `self`."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.datastream import KeyedProcessFunction, MapFunction
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.testing import OperatorHarness


class Helper:
    """Points back to the function that made it, beside something that cannot be copied."""

    def __init__(self, owner: Any) -> None:
        self.lock = threading.Lock()
        self.owner = owner

    def ask(self) -> int:
        return self.owner.seen  # type: ignore[no-any-return]


class Slotted:
    __slots__ = ("owner",)

    def __init__(self, owner: Any) -> None:
        self.owner = owner


class Asks(KeyedProcessFunction):
    """Counts in `self`, and asks for the count by a way round that `open` has made."""

    def __init__(self, way: Callable[[Any], Callable[[], int]]) -> None:
        self.way = way

    def open(self, runtime_context: Any) -> None:
        self.seen = 0
        self.items: list[int] = []
        self.ask = self.way(self)

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[int, int]]:
        self.seen += 1
        self.items.append(self.seen)
        yield self.seen, self.ask()

    def count(self, *_: Any, **__: Any) -> int:
        return self.seen


def in_a_table(me: Asks) -> Any:
    handlers = {"count": [me.count]}
    return lambda: handlers["count"][0]()


def by_a_helper(me: Asks) -> Any:
    me.helper = Helper(me)  # type: ignore[attr-defined]
    return me.helper.ask  # type: ignore[attr-defined]


def by_slots(me: Asks) -> Any:
    holder = Slotted(me)
    return lambda: holder.owner.seen


def by_a_weak_reference(me: Asks) -> Any:
    reference = weakref.ref(me)
    return lambda: reference().seen  # type: ignore[union-attr]


def by_a_local_function(me: Asks) -> Any:
    def again(depth: int = 2) -> int:
        return again(depth - 1) if depth else me.seen

    return again


def by_a_field(me: Asks) -> Any:
    items = me.items
    return lambda: len(items)


def by_a_default(me: Asks) -> Any:
    return lambda owner=me: owner.seen


def by_a_keyword_default(me: Asks) -> Any:
    def ask(*, owner: Any = me) -> int:
        return owner.seen  # type: ignore[no-any-return]

    return ask


WAYS: dict[str, Callable[[Any], Any]] = {
    "a bound method": lambda me: me.count,
    "a table of bound methods": in_a_table,
    "a partial": lambda me: functools.partial(me.count, 1, more=me),
    "a partial of a partial": lambda me: functools.partial(functools.partial(me.count, 1), 2),
    "a lambda over self": lambda me: lambda: me.seen,
    "a lambda with self as default": by_a_default,
    "a function with self as keyword": by_a_keyword_default,
    "a function that calls itself": by_a_local_function,
    "a lambda over a field": by_a_field,
    "the method of a list in a field": lambda me: me.items.__len__,
    "a helper that points back and has a lock": by_a_helper,
    "an object with slots": by_slots,
    "a weak reference": by_a_weak_reference,
}


@pytest.mark.parametrize("name", WAYS)
def test_every_way_back_to_the_function_leads_to_the_copy(name: str) -> None:
    with OperatorHarness(Asks(WAYS[name]), key_by="k", key_type="string", output_type="a int, b int") as harness:
        for _ in range(3):
            harness.process_element({"k": "x"})
        assert [tuple(row) for row in harness.output] == [(1, 1), (2, 2), (3, 3)]


class Appends(MapFunction):
    def open(self, runtime_context: Any) -> None:
        self.items: list[int] = []
        self.remember = self.items.append

    def map(self, value: Any) -> int:
        self.remember(value)
        return len(self.items)


def test_the_method_of_a_built_in_object_in_a_field_is_that_of_the_copied_object() -> None:
    with OperatorHarness(Appends(), output_type="bigint") as harness:
        harness.process_elements([1, 1, 1])
        assert harness.output == [1, 2, 3]


class BumpsByClosure(KeyedProcessFunction):
    """Has no field for its state: a function over the handle is all that it keeps."""

    def open(self, runtime_context: Any) -> None:
        total = runtime_context.get_state(ValueStateDescriptor("total", "bigint", 0))

        def bump(by: int) -> int:
            total.update(total.value() + by)
            return total.value()  # type: ignore[no-any-return]

        self.bump = bump

    def process_element(self, value: Any, ctx: Any) -> Iterator[int]:
        yield self.bump(value["n"])


def test_a_state_handle_in_a_closure_works_on_the_state_of_the_task() -> None:
    with OperatorHarness(BumpsByClosure(), key_by="k", key_type="string", output_type="bigint") as harness:
        for key, n in [("a", 1), ("b", 10), ("a", 2)]:
            harness.process_element({"k": key, "n": n})
        assert harness.output == [1, 10, 3]


class Client:
    """As libraries have them: it cannot be copied, and nothing of it points to a function."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.calls: list[int] = []


class UsesClient(MapFunction):
    def open(self, runtime_context: Any) -> None:
        self.client = Client()
        self.calls = self.client.calls
        self.by_name = {"client": self.client}

    def map(self, value: Any) -> tuple[bool, bool]:
        return self.by_name["client"] is self.client, self.calls is self.client.calls


def test_what_cannot_be_copied_is_shared_as_a_whole_and_stays_one_thing() -> None:
    with OperatorHarness(UsesClient(), output_type="a boolean, b boolean") as harness:
        harness.process_element(1)
        assert [tuple(row) for row in harness.output] == [(True, True)]
