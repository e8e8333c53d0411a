"""An epoch is accepted only if what is acknowledged is exactly what was used."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.errors import InconsistentEpochError
from holdfast.runtime.exchange.barrier import Barrier, BarrierReader, accept

TWO_LEVELS = {0: 0, 1: 2, 2: 2}


def stage_zero() -> tuple[Barrier, ...]:
    return tuple(Barrier(0, p, f"zero-{p}") for p in range(3))


def stage_one(upstream: tuple[Barrier, ...]) -> tuple[Barrier, ...]:
    read = tuple((b.partition, b.attempt) for b in upstream)
    return tuple(Barrier(1, p, f"one-{p}", read=read, upstream=upstream if p == 0 else ()) for p in range(2))


def last_stage() -> list[Barrier]:
    upstream = stage_one(stage_zero())
    read = tuple((b.partition, b.attempt) for b in upstream)
    return [Barrier(2, p, f"two-{p}", read=read, upstream=upstream if p == 0 else ()) for p in range(2)]


def test_an_epoch_whose_lists_agree_is_accepted_with_the_reports_of_every_stage() -> None:
    report = accept(last_stage(), TWO_LEVELS)
    assert [[b.attempt for b in stage] for stage in report.stages] == [
        ["zero-0", "zero-1", "zero-2"],
        ["one-0", "one-1"],
        ["two-0", "two-1"],
    ]


def test_two_tasks_that_read_different_attempts_of_one_upstream_task_are_refused() -> None:
    barriers = last_stage()
    barriers[1] = replace(barriers[1], read=((0, "one-0"), (1, "another attempt")))
    with pytest.raises(InconsistentEpochError, match="different attempts"):
        accept(barriers, TWO_LEVELS)


def test_a_mix_one_level_further_up_is_refused_too() -> None:
    upstream = list(stage_one(stage_zero()))
    upstream[1] = replace(upstream[1], read=upstream[1].read[:2])
    read = tuple((b.partition, b.attempt) for b in upstream)
    barriers = [Barrier(2, p, f"two-{p}", read=read, upstream=tuple(upstream) if p == 0 else ()) for p in range(2)]
    with pytest.raises(InconsistentEpochError, match="stage 1"):
        accept(barriers, TWO_LEVELS)


def test_one_task_that_read_two_attempts_of_one_upstream_task_is_refused() -> None:
    upstream = (*stage_one(stage_zero()), Barrier(1, 1, "zombie", read=stage_one(stage_zero())[0].read))
    read = tuple(sorted((b.partition, b.attempt) for b in upstream))
    ordered = tuple(sorted(upstream, key=lambda b: (b.partition, b.attempt)))
    barriers = [Barrier(2, p, f"two-{p}", read=read, upstream=ordered if p == 0 else ()) for p in range(2)]
    with pytest.raises(InconsistentEpochError, match="once"):
        accept(barriers, TWO_LEVELS)


@pytest.mark.parametrize("damage", ["missing", "twice", "foreign stage"])
def test_every_task_acknowledges_exactly_once(damage: str) -> None:
    barriers = last_stage()
    if damage == "missing":
        barriers.pop()
    elif damage == "twice":
        barriers.append(replace(barriers[0], attempt="again"))
    else:
        barriers[1] = replace(barriers[1], stage=1)
    with pytest.raises(InconsistentEpochError):
        accept(barriers, TWO_LEVELS)


def test_partition_zero_must_carry_the_barriers_that_it_lists() -> None:
    barriers = last_stage()
    barriers[0] = replace(barriers[0], upstream=barriers[0].upstream[:1])
    with pytest.raises(InconsistentEpochError, match="carries"):
        accept(barriers, TWO_LEVELS)


def test_a_source_without_partitions_is_acknowledged_by_nobody() -> None:
    barriers = [Barrier(1, p, f"one-{p}") for p in range(2)]
    assert accept(barriers, {0: 0, 1: 2}).stages[0] == ()


def test_a_reader_keeps_each_barrier_once() -> None:
    reader = BarrierReader()
    for barrier in (Barrier(0, 1, "b"), Barrier(0, 0, "a"), Barrier(0, 0, "a")):
        reader.take(barrier)
    assert reader.read_list() == ((0, "a"), (1, "b"))
    assert [b.partition for b in reader.barriers()] == [0, 1]
