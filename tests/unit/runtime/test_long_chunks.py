"""A step that emits at once more text than one Arrow array can hold, on a small scale: arrays are short here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.common import WatermarkStrategy
from holdfast.datastream import DataStream, KeyedProcessFunction, OutputTag
from holdfast.errors import JobExecutionError
from holdfast.runtime.exchange.layout import Chunk
from holdfast.state import ValueStateDescriptor, batch
from holdfast.types.type_information import AtomicTypeInformation
from holdfast.types.type_parser import to_type
from tests.stories.journal import Journal, as_tuples, read
from tests.stories.local import Program, epochs, run
from tests.unit.runtime.test_transforms import transformed

BOUND = 4000
TYPE = "key string, text string"
ASIDE = OutputTag("aside", TYPE)
COUNT = 60


def text(n: int) -> str:
    return f"{n} " + "x" * (n * 37 % 500)


ROWS = [(f"k{n}", text(n)) for n in range(COUNT)]


@pytest.fixture(autouse=True)
def short_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow makes several arrays of texts that are longer than 2 GiB; here they are of those longer than `BOUND`."""
    whole = AtomicTypeInformation.to_array

    def to_array(self: Any, values: Any) -> Any:
        made = whole(self, values)
        if made.type != pa.string() or made.nbytes <= BOUND or len(made) < 2:
            return made
        return pa.chunked_array([made[:1], made[1:]])

    monkeypatch.setattr(AtomicTypeInformation, "to_array", to_array)


class FiresAtTheEnd(KeyedProcessFunction):
    """Says its text when its timer fires, all of them in one go, and tells a side output if it is asked to."""

    def __init__(self, aside: bool) -> None:
        self.aside = aside

    def open(self, runtime_context: Any) -> None:
        self.n = runtime_context.get_state(ValueStateDescriptor("n", "int"))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self.n.update(value)
        ctx.timer_service().register_processing_time_timer(1)
        return iter(())

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        n = self.n.value()
        yield f"k{n}", text(n)
        if self.aside:
            yield ASIDE, (f"k{n}", text(n))


class Passes(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        yield value.key, value.text


def at_once(texts: DataStream) -> DataStream:
    return texts


def behind_a_key(texts: DataStream) -> DataStream:
    return texts.key_by("key").process(Passes(), TYPE).uid("passes")


def behind_a_key_that_is_computed(texts: DataStream) -> DataStream:
    return texts.key_by(lambda row: len(row.text), "int").process(Passes(), TYPE).uid("passes")


def in_a_chain(texts: DataStream) -> DataStream:
    return texts.map(lambda row: (row.key, row.text), TYPE)


def spread(texts: DataStream) -> DataStream:
    return texts.rebalance().map(lambda row: (row.key, row.text), TYPE)


def aside(texts: DataStream) -> DataStream:
    return texts.get_side_output(ASIDE)


def aside_behind_a_key(texts: DataStream) -> DataStream:
    return behind_a_key(texts.get_side_output(ASIDE))


def with_times_of_a_column(texts: DataStream) -> DataStream:
    timed = texts.map(lambda row: (row.key, row.text, len(row.text)), TYPE + ", at bigint")
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")
    return behind_a_key(timed.assign_timestamps_and_watermarks(strategy))


def through_spark(texts: DataStream) -> DataStream:
    return transformed(texts, lambda rows: rows, TYPE)


WAYS: dict[str, Callable[[DataStream], DataStream]] = {
    "a sink": at_once,
    "a key": behind_a_key,
    "a computed key": behind_a_key_that_is_computed,
    "a chain": in_a_chain,
    "other tasks": spread,
    "a side output": aside,
    "a key aside": aside_behind_a_key,
    "times of a column": with_times_of_a_column,
    "a transformation by Spark": through_spark,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("columns", [False, True], ids=["elements", "columns"])
def test_a_chunk_too_long_for_one_array_arrives(
    tmp_path: Path, way: Callable[[DataStream], DataStream], columns: bool
) -> None:
    """As it was found: a TypeError about a ChunkedArray, in every attempt."""
    program, got = Program(), list[Any]()
    texts = program.source("in", "int").key_by(lambda n: n, "int").process(FiresAtTheEnd("aside" in way.__name__), TYPE)
    texts = texts.uid("fires")
    if columns:
        way(texts).for_each_epoch(lambda frame, epoch: got.extend(map(tuple, map(dict.values, frame.to_pylist()))))
    else:
        way(texts).sink_to(Journal(tmp_path / "out")).uid("out")
    run(program, tmp_path / "job", epochs("in", [list(range(COUNT)), []]))
    assert sorted(got if columns else as_tuples(read(tmp_path / "out"))) == sorted(ROWS)


def test_stretches_have_columns_of_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "BATCH_BYTES", 1500)
    pieces = list(Chunk(to_type(TYPE), "texts", elements=list(ROWS)).split_for_arrow())
    assert len(pieces) > 5
    assert all(piece.batch.nbytes <= 1500 for piece in pieces)
    assert list(chain.from_iterable(piece.elements for piece in pieces)) == ROWS
    [whole] = Chunk(to_type(TYPE), "texts", elements=ROWS[:2]).split_for_arrow()
    assert whole.elements == ROWS[:2]


def test_an_element_of_the_wrong_type_is_named_by_its_number(tmp_path: Path) -> None:
    program = Program()
    rows = [*ROWS, ("k60", 7)]
    stream = program.source("in", "int").flat_map(lambda n: iter(rows), TYPE).uid("wrong")
    stream.for_each_epoch(lambda frame, epoch: None)
    with pytest.raises(
        JobExecutionError, match=r"Element 60 of a batch that operator 'flat_map' \(uid 'wrong'\) produced"
    ):
        run(program, tmp_path / "job", epochs("in", [[1]]))
