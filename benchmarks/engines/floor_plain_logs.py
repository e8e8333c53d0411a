"""The floor with the log setting that Holdfast gives its own queries: see decision 12."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql.streaming import StreamingQuery

from benchmarks.engines import floor
from benchmarks.harness.spark_session import SparkEngine
from benchmarks.harness.workload import Engine, Workload
from holdfast.spark.session import start_with_plain_logs


class PlainLogsEngine(SparkEngine):
    """An engine of Spark whose queries write their logs plainly."""

    def _start(self, start: Callable[[], StreamingQuery]) -> StreamingQuery:
        return start_with_plain_logs(self._session, start)


def make_engine(workload: Workload) -> Engine:
    return PlainLogsEngine(workload, floor.plan)
