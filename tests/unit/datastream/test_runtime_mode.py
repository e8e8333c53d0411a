"""In batch mode reductions emit once a key, at the end of the input."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Types
from holdfast.datastream import ParquetFileSink, ReduceFunction, RuntimeExecutionMode, StreamExecutionEnvironment
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.errors import ConfigurationError
from holdfast.testing.epoch_runner import LocalEngine, run_job
from tests.stories import ledger

PAIR = Types.TUPLE([Types.STRING(), Types.LONG()])
PAIRS = [("a", 3), ("b", 5), ("a", 1), ("a", 2), ("b", 7)]


class Sum(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return value1[0], value1[1] + value2[1]


class SumOfTwo(ReduceFunction):
    """Has state of the key: leaves out what comes after the second element."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "int", 1))

    def reduce(self, value1: Any, value2: Any) -> Any:
        self.count.update(self.count.value() + 1)
        return value1[0], value1[1] + (value2[1] if self.count.value() <= 2 else 0)


REDUCTIONS: list[tuple[Any, list[tuple[str, int]]]] = [
    (lambda keyed: keyed.reduce(Sum()), [("a", 6), ("b", 12)]),
    (lambda keyed: keyed.reduce(lambda one, other: (one[0], one[1] + other[1])), [("a", 6), ("b", 12)]),
    (lambda keyed: keyed.reduce(SumOfTwo()), [("a", 4), ("b", 12)]),
    (lambda keyed: keyed.sum(1), [("a", 6), ("b", 12)]),
    (lambda keyed: keyed.min(1), [("a", 1), ("b", 5)]),
    (lambda keyed: keyed.max_by(1), [("a", 3), ("b", 7)]),
]


@pytest.mark.parametrize("element_type", [PAIR, None, "k string, n bigint"], ids=["tuples", "untyped", "rows"])
@pytest.mark.parametrize(("reduce", "expected"), REDUCTIONS)
def test_a_reduction_emits_once_a_key(
    tmp_path: Path, element_type: Any, reduce: Any, expected: list[tuple[str, int]]
) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_runtime_mode(RuntimeExecutionMode.BATCH if element_type else RuntimeExecutionMode.AUTOMATIC)
    pairs = env.from_collection(PAIRS, element_type).uid("pairs")
    reduced = reduce(pairs.key_by(lambda pair: pair[0], Types.STRING())).uid("reduced")
    rows = reduced.map(lambda pair: (pair[0], pair[1]), "k string, n bigint")
    again = rows.key_by("k").sum("n")  # a second one reads what the first has emitted at the end
    again.sink_to(ParquetFileSink(tmp_path / "out")).uid("out")
    engine = LocalEngine([{"pairs": PAIRS[:2]}, {"pairs": PAIRS[2:]}], is_bounded=True)
    run_job(env.get_stream_graph(), tmp_path / "job", engine, {"restart-strategy.type": "none"}).run()
    assert sorted(ledger.read(tmp_path / "out")) == expected


MEASURED = [
    ("a", Decimal("12345678901234567890.0000000001"), math.nan),
    ("a", Decimal("0.0000000002"), 1.0),
    ("a", None, None),
    ("a", Decimal(0), 2.0),
]


@pytest.mark.parametrize(
    ("reduce", "expected"),
    [
        (lambda keyed: keyed.sum("m"), "12345678901234567890.0000000003"),
        (lambda keyed: keyed.min("x"), 1.0),
        (lambda keyed: keyed.max("x"), math.nan),
        (lambda keyed: keyed.min_by("x"), 1.0),
        (lambda keyed: keyed.max_by("x"), math.nan),
    ],
)
def test_long_decimals_and_nan_are_reduced_as_in_a_stream(tmp_path: Path, reduce: Any, expected: Any) -> None:
    last = []
    for mode in (RuntimeExecutionMode.BATCH, RuntimeExecutionMode.STREAMING):
        env = StreamExecutionEnvironment.get_execution_environment()
        env.set_runtime_mode(mode)
        measured = env.from_collection(MEASURED, "k string, m decimal(38, 10), x double").uid("measured")
        seen: list[Any] = []
        reduce(measured.key_by("k")).uid("reduced").for_each_epoch(
            lambda table, epoch, seen=seen: seen.extend(table.to_pylist())
        ).uid("out")
        engine = LocalEngine([{"measured": MEASURED}], is_bounded=True)
        run_job(env.get_stream_graph(), tmp_path / mode.name, engine, {"restart-strategy.type": "none"}).run()
        last.append(seen[-1]["m"] if isinstance(expected, str) else seen[-1]["x"])
    assert list(map(str, last)) == [str(expected)] * 2


def test_a_column_that_cannot_be_reduced_is_refused_in_batch_mode_too() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    keyed = env.from_collection([("a", [1])], "k string, many array<int>").uid("rows").key_by("k")
    for reduce, column, message in (
        (keyed.sum, "gone", r"sum\(\): there is no column 'gone'"),
        (keyed.sum, "k", "'string', no number"),
        (keyed.max, "many", "not compared here"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            reduce(column)


def test_batch_mode_needs_an_end_and_automatic_does_without() -> None:
    env = StreamExecutionEnvironment.get_execution_environment({"execution.runtime-mode": "BATCH"})
    stream = env.from_collection([1], "bigint").uid("numbers")
    stream._node.is_streaming = True  # type: ignore[attr-defined]
    stream.print()
    with pytest.raises(ConfigurationError, match=r"BATCH, but the input 'collection' is a stream"):
        env.execute()
    with pytest.raises(ConfigurationError, match="runtime-mode"):
        env.set_runtime_mode("SOMETIMES").get_stream_graph()  # type: ignore[arg-type]
        env.from_collection([1], "bigint").key_by(lambda n: n).sum()
