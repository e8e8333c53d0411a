"""The chain of Holdfast's operators in real time: lines to words, a count by word, and a count by its end."""

from __future__ import annotations

from benchmarks.engines.chain_holdfast import words_of
from benchmarks.engines.holdfast_real_time import RealTimeEngine
from benchmarks.harness.workload import Engine, Workload
from holdfast.datastream import DataStream


def chain(stream: DataStream) -> DataStream:
    words = stream.flat_map(words_of, output_type="word string, ending string")
    return words.key_by("word").count().uid("words").key_by("ending").count("endings").uid("endings")


def make_engine(workload: Workload) -> Engine:
    return RealTimeEngine(workload, chain)
