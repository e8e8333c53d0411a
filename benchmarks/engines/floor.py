"""The floor of any Python operator on Spark: a shuffle by key and a Python function that passes batches through."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming import DataStreamWriter

from benchmarks.harness.input_files import DDL
from benchmarks.harness.spark_session import SparkEngine, file_sink
from benchmarks.harness.workload import PARALLELISM, Engine, Workload


def pass_through(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def plan(workload: Workload, stream: DataFrame) -> DataStreamWriter:
    return file_sink(workload, stream.repartition(PARALLELISM, "key").mapInArrow(pass_through, DDL))


def make_engine(workload: Workload) -> Engine:
    return SparkEngine(workload, plan)
