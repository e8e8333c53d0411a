"""A chain of Holdfast's operators: a flat map, a count by one key, and a count by another, every row emitted."""

from __future__ import annotations

from benchmarks.engines.holdfast import HoldfastEngine
from benchmarks.workload import Engine, Workload
from holdfast.datastream import DataStream, KeyedStream


class ChainEngine(HoldfastEngine):
    """Three Python stages with two exchanges between them."""

    def counted(self, stream: DataStream) -> DataStream:
        words = stream.flat_map(lambda row: [(row.key, row.value)], output_type="key string, value bigint")
        return self._count(words.key_by("key")).uid("counter").key_by("value").count("others").uid("others")


def count_batches(stream: KeyedStream) -> DataStream:
    return stream.count()


def make_engine(workload: Workload) -> Engine:
    return ChainEngine(workload, count_batches)
