"""Two streams for one function, on the epoch runner, against models in plain Python."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.common import Duration, Types, WatermarkStrategy
from holdfast.datastream import (
    CheckpointedFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
    OutputTag,
    ParquetFileSink,
    RichCoMapFunction,
)
from holdfast.datastream.state import ListStateDescriptor, ValueStateDescriptor
from holdfast.errors import ConfigurationError, EngineError, JobExecutionError
from holdfast.kernel.clock import ManualClock
from tests.examples import examples
from tests.stories import ledger
from tests.stories.local import RESTARTING, Program, run

ORDER = "customer string, amount bigint"
PRICE = "price double, buyer string"


class Balance(KeyedCoProcessFunction):
    """Adds what one stream brings and the other takes: the state of a key is that of both."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", "bigint", 0))

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.total.update(self.total.value() + value.amount)
        return iter(())

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.total.update(self.total.value() - int(value.price))
        ctx.timer_service().register_event_time_timer(2**62)
        return iter(())

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), self.total.value()


def keyed_both_ways(program: Program, form: str) -> Any:
    orders, prices = program.source("orders", ORDER), program.source("prices", PRICE)
    if form == "columns":
        return orders.key_by("customer").connect(prices.key_by("buyer"))
    if form == "a column and a selector":
        return orders.connect(prices).key_by("customer", lambda row: row.buyer)
    if form == "a selector and a column":
        return orders.key_by(lambda row: row.customer).connect(prices.key_by("buyer"))
    moved = prices.map(lambda row: (row.buyer, row.price), PRICE.replace("price double, ", "") + ", price double")
    return orders.connect(moved).key_by(lambda row: row.customer, lambda row: row.buyer, Types.STRING())


names = st.sampled_from(["ann", "bob", "eve"])
sides = st.tuples(
    st.lists(st.tuples(names, st.integers(0, 99)), max_size=6),
    st.lists(st.tuples(st.integers(0, 99).map(float), names), max_size=6),
)


