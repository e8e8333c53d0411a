"""Writes an archive of the classes that Spark loads, so that the JVMs of the tests need half as long to start.

    python -m tests.programs.java_archive

Java calls this application class-data sharing: classes are mapped, parsed and verified, not read from jars.
A JVM with another version, other jars or another collector ignores the archive.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.conftest import ARCHIVE, JVM_OPTIONS

PATIENCE = 300.0  # seconds until the JVM has written the archive


def main() -> int:
    written = ARCHIVE.with_suffix(".new")
    written.unlink(missing_ok=True)
    from holdfast.spark.java import ensure_java

    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["JAVA_TOOL_OPTIONS"] = JVM_OPTIONS
    os.environ["PYSPARK_SUBMIT_ARGS"] = f'--driver-java-options "-XX:ArchiveClassesAtExit={written}" pyspark-shell'
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as directory:
        stream_something(spark, Path(directory))
    java: Any = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    spark.stop()
    java.stdin.close()
    java.wait(PATIENCE)
    written.rename(ARCHIVE)
    return 0


def stream_something(spark: Any, directory: Path) -> None:
    """What most jobs do: files are read, rows are placed, sorted and handed to Python, and some come back."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    def each_batch(batch: Any, number: int) -> None:
        batch.createOrReplaceTempView("rows")
        placed = batch.sparkSession.sql("select id, name, xxhash64(id) as hash from rows union all select 1, 'a', 2")
        sorted_rows = placed.repartition(2, "hash").sortWithinPartitions("id")
        sorted_rows.mapInArrow(pass_on, placed.schema).collect()

    rows = spark.range(1000).selectExpr("id", "string(id % 7) as name")
    rows.write.parquet(f"{directory}/in")
    stream = spark.readStream.schema(rows.schema).parquet(f"{directory}/in")
    writer = stream.writeStream.foreachBatch(each_batch).option("checkpointLocation", f"{directory}/log")
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    sys.exit(main())
