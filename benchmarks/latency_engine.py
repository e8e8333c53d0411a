"""One engine of `latency.py`: a counter per key on a stream of files, until its standard input ends.

    python -m benchmarks.latency_engine ENGINE SOURCE OUTPUT WORKSPACE

It tells on standard output, a JSON line each, what Spark and Holdfast say of where the time of an epoch went. Its rows
are `key`, `created` (microseconds since 1970) and a count, in Parquet files below OUTPUT.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle, StreamingQueryListener

from benchmarks.engines.floor import pass_through
from benchmarks.spark_session import start_session
from benchmarks.workload import PARALLELISM
from holdfast.common import Duration, WatermarkStrategy
from holdfast.datastream import DataStream, ParquetFileSink, StreamExecutionEnvironment
from holdfast.datastream.connectors.file_system import FileSource
from holdfast.datastream.formats.parquet import ParquetColumnarRowInputFormat
from holdfast.datastream.functions import KeyedProcessFunction, RuntimeContext
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.spark.query_log import start_with_plain_logs

EVENTS = "key string, created long"
COUNTED = "key string, created long, n long"


class Counter(KeyedProcessFunction):
    """Counts the rows of a key."""

    def open(self, runtime_context: RuntimeContext) -> None:
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


def stream(session: SparkSession, source: str) -> DataFrame:
    return session.readStream.schema(EVENTS).parquet(source)


def written(output: str) -> Callable[[DataFrame, int], None]:
    return lambda frame, epoch: frame.write.mode("overwrite").parquet(f"{output}/epoch={epoch}")


def run_spark(engine: str, session: SparkSession, source: str, output: str, workspace: str) -> Callable[[], None]:
    rows = stream(session, source)
    write = written(output)
    if engine == "bare":

        def place(frame: DataFrame, epoch: int) -> None:
            subtask = F.pmod(F.xxhash64("key"), F.lit(PARALLELISM)).cast("int")
            write(frame.repartitionById(PARALLELISM, subtask).mapInArrow(pass_through, EVENTS), epoch)

        writer = rows.writeStream.foreachBatch(place)
    elif engine == "spark-group-by":
        counted = rows.groupBy("key").agg(F.max("created").alias("created"), F.count("*").alias("n"))
        writer = counted.writeStream.outputMode("update").foreachBatch(write)
    else:
        counted = rows.groupBy("key").transformWithState(SparkCounter(), COUNTED, "Update", "None")
        writer = counted.writeStream.outputMode("update").foreachBatch(write)
    start = writer.option("checkpointLocation", f"{workspace}/checkpoint").start
    query = start_with_plain_logs(session, start) if engine == "bare" else start()
    return query.stop


def run_holdfast(engine: str, session: SparkSession, source: str, output: str, workspace: str) -> Callable[[], None]:
    env = StreamExecutionEnvironment.get_execution_environment(
        {"execution.checkpointing.dir": f"{workspace}/checkpoints", "parallelism.default": PARALLELISM}, spark=session
    )
    counted = events(engine, env, session, source).key_by("key").process(Counter(), COUNTED).uid("count")
    counted.sink_to(ParquetFileSink(output)).uid("out")
    client = env.execute_async("latency")
    threading.Thread(target=follow, args=(client,), daemon=True).start()
    return client.cancel


def events(engine: str, env: StreamExecutionEnvironment, session: SparkSession, source: str) -> DataStream:
    if engine == "holdfast":
        return env.from_dataframe(stream(session, source)).uid("events")
    files = FileSource.for_bulk_file_format(ParquetColumnarRowInputFormat(EVENTS), source)
    continuous = files.monitor_continuously(Duration.of_millis(10)).build()
    return env.from_source(continuous, WatermarkStrategy.no_watermarks(), "events").uid("events")


def follow(client: Any) -> None:
    seen = 0
    while not client.get_job_status().is_terminal_state():
        for said in client.recent_progress:
            if said["epoch"] > seen:
                seen = said["epoch"]
                tell({"holdfast": said})
        threading.Event().wait(0.5)


def main(engine: str, source: str, output: str, workspace: str) -> None:
    session = start_session("latency")
    session.streams.addListener(Told())
    run = run_holdfast if engine.startswith("holdfast") else run_spark
    stop = run(engine, session, source, output, workspace)
    tell({"started": engine})
    sys.stdin.read()
    stop()
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
