"""Savepoints that Spark tasks write and read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import NullKeyError, StateError
from holdfast.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from holdfast.state_processor import (
    KeyedStateBootstrapFunction,
    OperatorTransformation,
    SavepointReader,
    SavepointWriter,
    SparkQueryReader,
)

pytestmark = pytest.mark.spark
COUNT = ValueStateDescriptor("count", "bigint")


class Bootstrap(KeyedStateBootstrapFunction):
    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> None:
        self.seen.add(value.n)
        ctx.timer_service().register_processing_time_timer(value.n)


def rows(table: Any, *names: str) -> list[tuple[Any, ...]]:
    return sorted(zip(*(table.column(name).to_pylist() for name in names), strict=True))


def test_tasks_write_and_read_the_same_state_as_this_process(spark: Any, tmp_path: Path) -> None:
    frame = spark.range(2000).selectExpr(
        "concat('k', id) as name", "cast(id % 7 as int) as part", "id as n", "map(id, cast(id as double)) as m"
    )
    table = pa.table({"name": [f"k{at}" for at in range(2000)], "part": [at % 7 for at in range(2000)]})
    table = table.set_column(1, "part", table.column("part").cast(pa.int32()))
    table = table.append_column("n", pa.array(range(2000)))
    table = table.append_column(
        "m", pa.array([[(at, float(at))] for at in range(2000)], pa.map_(pa.int64(), pa.float64()))
    )
    paths = []
    for kind, data in (("spark", frame), ("arrow", table)):
        keyed = OperatorTransformation.bootstrap_with(data).key_by(["name", "part"])
        made = keyed.to_state(COUNT, "n").to_state(MapStateDescriptor("m", "bigint", "double"), "m")
        writer = SavepointWriter.new_savepoint(spark, 16).set_parallelism(3)
        by_name = OperatorTransformation.bootstrap_with(data).key_by("name")
        writer.with_operator("op", made.to_timers("n", "event")).with_operator("f", by_name.transform(Bootstrap()))
        paths.append(writer.write(str(tmp_path / kind)))
    one, other = (SavepointReader.read(None, path) for path in paths)
    for state in ("count", "m"):
        assert one.read_keyed_state("op", state).equals(other.read_keyed_state("op", state))
    assert one.read_keyed_state("f", "seen").equals(other.read_keyed_state("f", "seen"))
    assert rows(one.read_timers("f"), "key", "timestamp") == rows(other.read_timers("f"), "key", "timestamp")

    reader = SavepointReader.read(spark, paths[0])
    frames = reader.read_keyed_state("op", "count").where("key.part = 3 and value < 20").select("key.name", "value")
    assert sorted(map(tuple, frames.collect())) == [("k10", 10), ("k17", 17), ("k3", 3)]
    few = reader.read_keyed_state("f", "seen", keys=["k5", "k6"], columns=["key", "value"])
    assert sorted(map(tuple, few.collect())) == [("k5", [5]), ("k6", [6])]
    assert reader.read_timers("op", key_groups=range(16)).where("domain = 'event'").count() == 2000


def test_an_error_in_a_task_is_reported_as_in_this_process(spark: Any, tmp_path: Path) -> None:
    frame = spark.sql("select * from values ('a', 1L), (null, 2L) as rows(word, n)")
    made = OperatorTransformation.bootstrap_with(frame).key_by("word").to_state(COUNT, "n")
    with pytest.raises(NullKeyError, match="word"):
        SavepointWriter.new_savepoint(spark, 16).with_operator("op", made).write(str(tmp_path / "savepoint"))
    assert not (tmp_path / "savepoint" / "_metadata").exists()


def test_columns_keep_their_names(spark: Any, tmp_path: Path) -> None:
    frame = spark.sql("select 'a' as `user.name`, 1L as `v``s`, 2L as `user`")
    made = OperatorTransformation.bootstrap_with(frame).key_by(["user.name", "user"]).to_state(COUNT, "v`s")
    path = SavepointWriter.new_savepoint(spark, 16).with_operator("op", made).write(str(tmp_path / "savepoint"))
    [row] = SavepointReader.read(spark, path).read_keyed_state("op", "count").select("key", "value").collect()
    assert (row.key["user.name"], row.key["user"], row.value) == ("a", 2, 1)


def test_spark_with_another_state_location_gets_an_error_with_advice(spark: Any, tmp_path: Path) -> None:
    spark.range(3).write.parquet(str(tmp_path / "in"))
    counted = spark.readStream.schema("id bigint").parquet(str(tmp_path / "in")).groupBy("id").count()
    place = str(tmp_path / "a query")
    writer = counted.writeStream.outputMode("update").format("noop").option("checkpointLocation", place)
    writer.trigger(availableNow=True).start().awaitTermination()
    with pytest.raises(StateError, match=r"if a path has a space.*copy the directory"):
        SparkQueryReader.read(spark, place).read_state("count")
    shutil.copytree(place, tmp_path / "query")
    assert SparkQueryReader.read(spark, str(tmp_path / "query")).read_state("count").count() == 3
