"""``repartitionById`` and ``mapInArrow`` in a ``foreachBatch`` that does nothing else: the fixed cost of a micro-batch.

It writes nothing, whatever the sink is, and the logs of its query as Holdfast lets its own be written.
``small_epoch.py`` compares with it.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from benchmarks.engines.floor import pass_through
from benchmarks.harness.input_files import DDL
from benchmarks.harness.spark_session import SparkEngine
from benchmarks.harness.workload import PARALLELISM, Engine, Workload
from holdfast.spark.session import start_with_plain_logs

SINK = "noop"  # whatever the others write to


def run_batch(frame: DataFrame, epoch: int) -> None:
    subtask = F.pmod(F.xxhash64("key"), F.lit(PARALLELISM)).cast("int")
    placed = frame.repartitionById(PARALLELISM, subtask).mapInArrow(pass_through, DDL)
    placed.write.format("noop").mode("overwrite").save()


def plan(workload: Workload, stream: DataFrame) -> DataStreamWriter:
    return stream.writeStream.foreachBatch(run_batch)


class BareEngine(SparkEngine):
    def _start(self, start: Callable[[], StreamingQuery]) -> StreamingQuery:
        return start_with_plain_logs(self._session, start)


def make_engine(workload: Workload) -> Engine:
    return BareEngine(workload, plan)