@pytest.mark.parametrize("form", ["columns", "a column and a selector", "a selector and a column", "selectors"])
@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    given_epochs=st.lists(sides, min_size=1, max_size=4),
    parallelisms=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    amnesia=st.booleans(),
)
def test_both_sides_share_the_state_of_a_key_through_epochs_and_rescalings(
    place: Path, form: str, given_epochs: list[Any], parallelisms: list[int], amnesia: bool
) -> None:
    with tempfile.TemporaryDirectory(dir=place) as directory:
        inputs = [{"orders": orders, "prices": prices} for orders, prices in given_epochs]
        step = -(-len(inputs) // len(parallelisms))
        starts = range(0, len(inputs), step)
        for start, parallelism in zip(starts, parallelisms, strict=False):
            program = Program()
            balance = keyed_both_ways(program, form).process(Balance(), "name string, total bigint").uid("balance")
            balance.set_parallelism(parallelism).sink_to(ParquetFileSink(Path(directory) / "out")).uid("out")
            is_last = start == starts[-1]
            run(program, Path(directory) / "job", inputs[: start + step], amnesia=amnesia, is_bounded=is_last)
        found = dict(ledger.read(Path(directory) / "out"))
    expected: dict[str, int] = defaultdict(int)
    for orders, prices in given_epochs:
        for name, amount in orders:
            expected[name] += amount
        for price, name in prices:
            expected[name] -= int(price)
    buyers = {name for _, prices in given_epochs for _, name in prices}
    assert found == {name: expected[name] for name in buyers}


class Numbered(RichCoMapFunction):
    """Numbers the elements of both streams of a key in one row, and drops what is 0."""

    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", "bigint", 0))

    def map1(self, value: Any) -> Any:
        return self._numbered("first", value)

    def map2(self, value: Any) -> Any:
        return self._numbered("second", value)

    def _numbered(self, side: str, value: Any) -> Any:
        self.seen.update(self.seen.value() + 1)
        return None if value[1] == 0 else (value[0], self.seen.value(), side)


def test_a_map_of_keyed_streams_has_state_and_may_return_none(place: Path) -> None:
    program = Program()
    one, other = program.source("one", "k string, n bigint"), program.source("other")
    mapped = one.connect(other).key_by("k", lambda pair: pair[0]).map(Numbered(), "k string, n bigint, side string")
    mapped.sink_to(ParquetFileSink(place / "out"))
    run(program, place / "job", [{"one": [("a", 1), ("b", 0)]}, {"other": [("a", 5), ("a", 0), ("a", 7), ("b", 1)]}])
    found = sorted(ledger.read(place / "out"))
    assert found == [("a", 1, "first"), ("a", 2, "second"), ("a", 4, "second"), ("b", 2, "second")]


class Both(CoFlatMapFunction):
    def flat_map1(self, value: Any) -> Any:
        return [f"{value.customer} {n}" for n in range(value.amount)]

    def flat_map2(self, value: Any) -> Any:
        if value > 0:
            yield f"number {value}"


def test_streams_without_keys_run_in_the_tasks_of_their_inputs_whatever_their_types(place: Path) -> None:
    program = Program()
    orders, numbers = program.source("orders", ORDER), program.source("numbers", "bigint")
    orders.connect(numbers).flat_map(Both(), "string").sink_to(ParquetFileSink(place / "out"))
    deep = orders.key_by("customer").map(lambda row: row.amount, "bigint")
    orders.connect(deep).flat_map(Both(), "string").sink_to(ParquetFileSink(place / "deep"))
    run(program, place / "job", [{"orders": [("ann", 2)], "numbers": [0, 7]}, {"orders": [("bob", 1)]}])
    assert sorted(ledger.read(place / "out")) == [("ann 0",), ("ann 1",), ("bob 0",), ("number 7",)]
    deep_found = sorted(ledger.read(place / "deep"))
    assert deep_found == [("ann 0",), ("ann 1",), ("bob 0",), ("number 1",), ("number 2",)]


class Seen(CoProcessFunction, CheckpointedFunction):
    """Remembers all elements of the first stream in operator state, and answers the second how many there are."""

    def initialize_state(self, context: Any) -> None:
        self.all = context.get_operator_state_store().get_list_state(ListStateDescriptor("all", "bigint"))

    def snapshot_state(self, context: Any) -> None:
        """It is in state already."""

    def process_element1(self, value: Any, ctx: Any) -> None:
        self.all.add(value)

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value, sum(self.all.get())


def test_a_function_of_two_streams_may_have_operator_state(place: Path) -> None:
    program = Program()
    seen = (
        program.source("one", "bigint").connect(program.source("two", "string")).process(Seen(), "s string, n bigint")
    )
    seen.uid("seen").set_parallelism(1).sink_to(ParquetFileSink(place / "out")).uid("out")
    inputs: list[Any] = [{"one": [1, 2]}, {"one": [3]}, {"two": ["x"]}]
    run(program, place / "job", inputs[:2])
    run(program, place / "job", inputs)
    assert ledger.read(place / "out") == [("x", 6)]


SIDE = OutputTag("side", "string")


class Times(KeyedCoProcessFunction):
    """Waits for ten milliseconds of event time behind either side, and tells the watermark when that is over."""

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)
        yield SIDE, f"one {value.k}"

    def process_element2(self, value: Any, ctx: Any) -> Any:
        ctx.output(SIDE, f"two {value.k}")

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp, ctx.timer_service().current_watermark()


def stamped(stream: Any, **idle: Any) -> Any:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)
    return stream.assign_timestamps_and_watermarks(strategy.with_idleness(**idle) if idle else strategy)


