"""What Spark sees of a ParquetFileSink's directory: rows of committed epochs and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.datastream import ParquetFileSink
from holdfast.testing.sink_contract.sink_stage import SinkStage as Stage

pytestmark = pytest.mark.spark


def seen(spark: Any, out: Path) -> list[list[tuple[Any, ...]]]:
    """By the directory, by a pattern, by all files below it, and as a stream."""
    read = spark.read.schema("word string, n bigint")
    stream = spark.readStream.schema("word string, n bigint").parquet(str(out))
    query = stream.writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
    query.awaitTermination()
    frames = [
        read.parquet(str(out)),
        read.parquet(f"{out}/*.parquet"),
        read.option("recursiveFileLookup", True).parquet(str(out)),
        spark.table("seen"),
    ]
    return [sorted(tuple(row) for row in frame.collect()) for frame in frames]


def test_spark_sees_the_rows_of_an_epoch_after_its_commit_and_not_before(spark: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    stage = Stage(ParquetFileSink(out), tmp_path / "taskowned")
    stage.commit(stage.write(1, [("kelp", 1), ("rock", 2)]))
    later = stage.write(2, [("sand", 3)])
    assert seen(spark, out) == [[("kelp", 1), ("rock", 2)]] * 4
    stage.commit(later)
    assert seen(spark, out) == [[("kelp", 1), ("rock", 2), ("sand", 3)]] * 4
