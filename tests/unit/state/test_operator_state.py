"""Operator state of one subtask: what lists and maps promise, and how much of them a snapshot writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import StateError, StateMigrationError, StorageError
from holdfast.state.descriptor import ListStateDescriptor, MapStateDescriptor
from holdfast.state.operator_snapshot import FORMAT_VERSION, OperatorSnapshot, SnapshotStore
from holdfast.state.operator_state import MAX_CHUNKS, OperatorStateBackend
from holdfast.testing.state_contract.state_evolution_contract import CodeSerializer, PriceSerializer
from holdfast.types.row import Row

NUMBERS = ListStateDescriptor("numbers", "bigint")
RULES = MapStateDescriptor("rules", "string", "bigint")


class Files(SnapshotStore):
    """Files in memory that count what is read and written."""

    def __init__(self, inline_limit: int = 0) -> None:
        self.inline_limit = inline_limit
        self.files: dict[str, bytes] = {}
        self.reads = 0

    def write_file(self, data: bytes) -> dict[str, Any]:
        path = f"file-{len(self.files)}"
        self.files[path] = data
        return {"path": path}

    def read_file(self, data: Mapping[str, Any]) -> bytes:
        self.reads += 1
        return self.files[data["path"]]


def through_json(snapshot: OperatorSnapshot | None) -> OperatorSnapshot:
    assert snapshot is not None
    return OperatorSnapshot.from_json(json.loads(json.dumps(snapshot.to_json())))


def restored(snapshot: OperatorSnapshot | None, store: SnapshotStore | None = None) -> OperatorStateBackend:
    backend = OperatorStateBackend("op")
    backend.restore(through_json(snapshot), store)
    return backend


def test_the_same_name_is_the_same_state_and_another_mode_is_refused() -> None:
    backend = OperatorStateBackend("op")
    backend.get_list_state(NUMBERS).add(1)
    backend.get_list_state(ListStateDescriptor("numbers", "bigint")).add(2)
    assert backend.get_list_state(NUMBERS).get() == [1, 2]
    with pytest.raises(StateError, match="Incompatible state assignment modes"):
        backend.get_union_list_state(NUMBERS)
    with pytest.raises(StateError, match="Incompatible state assignment modes"):
        restored(backend.snapshot()).get_union_list_state(NUMBERS)


def test_none_is_refused_and_changes_nothing() -> None:
    state = OperatorStateBackend("op").get_list_state(NUMBERS)
    state.add(1)
    for refused in (lambda: state.add(None), lambda: state.add_all([2, None]), lambda: state.update(None)):
        with pytest.raises(StateError, match="None"):
            refused()
    state.add_all([])
    assert state.get() == [1]


def test_nothing_registered_is_no_snapshot_and_an_empty_list_is_one() -> None:
    backend = OperatorStateBackend("op")
    assert backend.snapshot() is None
    backend.get_list_state(NUMBERS)
    backend.get_broadcast_state(RULES)
    again = restored(backend.snapshot())
    assert again.get_registered_state_names() == {"numbers"}
    assert again.get_registered_broadcast_state_names() == {"rules"}
    assert again.get_list_state(NUMBERS).get() == []


def test_a_snapshot_is_not_touched_by_later_changes() -> None:
    backend = OperatorStateBackend("op")
    backend.get_list_state(NUMBERS).add(1)
    backend.get_broadcast_state(RULES).put("a", None)
    taken = backend.snapshot()
    backend.get_list_state(NUMBERS).add(2)
    backend.get_broadcast_state(RULES).clear()
    again = restored(taken)
    assert again.get_list_state(NUMBERS).get() == [1]
    assert list(again.get_broadcast_state(RULES).items()) == [("a", None)]


def test_what_nobody_asks_for_is_carried_on_unread() -> None:
    backend, files = OperatorStateBackend("op"), Files()
    backend.get_list_state(NUMBERS).add(1)
    taken = backend.snapshot(files)
    carried = restored(taken, files).snapshot(files)
    assert carried == taken
    assert (files.reads, len(files.files)) == (0, 1)


def test_appending_writes_what_was_added_and_reads_nothing() -> None:
    files = Files()
    snapshot, sizes = None, []
    for epoch in range(3):
        backend = restored(snapshot, files) if snapshot else OperatorStateBackend("op")
        backend.get_list_state(NUMBERS).add_all(range(100_000) if epoch == 0 else range(10))
        snapshot = backend.snapshot(files)
        sizes.append(len(files.files[f"file-{epoch}"]))
    assert sizes[0] > 700_000 and max(sizes[1:]) < 2_000
    # The ten of the second epoch are written again with those of the third.
    assert files.reads == 1 or files.reads == 2
    assert restored(snapshot, files).get_list_state(NUMBERS).get() == [*range(100_000), *range(10), *range(10)]


def test_a_list_that_grows_for_ever_has_few_chunks() -> None:
    snapshot = None
    for epoch in range(200):
        backend = restored(snapshot) if snapshot else OperatorStateBackend("op")
        backend.get_list_state(NUMBERS).add(epoch)
        snapshot = backend.snapshot()
        assert snapshot is not None
        assert len(snapshot.states["numbers"].chunks) <= MAX_CHUNKS
    assert restored(snapshot).get_list_state(NUMBERS).get() == list(range(200))


def test_what_outgrows_the_document_moves_to_a_file_as_a_whole() -> None:
    files = Files(inline_limit=3_000)
    backend = OperatorStateBackend("op")
    backend.get_broadcast_state(RULES).put("a", 1)
    small = backend.snapshot(files)
    assert not files.files
    backend = restored(small, files)
    backend.get_list_state(NUMBERS).add_all(range(1000))
    large = backend.snapshot(files)
    assert len(files.files) == 1 and len(json.dumps(through_json(large).to_json())) < 1_500
    again = restored(large, files)
    assert list(again.get_broadcast_state(RULES).items()) == [("a", 1)]
    assert again.get_list_state(NUMBERS).get() == list(range(1000))
    assert files.reads == 1


def test_another_type_and_a_newer_format_are_refused() -> None:
    backend = OperatorStateBackend("op")
    backend.get_list_state(NUMBERS).add(1)
    taken = through_json(backend.snapshot())
    with pytest.raises(StateMigrationError, match="bigint cannot become string"):
        restored(taken).get_list_state(ListStateDescriptor("numbers", "string"))
    with pytest.raises(StateMigrationError, match="Upgrade"):
        OperatorSnapshot.from_json({**taken.to_json(), "format_version": FORMAT_VERSION + 1})
    with pytest.raises(StateError, match="malformed"):
        OperatorSnapshot.from_json({"format_version": 1, "states": {"x": {"mode": "odd", "chunks": []}}})


@pytest.mark.parametrize("inline_limit", [0, 1 << 20])
def test_an_older_type_is_converted_when_it_is_asked_for_and_written_again_as_a_whole(inline_limit: int) -> None:
    files = Files(inline_limit)
    backend = OperatorStateBackend("op")
    backend.get_list_state(ListStateDescriptor("l", "struct<a: int, b: int>")).add_all([Row(1, 2), Row(3, 4)])
    backend.get_union_list_state(ListStateDescriptor("u", PriceSerializer(1))).add(Decimal("1.50"))
    backend.get_broadcast_state(MapStateDescriptor("m", "int", "int")).put(1, 10)
    backend.get_list_state(NUMBERS).add(1)
    wider = ListStateDescriptor[Any]("l", "struct<c: string, a: bigint>")
    prices = ListStateDescriptor[Any]("u", PriceSerializer(2))
    rules = MapStateDescriptor[Any, Any]("m", "bigint", "double")
    again = restored(backend.snapshot(files), files)
    assert again.get_list_state(wider).get() == [Row(c=None, a=1), Row(c=None, a=3)]
    again.get_list_state(wider).add(Row("new", 2**40))
    assert again.get_union_list_state(prices).get() == [Decimal("1.50")]
    assert again.get_broadcast_state(rules).get(1) == 10.0
    taken = through_json(again.snapshot(files))
    assert taken.states["numbers"].description == {"type": "bigint"}
    third = restored(taken, files)
    assert third.get_list_state(wider).get() == [Row(c=None, a=1), Row(c=None, a=3), Row(c="new", a=2**40)]
    assert third.get_union_list_state(prices).get() == [Decimal("1.50")]
    assert list(third.get_broadcast_state(rules).items()) == [(1, 10.0)]
    with pytest.raises(StateMigrationError, match="version 1 cannot read"):
        restored(taken, files).get_union_list_state(ListStateDescriptor("u", PriceSerializer(1)))
    with pytest.raises(StateMigrationError, match="The keys of operator state 'm'"):
        restored(taken, files).get_broadcast_state(MapStateDescriptor("m", "string", "double"))


def test_the_keys_of_a_broadcast_map_may_get_a_field() -> None:
    backend = OperatorStateBackend("op")
    backend.get_broadcast_state(MapStateDescriptor("m", "struct<a: int, b: int>", "int")).put(Row(1, 2), 10)
    grown = MapStateDescriptor[Any, Any]("m", "struct<b: bigint, a: int, c: string>", "int")
    again = restored(backend.snapshot())
    assert list(again.get_broadcast_state(grown).items()) == [(Row(b=2, a=1, c=None), 10)]
    assert restored(again.snapshot()).get_broadcast_state(grown).get((2, 1, None)) == 10


def test_entries_may_be_a_mapping_or_pairs() -> None:
    state = OperatorStateBackend("op").get_broadcast_state(MapStateDescriptor("m", "string", "int"))
    state.put_all({"a": 1})
    state.put_all({"b": 2}.items())
    state.put_all((name, 3) for name in "cd")
    assert dict(state.items()) == {"a": 1, "b": 2, "c": 3, "d": 3}


def test_keys_of_a_broadcast_map_that_would_become_one_are_refused() -> None:
    backend = OperatorStateBackend("op")
    entries = {Row(1, 2): 10, Row(1, 3): 11}
    backend.get_broadcast_state(MapStateDescriptor("m", "struct<a: int, b: int>", "int")).put_all(entries)
    smaller = restored(backend.snapshot()).get_broadcast_state(MapStateDescriptor("m", "struct<a: int>", "int"))
    for _ in range(2):
        with pytest.raises(StateMigrationError, match="become the same"):
            smaller.get((1,))
    fewer = MapStateDescriptor[Any, Any]("m", "struct<b: int>", "int")
    assert dict(restored(backend.snapshot()).get_broadcast_state(fewer).items()) == {Row(2): 10, Row(3): 11}


class Unsteady(Files):
    """Cannot be read at first."""

    failures = 1

    def read_file(self, data: Mapping[str, Any]) -> bytes:
        self.failures, failures = self.failures - 1, self.failures
        if failures > 0:
            raise StorageError("The connection was reset.")
        return super().read_file(data)


def test_a_function_that_ignores_that_state_cannot_be_read_does_not_empty_it() -> None:
    files = Unsteady()
    backend = OperatorStateBackend("op")
    backend.get_list_state(NUMBERS).add(1)
    backend.get_broadcast_state(RULES).put("a", 1)
    taken = backend.snapshot(files)
    for read in (lambda b: b.get_list_state(NUMBERS).get(), lambda b: b.get_broadcast_state(RULES).get("a")):
        files.failures = 1
        again = restored(taken, files)
        with pytest.raises(StorageError):
            read(again)
        again.get_broadcast_state(RULES).put("b", 2)
        again.get_list_state(NUMBERS).add(2)
        after = restored(again.snapshot(files), files)
        assert after.get_list_state(NUMBERS).get() == [1, 2]
        assert dict(after.get_broadcast_state(RULES).items()) == {"a": 1, "b": 2}


def test_a_colour_code_goes_on_in_operator_state_with_the_reconfigured_serializer() -> None:
    backend = OperatorStateBackend("op")
    backend.get_list_state(ListStateDescriptor("l", CodeSerializer(["red", "green"]))).add_all(["green", "red"])
    again = restored(backend.snapshot())
    state = again.get_list_state(ListStateDescriptor("l", CodeSerializer(["blue", "green"])))
    state.add("blue")
    assert state.get() == ["green", "red", "blue"]
    third = restored(again.snapshot()).get_list_state(ListStateDescriptor("l", CodeSerializer(["green"])))
    assert third.get() == ["green", "red", "blue"]


def test_what_the_reconfigured_serializer_has_written_is_not_written_again() -> None:
    files = Files()
    first, later = (ListStateDescriptor[Any]("l", CodeSerializer(words)) for words in (["red"], ["blue"]))
    backend, sizes = OperatorStateBackend("op"), []
    backend.get_list_state(first).add_all(["red"] * 10_000)
    for _ in range(4):
        backend = restored(backend.snapshot(files), files)
        sizes.append(len(files.files[f"file-{len(sizes)}"]))
        backend.get_list_state(later).add("blue")
    assert sizes[1] > 10_000 and max(sizes[2:]) < 1_000
    assert backend.get_list_state(later).get() == ["red"] * 10_000 + ["blue"] * 4


def test_undeclared_elements_come_back_as_new_objects() -> None:
    descriptor = ListStateDescriptor("any")
    backend = OperatorStateBackend("op")
    mine = {"a": [1]}
    backend.get_list_state(descriptor).add(mine)
    mine["a"].append(2)
    found = restored(backend.snapshot()).get_list_state(descriptor).get()
    assert found == [{"a": [1]}]


operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(-9, 9)),
        st.tuples(st.just("add_all"), st.lists(st.integers(-9, 9), max_size=5)),
        st.tuples(st.just("update"), st.lists(st.integers(-9, 9), max_size=5)),
        st.tuples(st.just("clear"), st.none()),
        st.tuples(st.just("get"), st.none()),
        st.tuples(st.just("put"), st.tuples(st.sampled_from("abc"), st.none() | st.integers(-9, 9))),
        st.tuples(st.just("remove"), st.sampled_from("abc")),
        st.tuples(st.just("snapshot"), st.none()),
    ),
    max_size=40,
)


@given(operations, st.sampled_from([0, 700, 10**6]))
def test_list_and_map_are_like_plain_ones_over_any_snapshots(steps: list[tuple[str, Any]], inline_limit: int) -> None:
    files = Files(inline_limit)
    backend = OperatorStateBackend("op")
    items: list[int] = []
    rules: dict[str, int | None] = {}
    for name, argument in [*steps, ("snapshot", None)]:
        numbers, map_state = backend.get_list_state(NUMBERS), backend.get_broadcast_state(RULES)
        if name == "add":
            numbers.add(argument)
            items.append(argument)
        elif name == "add_all":
            numbers.add_all(argument)
            items += argument
        elif name == "update":
            numbers.update(argument)
            items = list(argument)
        elif name == "clear":
            numbers.clear()
            items = []
        elif name == "get":
            assert numbers.get() == items
        elif name == "put":
            map_state.put(*argument)
            rules[argument[0]] = argument[1]
        elif name == "remove":
            map_state.remove(argument)
            rules.pop(argument, None)
        else:
            backend = restored(backend.snapshot(files), files)
    assert backend.get_list_state(NUMBERS).get() == items
    assert dict(backend.get_broadcast_state(RULES).items()) == rules
