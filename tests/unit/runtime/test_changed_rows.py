"""Functions that change rows: nobody else sees it, neither another step nor state, until it is emitted or written."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Row, RowKind, Types
from holdfast.common.time import Time
from holdfast.datastream import (
    AggregateFunction,
    AsyncDataStream,
    AsyncFunction,
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
)
from holdfast.datastream.functions import (
    BroadcastProcessFunction,
    CheckpointedFunction,
    ProcessWindowFunction,
    ReduceFunction,
)
from holdfast.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.datastream.window import SlidingEventTimeWindows
from holdfast.runtime.window_operator.window_operator import WINDOW_CONTENTS, WindowEvaluation, WindowOperator
from holdfast.testing import EpochProgram, OperatorHarness

ROW = "struct<word: string, n: bigint>"
PAIR = "word string, n bigint"
NESTED = f"struct<row: {ROW}, several: array<{ROW}>>"
BACKENDS = pytest.mark.parametrize("backend", ["hashmap", "columnar"])
SIDE = OutputTag("side", PAIR)


class Collected:
    """Collects what a job emits, by epoch."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def __call__(self, frame: Any, epoch: int, incarnation: str) -> None:
        self.rows += [tuple(row.values()) for row in frame.to_pylist()]


def run(program: Any, place: Path, *epochs: list[Any], **options: Any) -> None:
    program.run(place, [{"in": epoch} for epoch in epochs], parallelism=1, **options)


