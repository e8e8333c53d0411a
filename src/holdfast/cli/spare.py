"""A process of a job manager that has no job yet: it starts a JVM and runs a small job, so that both are warm.

What takes long when a job starts is the JVM, and the first time that anything is done in it.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.datastream import KeyedProcessFunction, ParquetFileSink, RuntimeContext, StreamExecutionEnvironment
from holdfast.datastream.state import ValueStateDescriptor


class Count(KeyedProcessFunction):
    """Counts each key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Gets the state."""
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", 0))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[int, int]]:
        """Emits the key and how often it has come."""
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield value.key, count


def warm_up() -> None:
    """Starts a JVM, runs a job of three epochs in it, and keeps it for the next session. Blocks for some seconds."""
    from holdfast.spark.spare_java import keep_java, start_java

    logger = logging.getLogger("holdfast")
    level = logger.level
    logger.setLevel(logging.ERROR)  # nobody has asked for this job
    try:
        start_java()
        with tempfile.TemporaryDirectory(prefix="holdfast-spare-") as directory:
            _run_small_job(Path(directory))
        keep_java()
    finally:
        logger.setLevel(level)


def _run_small_job(directory: Path) -> None:
    inputs = directory / "in"
    inputs.mkdir()
    for number in range(3):
        pq.write_table(pa.table({"key": pa.array(range(200)), "word": ["kelp"] * 200}), inputs / f"{number}.parquet")
    env = StreamExecutionEnvironment.get_execution_environment(
        {
            "execution.checkpointing.dir": str(directory / "checkpoints"),
            "execution.trigger": "available-now",
            "rest.enable": False,
            "spark.master": "local[2]",
            "spark.ui.enabled": "false",
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
        }
    )
    schema = env.spark.read.parquet(str(inputs)).schema
    frame = env.spark.readStream.schema(schema).option("maxFilesPerTrigger", "1").parquet(str(inputs))
    rows = env.from_dataframe(frame).uid("in").key_by("key", order_by=["word"])
    rows.process(Count(), output_type="key bigint, n bigint").uid("count").sink_to(
        ParquetFileSink(str(directory / "out"))
    ).uid("out")
    env.execute("spare")
    env.spark.stop()
