"""Checkpoints of at-least-once mode hold no elements back; those of exactly-once mode do."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.kernel.watermark import MAX_WATERMARK
from holdfast.runtime.master.job_client import JobClient
from holdfast.runtime.realtime.message import IDLE, Barrier, FrameWriter, InputGate
from holdfast.testing.real_time_runner import RealTimeProgram
from tests.unit.runtime.realtime.test_failed_checkpoints import Gate, HeldAt, frames, taken
from tests.unit.runtime.realtime.test_real_time_jobs import KEYS, Count, Rows, numbers, until

COUNTED: list[int] = []
"""The numbers in the order in which they were counted; tasks are threads here."""


class Counting(Count):
    def process_element(self, row: Any, ctx: Any) -> Any:
        COUNTED.append(row.n)
        yield from super().process_element(row, ctx)


def test_frames_behind_the_first_barrier_are_taken_at_once() -> None:
    gate = InputGate(1, 2, 0, is_aligned=False)
    gate.receive(frames(0, b"a", 1, b"b", b"c"))
    assert taken(gate) == [b"a", b"b", b"c"]
    assert gate.barrier is None, "the other producer has not sent it"
    gate.receive(frames(1, b"d"))
    assert taken(gate) == [b"d"]
    assert gate.barrier is None
    gate = InputGate(1, 2, 0, is_aligned=True)
    gate.receive(frames(0, b"a", 1, b"b", b"c"))
    assert taken(gate) == [b"a"]


def test_the_barrier_waits_for_all_producers_without_alignment_too() -> None:
    gate = InputGate(1, 3, 0, is_aligned=False, alignment_limit=1)
    gate.receive(frames(0, 1, b"a" * 100))
    gate.receive(frames(1, b"b", 1, b"c"))
    assert taken(gate) == [b"a" * 100, b"b", b"c"]
    assert gate.barrier is None
    assert gate.exceeded is None, "nothing waits"
    gate.receive(frames(2, b"d", 1, b"e"))
    assert gate.barrier == Barrier(1)
    assert taken(gate) == [b"d"], "what follows the last barrier follows the snapshot"
    gate.release(1)
    assert taken(gate) == [b"e"]


def test_a_second_barrier_waits_for_the_first_one_and_what_follows_it_does_not() -> None:
    gate = InputGate(1, 2, 0, is_aligned=False)
    gate.receive(frames(0, 1, b"a", 2, b"b"))
    assert taken(gate) == [b"a", b"b"]
    gate.receive(frames(1, b"c", 1, b"d", 2))
    assert gate.barrier == Barrier(1)
    gate.release(1)
    assert taken(gate) == [b"c", b"d"]
    assert gate.barrier == Barrier(2)
    gate.release(2)
    assert gate.barrier is None


@pytest.mark.parametrize("newest", [20, IDLE, MAX_WATERMARK])
def test_a_barrier_that_waited_does_not_take_the_watermark_back(newest: int) -> None:
    gate = InputGate(1, 2, 1, is_aligned=False)
    first, second = FrameWriter(1, 0, 1, 1), FrameWriter(1, 1, 1, 1)
    for writer, watermark in ((first, 10), (second, 100)):
        writer.advance([watermark])
        writer.add_barrier(Barrier(1))
        writer.add_barrier(Barrier(2))
    gate.receive(first.take())
    first.advance([newest])
    first.add_watermarks()
    gate.receive(first.take())
    gate.receive(second.take())
    assert taken(gate) == []
    expected = [20 if newest == 20 else 100]
    assert gate.watermarks() == expected
    for number in (1, 2):
        assert gate.barrier == Barrier(number)
        gate.release(number)
        assert taken(gate) == []
        assert gate.watermarks() == expected


@pytest.mark.parametrize("mode", ["EXACTLY_ONCE", "AT_LEAST_ONCE"])
def test_elements_behind_a_barrier_are_processed_before_the_others_have_sent_it(tmp_path: Path, mode: str) -> None:
    """One of two sources is held, so that its barrier does not come."""
    COUNTED.clear()
    found, gate, program = Rows(), Gate(tmp_path), RealTimeProgram()
    held = numbers(program, 1000).map(HeldAt(gate, 101), "key bigint, n bigint").uid("held")
    counts = held.key_by("key").process(Counting(), "key bigint, count bigint").uid("count")
    counts.for_each_epoch(found.write).uid("out")
    options = {"execution.checkpointing.interval": "1 h", "execution.checkpointing.mode": mode}
    client = JobClient(program.master(tmp_path / "job", options))
    until(gate.held.exists)
    checkpoint = client.trigger_checkpoint()
    time.sleep(0.5)  # the other source has sent its barrier
    begun = len(COUNTED)
    if mode == "AT_LEAST_ONCE":
        until(lambda: len(COUNTED) > begun + 200)
    else:
        time.sleep(1)
        assert len(COUNTED) == begun, "they are held back"
    assert not checkpoint.done()
    gate.open.touch()
    checkpoint.result(60)
    counted = len(COUNTED)
    until(lambda: len(COUNTED) > counted + 200)
    client.stop()
    client.await_termination()
    counts_of = {key: sorted(row["count"] for row in found if row["key"] == key) for key in range(KEYS)}
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in counts_of.values()), "nothing has failed"
