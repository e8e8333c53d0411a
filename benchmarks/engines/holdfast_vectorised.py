"""Holdfast with its built-in count of whole batches, every row emitted."""

from __future__ import annotations

from benchmarks.engines.holdfast import HoldfastEngine
from benchmarks.harness.workload import Engine, Workload


def make_engine(workload: Workload) -> Engine:
    return HoldfastEngine(workload, lambda stream: stream.count())