def test_the_watermark_is_that_of_the_slower_stream_and_an_idle_one_is_passed_over(place: Path) -> None:
    clock = ManualClock(0)
    program = Program()
    one = stamped(program.source("one", "k string, at bigint"))
    two = stamped(program.source("two", "k string, at bigint"), idle_timeout=Duration.of_millis(100))
    fired = one.connect(two).key_by("k", "k").process(Times(), "k string, at bigint, seen bigint").uid("times")
    fired.sink_to(ParquetFileSink(place / "out"))
    fired.get_side_output(SIDE).sink_to(ParquetFileSink(place / "side"))
    inputs = [
        {"one": [("a", 5)], "two": [("a", 1)]},
        {"one": [("a", 50)]},  # two is at 1: nothing fires
        {"two": [("b", 20)]},  # and now at 20
        {"one": [("a", 90)]},
        {"one": []},
        {"one": []},  # two has been silent for long: one alone counts
    ]

    def silence(stage: int, partition: int) -> None:
        clock.advance(10)

    run(program, place / "job", inputs, clock=clock, interceptor=silence)
    assert ledger.read(place / "out") == [("a", 15, 19), ("a", 60, 89)]
    assert sorted(ledger.read(place / "side")) == [("one a",)] * 3 + [("two a",), ("two b",)]


def test_a_failing_task_of_either_side_changes_nothing(place: Path) -> None:
    program = Program()
    keyed_both_ways(program, "columns").process(Balance(), "name string, total bigint").uid("balance").sink_to(
        ParquetFileSink(place / "out")
    )
    struck: set[int] = set()
    tasks: list[int] = []

    def strike(stage: int, partition: int) -> None:
        tasks.append(stage)
        if len(tasks) in (2, 5, 9) and len(tasks) not in struck:
            struck.add(len(tasks))
            raise EngineError("struck")

    inputs = [{"orders": [("ann", 10 + n)], "prices": [(float(n), "ann")]} for n in range(4)]
    run(program, place / "job", inputs, RESTARTING, is_bounded=True, interceptor=strike, clock=ManualClock(0))
    assert len(struck) == 3
    assert ledger.read(place / "out") == [("ann", 40)]


class Raises(CoMapFunction):
    def map1(self, value: Any) -> Any:
        return value

    def map2(self, value: Any) -> Any:
        raise ValueError(f"no {value}")


def test_an_error_of_the_second_method_is_reported_as_any_other(place: Path) -> None:
    program = Program()
    one, two = program.source("one", "string"), program.source("two", "string")
    keyed = one.connect(two).key_by(lambda word: word, lambda word: word)
    keyed.map(Raises(), "string").uid("raises").sink_to(ParquetFileSink(place / "out"))
    with pytest.raises(JobExecutionError, match=r"\(uid 'raises'\) failed .* for key 'x'.*: ValueError: no x"):
        run(program, place / "job", [{"two": ["x"]}])


def test_mismatched_inputs_are_rejected_when_the_program_is_defined() -> None:
    program = Program()
    orders, prices = program.source("orders", ORDER), program.source("prices", PRICE)
    elsewhere = Program().source("orders", ORDER)
    connected = orders.connect(prices)
    refused: Sequence[tuple[Any, str]] = (
        (lambda: orders.connect(5), r"takes a stream, or what broadcast\(descriptor\) returns, not 5"),
        (lambda: orders.connect(elsewhere), "streams of one environment"),
        (lambda: connected.process(Balance()), "Balance is a KeyedCoProcessFunction: call key_by"),
        (lambda: connected.map(Both()), "takes an instance of a CoMapFunction, not"),
        (lambda: connected.map(Raises), r"not the class: write Raises\(\)"),
        (lambda: connected.flat_map(lambda value: value), "takes an instance of a CoFlatMapFunction"),
        (
            lambda: orders.key_by("customer").connect(prices).map(Raises()),
            "The first of the connected streams is keyed",
        ),
        (lambda: orders.connect(prices.key_by("buyer")).map(Raises()), "The second of the connected streams is keyed"),
        (lambda: connected.key_by("customer", "price"), "'string', 'prices' has 'double'"),
        (lambda: connected.key_by("amount", lambda row: 1, "int"), "'bigint', 'prices' has 'int'"),
        (lambda: connected.key_by("customer", "bayer"), "there is no column 'bayer'"),
    )
    for attempt, message in refused:
        with pytest.raises(ConfigurationError, match=message):
            attempt()
