"""Each task of a stage is told of its own state, and of nobody else's."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.kernel.key_group import range_of
from holdfast.runtime.exchange.stage_message import EpochDescriptor, StageMessage
from holdfast.runtime.graph.event_time import EventTime
from holdfast.runtime.graph.plan import Stage, Step
from holdfast.state.operator_snapshot import OperatorSnapshot
from holdfast.state.run_file import RunHandle
from holdfast.state.version import StateVersion
from holdfast.types.type_parser import to_type

GROUPS = 16


def stage(*parallelisms: int) -> Stage:
    kind = to_type("bigint")
    steps = [
        Step(f"uid-{at}", "name", "keyed", (), kind, kind, parallelism=parallelism, max_parallelism=GROUPS)
        for at, parallelism in enumerate(parallelisms)
    ]
    return Stage(1, max(parallelisms, default=0), (), tuple(steps), ())


def run(number: int, first: int, last: int) -> RunHandle:
    return RunHandle(f"shared/{number}.run", 1, 0, "digest", (first, last), {}, 1, number)


def epoch(versions: dict[str, StateVersion], states: dict[str, Any] | None = None) -> EpochDescriptor:
    return EpochDescriptor(7, 0, 1000, EventTime(), versions, operator_states=states or {})


RANGES = st.tuples(st.integers(0, GROUPS - 1), st.integers(0, GROUPS - 1)).map(lambda pair: tuple(sorted(pair)))


@given(st.lists(RANGES, max_size=8), st.integers(1, GROUPS), st.integers(1, GROUPS))
def test_a_task_gets_the_runs_of_its_key_groups_in_their_order(
    ranges: list[tuple[int, int]], parallelism: int, other: int
) -> None:
    """Whatever the parallelism was when they were written, and whatever runs beside it in the stage."""
    version = StateVersion(tuple(run(at, *bounds) for at, bounds in enumerate(ranges)))
    whole = epoch({"uid-0": version, "elsewhere": version})
    message = pickle.loads(pickle.dumps(StageMessage.of(whole, stage(parallelism, other))))
    for partition in range(max(parallelism, other)):
        told = message.for_task(partition)
        assert set(told.versions) <= {"uid-0"}
        assert (told.epoch, told.processing_time) == (7, 1000)
        mine = told.versions.get("uid-0", StateVersion())
        if partition < parallelism:
            assert mine == version.for_range(range_of(partition, GROUPS, parallelism))
        else:
            assert not mine.runs


def test_a_task_gets_its_own_operator_state() -> None:
    states = {"uid-0": (OperatorSnapshot({}), None, OperatorSnapshot({})), "elsewhere": (OperatorSnapshot({}),)}
    message = StageMessage.of(epoch({}, states), stage(3))
    assert [list(message.for_task(at).operator_states) for at in range(3)] == [["uid-0"], [], ["uid-0"]]
    assert [message.for_task(2).state_of("uid-0", at) is None for at in range(3)] == [True, True, False]
    assert message.for_task(0).state_of("elsewhere", 0) is None


@pytest.mark.parametrize("partition", [0, 1, 50])
def test_the_message_for_a_source_stage_has_no_state(partition: int) -> None:
    whole = epoch({"elsewhere": StateVersion((run(0, 0, 3),))})
    assert StageMessage.of(whole, stage()).for_task(partition) == epoch({})


def test_the_message_grows_with_the_state_and_the_slice_of_a_task_does_not() -> None:
    lengths = []
    for subtasks in (4, 16):
        runs = [run(at, *range_of(at, GROUPS, subtasks).__reduce__()[1]) for at in range(subtasks)]
        message = StageMessage.of(epoch({"uid-0": StateVersion(tuple(runs))}), stage(subtasks))
        lengths.append(len(message.slices))
        assert all(len(message.for_task(at).versions["uid-0"].runs) == 1 for at in range(subtasks))
    assert 3 < lengths[1] / lengths[0] < 5
