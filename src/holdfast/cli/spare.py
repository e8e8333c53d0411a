"""A spare process of a job manager: it starts a JVM and runs a small job, so that both are warm.

The JVM, and the first use of everything in it, take most of the time in which a job starts.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.datastream import KeyedProcessFunction, ParquetFileSink, RuntimeContext, StreamExecutionEnvironment
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.spark.frame import map_in_arrow
from holdfast.spark.spare_java import SpareJava


class Count(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", 0))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[int, int]]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield value.key, count


class Spare:
    """A warm JVM and session for the next job of this process. Making it takes some seconds.

    Args:
        options: Options that every job has here, unless it sets others.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        logger = logging.getLogger("holdfast")
        level = logger.level
        logger.setLevel(logging.ERROR)  # this job is not the user's
        try:
            self._java = SpareJava()
            self._session = self._java.start_session(options)
            with tempfile.TemporaryDirectory(prefix="holdfast-spare-") as directory:
                _run_small_job(Path(directory), self._session)
        finally:
            logger.setLevel(level)

    def stay_warm(self) -> None:
        """Run a task in each worker, if they are kept: Spark ends workers that were idle for a minute."""
        if self._java.is_for_this_process_alone:
            tasks = self._session.sparkContext.defaultParallelism
            frame = map_in_arrow(self._session.range(0, tasks, 1, tasks), _passing, "id bigint")
            frame.write.format("noop").mode("overwrite").save()

    def give_away(self) -> None:
        """Give the JVM to the next session of this process."""
        self._java.give_away()


def _passing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _run_small_job(directory: Path, session: Any) -> None:
    inputs = directory / "in"
    inputs.mkdir()
    for number in range(3):
        pq.write_table(pa.table({"key": pa.array(range(200)), "word": ["kelp"] * 200}), inputs / f"{number}.parquet")
    env = StreamExecutionEnvironment.get_execution_environment(
        {
            "execution.checkpointing.dir": str(directory / "checkpoints"),
            "execution.trigger": "available-now",
            "rest.enable": False,
        },
        spark=session,
    )
    schema = session.read.parquet(str(inputs)).schema
    frame = session.readStream.schema(schema).option("maxFilesPerTrigger", "1").parquet(str(inputs))
    rows = env.from_dataframe(frame).uid("in").key_by("key", order_by=["word"])
    rows.process(Count(), output_type="key bigint, n bigint").uid("count").sink_to(
        ParquetFileSink(str(directory / "out"))
    ).uid("out")
    env.execute("spare")
