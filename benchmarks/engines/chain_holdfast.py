"""A chain of Holdfast's operators: lines to words, a count by word, and a count by the end of the word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from benchmarks.engines.holdfast import HoldfastEngine
from benchmarks.harness.workload import Engine, Workload
from holdfast.datastream import DataStream


def words_of(row: Any) -> Iterator[tuple[str, str]]:
    for word in row.line.split():
        yield word, word[-3:]


class ChainEngine(HoldfastEngine):
    """Three Python stages with two exchanges between them."""

    options: ClassVar[Mapping[str, str]] = {"execution.exchange.packed": "true"}

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload, lambda stream: stream.count())

    def counted(self, stream: DataStream) -> DataStream:
        words = stream.flat_map(words_of, output_type="word string, ending string")
        return words.key_by("word").count().uid("words").key_by("ending").count("endings").uid("endings")


def make_engine(workload: Workload) -> Engine:
    return ChainEngine(workload)
