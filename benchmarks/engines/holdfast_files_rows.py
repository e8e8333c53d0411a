"""Holdfast with a plain generator and one ``ValueState``, whose files tasks read."""

from __future__ import annotations

from benchmarks.engines.holdfast import count_rows
from benchmarks.engines.holdfast_files import FilesEngine
from benchmarks.harness.workload import Engine, Workload


def make_engine(workload: Workload) -> Engine:
    return FilesEngine(workload, count_rows)
