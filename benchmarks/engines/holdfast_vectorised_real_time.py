"""Holdfast in real time with its built-in count of whole batches, every row emitted."""

from __future__ import annotations

from benchmarks.engines.holdfast_real_time import RealTimeEngine, keyed
from benchmarks.harness.workload import Engine, Workload


def make_engine(workload: Workload) -> Engine:
    return RealTimeEngine(workload, keyed(lambda stream: stream.count()))
