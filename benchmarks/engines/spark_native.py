"""Spark's own ``groupBy().count()`` in the JVM on RocksDB.

It emits one row a key and epoch, in update mode, where the others emit one row an input row. The file sink knows no
update mode, so each batch is written by ``foreachBatch`` into a directory of its own, which makes it exactly once.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.streaming import DataStreamWriter

from benchmarks.harness.spark_session import SparkEngine
from benchmarks.harness.workload import Engine, Workload


def plan(workload: Workload, stream: DataFrame) -> DataStreamWriter:
    def write(frame: DataFrame, epoch: int) -> None:
        writer = frame.write.mode("overwrite")
        if workload.sink == "discard":
            writer.format("noop").save()
        else:
            writer.parquet(f"{workload.workspace}/output/epoch={epoch}")

    return stream.groupBy("key").count().writeStream.outputMode("update").foreachBatch(write)


def make_engine(workload: Workload) -> Engine:
    return SparkEngine(workload, plan)
