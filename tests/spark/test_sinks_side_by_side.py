"""Functions of `for_each_epoch` on Spark that run at the same time: each finds the session as a single one would."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.datastream import StreamExecutionEnvironment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]


def test_two_functions_use_spark_in_the_same_epoch(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql import SparkSession

    spark.createDataFrame([("kelp", 2), ("rock", 3)], "word string, factor int").createOrReplaceTempView("factors")
    both, seen = threading.Barrier(2), {}
    options = {"execution.checkpointing.dir": str(tmp_path / "job"), "restart-strategy.type": "none"}
    env = StreamExecutionEnvironment.get_execution_environment(options, spark=spark)
    words = env.from_collection([("kelp", 1), ("rock", 10)], "word string, n bigint").map(
        lambda row: (row.word, row.n), "word string, n bigint"
    )

    def writing(name: str) -> Any:
        def write(frame: Any, epoch: int, incarnation: str) -> None:
            both.wait(60)
            active = SparkSession.getActiveSession()
            assert active is not None
            spark.sparkContext.setLocalProperty("of.this.sink", name)
            joined = frame.join(active.table("factors"), "word").selectExpr("word", "n * factor as n").collect()
            both.wait(60)
            seen[name] = sorted(map(tuple, joined)), spark.sparkContext.getLocalProperty("of.this.sink")

        return write

    words.for_each_epoch(writing("one")).uid("one")
    words.for_each_epoch(writing("two")).uid("two")
    env.execute("side by side")
    rows = [("kelp", 2), ("rock", 30)]
    assert seen == {"one": (rows, "one"), "two": (rows, "two")}
