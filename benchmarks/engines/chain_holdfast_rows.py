"""The chain of Holdfast's operators, where elements cross the exchanges as rows of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from benchmarks.engines.chain_holdfast import ChainEngine
from benchmarks.harness.workload import Engine, Workload


class RowChainEngine(ChainEngine):
    """The same job with one option."""

    options: ClassVar[Mapping[str, str]] = {"execution.exchange.packed": "false"}


def make_engine(workload: Workload) -> Engine:
    return RowChainEngine(workload)
