"""What operator state does not take is refused by the names of operator and state, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.errors import OutputTypeError, StateError
from holdfast.state.declaration.descriptor import ListStateDescriptor, MapStateDescriptor
from holdfast.state.operator.operator_state import DefaultOperatorStateBackend

REFUSED: list[tuple[Callable[[Any, Any], Any], type[Exception], str]] = [
    (
        lambda rules, seen: rules.put(1, 1),
        OutputTypeError,
        "broadcast state 'limits' of operator 'rules': 1 is",
    ),
    (lambda rules, seen: rules.put("a", "x"), OutputTypeError, "state 'limits' of operator 'rules': 'x' is refused"),
    (lambda rules, seen: rules.put(["a"], 1), OutputTypeError, "operator 'rules': \\['a'\\] is refused"),
    (
        lambda rules, seen: rules.put(None, 1),
        StateError,
        "None is no key of broadcast state 'limits' of operator",
    ),
    (lambda rules, seen: rules.get(None), StateError, "None is no key of broadcast state 'limits' of operator"),
    (lambda rules, seen: rules.put_all(None), StateError, "entries for broadcast state 'limits' of operator 'rules'"),
    (lambda rules, seen: rules.put_all({"b": 2, "c": "x"}), OutputTypeError, "operator 'rules': 'x' is refused"),
    (lambda rules, seen: seen.add("x"), OutputTypeError, "list state 'seen' of operator 'rules': 'x' is refused"),
    (lambda rules, seen: seen.add(None), StateError, "list state 'seen' of operator 'rules' may be None"),
]


@pytest.mark.parametrize(("change", "error", "message"), REFUSED)
def test_a_refusal_names_operator_and_state(change: Any, error: type[Exception], message: str) -> None:
    backend = DefaultOperatorStateBackend("rules")
    rules = backend.get_broadcast_state(MapStateDescriptor("limits", "string", "int"))
    seen = backend.get_list_state(ListStateDescriptor("seen", "int"))
    rules.put("a", 1)
    seen.add(1)
    with pytest.raises(error, match=message):
        change(rules, seen)
    assert dict(rules.items()) == {"a": 1}
    assert seen.get() == [1]
