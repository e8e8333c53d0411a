"""The floor of a chain: the same words, then functions that pass batches through, with a shuffle before each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming import DataStreamWriter

from benchmarks.engines.floor import pass_through
from benchmarks.harness.spark_session import SparkEngine, file_sink
from benchmarks.harness.workload import PARALLELISM, Engine, Workload

WORDS = "word string, ending string"


def words_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        words = [word for line in batch.column(0).to_pylist() for word in line.split()]
        yield pa.RecordBatch.from_arrays([pa.array(words), pa.array([word[-3:] for word in words])], ["word", "ending"])


def plan(workload: Workload, stream: DataFrame) -> DataStreamWriter:
    words = stream.mapInArrow(words_of, WORDS).repartition(PARALLELISM, "word").mapInArrow(pass_through, WORDS)
    return file_sink(workload, words.repartition(PARALLELISM, "ending").mapInArrow(pass_through, WORDS))


def make_engine(workload: Workload) -> Engine:
    return SparkEngine(workload, plan)
