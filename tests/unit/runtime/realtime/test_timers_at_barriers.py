"""Processing-time timers of a real-time job that are due at a barrier: the checkpoint has their effects."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from holdfast.datastream import KeyedProcessFunction
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.runtime.master.job_client import JobClient
from holdfast.testing.real_time_runner import RealTimeProgram
from tests.stories.turns import MovedClock
from tests.unit.runtime.realtime.test_failed_checkpoints import Gate, HeldAt
from tests.unit.runtime.realtime.test_real_time_jobs import KEYS, ONE_OR_TWO, Rows, numbers, until

OUTPUT = "what string, key bigint, n bigint"
HOUR = 3_600_000
QUIET = {"execution.checkpointing.interval": "1 h"}


class Reminder(KeyedProcessFunction):
    """Sets a timer at the first element of a key, for an hour later."""

    fired: ClassVar[list[int]] = []

    def open(self, runtime_context: Any) -> None:
        self.is_set = runtime_context.get_state(ValueStateDescriptor("set", "boolean"))

    def process_element(self, row: Any, ctx: Any) -> Any:
        if self.is_set.value() is None:
            self.is_set.update(True)
            now = ctx.timer_service().current_processing_time()
            ctx.timer_service().register_processing_time_timer(now + HOUR)
        return ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        Reminder.fired.append(ctx.get_current_key())
        yield "timer", ctx.get_current_key(), timestamp


def reminders(gate: Gate, found: Rows) -> RealTimeProgram:
    program = RealTimeProgram()
    held = numbers(program, 500).map(HeldAt(gate, 101), "key bigint, n bigint").uid("held")
    held.key_by("key").process(Reminder(), OUTPUT).uid("reminders").for_each_epoch(found.write).uid("out")
    return program


def test_a_timer_that_is_due_while_a_barrier_is_aligned_belongs_to_the_side_before_it(tmp_path: Path) -> None:
    """One of two sources is held, so that its barrier does not come."""
    Reminder.fired.clear()
    gate, clock, found, later = Gate(tmp_path), MovedClock(), Rows(), Rows()
    client = JobClient(reminders(gate, found).master(tmp_path / "job", QUIET, clock=clock))
    until(gate.held.exists)
    savepoint = client.trigger_savepoint(str(tmp_path / "savepoints"))
    time.sleep(0.5)  # the other source has sent its barrier
    assert not Reminder.fired
    clock.advance(2 * HOUR)
    until(lambda: len(Reminder.fired) == KEYS)
    assert not savepoint.done()
    gate.open.touch()
    path = savepoint.result(60)
    assert sorted(row["key"] for row in found) == list(range(KEYS)), "the checkpoint has their output"
    client.cancel()
    client.await_termination()
    options = {**QUIET, "execution.state-recovery.path": path}
    client = JobClient(reminders(gate, later).master(tmp_path / "other", options, clock=clock))
    client.trigger_checkpoint().result(60)
    client.stop()
    client.await_termination()
    assert len(Reminder.fired) == KEYS, "its state is behind them"
    assert len(later) == 0


class AtOnce(KeyedProcessFunction):
    """Sets a timer of its own for each element, which is due at once."""

    def process_element(self, row: Any, ctx: Any) -> Any:
        ctx.timer_service().register_processing_time_timer(row.n)
        yield "element", row.key, row.n

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield "timer", ctx.get_current_key(), timestamp


class Epochs:
    """What each epoch has written."""

    def __init__(self) -> None:
        self.written: dict[int, Counter[str]] = {}

    def write(self, frame: pa.Table, epoch: int) -> None:
        self.written[epoch] = Counter(row["what"] for row in frame.to_pylist())


@ONE_OR_TWO
def test_a_timer_that_is_due_at_a_barrier_fires_before_the_snapshot(tmp_path: Path, tasks: int) -> None:
    found, program = Epochs(), RealTimeProgram()
    both = numbers(program, 500).key_by("key").process(AtOnce(), OUTPUT).uid("timers")
    both.for_each_epoch(found.write).uid("out")
    options = {"execution.checkpointing.interval": "10 ms"}
    client = JobClient(program.master(tmp_path, options, parallelism=tasks, source_tasks=tasks))
    until(lambda: len(found.written) > 25)
    client.stop()
    client.await_termination()
    assert sum(epoch["element"] for epoch in found.written.values()) > 50
    assert [epoch for epoch in found.written.values() if epoch["element"] != epoch["timer"]] == []
