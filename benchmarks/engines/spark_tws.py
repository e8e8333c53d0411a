"""Spark's ``transformWithState`` with rows, from Python, on RocksDB: one ``ValueState``, every row emitted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import DataStreamWriter, StatefulProcessor, StatefulProcessorHandle

from benchmarks.harness.spark_session import SparkEngine, file_sink
from benchmarks.harness.workload import Engine, Workload


class Counter(StatefulProcessor):
    """Counts the rows of a key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "count long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timer_values: Any) -> Iterator[Row]:
        for row in rows:
            known = self._count.get()
            count = (known[0] if known is not None else 0) + 1
            self._count.update((count,))
            yield Row(key=row.key, value=row.value, count=count)

    def close(self) -> None:
        pass


def plan(workload: Workload, stream: DataFrame) -> DataStreamWriter:
    counted = stream.groupBy("key").transformWithState(
        statefulProcessor=Counter(),
        outputStructType="key string, value long, count long",
        outputMode="Append",
        timeMode="None",
    )
    return file_sink(workload, counted).outputMode("append")


def make_engine(workload: Workload) -> Engine:
    return SparkEngine(workload, plan)
