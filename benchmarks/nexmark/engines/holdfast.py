"""A query as a job of Holdfast over the files of a directory, one file of each kind an epoch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from benchmarks.harness.spark_session import SETTINGS, start_session
from benchmarks.nexmark.engine import CHECKPOINTS, PARALLELISM, Engine, Settings
from benchmarks.nexmark.queries import QUERIES as ALL
from benchmarks.nexmark.query import Input, Query
from holdfast.common import Configuration, Duration, WatermarkStrategy
from holdfast.datastream import (
    BatchSinkWriter,
    ParquetFileSink,
    Sink,
    StreamExecutionEnvironment,
    WriterInitContext,
)
from holdfast.datastream.connectors.file_system import FileSource
from holdfast.datastream.formats.input_format import InputFile
from holdfast.datastream.formats.parquet import ParquetColumnarRowInputFormat

QUERIES: Final = list(ALL)
PARTITIONED: Final = ("q10",)
"""Queries whose result is files in directories."""


class SelectedColumns(ParquetColumnarRowInputFormat):
    """Files of events, of which tasks make the columns of an input."""

    def __init__(self, read: Input) -> None:
        super().__init__(read.columns)
        self._read = read
        self._files = ParquetColumnarRowInputFormat(read.files)

    def read(self, file: InputFile, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        return map(self._read.of_file, self._files.read(file, begin, end))


class DiscardingWriter(BatchSinkWriter):
    """Drops every batch."""

    def write_batch(self, batch: pa.RecordBatch) -> None:
        pass


class DiscardingSink(Sink):
    """Computes everything and keeps nothing, as Flink's `blackhole` does."""

    def create_writer(self, context: WriterInitContext) -> DiscardingWriter:
        return DiscardingWriter()


def start(
    session: Any, query: Query, folder: Path, checkpoints: Path, sink: Sink, options: Mapping[str, str] | None = None
) -> None:
    """Run a query over all files; blocks until it has ended.

    A query with event time ends with a drain: the last windows fire, as at the end of a bounded source of Flink's. In
    real time the files are a bounded source, too.

    Args:
        session: Of Spark.
        query: Which.
        folder: As `files.events_on_disk` makes it.
        checkpoints: Directory of the checkpoints.
        sink: Of the results.
        options: Further ones of the job.
    """
    configuration = Configuration()
    chosen = {
        "execution.trigger": "continuous" if query.has_event_time else "available-now",
        "execution.checkpointing.dir": str(checkpoints),
        "execution.checkpointing.savepoint-dir": f"{checkpoints}-savepoints",
        "execution.checkpointing.interval": CHECKPOINTS,
        "parallelism.default": str(PARALLELISM),
        **(options or {}),
    }
    is_real_time = chosen["execution.trigger"] == "real-time"
    for name, text in chosen.items():
        configuration.set_string(name, text)
    environment = StreamExecutionEnvironment.get_execution_environment(configuration, spark=session)
    streams = {}
    for uid, read in query.inputs.items():
        place = str(folder / "epochs" / read.kind)
        if query.needs_spark:
            frame = session.readStream.schema(read.columns).option("maxFilesPerTrigger", 1).parquet(place)
            streams[uid] = environment.from_dataframe(frame).uid(uid)
        else:
            files = FileSource.for_bulk_file_format(SelectedColumns(read), place)
            if is_real_time:
                files = files.process_static_file_set()
            else:  # one file an epoch
                files = files.monitor_continuously(Duration.of_millis(100)).set_max_files_per_epoch(1)
            streams[uid] = environment.from_source(files.build(), WatermarkStrategy.no_watermarks(), uid).uid(uid)
    query.build(streams).sink_to(sink).uid("out")
    if is_real_time or not query.has_event_time:
        environment.execute(query.name)
        return
    job = environment.execute_async(query.name)
    job.process_all_available()
    job.stop_with_savepoint(advance_to_end_of_event_time=True).result()
    job.await_termination()


class HoldfastEngine:
    """Each run is a new job in one session of Spark.

    Args:
        settings: Where it reads and writes.
        spark: Further settings of the session.
        options: Further options of the jobs.
    """

    def __init__(
        self, settings: Settings, spark: Mapping[str, str] | None = None, options: Mapping[str, str] | None = None
    ) -> None:
        self._settings = settings
        self._options = options
        self._session = session("nexmark", spark)
        self._runs = 0

    def run(self, query: str) -> None:
        self._runs += 1
        place = Path(self._settings.workspace, f"run-{self._runs}")
        sink: Sink = DiscardingSink()
        if self._settings.results is not None:
            sink = ParquetFileSink(Path(self._settings.results, query))
        elif query in PARTITIONED:
            sink = ParquetFileSink(place / "out", partition_by=["dt", "hm"])
        start(self._session, ALL[query], Path(self._settings.folder), place / "checkpoints", sink, self._options)
        shutil.rmtree(place)

    def close(self) -> None:
        self._session.stop()


def session(name: str, settings: Mapping[str, str] | None = None) -> Any:
    """A session on two cores, with as much memory as Flink's JVM has."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = "--driver-memory 6g pyspark-shell"
    SETTINGS["spark.sql.execution.arrow.maxRecordsPerBatch"] = "50000"
    return start_session(name, settings)


def make_engine(settings: Settings) -> Engine:
    return HoldfastEngine(settings)
