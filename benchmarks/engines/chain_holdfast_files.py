"""The chain of Holdfast's operators, whose files tasks read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from benchmarks.engines.chain_holdfast import ChainEngine
from benchmarks.engines.holdfast_files import read_files
from benchmarks.harness.workload import Engine, Workload
from holdfast.datastream import DataStream, StreamExecutionEnvironment


class FilesChainEngine(ChainEngine):
    """The same job with an input of its own, and no option."""

    options: ClassVar[Mapping[str, str]] = {}

    def stream(self, environment: StreamExecutionEnvironment) -> DataStream:
        return read_files(environment, self._source)


def make_engine(workload: Workload) -> Engine:
    return FilesChainEngine(workload)
