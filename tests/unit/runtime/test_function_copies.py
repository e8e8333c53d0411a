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
from holdfast.errors import ConfigurationError
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


def retried(call: Callable[..., int]) -> Callable[..., int]:
    """As decorators are: what it makes has the name of what it wraps."""

    @functools.wraps(call)
    def wrapper(*args: Any) -> int:
        return call(*args)

    return wrapper


def by_a_cached_method(me: Asks) -> Any:
    cached = functools.lru_cache(maxsize=8)(me.count)
    return lambda: cached(me.seen)


def by_a_cached_local_function(me: Asks) -> Any:
    @functools.cache
    def again(depth: int, seen: int) -> int:
        return again(depth - 1, seen) if depth else me.seen

    return lambda: again(2, me.seen)


def by_a_cache_over_a_field(me: Asks) -> Any:
    items = me.items
    cached = functools.lru_cache(lambda seen: len(items))
    return lambda: cached(me.seen)


def by_a_generic_function(me: Asks) -> Any:
    return functools.partial(functools.singledispatch(lambda _: me.seen), 1)


def by_a_weak_proxy(me: Asks) -> Any:
    proxy = weakref.proxy(me)
    return lambda: proxy.seen


def by_a_weak_method(me: Asks) -> Any:
    method = weakref.WeakMethod(me.count)
    return lambda: method()()  # type: ignore[misc]


def by_a_weak_value(me: Asks) -> Any:
    found = weakref.WeakValueDictionary({"me": me})
    return lambda: found["me"].seen


def by_a_weak_key(me: Asks) -> Any:
    found = weakref.WeakKeyDictionary({me: 0})
    return lambda: next(iter(found)).seen


def by_a_weak_set(me: Asks) -> Any:
    found = weakref.WeakSet([me])
    return lambda: next(iter(found)).seen


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
    "a weak proxy": by_a_weak_proxy,
    "a weak method": by_a_weak_method,
    "a dictionary of weak values": by_a_weak_value,
    "a dictionary of weak keys": by_a_weak_key,
    "a weak set": by_a_weak_set,
    "what a decorator made of a method": lambda me: retried(me.count),
    "what decorators made of the method of a field": lambda me: retried(retried(me.items.__len__)),
    "a cached method": by_a_cached_method,
    "a cached function that calls itself": by_a_cached_local_function,
    "a cache over a field": by_a_cache_over_a_field,
    "a generic function": by_a_generic_function,
}


@pytest.mark.parametrize("name", WAYS)
def test_every_way_back_to_the_function_leads_to_the_copy(name: str) -> None:
    with OperatorHarness(Asks(WAYS[name]), key_by="k", key_type="string", output_type="a int, b int") as harness:
        for _ in range(3):
            harness.process_element({"k": "x"})
        assert [tuple(row) for row in harness.output] == [(1, 1), (2, 2), (3, 3)]


def by_a_generator(me: Asks) -> Any:
    counts = (me.seen for _ in range(9))
    return lambda: next(counts)


def by_a_class(me: Asks) -> Any:
    class Local:
        def ask(self) -> int:
            return me.seen  # type: ignore[no-any-return]

    return Local().ask


def by_an_attribute_of_a_class(me: Asks) -> Any:
    class Local:
        owner = me

    return lambda: Local.owner.seen


class NeverCopied:
    def __init__(self, owner: Asks) -> None:
        self.owner = owner

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("it has a connection")

    def ask(self) -> int:
        return self.owner.seen


REFUSED = [
    (by_a_generator, "a generator"),
    (by_a_class, "the class 'Local'"),
    (by_an_attribute_of_a_class, "the class 'Local'"),
    (lambda me: NeverCopied(me).ask, "a NeverCopied"),
]


@pytest.mark.parametrize(("way", "what"), REFUSED)
def test_an_object_with_a_reference_to_the_function_that_cannot_be_copied_is_rejected(way: Any, what: str) -> None:
    with (
        pytest.raises(ConfigurationError, match=f"A field of 'Asks' holds {what} that refers to the function"),
        OperatorHarness(Asks(way), key_by="k", key_type="string", output_type="a int, b int") as harness,
    ):
        harness.process_element({"k": "x"})


@functools.lru_cache
def squared(number: int) -> int:
    return number * number


@retried
def doubled(number: int) -> int:
    return number * 2


class UsesWhatIsShared(MapFunction):
    """Its fields lead nowhere: a generator, a class and caches of its own, and functions of a module."""

    def open(self, runtime_context: Any) -> None:
        class Local:
            def ask(self) -> int:
                return 1

        self.local = Local()
        self.numbers = (number for number in range(9))
        self.cached = functools.lru_cache(lambda number: number + 1)
        self.squared, self.doubled = squared, doubled

    def map(self, value: Any) -> tuple[int, bool]:
        self.cached(value)
        told = self.local.ask() + next(self.numbers) + self.cached.cache_info().currsize
        return told, self.squared is squared and self.doubled is doubled


def test_an_object_without_references_to_the_function_is_shared() -> None:
    with OperatorHarness(UsesWhatIsShared(), output_type="a int, b boolean") as harness:
        harness.process_elements([1, 2])
        assert [tuple(row) for row in harness.output] == [(2, True), (4, True)]


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


def test_an_object_that_cannot_be_copied_is_shared_as_a_whole() -> None:
    with OperatorHarness(UsesClient(), output_type="a boolean, b boolean") as harness:
        harness.process_element(1)
        assert [tuple(row) for row in harness.output] == [(True, True)]


class Refreshes(MapFunction):
    """A thread of its own puts new rules into a field."""

    def open(self, runtime_context: Any) -> None:
        self.rules = 1
        self.asked, self.loaded = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.refresh)
        self.thread.start()

    def refresh(self) -> None:
        self.asked.wait()
        self.rules = 2
        self.loaded.set()

    def map(self, value: Any) -> int:
        self.asked.set()
        self.loaded.wait()
        return self.rules


def test_a_field_set_by_a_thread_is_visible_to_later_tasks() -> None:
    with OperatorHarness(Refreshes(), output_type="bigint") as harness:
        harness.process_elements([1, 1])
        harness.snapshot(1)
        harness.process_element(1)
        assert harness.output == [1, 1, 2]
