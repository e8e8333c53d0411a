"""Functions that are not deterministic, on an engine that mixes attempts: what counts comes from one of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.datastream import KeyedProcessFunction, ParquetFileSink
from holdfast.errors import InconsistentEpochError, JobExecutionError
from holdfast.runtime.epoch import MAX_TRIES
from holdfast.runtime.exchange.stage_message import EpochDescriptor
from holdfast.runtime.graph.plan import Stage
from holdfast.runtime.job.control import JobStatus
from holdfast.state.descriptor import ValueStateDescriptor
from holdfast.testing.epoch_runner import Batches, LocalEngine
from tests.stories import ledger, tidiness
from tests.stories.local import RESTARTING, Program, master

PAYMENTS = ledger.payments(6, 24, 4, seed=9)
ROUTED = "payment bigint, route bigint, seq bigint"


class Dice(KeyedProcessFunction):
    """Numbers the payments of an account and sends each one to a route that it dices for."""

    def open(self, runtime_context: Any) -> None:
        self.seq = runtime_context.get_state(ValueStateDescriptor("seq", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.seq.update((self.seq.value() or 0) + 1)
        yield value.payment, random.randrange(5), self.seq.value()


class Count(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        yield (*value, self.count.value())


class MixingEngine(LocalEngine):
    """Runs a task twice, and lets the tasks below it read either attempt, or both.

    Args:
        mix: `below -> (reads the first attempt, reads the second one)`.
        stage: The stage of the task that runs twice.
        times: In how many attempts at epochs.
    """

    def __init__(self, inputs: Any, *, mix: Any, stage: int = 1, times: int = 1, **settings: Any) -> None:
        super().__init__(inputs, **settings)
        self.mix, self.stage, self.times = mix, stage, times
        self.attempts: list[tuple[int, int]] = []
        self._second: list[Batches] = []

    def execute(self, epoch: EpochDescriptor, epoch_input: Any) -> Any:
        self.attempts.append((epoch.epoch, epoch.try_number))
        return super().execute(epoch, epoch_input)

    def _run_stage(
        self, stage: Stage, epoch: EpochDescriptor, inputs: Sequence[Batches], next_tasks: int
    ) -> list[Batches]:
        first = super()._run_stage(stage, epoch, inputs, next_tasks)
        self._second = []
        if stage.index == self.stage and self.times and epoch.epoch > 2:
            self.times -= 1
            self._second = [list(self._run_task(stage, epoch, 0, inputs[0], next_tasks)), *first[1:]]
        return first

    def hand_over(self, stage: Stage, crossing: Sequence[Batches]) -> Sequence[Batches]:
        placed = super().hand_over(stage, crossing)
        if stage.index != self.stage + 1 or not self._second:
            return placed
        other = super().hand_over(stage, [self._second[0]])
        without = super().hand_over(stage, crossing[1:])
        mixed = []
        for task in range(stage.tasks):
            first, second = self.mix(task)
            only_first = super().hand_over(stage, crossing[:1])[task] if first else []
            mixed.append([*only_first, *(other[task] if second else []), *without[task]])
        return mixed


def either(task: int) -> tuple[bool, bool]:
    """One task reads the first attempt, the others the second one."""
    return task == 0, task != 0


def both(task: int) -> tuple[bool, bool]:
    """All tasks read both, as from two copies of one block."""
    return True, True


def the_second(task: int) -> tuple[bool, bool]:
    """All tasks read the second attempt: the first one was slower, or its executor died."""
    return False, True


def one_reads_both(task: int) -> tuple[bool, bool]:
    return True, task == 1


def one_reads_none(task: int) -> tuple[bool, bool]:
    return task != 1, False


def job(place: Path, **engine: Any) -> Any:
    program = Program()
    routed = program.source("payments", ledger.PAYMENT).key_by("account", order_by="payment").process(Dice(), ROUTED)
    counted = routed.uid("dice").key_by("route").process(Count(), f"{ROUTED}, count bigint")
    counted.uid("count").sink_to(ParquetFileSink(place / "out"))
    return master(
        program, place / "job", ledger.inputs(PAYMENTS), engine.pop("options", None), engine=MixingEngine, **engine
    )


def audit(place: Path) -> None:
    """Each payment came once, with its number, and each route counted those that it was sent, without a gap."""
    rows = ledger.read(place / "out")
    numbers = {row[0]: row[2] for row in ledger.model(PAYMENTS)}
    assert {row[0]: row[2] for row in rows} == numbers
    assert len(rows) == len(numbers)
    for route in {row[1] for row in rows}:
        counts = sorted(row[3] for row in rows if row[1] == route)
        assert counts == list(range(1, len(counts) + 1))


@pytest.mark.parametrize("mix", [either, both, one_reads_both, one_reads_none])
@pytest.mark.parametrize("stage", [0, 1])
def test_an_epoch_of_mixed_attempts_is_refused_and_run_again(place: Path, mix: Any, stage: int) -> None:
    running = job(place, mix=mix, times=2) if stage else job_that_starts_in_python(place, mix=mix, times=2)
    assert running.run() is JobStatus.SUSPENDED
    again = [attempt for attempt in running.job.engine.attempts if attempt[1] > 0]
    assert again == [(3, 1), (3, 2)]
    audit(place)
    tidiness.inspect(place / "job", outputs=(place / "out",))


def job_that_starts_in_python(place: Path, **engine: Any) -> Any:
    program = Program()
    payments = program.source("payments", ledger.PAYMENT).filter(lambda payment: payment.amount >= 0)
    routed = payments.key_by("account", order_by="payment").process(Dice(), ROUTED)
    counted = routed.uid("dice").key_by("route").process(Count(), f"{ROUTED}, count bigint")
    counted.uid("count").sink_to(ParquetFileSink(place / "out"))
    inputs = ledger.inputs(PAYMENTS)
    return master(program, place / "job", inputs, engine=MixingEngine, stage=0, **engine)


def test_an_attempt_that_all_have_read_counts_and_its_twin_leaves_nothing(place: Path) -> None:
    running = job(place, mix=the_second, times=100)
    assert running.run() is JobStatus.SUSPENDED
    assert all(attempt == 0 for _, attempt in running.job.engine.attempts)
    audit(place)
    tidiness.inspect(place / "job", outputs=(place / "out",))


def test_an_engine_that_mixes_for_ever_fails_the_attempt_and_then_the_job(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(JobExecutionError) as failed:
        job(place, mix=either, times=10**6).run()
    assert isinstance(failed.value.__cause__, InconsistentEpochError)
    again = [one.getMessage().split(":")[0] for one in caplog.records if "is run again" in one.getMessage()]
    tries = [f"epoch 3 is run again (try {number} of {MAX_TRIES})" for number in range(2, MAX_TRIES + 1)]
    assert again == tries
    running = job(place, mix=either, times=2 * MAX_TRIES + 1, options=RESTARTING)
    assert running.run() is JobStatus.SUSPENDED
    audit(place)
    tidiness.inspect(place / "job", outputs=(place / "out",))


def test_two_acknowledgements_of_one_last_task_are_refused(place: Path) -> None:
    class Twice(MixingEngine):
        def execute(self, epoch: EpochDescriptor, epoch_input: Any) -> Any:
            barriers = super().execute(epoch, epoch_input)
            if self.times and epoch.epoch > 2:
                self.times -= 1
                return [*barriers, barriers[-1]] if self.times % 2 else barriers[:-1]
            return barriers

    program = Program()
    counted = program.source("payments", ledger.PAYMENT).key_by("account").process(Dice(), ROUTED).uid("dice")
    counted.key_by("route").process(Count(), f"{ROUTED}, count bigint").uid("count").sink_to(
        ParquetFileSink(place / "out")
    )
    running = master(program, place / "job", ledger.inputs(PAYMENTS), engine=Twice, mix=the_second, stage=-1, times=4)
    assert running.run() is JobStatus.SUSPENDED
    assert [attempt for attempt in running.job.engine.attempts if attempt[1]] == [(3, n) for n in range(1, 5)]
    audit(place)
