"""Operator state of which only some subtasks asked after its type had changed: both forms go on, element by element."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import StateMigrationError
from holdfast.state.descriptor import ListStateDescriptor
from holdfast.state.operator_snapshot import OperatorSnapshot
from holdfast.state.operator_state import OperatorStateBackend, RoundRobinOperatorStateRepartitioner
from holdfast.testing.state_contract.state_evolution_contract import CodeSerializer, PriceSerializer
from holdfast.types.row import Row

Parts = list[OperatorSnapshot | None]
INT = ListStateDescriptor[Any]("l", "int")
LONG = ListStateDescriptor[Any]("l", "bigint")
MODES = ("union", "split")


def asked(backend: OperatorStateBackend, descriptor: ListStateDescriptor[Any], mode: str) -> Any:
    get = backend.get_union_list_state if mode == "union" else backend.get_list_state
    return get(descriptor)


def opened(part: OperatorSnapshot | None) -> OperatorStateBackend:
    backend = OperatorStateBackend("op")
    if part is not None:
        backend.restore(OperatorSnapshot.from_json(json.loads(json.dumps(part.to_json()))))
    return backend


def dealt_out(parts: Parts, parallelism: int) -> Parts:
    return RoundRobinOperatorStateRepartitioner().repartition_state(parts, len(parts), parallelism)


def epoch(parts: Parts, updates: dict[int, tuple[ListStateDescriptor[Any], list[Any]]], mode: str) -> Parts:
    """Subtasks that are named ask under a declaration and add elements; the others leave the state alone."""
    left: Parts = []
    for subtask, part in enumerate(parts):
        backend = opened(part)
        if subtask in updates:
            descriptor, added = updates[subtask]
            asked(backend, descriptor, mode).add_all(added)
        left.append(backend.snapshot())
    return left


def found(parts: Parts, descriptor: ListStateDescriptor[Any], mode: str) -> list[list[Any]]:
    return [asked(opened(part), descriptor, mode).get() for part in parts]


@pytest.mark.parametrize("parallelism", [1, 2, 3, 4])
def test_a_union_that_one_subtask_asks_for_under_another_type_goes_on(parallelism: int) -> None:
    parts = epoch([None] * 3, {n: (INT, [n]) for n in range(3)}, "union")
    parts = dealt_out(parts, 3)
    backend = opened(parts[1])
    asked(backend, LONG, "union").update([2**40])
    parts[1] = backend.snapshot()
    parts = dealt_out(parts, parallelism)
    assert found(parts, LONG, "union") == [[0, 1, 2, 2**40]] * parallelism
    # What nobody asks for stays as it is, however often the job starts.
    for again in (2, 5, parallelism):
        parts = dealt_out(epoch(parts, {}, "union"), again)
    assert found(parts, LONG, "union") == [[0, 1, 2, 2**40]] * parallelism


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_a_list_that_one_subtask_asks_for_under_another_type_is_dealt_out(parallelism: int) -> None:
    parts = epoch([None] * 3, {n: (INT, [10 * n, 10 * n + 1]) for n in range(3)}, "split")
    parts = epoch(dealt_out(parts, 3), {1: (LONG, [2**40])}, "split")
    dealt = found(dealt_out(parts, parallelism), LONG, "split")
    assert [n for part in dealt for n in part] == [0, 1, 10, 11, 2**40, 20, 21]


@pytest.mark.parametrize("mode", MODES)
def test_who_asks_for_both_forms_writes_one(mode: str) -> None:
    parts = epoch([None, None], {0: (INT, [1]), 1: (INT, [2])}, mode)
    parts = dealt_out(epoch(dealt_out(parts, 2), {0: (LONG, [3])}, mode), 1)
    before = parts[0]
    assert before is not None and {chunk.type for chunk in before.states["l"].chunks} > {None}
    assert before.to_json()["format_version"] == 2
    [after] = epoch(parts, {0: (LONG, [])}, mode)
    assert after is not None and {chunk.type for chunk in after.states["l"].chunks} == {None}
    assert after.states["l"].description == {"type": "bigint"}
    assert after.to_json()["format_version"] == 1
    assert found([after], LONG, mode) == found(parts, LONG, mode)


@pytest.mark.parametrize("mode", MODES)
def test_a_program_that_cannot_take_over_one_of_the_forms_is_refused_and_another_is_not(mode: str) -> None:
    old, new = (ListStateDescriptor[Any]("l", PriceSerializer(version)) for version in (1, 2))
    parts = epoch([None, None], {n: (old, [Decimal("1.50")]) for n in range(2)}, mode)
    parts = dealt_out(epoch(dealt_out(parts, 2), {0: (new, [Decimal("2.25")])}, mode), 1)
    with pytest.raises(StateMigrationError, match="version 1 cannot read what version 2"):
        found(parts, old, mode)
    assert Decimal("2.25") in found(parts, new, mode)[0]


@pytest.mark.parametrize("mode", MODES)
def test_fields_come_and_go_while_only_some_subtasks_ask(mode: str) -> None:
    forms = "a: int, x: int", "a: int, b: string", "b: string, a: bigint"
    one, two, three = (ListStateDescriptor[Any]("l", f"struct<{form}>") for form in forms)
    parts = epoch([None] * 3, {0: (one, [Row(1, 9)])}, mode)
    parts = epoch(dealt_out(parts, 2), {1: (two, [Row(2, "two")])}, mode)
    parts = epoch(dealt_out(parts, 3), {2: (three, [Row("three", 2**40)])}, mode)
    rows = {row for part in found(dealt_out(parts, 1), three, mode) for row in part}
    assert rows == {Row(b=None, a=1), Row(b="two", a=2), Row(b="three", a=2**40)}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_codes_of_several_writers_are_read_by_the_codes_of_each(mode: str, order: Sequence[int]) -> None:
    """Each subtask has put its own words behind what it knew, so that a number means another word on each."""
    first, *others = (
        ListStateDescriptor[Any]("l", CodeSerializer(words)) for words in (["red"], ["red", "blue"], ["red", "pink"])
    )
    parts = epoch([None, None], dict.fromkeys(order, (first, ["red"])), mode)
    words = ["blue", "pink"]
    parts = epoch(dealt_out(parts, 2), {n: (others[k], [words[k]]) for k, n in enumerate(order)}, mode)
    [after] = epoch(dealt_out(parts, 1), {0: (ListStateDescriptor("l", CodeSerializer(["green"])), ["green"])}, mode)
    last = ListStateDescriptor[Any]("l", CodeSerializer([]))
    assert set(found([after], last, mode)[0]) == {"red", "blue", "pink", "green"}


steps = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from(["int", "bigint"]), st.sets(st.integers(0, 3)), st.booleans()),
    max_size=6,
)


@given(steps)
def test_nothing_is_lost_or_multiplied_whoever_asks(story: list[tuple[int, str, set[int], bool]]) -> None:
    parts: Parts = [None]
    expected: list[int] = []
    widened = False
    for number, (parallelism, kind, asking, rescaled) in enumerate(story):
        widened = widened or kind == "bigint"
        parts = dealt_out(parts, parallelism if rescaled else len(parts))
        descriptor = LONG if widened else INT
        updates = {n: (descriptor, [100 * number + n]) for n in sorted(asking) if n < len(parts)}
        expected += [added[0] for _, added in updates.values()]
        parts = epoch(parts, updates, "split")
    for parallelism in (len(parts), 1, 3):
        dealt = found(dealt_out(parts, parallelism), LONG, "split")
        assert sorted(n for part in dealt for n in part) == sorted(expected)


@given(steps)
def test_a_union_has_what_was_written_since_and_once_what_all_were_given(
    story: list[tuple[int, str, set[int], bool]],
) -> None:
    parts: Parts = [None]
    given_to_all: list[int] = []
    written: dict[int, list[int]] = {}
    widened = False
    for number, (parallelism, kind, asking, rescaled) in enumerate([*story, (3, "bigint", set[int](), True)]):
        widened = widened or kind == "bigint"
        everybody = set(range(len(parts)))
        still_held = given_to_all if everybody - written.keys() else []
        given_to_all = [*still_held, *(n for _, own in sorted(written.items()) for n in own)]
        parts = dealt_out(parts, parallelism if rescaled else len(parts))
        updates = {n: (LONG if widened else INT, [100 * number + n]) for n in sorted(asking) if n < len(parts)}
        parts = epoch(parts, updates, "union")
        written = {n: [*given_to_all, *added] for n, (_, added) in updates.items()}
    assert found(parts, LONG, "union") == [given_to_all] * 3