class Spoils(ProcessFunction):
    """Changes what it gets, and remembers it."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        value.n = -value.n
        value["word"] += "!"
        yield value


# Fan-out.


@pytest.mark.parametrize("packed", [False, True], ids=["rows", "messages"])
@pytest.mark.parametrize("declared", [PAIR, None, "array<struct<word: string, n: bigint>>"])
def test_other_readers_of_the_stream_get_the_original_row(tmp_path: Path, declared: Any, packed: bool) -> None:
    def spoil(value: Any) -> str:
        row = value[0] if isinstance(value, list) else value
        row.n = -row.n
        return f"{row.word} {row.n}"

    def tell(value: Any) -> str:
        row = value[0] if isinstance(value, list) else value
        return f"{row.word} {row.n}"

    def fill(row: Any) -> Any:
        row.n += 1
        return [row] if declared and "array" in declared else row

    spoilt, told, beyond = Collected(), Collected(), Collected()
    program = EpochProgram()
    between = program.source("in", PAIR).map(fill, declared)
    between.map(spoil, "string").for_each_epoch(spoilt).uid("spoilt")
    between.map(tell, "string").for_each_epoch(told).uid("told")
    between.key_by(lambda value: 1, "bigint").map(tell, "string").for_each_epoch(beyond).uid("beyond")
    options = {"execution.exchange.packed": packed}
    run(program, tmp_path, [("a", 1), ("b", 2)], [("c", 3)], options=options)
    assert spoilt.rows == [("a -2",), ("b -3",), ("c -4",)]
    assert told.rows == beyond.rows == [("a 2",), ("b 3",), ("c 4",)]


def test_steps_at_a_source_and_sinks_get_the_original_row(tmp_path: Path) -> None:
    spoilt, told = Collected(), Collected()
    program = EpochProgram()
    source = program.source("in", PAIR)
    source.process(Spoils(), PAIR).for_each_epoch(spoilt).uid("spoilt")
    source.map(lambda row: row, PAIR).for_each_epoch(told).uid("told")
    run(program, tmp_path, [("a", 1)], [("a", 1)])
    assert spoilt.rows == [("a!", -1)] * 2 and told.rows == [("a", 1)] * 2


# Emission.


class Steps(KeyedProcessFunction):
    """Emits the same row several times, everywhere."""

    def emit(self, value: Any, ctx: Any) -> Iterator[Any]:
        for n in range(3):
            value.n = n
            yield value
            yield SIDE, value
            ctx.output(OutputTag("direct"), value)
        unchanged: Any = Row(word=value.word, n=2)
        ctx.output(OutputTag("later"), unchanged)
        unchanged.n = -1
        value.set_row_kind(RowKind.DELETE)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.row = value
        ctx.timer_service().register_event_time_timer(10)
        return self.emit(value, ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        return self.emit(Row(word="timer", n=7), ctx)


@BACKENDS
def test_a_row_emitted_while_it_changes_has_its_values_of_that_time(backend: str) -> None:
    with OperatorHarness(Steps(), key_by="word", output_type=PAIR, backend=backend) as harness:
        row: Any = Row(word="a", n=5)
        assert harness.process_element(row) == [("a", 0), ("a", 1), ("a", 2)]
        harness.process_watermark(10)
        assert row == ("a", 5), "it is the row of whoever tests"
        assert [r.n for r in harness.output] == [0, 1, 2] * 2
        assert [r.n for r in harness.side_output(SIDE)] == [0, 1, 2] * 2
        assert [r.n for r in harness.side_output("direct")] == [0, 1, 2] * 2
        assert [r.n for r in harness.side_output("later")] == [2, 2]
        assert {r.get_row_kind() for r in harness.side_output("direct")} == {RowKind.INSERT}


def test_an_accumulator_in_memory_is_emitted_with_each_element(tmp_path: Path) -> None:
    class Counts(KeyedProcessFunction):
        def __init__(self) -> None:
            self.total = Row(word="", n=0)

        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            self.total.n += value.n
            self.total.word += value.word
            yield self.total

    class Rule(BroadcastProcessFunction):
        def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            for _ in range(2):
                yield value
                value.n += 1

        def process_element(self, value: Any, ctx: Any) -> Any:
            return ()

    class Later(AsyncFunction):
        async def async_invoke(self, value: Any) -> Any:
            for row in kept:
                row.n = -1
            fresh = Row(word=value.word, n=0)
            kept.extend([value, fresh])
            value.n += 10
            return [value, value, fresh]

    kept: list[Any] = []
    counted, ruled, waited = Collected(), Collected(), Collected()
    program = EpochProgram()
    source = program.source("in", PAIR)
    source.key_by(lambda row: 1, "bigint").process(Counts(), PAIR).for_each_epoch(counted).uid("counted")
    rules = MapStateDescriptor("rules", "string", "string")
    source.connect(source.broadcast(rules)).process(Rule(), PAIR).for_each_epoch(ruled).uid("ruled")
    AsyncDataStream.ordered_wait(source, Later(), Time.seconds(10), 1, PAIR).for_each_epoch(waited).uid("waited")
    run(program, tmp_path, [("a", 1), ("b", 2), ("c", 3)])
    assert counted.rows == [("a", 1), ("ab", 3), ("abc", 6)]
    assert sorted(ruled.rows) == [("a", 1), ("a", 2), ("b", 2), ("b", 3), ("c", 3), ("c", 4)]
    assert sorted(waited.rows) == [(w, n) for w, of in (("a", 11), ("b", 12), ("c", 13)) for n in (0, of, of)]


# State.


@dataclasses.dataclass(frozen=True)
class Holder:
    row: Types.ROW_NAMED(["word", "n"], [Types.STRING(), Types.LONG()])  # type: ignore[valid-type]


class Careless(KeyedProcessFunction):
    """Changes what it has written and what it has read; only what it writes may be there afterwards."""

    def __init__(self, ttl: bool) -> None:
        self.ttl = ttl

    def open(self, runtime_context: Any) -> None:
        described: list[Any] = [
            ValueStateDescriptor("value", ROW),
            ValueStateDescriptor("nested", NESTED),
            ValueStateDescriptor("pair", f"struct<a: {ROW}, b: {ROW}>"),
            ValueStateDescriptor("holder", Holder),
            ValueStateDescriptor("rows", f"array<{ROW}>"),
            ValueStateDescriptor("named", f"map<string, {ROW}>"),
            ListStateDescriptor("list", ROW),
            MapStateDescriptor("map", "string", ROW),
            MapStateDescriptor("by row", ROW, "bigint"),
            ReducingStateDescriptor("sum", Adds(), ROW),
            AggregatingStateDescriptor("mean", Mean(), ROW),
        ]
        if self.ttl:
            for descriptor in described:
                descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.days(1)).build())
        value, nested, pair, holder, rows, named, listed, mapped, by_row, summed, mean = described
        self.value, self.nested = runtime_context.get_state(value), runtime_context.get_state(nested)
        self.pair, self.holder = runtime_context.get_state(pair), runtime_context.get_state(holder)
        self.many, self.named = runtime_context.get_state(rows), runtime_context.get_state(named)
        self.list = runtime_context.get_list_state(listed)
        self.map, self.by_row = runtime_context.get_map_state(mapped), runtime_context.get_map_state(by_row)
        self.sum, self.mean = runtime_context.get_reducing_state(summed), runtime_context.get_aggregating_state(mean)

    def rows(self) -> list[Any]:
        """Every row that is read from state."""
        nested, pair, holder = self.nested.value(), self.pair.value(), self.holder.value()
        found = [self.value.value(), self.sum.get(), *self.list.get(), *self.map.values(), *self.by_row.keys()]
        found += [nested.row, *nested.several, pair.a, pair.b] if nested is not None else []
        found += [holder.row] if holder is not None else []
        found += [*(self.many.value() or ()), *(self.named.value() or {}).values()]
        found += [row for _, row in self.map.items()] + [self.map.get("k")]
        return [row for row in found if row is not None]

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if value.n:
            before = self.value.value() or Row(word=value.word, n=0)
            before.n += value.n
            row: Any = Row(word=value.word, n=before.n)
            fresh = [Row(word=row.word, n=row.n) for _ in range(10)]
            self.value.update(before)
            self.nested.update(Row(row=fresh[0], several=[fresh[1], before]))
            self.pair.update(Row(a=fresh[2], b=before))
            self.holder.update(Holder(fresh[3]))
            self.list.update([row, fresh[4]])
            self.list.add(fresh[5])
            self.map.put("k", fresh[6])
            self.many.update([fresh[8], before])
            self.named.update({"k": fresh[9], "before": before})
            self.by_row.clear()
            self.by_row.put(fresh[7], 1)
            self.mean.add(value)
            self.sum.add(value)
            for one in (before, row, *fresh, value):
                one.n = -99
        for one in self.rows():
            one["n"], one[0] = -98, "spoilt"
            one.set_row_kind(RowKind.DELETE)
        self.get_key(ctx)
        yield value.word, sorted({row.n for row in self.rows()}), self.mean.get(), self.by_row.get(self.key(ctx))

    def get_key(self, ctx: Any) -> None:
        ctx.get_current_key().word = "spoilt"

    def key(self, ctx: Any) -> Any:
        key = ctx.get_current_key()
        return Row(word=key.word, n=self.value.value().n)


class Adds(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        value1.n += value2.n
        value2.n = -97
        return value1


class Mean(AggregateFunction):
    def create_accumulator(self) -> Any:
        return Row(word="", n=0)

    def add(self, value: Any, accumulator: Any) -> Any:
        accumulator[1] += value[1]
        accumulator["word"] = value.word
        return accumulator

    def get_result(self, accumulator: Any) -> Any:
        accumulator.n -= 1
        return accumulator.n + 1

    def merge(self, a: Any, b: Any) -> Any:
        a.n += b.n
        return a


OUT = "word string, ns array<bigint>, mean bigint, by_row bigint"


@BACKENDS
@pytest.mark.parametrize("ttl", [False, True])
def test_state_keeps_the_written_values_when_rows_change(backend: str, ttl: bool) -> None:
    options: dict[str, Any] = {"key_by": lambda row: Row(word=row.word), "key_type": "struct<word: string>"}
    options |= {"output_type": OUT, "backend": backend}
    harness = OperatorHarness(Careless(ttl), **options)
    expected = 0
    for epoch in range(1, 4):
        for n in (2, 0, 1):
            for word in ("a", "b"):
                expected += n if word == "a" else 0
                [(_, ns, mean, by_row)] = harness.process_element(Row(word=word, n=n))
                assert ns == [expected] and by_row == 1 and mean == expected, f"epoch {epoch}, element {n}"
        snapshot = harness.snapshot(epoch)
        assert harness.process_element(Row(word="a", n=0)) == [("a", [expected], expected, 1)]
        if epoch == 2:  # on a worker that has never seen it
            harness.close()
            harness = OperatorHarness.restore(snapshot, Careless(ttl), **options)
    harness.close()


@BACKENDS
def test_recovery_reads_the_written_values(tmp_path: Path, backend: str) -> None:
    out = Collected()
    program = EpochProgram()
    keyed = program.source("in", PAIR).key_by(lambda row: Row(word=row.word), "struct<word: string>")
    keyed.process(Careless(False), OUT).for_each_epoch(out).uid("out")
    first, second = [("a", 2), ("a", 0), ("a", 1)], [("a", 0), ("a", 4)]
    options = {"state.backend.type": backend}
    program.run(tmp_path, [{"in": first}], options, parallelism=2)
    program.run(tmp_path, [{"in": first}, {"in": second}], options, parallelism=2)
    assert out.rows == [("a", [n], n, 1) for n in (2, 2, 3, 3, 7)]


class Buffered(ProcessFunction, CheckpointedFunction):
    """Operator state of rows that are changed afterwards."""

    def initialize_state(self, context: Any) -> None:
        self.stored = context.get_operator_state_store().get_list_state(ListStateDescriptor("stored", ROW))

    def snapshot_state(self, context: Any) -> None:
        for row in self.stored.get():
            row.n = -1

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.stored.add(value)
        value.n = -1
        for row in self.stored.get():
            row.word += "!"
        yield [row.n for row in self.stored.get()], [row.word for row in self.stored.get()]


class Rules(BroadcastProcessFunction):
    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(RULES).put(value, value)
        value.n = -1
        return ()

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        state = ctx.get_broadcast_state(RULES)
        for key, row in state.items():
            key.n = row.n = -2
        yield sorted(row.n for row in state.values()), [state.get(key).word for key, _ in state.items()]


RULES = MapStateDescriptor("rules", ROW, ROW)


def test_operator_and_broadcast_state_keep_the_written_values() -> None:
    lists = "ns array<bigint>, words array<string>"
    with OperatorHarness(Buffered(), output_type=lists) as harness:
        harness.process_element(Row(word="a", n=1))
        snapshot = harness.snapshot(1)
        assert harness.process_element(Row(word="b", n=2)) == [([1, 2], ["a", "b"])]
    with OperatorHarness.restore(snapshot, Buffered(), output_type=lists) as harness:
        assert harness.process_element(Row(word="b", n=2)) == [([1, 2], ["a", "b"])]
    with OperatorHarness(Rules(), output_type=lists, broadcast=[RULES]) as harness:
        for n in (1, 2):
            harness.process_broadcast_element(Row(word="a", n=n))
            assert harness.process_element(1) == [(list(range(1, n + 1)), ["a"] * n)]
        snapshot = harness.snapshot(1)
        assert harness.process_element(1) == [([1, 2], ["a", "a"])]
    with OperatorHarness.restore(snapshot, Rules(), output_type=lists, broadcast=[RULES]) as harness:
        assert harness.process_element(1) == [([1, 2], ["a", "a"])]


# Reductions and windows.


def added(before: Any, after: Any) -> Any:
    before.n += after.n
    after.n = -5
    return before


@BACKENDS
def test_reductions_may_change_their_arguments(tmp_path: Path, backend: str) -> None:
    reduced, told = Collected(), Collected()
    program = EpochProgram()
    source = program.source("in", PAIR)
    keyed = source.key_by("word")
    keyed.reduce(added).for_each_epoch(reduced).uid("reduced")
    source.map(lambda row: row, PAIR).for_each_epoch(told).uid("told")
    rows = [("a", 1), ("a", 2), ("a", 3)]
    run(program, tmp_path, rows, [("a", 4)], options={"state.backend.type": backend})
    assert reduced.rows == [("a", 1), ("a", 3), ("a", 6), ("a", 10)]
    assert told.rows == [*rows, ("a", 4)]


class Spoiling(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        rows = list(elements)
        total = rows[0]
        for row in rows[1:]:
            total.n += row.n
            row.n = 0
            yield total
        total.word += "!"
        yield total


def test_windows_that_share_elements_get_the_original_rows() -> None:
    with _windowed(SlidingEventTimeWindows.of(Time.seconds(2), Time.seconds(1)), Spoiling()) as harness:
        harness.process_elements([Row(word="a", n=1), Row(word="a", n=2)], [1500, 1600])
        assert harness.process_watermark(1999) == [("a", 3), ("a!", 3)]
        assert harness.process_watermark(2999) == [("a", 3), ("a!", 3)]


def _windowed(assigner: Any, function: Any) -> OperatorHarness:
    contents: Any = ListStateDescriptor(WINDOW_CONTENTS, ROW)
    evaluation = WindowEvaluation(function, "process")
    operator = WindowOperator(assigner, assigner.get_default_trigger(None), contents, evaluation)
    return OperatorHarness(operator, key_by="word", output_type=PAIR)


def test_a_reduced_window_may_change_its_arguments(tmp_path: Path) -> None:
    out = Collected()
    program = EpochProgram()
    keyed = program.source("in", PAIR).key_by("word")
    keyed.count_window(2).reduce(added).for_each_epoch(out).uid("out")
    run(program, tmp_path, [("a", 1), ("a", 2), ("a", 3)], [("a", 4)])
    assert out.rows == [("a", 3), ("a", 7)]


def test_elements_that_were_changed_go_into_a_job_as_they_are(tmp_path: Path) -> None:
    row: Any = Row(word="a", n=1)
    row.n = 2
    out = Collected()
    program = EpochProgram()
    captured: Any = Row(word="b", n=0)
    captured.n = 5
    source = program.source("in", PAIR)
    source.map(lambda one: (one.word + captured.word, one.n + captured.n), PAIR).for_each_epoch(out).uid("out")
    run(program, tmp_path, [row])
    assert out.rows == [("ab", 7)]
    with OperatorHarness(lambda one: one, output_type=PAIR) as harness:
        assert harness.process_element(row) == [("a", 2)]
