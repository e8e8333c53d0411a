"""What operator state does not take is refused by the names of operator and state, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.common import Time
from holdfast.datastream import KeyedProcessFunction
from holdfast.datastream.state import StateTtlConfig
from holdfast.errors import OutputTypeError, StateError
from holdfast.state.descriptor import ListStateDescriptor, MapStateDescriptor
from holdfast.state.operator_state import OperatorStateBackend
from holdfast.testing import OperatorHarness

REFUSED: list[tuple[Callable[[Any, Any], Any], type[Exception], str]] = [
    (
        lambda rules, seen: rules.put(1, 1),
        OutputTypeError,
        "broadcast state 'limits' of operator 'rules': 1 cannot be stored",
    ),
    (
        lambda rules, seen: rules.put("a", "x"),
        OutputTypeError,
        "state 'limits' of operator 'rules': 'x' cannot be stored",
    ),
    (lambda rules, seen: rules.put(["a"], 1), OutputTypeError, "operator 'rules': \\['a'\\] cannot be stored"),
    (
        lambda rules, seen: rules.put(None, 1),
        StateError,
        "None cannot be a key of broadcast state 'limits' of operator",
    ),
    (lambda rules, seen: rules.get(None), StateError, "None cannot be a key of broadcast state 'limits' of operator"),
    (lambda rules, seen: rules.put_all(None), StateError, "entries for broadcast state 'limits' of operator 'rules'"),
    (lambda rules, seen: rules.put_all({"b": 2, "c": "x"}), OutputTypeError, "operator 'rules': 'x' cannot be stored"),
    (
        lambda rules, seen: rules.put_all(5),
        StateError,
        "broadcast state 'limits' of operator 'rules' takes a map, or pairs",
    ),
    (
        lambda rules, seen: rules.put_all([("b", 2), 1]),
        StateError,
        "'limits' of operator 'rules' takes a map, or pairs of a key and a value: 1 is neither",
    ),
    (
        lambda rules, seen: seen.add_all(5),
        StateError,
        "list state 'seen' of operator 'rules' takes several elements, not 5",
    ),
    (lambda rules, seen: seen.update(5), StateError, "'seen' of operator 'rules' takes several elements, not 5"),
    (lambda rules, seen: seen.add("x"), OutputTypeError, "list state 'seen' of operator 'rules': 'x' cannot be stored"),
    (lambda rules, seen: seen.add(None), StateError, "list state 'seen' of operator 'rules' must not be None"),
]


@pytest.mark.parametrize(("change", "error", "message"), REFUSED)
def test_a_refusal_names_operator_and_state(change: Any, error: type[Exception], message: str) -> None:
    backend = OperatorStateBackend("rules")
    rules = backend.get_broadcast_state(MapStateDescriptor("limits", "string", "int"))
    seen = backend.get_list_state(ListStateDescriptor("seen", "int"))
    rules.put("a", 1)
    seen.add(1)
    with pytest.raises(error, match=message):
        change(rules, seen)
    assert dict(rules.items()) == {"a": 1}
    assert seen.get() == [1]


class Bag(KeyedProcessFunction):
    """Does with its states what an element says."""

    def __init__(self, ttl: bool) -> None:
        self.ttl = ttl

    def open(self, runtime_context: Any) -> None:
        seen, limits = ListStateDescriptor("seen", "int"), MapStateDescriptor("limits", "string", "int")
        for descriptor in (seen, limits) if self.ttl else ():
            descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.days(1)).build())
        self.seen, self.limits = runtime_context.get_list_state(seen), runtime_context.get_map_state(limits)

    def process_element(self, value: Any, ctx: Any) -> Any:
        value(self.limits, self.seen)
        return [(dict(self.limits.items()), list(self.seen.get()))]


KEYED: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda limits, seen: limits.put_all(5), "map state 'limits' takes a map, or pairs"),
    (lambda limits, seen: limits.put_all([("b", 2), 1]), "map state 'limits' .*: 1 is neither"),
    (lambda limits, seen: limits.put_all(None), "entries for map state 'limits' are None"),
    (lambda limits, seen: seen.add_all(5), "list state 'seen' takes several elements, not 5"),
    (lambda limits, seen: seen.update(5), "list state 'seen' takes several elements, not 5"),
    (lambda limits, seen: seen.add_all(None), "elements of list state 'seen' are None"),
]


@pytest.mark.parametrize("ttl", [False, True], ids=["for ever", "with ttl"])
@pytest.mark.parametrize(("change", "message"), KEYED)
def test_a_refusal_of_keyed_state_names_the_state(change: Any, message: str, ttl: bool) -> None:
    def begin(limits: Any, seen: Any) -> None:
        limits.put_all([("a", 1)])
        seen.add_all(iter([1]))

    harness = OperatorHarness(Bag(ttl), key_by=lambda value: 1)
    harness.process_element(begin)
    with pytest.raises(StateError, match=message):
        harness.process_element(change)
    harness.process_element(lambda limits, seen: None)
    assert harness.output[-1] == ({"a": 1}, [1])
