"""On Spark: elements that the program places, watermarks that it generates, and keys of kinds that no column has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.common import WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, ParquetFileSink
from holdfast.datastream.state import ValueStateDescriptor
from tests.spark.test_shapes import environment, name, rows
from tests.unit.datastream.test_placement import ByLength, Here, Length
from tests.unit.runtime.test_watermark_generators import Alarm, OneStepAnEpoch

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
WORDS = ["a", "bb", "ccc", "dddd", "eeeee", "ff", "g"]
PLACED = "name string, subtask int, subtasks int"


def epochs_of_files(spark: Any, place: Path, schema: pa.Schema, batches: list[list[tuple[Any, ...]]]) -> Any:
    """A stream with one file an epoch."""
    place.mkdir()
    for number, batch in enumerate(batches):
        path = place / f"{number}.parquet"
        pq.write_table(pa.table(list(map(list, zip(*batch, strict=True))), schema=schema), path)
        os.utime(path, (1_000_000 + number, 1_000_000 + number))
    reader = spark.readStream.schema(spark.read.parquet(str(place)).schema).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(place))


@pytest.mark.parametrize("packed", [False, True], ids=["rows", "messages"])
def test_elements_go_to_the_subtask_that_the_program_selects(spark: Any, tmp_path: Path, packed: bool) -> None:
    env = environment(spark, tmp_path, execution_trigger="available-now", execution_exchange_packed=packed)
    batches = [[(word,) for word in WORDS[:4]], [(word,) for word in WORDS[4:]]]
    frame = epochs_of_files(spark, tmp_path / "in", pa.schema([("name", pa.string())]), batches)
    names = env.from_dataframe(frame).uid("names")
    made = names.map(lambda row: row, "name string")
    for way, stream in (
        ("chosen", names.partition_custom(ByLength(), Length()).set_parallelism(3)),
        ("to all", names.broadcast().set_parallelism(3)),
        ("to all of python", made.broadcast().set_parallelism(3)),
    ):
        stream.map(Here(), PLACED).sink_to(ParquetFileSink(str(tmp_path / way))).uid(way)
    env.execute(name())
    copies = sorted((word, subtask, 3) for word in WORDS for subtask in range(3))
    assert sorted(rows(tmp_path / "chosen")) == sorted((word, len(word) % 3, 3) for word in WORDS)
    assert sorted(rows(tmp_path / "to all")) == copies
    assert sorted(rows(tmp_path / "to all of python")) == copies


def test_a_single_input_is_broadcast_without_python_before_it(spark: Any, tmp_path: Path) -> None:
    env = environment(spark, tmp_path, execution_trigger="available-now")
    names = env.from_dataframe(spark.createDataFrame([(word,) for word in WORDS], "name string"))
    copies = names.broadcast().set_parallelism(3).map(Here(), PLACED)
    assert sorted(copies.execute_and_collect()) == sorted((word, at, 3) for word in WORDS for at in range(3))


def test_a_stream_united_with_itself_has_each_element_twice(spark: Any, tmp_path: Path) -> None:
    env = environment(spark, tmp_path, execution_trigger="available-now")
    words = env.from_dataframe(spark.createDataFrame([(word,) for word in WORDS], "word string"))
    counts = words.union(words).key_by("word").map(lambda row: row.word, "string").uid("keyed")
    assert sorted(counts.union(counts, words.map(lambda row: row.word, "string")).execute_and_collect()) == sorted(
        5 * WORDS
    )


@dataclass(frozen=True)
class Place:
    """A key with fields."""

    city: str
    block: int


class Count(KeyedProcessFunction):
    """Numbers the elements of a key, and shows it."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        yield repr(ctx.get_current_key()), self.count.value()


def test_keys_have_any_type_with_equality(spark: Any, tmp_path: Path) -> None:
    env = environment(spark, tmp_path, execution_trigger="available-now")
    pairs = env.from_collection([("a", 1), ("b", 2), ("a", 1), ("b", 2)], "k string, n bigint")
    listed = pairs.key_by(lambda row: {"n": [row.n], "k": {row.k}}).process(Count(), "key string, n bigint")
    placed = pairs.key_by(lambda row: Place(row.k, row.n), Place).process(Count(), "key string, n bigint")
    found = sorted(listed.uid("listed").union(placed.uid("placed")).execute_and_collect())
    keys = [repr({"n": [n], "k": frozenset([k])}) for k, n in (("a", 1), ("b", 2))]
    keys += [repr(Place("a", 1)), repr(Place("b", 2))]
    as_shown = {key: sorted(n for other, n in found if other == key) for key, _ in found}
    assert len(as_shown) == 4 and all(numbers == [1, 2] for numbers in as_shown.values())
    assert set(keys[2:]) <= set(as_shown)


def test_a_generator_of_the_program_moves_event_time(spark: Any, tmp_path: Path) -> None:
    env = environment(spark, tmp_path, execution_trigger="available-now")
    schema = pa.schema([("sensor", pa.string()), ("at", pa.int64())])
    frame = epochs_of_files(spark, tmp_path / "in", schema, [[("a", at)] for at in (5, 15, 25)])
    strategy = WatermarkStrategy.for_generator(OneStepAnEpoch).with_timestamp_assigner(lambda row, before: row.at)
    timed = env.from_dataframe(frame).uid("readings").assign_timestamps_and_watermarks(strategy)
    alarms = timed.key_by("sensor").process(Alarm(), "sensor string, at bigint, seen bigint").uid("alarms")
    alarms.sink_to(ParquetFileSink(str(tmp_path / "out"))).uid("out")
    env.execute(name())
    assert sorted(rows(tmp_path / "out")) == [("a", 5, 10), ("a", 15, 20), ("a", 25, 30)]
