"""The chain in Spark's own ``transformWithState`` with rows: words by `mapInArrow`, and two processors with a count."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import DataStreamWriter

from benchmarks.engines.chain_floor import WORDS, words_of
from benchmarks.engines.spark_tws import Counter
from benchmarks.harness.spark_session import SparkEngine, file_sink
from benchmarks.harness.workload import Engine, Workload


class NamedCounter(Counter):
    """Counts the rows of a key.

    Args:
        name: Of the column that it adds.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def handleInputRows(self, key: Any, rows: Iterator[Row], timer_values: Any) -> Iterator[Row]:
        for row in rows:
            known = self._count.get()
            count = (known[0] if known is not None else 0) + 1
            self._count.update((count,))
            yield Row(**row.asDict(), **{self._name: count})


def plan(workload: Workload, stream: DataFrame) -> DataStreamWriter:
    counted, output = stream.mapInArrow(words_of, WORDS), WORDS
    for key, name in (("word", "count"), ("ending", "endings")):
        output = f"{output}, {name} long"
        counted = counted.groupBy(key).transformWithState(
            statefulProcessor=NamedCounter(name), outputStructType=output, outputMode="Append", timeMode="None"
        )
    return file_sink(workload, counted).outputMode("append")


def make_engine(workload: Workload) -> Engine:
    return SparkEngine(workload, plan)
