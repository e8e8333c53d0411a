"""Holdfast with the very processor that ``spark_tws`` runs: rows of Spark in and out, one ``ValueState``."""

from __future__ import annotations

from benchmarks.engines.holdfast import HoldfastEngine
from benchmarks.engines.spark_tws import Counter
from benchmarks.harness.workload import Engine, Workload
from holdfast.datastream import DataStream, KeyedStream
from holdfast.datastream.environment.transform_with_state import apply_processor
from holdfast.spark.stateful_processor import Processor, ProcessorInput


def count_rows(stream: KeyedStream) -> DataStream:
    output = "key string, value bigint, count bigint"
    processor = Processor.checked(Counter(), output, "Append", "None", "", in_pandas=False)
    return apply_processor(stream, processor, ProcessorInput(stream.get_type(), ("key",)))


def make_engine(workload: Workload) -> Engine:
    return HoldfastEngine(workload, count_rows)
