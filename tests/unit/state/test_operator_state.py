"""Operator state in memory: lists, unions, broadcast maps, and their snapshots."""

import json

import pytest

from holdfast.errors import StateError, StateMigrationError
from holdfast.state import ListStateDescriptor, MapStateDescriptor
from holdfast.state.operator_state import DefaultOperatorStateBackend

BUFFER = ListStateDescriptor("buffer", "array<bigint>")
RULES = MapStateDescriptor("rules", "string", "bigint")
UNTYPED = MapStateDescriptor("untyped")


@pytest.fixture
def backend():
    return DefaultOperatorStateBackend("op")


def restored(snapshot):
    made = DefaultOperatorStateBackend("op")
    made.restore(json.loads(json.dumps(snapshot)))
    return made


def test_nothing_registered_is_no_snapshot(backend):
    assert backend.snapshot() is None
    backend.get_list_state(BUFFER)
    assert backend.snapshot() is not None


def test_states_are_there_after_a_restore(backend):
    buffer = backend.get_list_state(BUFFER)
    union = backend.get_union_list_state(ListStateDescriptor("union"))
    rules, untyped = backend.get_broadcast_state(RULES), backend.get_broadcast_state(UNTYPED)
    assert list(buffer.get()) == []
    buffer.add([1])
    buffer.add_all([[2, None], [3]])
    union.update([{"any": 1}, "thing"])
    rules.put_all({"a": 1, "b": None})
    untyped.put((1, "x"), [5])

    again = restored(backend.snapshot())

    assert again.get_registered_state_names() == {"buffer", "union"}
    assert again.get_registered_broadcast_state_names() == {"rules", "untyped"}
    assert list(again.get_list_state(BUFFER).get()) == [[1], [2, None], [3]]
    assert list(again.get_union_list_state(ListStateDescriptor("union")).get()) == [{"any": 1}, "thing"]
    assert dict(again.get_broadcast_state(RULES).items()) == {"a": 1, "b": None}
    assert again.get_broadcast_state(UNTYPED).get((1, "x")) == [5]


def test_a_snapshot_is_not_touched_by_later_changes(backend):
    buffer = backend.get_list_state(BUFFER)
    buffer.add([1])
    snapshot = backend.snapshot()
    buffer.add([2])
    buffer.get()[0].append(3)
    assert list(restored(snapshot).get_list_state(BUFFER).get()) == [[1]]
    assert list(buffer.get()) == [[1], [2]]


def test_a_state_that_nobody_asks_for_is_carried_on(backend):
    backend.get_list_state(BUFFER).add([1])
    again = restored(restored(backend.snapshot()).snapshot())
    assert list(again.get_list_state(BUFFER).get()) == [[1]]


def test_the_same_name_is_the_same_state_in_one_mode(backend):
    assert backend.get_list_state(BUFFER) is backend.get_list_state(BUFFER)
    for make in (lambda: backend, lambda: restored(backend.snapshot())):
        with pytest.raises(StateError, match="Incompatible state assignment modes"):
            make().get_union_list_state(BUFFER)


def test_another_type_is_refused(backend):
    backend.get_list_state(BUFFER).add([1])
    backend.get_broadcast_state(RULES)
    again = restored(backend.snapshot())
    with pytest.raises(StateMigrationError, match="buffer"):
        again.get_list_state(ListStateDescriptor("buffer", "string"))
    with pytest.raises(StateMigrationError, match="key"):
        again.get_broadcast_state(MapStateDescriptor("rules", "bigint", "bigint"))
    with pytest.raises(StateMigrationError, match="Upgrade"):
        backend.restore({"format_version": 99, "states": {}})


def test_none_is_no_element(backend):
    buffer = backend.get_list_state(BUFFER)
    buffer.add([1])
    for change in (lambda: buffer.add(None), lambda: buffer.add_all(None), lambda: buffer.update([[1], None])):
        with pytest.raises(StateError):
            change()
    buffer.add_all([])
    assert list(buffer.get()) == [[1]]
    buffer.update([])
    assert list(buffer.get()) == []


def test_a_broadcast_state_is_a_map(backend):
    rules = backend.get_broadcast_state(RULES)
    rules.put("a", 1)
    rules.put("b", 2)
    rules.remove("a")
    rules.remove("never")
    assert list(rules.keys()) == list(rules) == ["b"]
    assert list(rules.values()) == [2]
    assert "b" in rules
    assert rules.get("a") is None
    rules.clear()
    assert rules.is_empty()
