"""Holdfast in real time: one job that lives for all rounds, a plain generator with one ``ValueState``."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.engines.holdfast import DiscardingSink, count_rows
from benchmarks.engines.holdfast_files import read_files
from benchmarks.harness.input_files import Source, epoch_files
from benchmarks.harness.spark_session import start_session
from benchmarks.harness.workload import PARALLELISM, Engine, Workload
from holdfast.common import Configuration
from holdfast.datastream import (
    DataStream,
    KeyedStream,
    ParquetFileSink,
    Sink,
    StreamExecutionEnvironment,
    WriterInitContext,
)
from holdfast.spark.session import REAL_TIME_DEFAULTS

SLOTS: Final = 8
"""Each task of a real-time job holds a slot, and all of them share the same two cores."""

_rows: Final[Counter[Path]] = Counter()


class Counted:
    """Counts the rows that writers of a sink get, in a file for each writer.

    Args:
        place: Directory of the files.
    """

    def __init__(self, place: Path) -> None:
        self._place = place

    def count(self, writer: Any, subtask: int) -> Any:
        """Let a writer count its rows."""
        write, path = writer.write_batch, self._place / f"{subtask}-{os.getpid()}"

        def write_and_count(batch: pa.RecordBatch) -> None:
            write(batch)
            _rows[path] += batch.num_rows  # a sink may have a new writer behind each barrier
            path.write_bytes(_rows[path].to_bytes(8, "big"))

        writer.write_batch = write_and_count
        return writer

    def rows(self) -> int:
        """Return the rows of all writers."""
        return sum(int.from_bytes(file.read_bytes(), "big") for file in self._place.iterdir())


class CountedFiles(ParquetFileSink):
    """Parquet files whose rows are counted as they are written."""

    def __init__(self, path: str, counted: Counted) -> None:
        super().__init__(path)
        self._counted = counted

    def create_writer(self, context: WriterInitContext) -> Any:
        return self._counted.count(super().create_writer(context), context.subtask)


class CountedAndDropped(DiscardingSink):
    """Drops every row, and counts it."""

    def __init__(self, counted: Counted) -> None:
        self._counted = counted

    def create_writer(self, context: WriterInitContext) -> Any:
        return self._counted.count(super().create_writer(context), context.subtask)


class RealTimeEngine:
    """Reads files as they come. A run ends with a completed checkpoint behind all of its rows.

    Args:
        workload: The sizes.
        count: The job between its input and its sink.
    """

    def __init__(self, workload: Workload, count: Callable[[DataStream], DataStream]) -> None:
        self._workload = workload
        self._count = count
        self._source = Source(workload)
        settings = {**REAL_TIME_DEFAULTS, "spark.master": f"local[{SLOTS}]"}
        self._session = start_session("keyed-count", settings)
        self._job: Any = None
        self._rows = 0
        counts = Path(workload.workspace, "counts")
        counts.mkdir(parents=True)
        self._counted = Counted(counts)

    def run(self, epochs: int) -> Sequence[float]:
        # They are made before the job, which reads each file as it comes.
        waiting = range(self._source.epochs, self._source.epochs + epochs)
        files = [file for epoch in waiting for file in epoch_files(self._workload, epoch)]
        self._rows += sum(pq.read_metadata(file).num_rows for file in files) * max(1, self._workload.words)
        began = time.monotonic()
        self._source.add(epochs)
        if self._job is None:
            self._job = self._start()
        while self._counted.rows() < self._rows:
            if self._job.get_job_status().is_terminal_state():
                self._job.await_termination()
            time.sleep(0.005)
        self._job.trigger_checkpoint().result()
        return [(time.monotonic() - began) / epochs] * epochs

    def _start(self) -> Any:
        configuration = Configuration()
        configuration.set_string("execution.trigger", "real-time")
        configuration.set_string("execution.checkpointing.interval", "1 s")
        configuration.set_string("execution.checkpointing.dir", f"{self._workload.workspace}/checkpoints")
        configuration.set_string("parallelism.default", str(PARALLELISM))
        environment = StreamExecutionEnvironment.get_execution_environment(configuration, spark=self._session)
        counted = self._count(read_files(environment, self._source))
        sink: Sink = CountedAndDropped(self._counted)
        if self._workload.sink == "parquet":
            sink = CountedFiles(f"{self._workload.workspace}/output", self._counted)
        counted.sink_to(sink)
        return environment.execute_async("keyed-count")

    def close(self) -> None:
        if self._job is not None:
            self._job.stop()
            self._job.await_termination()
        self._session.stop()


def keyed(count: Callable[[KeyedStream], DataStream]) -> Callable[[DataStream], DataStream]:
    """Return a job that counts by key."""
    return lambda stream: count(stream.key_by("key")).uid("counter")


def make_engine(workload: Workload) -> Engine:
    return RealTimeEngine(workload, keyed(count_rows))
