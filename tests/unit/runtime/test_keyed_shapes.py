"""map, flat_map, filter and reduce with state on keyed streams, over any epochs and any parallelism."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.datastream import (
    ReduceFunction,
    RichFilterFunction,
    RichFlatMapFunction,
    RichMapFunction,
    RichReduceFunction,
)
from holdfast.state.descriptor import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from tests.examples import examples
from tests.stories import journal
from tests.stories.journal import Journal
from tests.stories.local import Program, epochs, run

PAIR = "key string, n bigint"
Epochs = list[list[tuple[str, int]]]


class RunningTotal(RichMapFunction):
    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", "bigint"))

    def map(self, value: Any) -> Any:
        self.total.update((self.total.value() or 0) + value.n)
        return value.key, self.total.value()


class Pairs(RichFlatMapFunction):
    """Emits a key's elements two by two."""

    def open(self, runtime_context: Any) -> None:
        self.waiting = runtime_context.get_list_state(ListStateDescriptor("waiting", "bigint"))

    def flat_map(self, value: Any) -> Iterator[Any]:
        self.waiting.add(value.n)
        waiting = list(self.waiting.get())
        if len(waiting) == 2:
            self.waiting.clear()
            yield value.key, waiting[0] * 1000 + waiting[1]


class Distinct(RichFilterFunction):
    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_map_state(MapStateDescriptor("seen", "bigint", "boolean"))

    def filter(self, value: Any) -> bool:
        if self.seen.contains(value.n):
            return False
        self.seen.put(value.n, True)
        return True


class Larger(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return max(value1, value2)


class Mean(AggregateFunction):
    def create_accumulator(self) -> Any:
        return (0, 0)

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0] // accumulator[1]

    def merge(self, a: Any, b: Any) -> Any:
        return a[0] + b[0], a[1] + b[1]


class MaximumAndMean(RichMapFunction):
    def open(self, runtime_context: Any) -> None:
        self.maximum = runtime_context.get_reducing_state(ReducingStateDescriptor("maximum", Larger(), "bigint"))
        self.mean = runtime_context.get_aggregating_state(AggregatingStateDescriptor("mean", Mean(), None))

    def map(self, value: Any) -> Any:
        self.maximum.add(value.n)
        self.mean.add(value.n)
        return value.key, self.maximum.get() * 1000 + self.mean.get()


class Sum(RichReduceFunction):
    def open(self, runtime_context: Any) -> None:
        self.name = runtime_context.get_task_name()

    def reduce(self, value1: Any, value2: Any) -> Any:
        assert self.name == "sum"
        return value1.key, value1.n + value2.n


def totals(values: Sequence[int]) -> list[int]:
    return [sum(values[: i + 1]) for i in range(len(values))]


def pairs(values: Sequence[int]) -> list[int]:
    return [a * 1000 + b for a, b in zip(values[::2], values[1::2], strict=False)]


def distinct(values: Sequence[int]) -> list[int]:
    return list(dict.fromkeys(values))


def maxima_and_means(values: Sequence[int]) -> list[int]:
    heads = [values[: i + 1] for i in range(len(values))]
    return [max(head) * 1000 + sum(head) // len(head) for head in heads]


PROGRAMS: dict[str, tuple[Callable[[Any], Any], Callable[[Sequence[int]], list[int]]]] = {
    "map": (lambda keyed: keyed.map(RunningTotal(), PAIR), totals),
    "map with reducing and aggregating state": (lambda keyed: keyed.map(MaximumAndMean(), PAIR), maxima_and_means),
    "flat_map": (lambda keyed: keyed.flat_map(Pairs(), PAIR), pairs),
    "filter": (lambda keyed: keyed.filter(Distinct()), distinct),
    "reduce": (lambda keyed: keyed.reduce(Sum()).name("sum"), totals),
    "reduce with a lambda": (lambda keyed: keyed.reduce(lambda a, b: (a.key, a.n + b.n)), totals),
}

any_epochs = st.lists(
    st.lists(st.tuples(st.sampled_from(["", "a", "b", "ü", "a-long-key"]), st.integers(0, 9)), max_size=8),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("shape", PROGRAMS)
@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=any_epochs, parallelism=st.integers(1, 5), source_tasks=st.integers(1, 3), amnesia=st.booleans())
def test_a_keyed_operator_gets_each_key_in_order_for_any_epochs(
    place: Path, shape: str, batches: Epochs, parallelism: int, source_tasks: int, amnesia: bool
) -> None:
    build, oracle = PROGRAMS[shape]
    with tempfile.TemporaryDirectory(dir=place) as directory:
        out = Path(directory) / "out"
        program = Program()
        build(program.source("in", PAIR).key_by("key")).uid("operator").sink_to(Journal(out))
        run(
            program,
            Path(directory) / "job",
            epochs("in", batches),
            parallelism=parallelism,
            source_tasks=source_tasks,
            amnesia=amnesia,
        )
        found: dict[str, list[int]] = defaultdict(list)
        for key, value in journal.read(out):
            found[key].append(value)
    given_values: dict[str, list[int]] = defaultdict(list)
    for key, value in (pair for batch in batches for pair in batch):
        given_values[key].append(value)
    assert found == {key: oracle(values) for key, values in given_values.items() if oracle(values)}
