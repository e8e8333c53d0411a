"""Connected streams: rules come first, are the same everywhere, and only their own side changes them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.datastream.functions import (
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    OutputTag,
)
from holdfast.errors import ConfigurationError, JobExecutionError
from holdfast.kernel.clock import ManualClock
from holdfast.state.descriptor import MapStateDescriptor, ValueStateDescriptor
from tests.examples import examples
from tests.stories import journal
from tests.stories.journal import Journal
from tests.stories.local import Program, run
from tests.stories.tidiness import inspect

RULES = MapStateDescriptor("rules", "string", "bigint")
SEEN = ValueStateDescriptor("seen", "bigint")
EVENT, RULE, OUT = "key string, n bigint", "key string, factor bigint", "key string, n bigint, result bigint"
CHANGED = OutputTag("changed", "string")


class Weighted(BroadcastProcessFunction):
    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(RULES).put(value.key, value.factor)
        return ()

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value.key, value.n, value.n * (ctx.get_broadcast_state(RULES).get(value.key) or 1)


class KeyedWeighted(KeyedBroadcastProcessFunction):
    """The same, and counts the elements of each key."""

    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(SEEN)

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        ctx.get_broadcast_state(RULES).put(value.key, value.factor)
        ctx.output(CHANGED, value.key)
        yield from ()

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        assert ctx.get_current_key() == value.key
        self.seen.update((self.seen.value() or 0) + 1)
        factor = ctx.get_broadcast_state(RULES).get(value.key) or 1
        yield value.key, value.n, value.n * factor + 1_000_000 * self.seen.value()


def program(out: Path, parallelism: int, *, keyed: bool, chained: bool) -> Program:
    job = Program()
    events, rules = job.source("events", EVENT), job.source("rules", RULE)
    if chained:
        rules = rules.map(lambda row: (row.key, row.factor), RULE)
    stream: Any = events.key_by("key") if keyed else events
    connected = stream.connect(rules.broadcast(RULES))
    weighted = connected.process(KeyedWeighted() if keyed else Weighted(), OUT).uid("weighted")
    weighted.set_parallelism(parallelism).sink_to(Journal(out)).uid("out")
    return job


keys = st.sampled_from(["a", "b", "c"])
any_epochs = st.lists(
    st.tuples(
        st.lists(st.tuples(keys, st.integers(0, 99)), max_size=6),
        st.lists(st.tuples(keys, st.integers(2, 9)), max_size=3, unique_by=lambda rule: rule[0]),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("chained", [False, True])
@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given_epochs=any_epochs, parallelisms=st.lists(st.integers(1, 5), min_size=1, max_size=4), amnesia=st.booleans())
def test_each_element_meets_the_rules_of_its_epoch_and_of_all_before(
    place: Path, keyed: bool, chained: bool, given_epochs: list[Any], parallelisms: list[int], amnesia: bool
) -> None:
    with tempfile.TemporaryDirectory(dir=place) as directory:
        out = Path(directory) / "out"
        inputs = [{"events": events, "rules": rules} for events, rules in given_epochs]
        step = -(-len(inputs) // len(parallelisms))
        for start, parallelism in zip(range(0, len(inputs), step), parallelisms, strict=False):
            job = program(out, parallelism, keyed=keyed, chained=chained)
            run(job, Path(directory) / "job", inputs[: start + step], amnesia=amnesia, source_tasks=2)
        found = sorted(journal.read(out))
        inspect(Path(directory) / "job")
    rules: dict[str, int] = {}
    seen: dict[str, int] = {}
    expected = []
    for events, new in given_epochs:
        rules.update(new)
        for key, n in events:
            seen[key] = seen.get(key, 0) + 1
            expected.append((key, n, n * rules.get(key, 1) + (1_000_000 * seen[key] if keyed else 0)))
    assert found == sorted(expected)


class Timed(KeyedBroadcastProcessFunction):
    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        ctx.get_broadcast_state(RULES).put(value.key, value.factor)
        totals: list[int] = []
        ctx.apply_to_keyed_state(SEEN, lambda key, state: totals.append(state.value()))
        yield "total", ctx.current_processing_time(), sum(totals)

    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(SEEN)

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.seen.update(value.n)
        ctx.timer_service().register_processing_time_timer(ctx.current_processing_time() + 25)
        return ()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp, ctx.get_broadcast_state(RULES).get("a")


def test_timers_read_the_rules_and_rules_reach_all_keys_of_a_subtask(place: Path) -> None:
    clock = ManualClock(1000)
    job = Program()
    stream = job.source("events", EVENT).key_by("key").connect(job.source("rules", RULE).broadcast(RULES))
    stream.process(Timed(), OUT).uid("timed").set_parallelism(1).sink_to(Journal(place / "out"))
    inputs = [{"events": [("x", 3), ("y", 4)]}, {"rules": [("a", 7)]}]
    run(job, place / "job", inputs, clock=clock, interceptor=lambda stage, partition: clock.advance(20))
    found = sorted((key, result) for key, _, result in journal.read(place / "out"))
    assert found == [("total", 7), ("x", 7), ("y", 7)]


class Reaching(KeyedBroadcastProcessFunction):
    def __init__(self, what: str) -> None:
        self.what = what

    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(SEEN)

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        if self.what == "key":
            self.seen.update(1)
        return ()

    def process_element(self, value: Any, ctx: Any) -> Any:
        if self.what == "write":
            ctx.get_broadcast_state(RULES).put("a", 1)
        if self.what == "undeclared":
            ctx.get_broadcast_state(MapStateDescriptor("others", "string", "bigint"))
        return ()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("write", "process_broadcast_element"),
        ("undeclared", "'others'"),
        ("key", "key"),
    ],
)
def test_each_side_keeps_to_itself(place: Path, what: str, message: str) -> None:
    job = Program()
    stream = job.source("events", EVENT).key_by("key").connect(job.source("rules", RULE).broadcast(RULES))
    stream.process(Reaching(what), OUT).uid("reaching").sink_to(Journal(place / "out"))
    with pytest.raises((JobExecutionError, ConfigurationError), match=message):
        run(job, place / "job", [{"events": [("x", 3)], "rules": [("a", 7)]}])


def test_a_connection_that_makes_no_sense_is_refused_where_it_is_written() -> None:
    job = Program()
    events, rules = job.source("events", EVENT), job.source("rules", RULE)
    with pytest.raises(ConfigurationError, match="MapStateDescriptor"):
        rules.broadcast("rules")  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match="different names"):
        rules.broadcast(RULES, RULES)
    with pytest.raises(ConfigurationError, match=r"none of the two is broadcast: .* connect\(rules.broadcast"):
        events.connect(rules).process(Weighted())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="one environment"):
        events.connect(Program().source("rules", RULE).broadcast(RULES))
    connected = events.connect(rules.broadcast(RULES))
    with pytest.raises(ConfigurationError, match="BroadcastProcessFunction"):
        connected.process(KeyedWeighted())
    with pytest.raises(ConfigurationError, match="KeyedBroadcastProcessFunction"):
        events.key_by("key").connect(rules.broadcast(RULES)).process(Weighted())


def test_rules_pass_by_operators_in_between_and_reach_two_connections(place: Path) -> None:
    """The second connection stands behind the first, so its rules cross two exchanges and multiply at the last."""
    job = Program()
    events, rules = job.source("events", EVENT), job.source("rules", RULE).broadcast(RULES)
    first = events.connect(rules).process(Weighted(), OUT).uid("first").set_parallelism(3)
    again = first.map(lambda row: (row.key, row.result), EVENT).key_by("key")
    second = again.connect(rules).process(KeyedWeighted(), OUT).uid("second").set_parallelism(2)
    second.sink_to(Journal(place / "out")).uid("out")
    second.get_side_output(CHANGED).sink_to(Journal(place / "changed")).uid("changed")
    run(job, place / "job", [{"events": [("a", 5)], "rules": [("a", 3)]}, {"events": [("a", 1)], "rules": [("b", 9)]}])
    assert sorted(journal.read(place / "out")) == [("a", 3, 2_000_009), ("a", 15, 1_000_045)]
    assert sorted(journal.read(place / "changed")) == ["a", "a", "b", "b"]
