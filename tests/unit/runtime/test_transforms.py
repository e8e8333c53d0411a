"""Transforms of frames after Python operators, on the epoch runner, whose frames are Arrow tables."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from holdfast.datastream import KeyedCoProcessFunction, KeyedProcessFunction, ParquetFileSink
from holdfast.datastream.stream.data_stream import DataStream
from holdfast.errors import ConfigurationError, EngineError, JobExecutionError
from holdfast.kernel.clock import ManualClock
from holdfast.runtime.graph.stream_graph import FrameTransformNode
from holdfast.runtime.job.control import JobStatus
from holdfast.state.descriptor import ValueStateDescriptor
from holdfast.testing.epoch_runner import LocalEngine
from holdfast.types.type_parser import parse_schema
from tests.stories import ledger, tidiness
from tests.stories.local import RESTARTING, Program, epochs, master, run

PAYMENTS = ledger.payments(8, 30, 5, seed=3)
SUMS = "account string, amount bigint"
ENTRY = ledger.ENTRY.schema_ddl


def transformed(stream: DataStream, function: Callable[[pa.Table], pa.Table], columns: str) -> DataStream:
    """What `stream.transform` makes, without Spark to find out the columns."""
    node = FrameTransformNode(
        inputs=(stream._node,), name="transform", element_type=parse_schema(columns), function=function
    )
    return DataStream(stream._environment, node)


def sums(table: pa.Table) -> pa.Table:
    """The sum of the amounts of each account: one row a group, so it changes the number of rows."""
    grouped = table.group_by("account").aggregate([("amount", "sum")])
    return pa.table({"account": grouped["account"], "amount": grouped["amount_sum"]})


class Balance(KeyedProcessFunction):
    """Numbers the sums of an account and adds them up."""

    def open(self, runtime_context: Any) -> None:
        self.seq = runtime_context.get_state(ValueStateDescriptor("seq", "bigint"))
        self.total = runtime_context.get_state(ValueStateDescriptor("total", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.seq.update((self.seq.value() or 0) + 1)
        self.total.update((self.total.value() or 0) + value.amount)
        yield value.account, self.seq.value(), value.amount, self.total.value()


def balances(place: Path, source: DataStream) -> None:
    """payments -> ledger (state) -> transform (aggregation) -> balance (state), and the ledger's own rows beside."""
    large = source.filter(lambda payment: payment.amount > 5)
    entries = large.key_by("account", order_by="payment").process(ledger.Ledger(), ENTRY).uid("ledger")
    entries.sink_to(ParquetFileSink(place / "entries")).uid("entries")
    amounts = entries.map(lambda entry: (entry.account, entry.payment % 7), SUMS)
    balance = transformed(amounts, sums, SUMS).key_by("account").process(Balance(), f"{SUMS}, n bigint, total bigint")
    balance.uid("balance").sink_to(ParquetFileSink(place / "out")).uid("out")


def audit(place: Path) -> None:
    """Sink equals model: each payment once in the ledger, each account's sums once an epoch, without a gap."""
    large = [[payment for payment in epoch if payment[2] > 5] for epoch in PAYMENTS]
    ledger.audit(place / "entries", large)
    expected, seq, total = [], Counter[str](), Counter[str]()
    for epoch in large:
        amounts = Counter[str]()
        for payment, account, _ in epoch:
            amounts[account] += payment % 7
        for account, amount in amounts.items():
            seq[account] += 1
            total[account] += amount
            expected.append((account, seq[account], amount, total[account]))
    assert sorted(ledger.read(place / "out")) == sorted(expected)


def test_an_aggregation_between_two_keyed_operators(place: Path) -> None:
    program = Program()
    balances(place, program.source("payments", ledger.PAYMENT))
    assert run(program, place / "job", ledger.inputs(PAYMENTS)) is JobStatus.SUSPENDED
    audit(place)
    tidiness.inspect(place / "job", outputs=(place / "out", place / "entries"))


@pytest.mark.parametrize("seed", range(3))
def test_tasks_of_either_epoch_job_fail_at_random_and_nothing_shows(place: Path, seed: int) -> None:
    rng = random.Random(seed)

    def strike(stage: int, partition: int) -> None:
        if rng.random() < 0.12:
            raise EngineError(f"task {partition} of stage {stage} was struck")

    program = Program()
    balances(place, program.source("payments", ledger.PAYMENT))
    running = master(program, place / "job", ledger.inputs(PAYMENTS), RESTARTING, interceptor=strike)
    assert running.run() is JobStatus.SUSPENDED
    audit(place)
    tidiness.inspect(place / "job", outputs=(place / "out", place / "entries"))


