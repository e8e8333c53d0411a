"""The floor of a chain: Python functions that pass batches through, with a shuffle by one key and one by another."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.streaming import DataStreamWriter

from benchmarks.engines.floor import pass_through
from benchmarks.input_files import DDL
from benchmarks.spark_session import SparkEngine, file_sink
from benchmarks.workload import PARALLELISM, Engine, Workload


def plan(workload: Workload, stream: DataFrame) -> DataStreamWriter:
    words = stream.mapInArrow(pass_through, DDL)
    first = words.repartition(PARALLELISM, "key").mapInArrow(pass_through, DDL)
    return file_sink(workload, first.repartition(PARALLELISM, "value").mapInArrow(pass_through, DDL))


def make_engine(workload: Workload) -> Engine:
    return SparkEngine(workload, plan)
