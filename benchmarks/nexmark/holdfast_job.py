"""A query as a job of Holdfast over the files of a directory, one file of each kind an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.nexmark.events import TYPES
from benchmarks.nexmark.query import Query
from holdfast.common import Configuration
from holdfast.datastream import BatchSinkWriter, Sink, StreamExecutionEnvironment, WriterInitContext

PARALLELISM = 2


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
        "execution.trigger": "available-now",
        "execution.checkpointing.dir": str(checkpoints),
        "parallelism.default": str(PARALLELISM),
        **(options or {}),
    }
    for name, text in chosen.items():
        configuration.set_string(name, text)
    environment = StreamExecutionEnvironment.get_execution_environment(configuration, spark=session)
    streams = {}
    for uid, read in query.inputs.items():
        events = session.readStream.schema(TYPES[read.kind]).option("maxFilesPerTrigger", 1)
        frame = (
            events.parquet(str(folder / "epochs" / read.kind)).where(read.where or "true").selectExpr(*read.selected)
        )
        streams[uid] = environment.from_dataframe(frame).uid(uid)
    query.build(streams).sink_to(sink).uid("out")
    environment.execute(query.name)
