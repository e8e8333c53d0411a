"""Spark's own operators: `groupBy` and `transformWithState` by micro-batches, and `groupBy` in Spark's real-time mode.

`groupBy` writes a row a key and batch, with the newest creation time. In real-time mode it writes a row an event, as
`transformWithState` does. Batches begin one after the other without a pause. Each writes a checkpoint.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.harness.latency_engine import SparkCounter
from benchmarks.harness.realtime_run import EVENTS, Latencies, RealTimeRun, RunningJob, serve
from benchmarks.harness.spark_session import start_session

_STATE_STORE = "spark.sql.streaming.stateStore"


def start(run: RealTimeRun) -> RunningJob:
    settings = {
        "spark.master": "local[8]",
        # Spark's documentation advises this where latency counts: a checkpoint writes what has changed.
        f"{_STATE_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
        # Of real-time mode, whose default is 50: as short as Holdfast sets it.
        "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "1",
    }
    if run.jars:
        settings["spark.jars"] = run.jars
    session = start_session("latency", settings)
    rows = events(session, run)
    if run.engine == "spark-tws":
        numbered = rows.groupBy("key").transformWithState(SparkCounter(), f"{EVENTS}, n bigint", "Update", "None")
        counted = numbered.withColumnRenamed("n", "count")
    else:
        counted = rows.groupBy("key").agg(F.count("*").alias("count"), F.max("created").alias("created"))
    if run.has_topics:
        values = counted.select(F.to_json(F.struct("key", "count", "created")).alias("value"))
        writer = values.writeStream.format("kafka").option("kafka.bootstrap.servers", run.servers)
        writer = writer.option("topic", run.target).option("kafka.linger.ms", "1")
    else:
        writer = counted.writeStream.foreach(Latencies(run.latencies))
    writer = writer.outputMode("update").option("checkpointLocation", f"{run.workspace}/checkpoint")
    if run.engine == "spark-real-time":
        writer = writer.trigger(realTime=run.batch)
    query = writer.start()

    def end() -> str | None:
        return None if query.isActive else str(query.exception())

    return RunningJob(query.stop, end)


def events(session: SparkSession, run: RealTimeRun) -> DataFrame:
    if not run.has_topics:
        return session.readStream.schema(EVENTS).json(run.source)
    records = session.readStream.format("kafka").option("kafka.bootstrap.servers", run.servers)
    values = records.option("subscribe", run.source).option("startingOffsets", "earliest").load()
    return values.select(F.from_json(F.col("value").cast("string"), EVENTS).alias("event")).select("event.*")


if __name__ == "__main__":
    serve(start)
