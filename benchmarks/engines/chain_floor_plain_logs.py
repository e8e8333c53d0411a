"""The floor of a chain with the log setting that Holdfast gives its own queries."""

from __future__ import annotations

from benchmarks.engines import chain_floor
from benchmarks.engines.floor_plain_logs import PlainLogsEngine
from benchmarks.harness.workload import Engine, Workload


def make_engine(workload: Workload) -> Engine:
    return PlainLogsEngine(workload, chain_floor.plan)
