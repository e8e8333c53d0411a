"""The Spark that all Spark engines of a benchmark share, and the clock that measures their epochs."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery, StreamingQueryListener

from benchmarks.harness.input_files import Source
from benchmarks.harness.workload import PARALLELISM, SETTINGS_VARIABLE, Workload
from holdfast.spark.java import ensure_java

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": str(PARALLELISM),
    "spark.sql.adaptive.enabled": "false",
    # Twice Spark's default: larger batches help every engine with Python workers, the floor included.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}


def start_session(name: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session on two cores of this machine, with further settings, and those that an engine takes part with."""
    of_engine = json.loads(os.environ.get(SETTINGS_VARIABLE, "{}"))
    ensure_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{PARALLELISM}]").appName(name)
    for key, value in {**SETTINGS, **(settings or {}), **of_engine}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


class EpochClock(StreamingQueryListener):
    """Collects Spark's own measure of every batch with input: from its trigger to the end of its commit log entry.

    It hears of every query of the session, also of those that an engine starts inside, so that all are measured by
    the same clock.

    Attributes:
        ends: When each epoch ended, in seconds since 1970.
    """

    def __init__(self) -> None:
        self.ends: list[float] = []
        self._seconds: list[float] = []
        self._told = threading.Condition()

    def onQueryStarted(self, event) -> None:
        pass

    def onQueryIdle(self, event) -> None:
        pass

    def onQueryTerminated(self, event) -> None:
        pass

    def onQueryProgress(self, event) -> None:
        # Spark counts no rows of inputs that tasks of Holdfast read.
        if event.progress.numInputRows > 0 or any(s.startOffset != s.endOffset for s in event.progress.sources):
            seconds = event.progress.durationMs["triggerExecution"] / 1000
            with self._told:
                self.ends.append(datetime.fromisoformat(event.progress.timestamp).timestamp() + seconds)
                self._seconds.append(seconds)
                self._told.notify_all()

    def take(self, epochs: int, patience: float = 60.0) -> Sequence[float]:
        """The next epochs, in order; waits a little, because Spark tells listeners on a thread of its own."""
        deadline = time.monotonic() + patience
        with self._told:
            while len(self._seconds) < epochs:
                if not self._told.wait(deadline - time.monotonic()):
                    raise RuntimeError(f"Spark reported {len(self._seconds)} epochs with input instead of {epochs}")
            taken, self._seconds = self._seconds[:epochs], self._seconds[epochs:]
        if self._seconds:
            raise RuntimeError(f"Spark reported {len(self._seconds)} epochs more than the {epochs} that were asked for")
        return taken


class SparkEngine:
    """An engine that is one streaming query; each run takes what is new and ends, and the session stays warm.

    Args:
        workload: The sizes.
        plan: From the input to the writer of the query, without checkpoint location and trigger.

    Attributes:
        clock: Of its epochs.
    """

    def __init__(self, workload: Workload, plan: Callable[[Workload, DataFrame], DataStreamWriter]) -> None:
        self._workload = workload
        self._plan = plan
        self._source = Source(workload)
        self._session = start_session("keyed-count")
        self.clock = EpochClock()
        self._session.streams.addListener(self.clock)

    def run(self, epochs: int) -> Sequence[float]:
        self._source.add(epochs)
        stream = read_epochs(self._session, self._source)
        writer = self._plan(self._workload, stream)
        located = writer.option("checkpointLocation", f"{self._workload.workspace}/checkpoint")
        self._start(located.trigger(availableNow=True).start).awaitTermination()
        return self.clock.take(epochs)

    def _start(self, start: Callable[[], StreamingQuery]) -> StreamingQuery:
        return start()

    def close(self) -> None:
        self._session.stop()


def read_epochs(session: SparkSession, source: Source) -> DataFrame:
    """The source as a stream of the files of one epoch after the other."""
    files = session.readStream.schema(source.ddl).option("maxFilesPerTrigger", source.files)
    return files.parquet(str(source.directory))


def file_sink(workload: Workload, rows: DataFrame) -> DataStreamWriter:
    """Spark's exactly-once file sink, or its sink that drops everything after computing it."""
    if workload.sink == "discard":
        return rows.writeStream.format("noop")
    return rows.writeStream.format("parquet").option("path", f"{workload.workspace}/output")