@pytest.mark.parametrize("kind", ["struct<>", "array<struct<>>"])
@pytest.mark.parametrize("beside", [False, True])
def test_rows_with_structs_without_fields_are_refused_before_anything_runs(
    place: Path, kind: str, beside: bool
) -> None:
    """Also where they go past the transform, into an operator that comes after it."""
    program = Program()
    numbers = "account string, amount bigint"
    source = program.source("in", f"{numbers}, odd {kind}").map(lambda row: row, f"{numbers}, odd {kind}").uid("made")
    if beside:
        plain = program.source("plain", numbers).map(lambda row: row, numbers).uid("plain made")
        first = transformed(plain, sums, SUMS).key_by("account")
        after = first.connect(source.key_by("account")).process(Both(), output_type=SUMS)
    else:
        after = transformed(source, sums, SUMS).map(lambda row: row, SUMS)
    after.uid("after").sink_to(ParquetFileSink(place / "out")).uid("out")
    said = r"a transform\(\), before which 'made' writes Parquet files, which cannot store structs .* column 'odd' is"
    with pytest.raises(ConfigurationError, match=said):
        run(program, place / "job", {})
    assert not (place / "out").exists()


class Both(KeyedCoProcessFunction):
    """Passes the first input on."""

    def process_element1(self, value: Any, ctx: Any) -> Any:
        yield value

    def process_element2(self, value: Any, ctx: Any) -> Any:
        return []


class DoubtfulEngine(LocalEngine):
    """Loses an answer of an epoch job now and then, so that the attempt at the epoch is refused."""

    doubts = 3

    def execute(self, epoch: Any, epoch_input: Any) -> Any:
        barriers = super().execute(epoch, epoch_input)
        if self.doubts and epoch.epoch % 2 == 0 and epoch.try_number == 0 and self._is_struck(epoch_input):
            self.doubts -= 1
            return barriers[1:]
        return barriers

    def _is_struck(self, epoch_input: Any) -> bool:
        return hasattr(epoch_input, "epoch_job")


def test_an_epoch_is_refused_after_its_first_epoch_job_was_accepted(place: Path) -> None:
    program = Program()
    balances(place, program.source("payments", ledger.PAYMENT))
    running = master(program, place / "job", ledger.inputs(PAYMENTS), engine=DoubtfulEngine)
    assert running.run() is JobStatus.SUSPENDED
    assert running.job.engine.doubts == 0
    audit(place)
    tidiness.inspect(place / "job", outputs=(place / "out", place / "entries"))


def test_attempts_that_fail_in_the_second_epoch_job_again_and_again_leave_no_staged_files(place: Path) -> None:
    """No checkpoint completes between them, so no sweep comes; and what is swept later has a grace period first."""
    failures = 0

    def strike(stage: int, partition: int) -> None:
        nonlocal failures
        if stage == 3 and partition == 0 and failures < 7:
            failures += 1
            raise EngineError("a task of the second epoch job was struck")

    program = Program()
    balances(place, program.source("payments", ledger.PAYMENT))
    patient = {**RESTARTING, "execution.checkpointing.cleaner.grace-period": "10 min"}
    running = master(program, place / "job", ledger.inputs(PAYMENTS), patient, interceptor=strike)
    assert running.run() is JobStatus.SUSPENDED
    assert failures == 7
    assert list((place / "job").glob("*/taskowned/*.parquet")) == []
    audit(place)


def test_an_epoch_that_is_refused_and_run_again_leaves_no_staged_files(place: Path) -> None:
    program = Program()
    balances(place, program.source("payments", ledger.PAYMENT))
    patient = {"execution.checkpointing.cleaner.grace-period": "10 min"}
    running = master(program, place / "job", ledger.inputs(PAYMENTS), patient, engine=DoubtfulEngine)
    assert running.run() is JobStatus.SUSPENDED
    assert running.job.engine.doubts == 0
    assert list((place / "job").glob("*/taskowned/*.parquet")) == []


def test_a_transform_of_a_transform_and_one_behind_another_python_operator(place: Path) -> None:
    program = Program()
    numbers = program.source("numbers", "n bigint").map(lambda row: (row.n, row.n % 3), "n bigint, third bigint")
    both = "n bigint, third bigint"
    odd = transformed(numbers, lambda table: table.filter(pc.equal(pc.bit_wise_and(table["n"], 1), 1)), both)
    tens = transformed(odd, lambda table: table.set_column(0, "n", pc.multiply(table["n"], 10)), both)
    again = tens.flat_map(lambda row: [row, row], both)
    transformed(again, lambda table: table.select(["n"]), "n bigint").sink_to(ParquetFileSink(place / "out"))
    assert run(program, place / "job", epochs("numbers", [[(n,) for n in range(10)], [(11,)]])) is JobStatus.SUSPENDED
    assert sorted(ledger.read(place / "out")) == sorted([(n,) for n in (10, 30, 50, 70, 90, 110)] * 2)
    tidiness.inspect(place / "job", outputs=(place / "out",))


