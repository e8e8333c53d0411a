"""One engine of `latency.py`: a counter per key on a stream of files or of a topic, until its standard input ends.

    python -m benchmarks.harness.latency_engine RUN_AS_JSON

It tells on standard output, a JSON line each, what Spark and Holdfast say of where the time of an epoch went. Its rows
are `key`, `created` (microseconds since 1970) and a count, in Parquet files.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle, StreamingQueryListener

from benchmarks.engines.floor import pass_through
from benchmarks.harness import stopwatch
from benchmarks.harness.latency_run import LatencyRun
from benchmarks.harness.spark_session import start_session
from benchmarks.harness.workload import PARALLELISM
from holdfast.common import Duration, WatermarkStrategy
from holdfast.datastream import DataStream, ParquetFileSink, StreamExecutionEnvironment
from holdfast.datastream.connectors.file_system import FileSource
from holdfast.datastream.connectors.kafka import KafkaSource
from holdfast.datastream.formats.json import JsonRowDeserializationSchema
from holdfast.datastream.formats.parquet import ParquetColumnarRowInputFormat
from holdfast.datastream.functions import KeyedProcessFunction, RuntimeContext
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.spark.session import start_with_plain_logs

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:"
EVENTS = "key string, created long"
COUNTED = "key string, created long, n long"


class Counter(KeyedProcessFunction):
    """Counts the rows of a key.

    Args:
        times: Where `stopwatch` notes what the tasks do; empty for nowhere.
    """

    def __init__(self, times: str) -> None:
        self.times = times

    def open(self, runtime_context: RuntimeContext) -> None:
        if self.times:
            stopwatch.watch(self.times)
        self._count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", 0))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[str, int, int]]:
        count = self._count.value() + 1
        self._count.update(count)
        yield value.key, value.created, count


class SparkCounter(StatefulProcessor):
    """The same for Spark."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "count long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timer_values: Any) -> Iterator[Row]:
        known = self._count.get()
        count = known[0] if known is not None else 0
        for row in rows:
            count += 1
            yield Row(key=row.key, created=row.created, n=count)
        self._count.update((count,))

    def close(self) -> None:
        pass


class Told(StreamingQueryListener):
    """Tells what Spark measures of each batch that had input."""

    def onQueryStarted(self, event) -> None:
        pass

    def onQueryIdle(self, event) -> None:
        pass

    def onQueryTerminated(self, event) -> None:
        pass

    def onQueryProgress(self, event) -> None:
        if any(source.startOffset != source.endOffset for source in event.progress.sources):
            tell({"spark": dict(event.progress.durationMs)})


def tell(said: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def stream(session: SparkSession, run: LatencyRun) -> DataFrame:
    """The events as Spark reads them."""
    if not run.servers:
        return session.readStream.schema(EVENTS).parquet(run.source)
    records = session.readStream.format("kafka").option("kafka.bootstrap.servers", run.servers)
    values = records.option("subscribe", run.source).option("startingOffsets", "earliest").load()
    return values.select(F.from_json(F.col("value").cast("string"), EVENTS).alias("event")).select("event.*")


def began(work: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """Tells when the work of a batch begins."""

    def told(frame: DataFrame, epoch: int) -> None:
        tell({"began": time.time()})
        work(frame, epoch)

    return told


def run_spark(session: SparkSession, run: LatencyRun) -> Callable[[], None]:
    rows = stream(session, run)

    def write(frame: DataFrame, epoch: int) -> None:
        frame.write.mode("overwrite").parquet(f"{run.output}/epoch={epoch}")

    if run.engine == "bare":

        def place(frame: DataFrame, epoch: int) -> None:
            subtask = F.pmod(F.xxhash64("key"), F.lit(PARALLELISM)).cast("int")
            write(frame.repartitionById(PARALLELISM, subtask).mapInArrow(pass_through, EVENTS), epoch)

        writer = rows.writeStream.foreachBatch(began(place))
    elif run.engine == "spark-group-by":
        counted = rows.groupBy("key").agg(F.max("created").alias("created"), F.count("*").alias("n"))
        writer = counted.writeStream.outputMode("update").foreachBatch(began(write))
    else:
        counted = rows.groupBy("key").transformWithState(SparkCounter(), COUNTED, "Update", "None")
        writer = counted.writeStream.outputMode("update").foreachBatch(began(write))
    start = writer.option("checkpointLocation", f"{run.workspace}/checkpoint").start
    query = start_with_plain_logs(session, start) if run.engine == "bare" else start()
    return query.stop


def run_holdfast(session: SparkSession, run: LatencyRun) -> Callable[[], None]:
    if run.times:
        stopwatch.watch(run.times)
    env = StreamExecutionEnvironment.get_execution_environment(
        {"execution.checkpointing.dir": f"{run.workspace}/checkpoints", "parallelism.default": PARALLELISM},
        spark=session,
    )
    counted = events(env, session, run).key_by("key").process(Counter(run.times), COUNTED).uid("count")
    counted.sink_to(ParquetFileSink(run.output)).uid("out")
    client = env.execute_async("latency")
    threading.Thread(target=follow, args=(client,), daemon=True).start()
    return client.cancel


def events(env: StreamExecutionEnvironment, session: SparkSession, run: LatencyRun) -> DataStream:
    """The events as Holdfast reads them."""
    never = WatermarkStrategy.no_watermarks()
    if run.servers:
        schema = JsonRowDeserializationSchema.builder().type_info(EVENTS).build()
        topic = KafkaSource.builder().set_bootstrap_servers(run.servers).set_topics(run.source)
        return env.from_source(topic.set_value_only_deserializer(schema).build(), never, "events").uid("events")
    if run.engine == "holdfast":
        return env.from_dataframe(stream(session, run)).uid("events")
    files = FileSource.for_bulk_file_format(ParquetColumnarRowInputFormat(EVENTS), run.source)
    continuous = files.monitor_continuously(Duration.of_millis(10)).build()
    return env.from_source(continuous, never, "events").uid("events")


def follow(client: Any) -> None:
    seen = 0
    while not client.get_job_status().is_terminal_state():
        for said in client.recent_progress:
            if said["epoch"] > seen:
                seen = said["epoch"]
                tell({"holdfast": said, "began": said["started"] / 1000})
        threading.Event().wait(0.5)


def main(run: LatencyRun) -> None:
    settings = {"spark.jars.packages": CONNECTOR + run.connector} if run.connector else {}
    session = start_session("latency", settings)
    session.streams.addListener(Told())
    stop = (run_holdfast if run.engine.startswith("holdfast") else run_spark)(session, run)
    tell({"started": run.engine})
    sys.stdin.read()
    stop()
    if run.times:
        for job in stopwatch.jobs_of(session):
            tell({"job": job})
    session.stop()


if __name__ == "__main__":
    main(LatencyRun.from_json(sys.argv[1]))
