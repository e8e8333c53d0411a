"""Streams from sources: an object says which frame is read, and the job keeps where it has come to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Types, WatermarkStrategy
from holdfast.datastream import (
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    ParquetFileSink,
    StreamExecutionEnvironment,
)
from holdfast.datastream.connectors import Source
from holdfast.datastream.connectors.datagen import DataGeneratorSource
from holdfast.datastream.connectors.number_seq import NumberSequenceSource
from holdfast.datastream.state import ListStateDescriptor, ValueStateDescriptor
from holdfast.errors import ConfigurationError
from tests.stories import ledger

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

NONE = WatermarkStrategy.no_watermarks()


def test_a_number_source_emits_integers_and_a_generator_emits_its_values(spark: Any) -> None:
    class Squares(MapFunction):
        def open(self, runtime_context: Any) -> None:
            self.power = 2

        def map(self, value: int) -> int:
            return int(value**self.power)

    env = StreamExecutionEnvironment.get_execution_environment(spark=spark)
    numbers = env.from_source(NumberSequenceSource(-2, 3), NONE, "numbers")
    assert numbers.get_type() == Types.LONG() and numbers.get_name() == "numbers"
    squares = env.from_source(DataGeneratorSource(Squares(), 4, type_info="bigint"), NONE, "squares")
    with numbers.union(squares).execute_and_collect() as elements:  # type: ignore[union-attr]
        assert sorted(elements) == sorted([-2, -1, 0, 1, 2, 3, 0, 1, 4, 9])


class Lines(Source):
    """Files of lines `key at`: an own source, with the time of each line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create_frame(self, session: Any) -> Any:
        lines = session.readStream.option("maxFilesPerTrigger", 1).text(str(self.folder))
        return lines.selectExpr("split(value, ' ')[0] key", "cast(split(value, ' ')[1] as bigint) at")

    def timestamp_column(self) -> str:
        return "at"

    def decoder(self) -> Any:
        return lambda row: [] if row.key == "skip" else [row.key], "string"


class Times(KeyedProcessFunction):
    def process_element(self, value: str, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[str, int]]:
        yield ctx.get_current_key(), timestamp


def test_a_custom_source_has_event_time_and_a_position(spark: Any, tmp_path: Path) -> None:
    folder = tmp_path / "lines"
    folder.mkdir()

    def run() -> None:
        env = StreamExecutionEnvironment.get_execution_environment(
            {"execution.trigger": "available-now", "execution.checkpointing.dir": str(tmp_path / "job")}, spark=spark
        )
        strategy = WatermarkStrategy.for_monotonous_timestamps()
        lines = env.from_source(Lines(folder), strategy, "lines").uid("lines")
        fired = lines.key_by(lambda key: key, Types.STRING()).process(Times(), "key string, at bigint").uid("times")
        fired.sink_to(ParquetFileSink(tmp_path / "out")).uid("out")
        env.execute("lines")

    (folder / "1").write_text("a 5\nskip 7\nb 6\n")
    (folder / "2").write_text("a 30\n")
    run()
    assert sorted(ledger.read(tmp_path / "out")) == [("a", 15), ("b", 16)]
    (folder / "3").write_text("b 60\n")
    run()
    assert sorted(ledger.read(tmp_path / "out")) == [("a", 15), ("a", 40), ("b", 16)]


class Joined(KeyedCoProcessFunction):
    """Answers an order with the newest price, or when a price comes."""

    def open(self, runtime_context: Any) -> None:
        self.price = runtime_context.get_state(ValueStateDescriptor("price", "double"))
        self.waiting = runtime_context.get_list_state(ListStateDescriptor("waiting", "bigint"))

    def process_element1(self, value: Any, ctx: Any) -> Iterator[tuple[str, float]]:
        price = self.price.value()
        if price is None:
            self.waiting.add(value.amount)
        else:
            yield value.item, value.amount * price

    def process_element2(self, value: Any, ctx: Any) -> Iterator[tuple[str, float]]:
        self.price.update(value[1])
        for amount in self.waiting.get():
            yield value[0], amount * value[1]
        self.waiting.clear()


@pytest.mark.parametrize("form", ["columns", "a column and a selector"])
def test_two_streams_join_by_key_regardless_of_who_computes_its_hash(spark: Any, tmp_path: Path, form: str) -> None:
    orders = [("kelp", n) for n in range(20)] + [("rock", n) for n in range(20)] + [("sand", 1)]
    prices = [("kelp", 2.0), ("rock", 0.5)]
    env = StreamExecutionEnvironment.get_execution_environment(spark=spark)
    first = env.from_collection(orders, "item string, amount bigint")
    second = env.from_collection(prices, "name string, price double" if form == "columns" else None)
    keyed = first.connect(second).key_by("item", "name" if form == "columns" else lambda pair: pair[0])
    with keyed.process(Joined(), "item string, sum double").execute_and_collect() as elements:  # type: ignore[union-attr]
        found = sorted(elements)
    assert found == sorted((item, amount * dict(prices)[item]) for item, amount in orders if item != "sand")


def test_an_invalid_source_is_rejected(spark: Any) -> None:
    env = StreamExecutionEnvironment.get_execution_environment(spark=spark)
    numbers = NumberSequenceSource(1, 2)
    for source, strategy, type_info, message in (
        (NumberSequenceSource, NONE, None, "takes an instance of holdfast.datastream.connectors.Source"),
        ("numbers", NONE, None, "not 'numbers'"),
        (numbers, 5, None, "takes a WatermarkStrategy"),
        (numbers, NONE, "string", "type_info is 'string', but the elements of NumberSequenceSource are 'bigint'"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            env.from_source(source, strategy, "numbers", type_info)  # type: ignore[arg-type]
    for make, message in (
        (lambda: NumberSequenceSource(2, 1), "there is no such number"),
        (lambda: NumberSequenceSource(0, 2**63), "takes whole numbers"),
        (lambda: DataGeneratorSource(str), "takes a MapFunction or a function|pass one"),
        (lambda: DataGeneratorSource(lambda n: n, 1, 1), "pass one"),
        (lambda: DataGeneratorSource(lambda n: n, 0), "count must be a positive integer, not 0"),
        (lambda: DataGeneratorSource(5, 1), "takes a MapFunction"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigurationError, match=message):
            make()
