"""What Spark sees of a ParquetFileSink's directory: rows of committed epochs and no others; and of staged rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.datastream import ForEachEpochSink, ParquetFileSink
from holdfast.errors import StorageError
from holdfast.testing.sink_contract import SinkStage as Stage

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


def test_spark_rejects_staged_rows_with_a_flipped_bit(spark: Any, tmp_path: Path) -> None:
    from holdfast.spark.frame import staged_frame

    written: list[Any] = []
    stage = Stage(ForEachEpochSink(lambda rows, epoch: written.append(sorted(map(tuple, rows.collect())))), tmp_path)
    stage.services = {"read_parquet": lambda paths: staged_frame(spark, paths)}
    committables = stage.write(1, [("kelp", 1), ("rock", 2)])
    [path] = tmp_path.iterdir()
    whole = path.read_bytes()
    assert b"\4\0\0\0kelp" in whole, "with its length, as it is in a page"
    path.write_bytes(whole.replace(b"\4\0\0\0kelp", b"\4\0\0\0help"))
    with pytest.raises(StorageError, match=f"{path.name}(.|\n)*CRC checksum verification failed"):
        stage.commit(committables)
    assert written == []
    path.write_bytes(whole)
    stage.commit(committables)
    assert written == [[("kelp", 1), ("rock", 2)]]
