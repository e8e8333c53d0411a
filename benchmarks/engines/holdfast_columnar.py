"""Holdfast with the backend for state that is larger than memory: a plain generator with one ``ValueState``."""

from __future__ import annotations

from benchmarks.engines.holdfast import HoldfastEngine, count_rows
from benchmarks.harness.workload import Engine, Workload


def make_engine(workload: Workload) -> Engine:
    return HoldfastEngine(workload, count_rows, backend="columnar")
