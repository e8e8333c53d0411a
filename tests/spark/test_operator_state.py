"""Operator state and broadcast streams on Spark: what the epoch runner shows without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from holdfast.datastream import (
    BroadcastProcessFunction,
    CheckpointedFunction,
    KeyedBroadcastProcessFunction,
    ParquetFileSink,
    RichMapFunction,
    StreamExecutionEnvironment,
)
from holdfast.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
PRICES = MapStateDescriptor("prices", "string", "bigint")


class Held(RichMapFunction, CheckpointedFunction):
    """Emits with each element what its subtask had kept when the epoch began."""

    def initialize_state(self, context: Any) -> None:
        self.held = context.get_operator_state_store().get_list_state(ListStateDescriptor("held", "bigint"))
        self.before = json.dumps(self.held.get())

    def snapshot_state(self, context: Any) -> None:
        pass

    def map(self, value: Any) -> Any:
        self.held.add(value.id)
        return value.id, self.before


class Priced(KeyedBroadcastProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(PRICES).put(value.article, value.price)
        return ()

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        yield value.id, self.count.value() * ctx.get_broadcast_state(PRICES).get(value.article)


class PricedOnce(BroadcastProcessFunction):
    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(PRICES).put(value.article, value.price)
        return ()

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value.id, ctx.get_broadcast_state(PRICES).get(value.article)


def environment(spark: Any, root: Path) -> StreamExecutionEnvironment:
    settings = {
        "execution.checkpointing.dir": str(root / "checkpoints"),
        "restart-strategy.type": "none",
        "parallelism.default": 3,
        "execution.trigger": "available-now",
    }
    return StreamExecutionEnvironment.get_execution_environment(settings, spark=spark)


def rows(folder: Path) -> list[tuple[Any, ...]]:
    table = ds.dataset([str(p) for p in folder.glob("**/*.parquet")], format="parquet").to_table()
    return sorted(zip(*(table.column(i).to_pylist() for i in range(table.num_columns)), strict=True))


def test_an_operator_without_keys_keeps_its_lists_when_the_job_is_rescaled(spark: Any, tmp_path: Path) -> None:
    source = tmp_path / "in"
    for start, parallelism in ((0, 2), (10, 3)):
        spark.range(start, start + 10, 1, 4).write.mode("append").parquet(str(source))
        env = environment(spark, tmp_path)
        numbers = env.from_dataframe(spark.readStream.schema("id bigint").parquet(str(source))).uid("numbers")
        held = numbers.map(Held(), "id bigint, before string").uid("held").set_parallelism(parallelism)
        held.sink_to(ParquetFileSink(str(tmp_path / "out"))).uid("out")
        env.execute("held")
    before = dict(rows(tmp_path / "out"))
    assert sorted(before) == list(range(20))
    assert {before[n] for n in range(10)} == {"[]"}
    parts = {before[n] for n in range(10, 20)}
    assert all(len(json.loads(part)) in (3, 4) for part in parts)


@pytest.mark.parametrize("keyed", [False, True])
def test_rules_arrive_before_the_elements_of_their_epoch_on_every_subtask(
    spark: Any, tmp_path: Path, keyed: bool
) -> None:
    env = environment(spark, tmp_path)
    orders = env.from_dataframe(spark.range(0, 200, 1, 4).selectExpr("id", "concat('a', id % 5) as article"))
    prices = env.from_dataframe(
        spark.range(0, 5, 1, 2).selectExpr("concat('a', id) as article", "100 + id as price")
    ).broadcast(PRICES)
    stream: Any = orders.key_by("article", order_by="id") if keyed else orders
    priced = stream.connect(prices).process(Priced() if keyed else PricedOnce(), "id bigint, price bigint").uid("p")
    priced.sink_to(ParquetFileSink(str(tmp_path / "out"))).uid("out")
    env.execute(f"priced-{keyed}")
    assert rows(tmp_path / "out") == [(n, (n // 5 + 1 if keyed else 1) * (100 + n % 5)) for n in range(200)]