def test_a_union_of_a_transform_with_streams_of_the_epoch_job_before(place: Path) -> None:
    """An input, what a keyed operator emits and a transform meet in one keyed operator, each element once."""
    program = Program()
    source = program.source("payments", SUMS)
    counted = source.key_by("account").process(Balance(), f"{SUMS}, n bigint, total bigint").uid("balance")
    firsts = counted.map(lambda row: (row[0], row[3]), SUMS)
    summed = transformed(source.filter(lambda row: row.amount > 0), sums, SUMS)
    summed.union(firsts, source).key_by("account").process(Balance(), f"{SUMS}, n bigint, total bigint").uid(
        "all"
    ).sink_to(ParquetFileSink(place / "out"))
    given = [[("a", 1), ("b", 2), ("a", 3)], [("a", 5)], []]
    assert run(program, place / "job", epochs("payments", given)) is JobStatus.SUSPENDED
    found = ledger.read(place / "out")
    assert Counter((account, amount) for account, _, amount, _ in found) == Counter(
        [
            *[("a", 1), ("b", 2), ("a", 3), ("a", 5)],  # the input itself
            *[("a", 1), ("b", 2), ("a", 4), ("a", 9)],  # running totals
            *[("a", 4), ("b", 2), ("a", 5)],  # sums of an epoch
        ]
    )
    for account in "ab":
        numbers = sorted(row[1] for row in found if row[0] == account)
        assert numbers == list(range(1, len(numbers) + 1))


class Late(KeyedProcessFunction):
    """Emits each value a second after it came, by a timer."""

    def open(self, runtime_context: Any) -> None:
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.sum.update((self.sum.value() or 0) + value.amount)
        ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time() + 1000)
        return ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), self.sum.value()


def test_output_of_timers_in_a_tick_passes_the_transform_and_empty_epochs_are_counted(place: Path) -> None:
    clock = ManualClock(1_000)
    program = Program()
    late = program.source("payments", SUMS).key_by("account").process(Late(), SUMS).uid("late")
    count = transformed(late, lambda table: pa.table({"rows": [table.num_rows]}), "rows bigint")
    count.key_by(lambda row: 0, "int").process(Numbering(), "seq bigint, rows bigint").uid("counts").sink_to(
        ParquetFileSink(place / "out")
    )

    class Ticking(LocalEngine):
        def drive(self, driver: Any) -> Any:
            outcome = super().drive(driver)
            clock.advance(5_000)
            driver.tick_if_due()
            return outcome

    inputs = epochs("payments", [[("a", 1), ("b", 2)], []])
    assert run(program, place / "job", inputs, clock=clock, engine=Ticking) is JobStatus.SUSPENDED
    assert sorted(ledger.read(place / "out")) == [(1, 0), (2, 0), (3, 2)]


class Numbering(KeyedProcessFunction):
    """Numbers what comes."""

    def open(self, runtime_context: Any) -> None:
        self.seq = runtime_context.get_state(ValueStateDescriptor("seq", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.seq.update((self.seq.value() or 0) + 1)
        yield self.seq.value(), value.rows


def test_side_outputs_reach_a_transform_and_a_drain_ends_event_time_in_every_epoch_job(place: Path) -> None:
    from holdfast.datastream import OutputTag, ProcessFunction
    from holdfast.types.types import Types

    tag = OutputTag("odd", Types.ROW_NAMED(["n"], [Types.LONG()]))

    class Split(ProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Any:
            if value.n % 2:
                ctx.output(tag, (value.n,))
            else:
                yield (value.n,)

    class AtTheEnd(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Any:
            ctx.timer_service().register_event_time_timer(value.n)
            return ()

        def on_timer(self, timestamp: int, ctx: Any) -> Any:
            yield (timestamp,)

    program = Program()
    split = program.source("numbers", "n bigint").process(Split(), "n bigint")
    odd = transformed(split.get_side_output(tag), lambda table: table, "n bigint")
    odd.key_by("n").process(AtTheEnd(), "n bigint").uid("end").sink_to(ParquetFileSink(place / "odd"))
    transformed(split, lambda table: table, "n bigint").sink_to(ParquetFileSink(place / "even"))
    inputs = epochs("numbers", [[(n,) for n in range(5)], [(7,)]])
    assert run(program, place / "job", inputs, is_bounded=True) is JobStatus.FINISHED
    assert sorted(ledger.read(place / "odd")) == [(1,), (3,), (7,)]
    assert sorted(ledger.read(place / "even")) == [(0,), (2,), (4,)]


def test_a_transform_that_raises_or_returns_something_else_names_itself(place: Path) -> None:
    def broken(table: pa.Table) -> pa.Table:
        raise ValueError("no such thing")

    for function, message in ((broken, "no such thing"), (lambda table: 7, "frames are Arrow tables")):
        program = Program()
        numbers = program.source("numbers", "n bigint").filter(lambda row: True)
        transformed(numbers, function, "n bigint").uid("mine").sink_to(ParquetFileSink(place / "out"))
        with pytest.raises((JobExecutionError, ConfigurationError), match=message):
            run(program, place / message, epochs("numbers", [[(1,)]]))
