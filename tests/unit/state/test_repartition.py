"""Operator state dealt out to other subtasks: the golden vectors of the contract, and what holds for all states."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import StateError
from holdfast.state.operator_snapshot import Mode, OperatorSnapshot, SnapshotChunk, StoredState
from holdfast.state.operator_state import RoundRobinOperatorStateRepartitioner

Offsets = dict[str, list[int]]
Layout = list[dict[str, Offsets]]
"""For each subtask and state: which elements of which old handle it has."""

SPLIT: Layout = [{"s": {"h0": [0, 10, 20]}}, {"s": {"h1": [0, 10]}}, {"s": {"h2": [0, 10]}}]
TWO: Layout = [{"s": {"h0": [0, 10]}, "t": {"g0": [0]}}, {"s": {"h1": [0]}, "t": {"g1": [0, 10]}}]


def snapshots(layout: Layout, mode: Mode) -> list[OperatorSnapshot | None]:
    return [
        OperatorSnapshot({name: StoredState(mode, {"type": "x"}, chunks(handles)) for name, handles in states.items()})
        if states
        else None
        for states in layout
    ]


def chunks(handles: Offsets) -> tuple[SnapshotChunk, ...]:
    return tuple(SnapshotChunk({"path": h}, 0, 1, len(offsets), 0, len(offsets)) for h, offsets in handles.items())


def layout(parts: list[OperatorSnapshot | None]) -> Layout:
    return [
        {name: offsets(state.chunks) for name, state in (part.states.items() if part else ()) if state.count}
        for part in parts
    ]


def offsets(found: tuple[SnapshotChunk, ...]) -> Offsets:
    result: Offsets = {}
    for chunk in found:
        if chunk.count:
            items = [10 * i for i in range(chunk.items)][chunk.first : chunk.first + chunk.count]
            result.setdefault(chunk.data["path"], []).extend(items)
    return result


def deal(old: Layout, mode: Mode, parallelism: int) -> Layout:
    dealt = RoundRobinOperatorStateRepartitioner().repartition_state(snapshots(old, mode), len(old), parallelism)
    return layout(dealt)


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [
        (1, [{"h0": [0, 10, 20], "h1": [0, 10], "h2": [0, 10]}]),
        (2, [{"h0": [0, 10, 20], "h1": [0]}, {"h1": [10], "h2": [0, 10]}]),
        (3, [{"h0": [0, 10, 20]}, {"h1": [0, 10]}, {"h2": [0, 10]}]),
        (4, [{"h0": [0, 10]}, {"h0": [20], "h1": [0]}, {"h1": [10], "h2": [0]}, {"h2": [10]}]),
        (7, [{"h0": [0]}, {"h0": [10]}, {"h0": [20]}, {"h1": [0]}, {"h1": [10]}, {"h2": [0]}, {"h2": [10]}]),
        (8, [{"h0": [0]}, {"h0": [10]}, {"h0": [20]}, {"h1": [0]}, {"h1": [10]}, {"h2": [0]}, {"h2": [10]}, {}]),
    ],
)
def test_golden_vectors_of_a_split_list(parallelism: int, expected: list[Offsets]) -> None:
    assert deal(SPLIT, Mode.SPLIT_DISTRIBUTE, parallelism) == [{"s": part} if part else {} for part in expected]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_golden_vectors_of_a_union_list(parallelism: int) -> None:
    old: Layout = [{"s": {"h0": [0, 10]}}, {"s": {"h1": [0]}}]
    assert deal(old, Mode.UNION, parallelism) == [{"s": {"h0": [0, 10], "h1": [0]}}] * parallelism


def test_a_union_that_nobody_asks_for_is_carried_on_unchanged_however_often_it_is_given_to_all() -> None:
    deal_out = RoundRobinOperatorStateRepartitioner().repartition_state
    held: list[OperatorSnapshot | None] = snapshots([{"s": {"h0": [0, 10]}}, {"s": {"h1": [0]}}], Mode.UNION)
    for parallelism in (2, 4, 4, 1, 3):
        written = [None if part is None else OperatorSnapshot.from_json(part.to_json()) for part in held]
        held = deal_out(written, len(held), parallelism)
        assert layout(held) == [{"s": {"h0": [0, 10], "h1": [0]}}] * parallelism


def test_a_union_that_one_subtask_has_written_anew_has_that_and_one_copy_of_what_was_given_to_the_others() -> None:
    deal_out = RoundRobinOperatorStateRepartitioner().repartition_state
    held = deal_out(snapshots([{"s": {"h0": [0, 10]}}, {"s": {"h1": [0]}}], Mode.UNION), 2, 3)
    [held[1]] = snapshots([{"s": {"new": [0]}}], Mode.UNION)
    assert layout(deal_out(held, 3, 2)) == [{"s": {"h0": [0, 10], "h1": [0], "new": [0]}}] * 2


@pytest.mark.parametrize(("parallelism", "copies"), [(1, [0]), (2, [0, 1]), (3, [0, 1, 0]), (5, [0, 1, 0, 1, 0])])
def test_golden_vectors_of_a_broadcast_state(parallelism: int, copies: list[int]) -> None:
    old: Layout = [{"s": {"h0": [0, 10]}}, {"s": {"h1": [0, 10]}}]
    assert deal(old, Mode.BROADCAST, parallelism) == [{"s": {f"h{copy}": [0, 10]}} for copy in copies]


def test_a_broadcast_state_that_only_some_subtasks_have_is_given_to_all() -> None:
    assert deal([{"s": {"h0": [0, 10]}}, {}], Mode.BROADCAST, 2) == [{"s": {"h0": [0, 10]}}] * 2


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [
        (
            4,
            [
                {"s": {"h0": [0]}, "t": {"g1": [0]}},
                {"s": {"h0": [10]}, "t": {"g1": [10]}},
                {"s": {"h1": [0]}},
                {"t": {"g0": [0]}},
            ],
        ),
        (
            5,
            [
                {"s": {"h0": [0]}, "t": {"g1": [10]}},
                {"s": {"h0": [10]}},
                {"s": {"h1": [0]}},
                {"t": {"g0": [0]}},
                {"t": {"g1": [0]}},
            ],
        ),
    ],
)
def test_golden_vectors_of_two_lists_with_a_rolling_start(parallelism: int, expected: Layout) -> None:
    assert deal(TWO, Mode.SPLIT_DISTRIBUTE, parallelism) == expected


def test_impossible_numbers_are_refused() -> None:
    deal_out = RoundRobinOperatorStateRepartitioner().repartition_state
    with pytest.raises(StateError, match="at least 1"):
        deal_out([None], 1, 0)
    with pytest.raises(StateError, match="of 2 subtasks"):
        deal_out([None], 2, 1)


@given(st.lists(st.dictionaries(st.sampled_from("stu"), st.integers(0, 9)), min_size=1, max_size=6), st.integers(1, 12))
def test_nothing_is_lost_and_the_parts_are_even(sizes: list[dict[str, int]], parallelism: int) -> None:
    old: Layout = [
        {name: {f"{name}{subtask}": [10 * i for i in range(count)]} for name, count in states.items()}
        for subtask, states in enumerate(sizes)
    ]
    new = deal(old, Mode.SPLIT_DISTRIBUTE, parallelism)
    for name in "stu":
        assert ordered(new, name) == ordered(old, name)
    if parallelism != len(old):
        totals = [sum(len(o) for handles in part.values() for o in handles.values()) for part in new]
        assert max(totals) - min(totals) <= 1


def ordered(parts: Layout, name: str) -> list[tuple[str, int]]:
    return sorted((h, offset) for part in parts for h, found in part.get(name, {}).items() for offset in found)
