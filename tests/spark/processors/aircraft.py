"""The job of `examples/flights` as a `StatefulProcessor`, as somebody has it who runs it with Spark alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from examples.flights.job import COLUMNS, HISTORY, INPUT, LATE, OUTPUT, SCHEDULED_DEPARTURE


class AircraftHistories(StatefulProcessor):
    """Knows of each aircraft how many flights it has made, its last arrival delay, and the sum of all of them."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.history = handle.getValueState("history", HISTORY)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        flights, last_delay, total_delay = self.history.get() or (0, None, 0.0)
        for flight in sorted(rows, key=lambda row: (row.sched_dep, row.flight_id)):
            inherited = last_delay is not None and last_delay >= LATE and (flight.dep_delay or 0.0) >= LATE
            before = last_delay
            if flight.arr_delay is not None:
                last_delay = flight.arr_delay
                total_delay += flight.arr_delay
            flights += 1
            yield Row(**flight.asDict(), seq=flights, prev_arr_delay=before, total_arr_delay=total_delay,
                      inherited=inherited)  # fmt: skip
        self.history.update((flights, last_delay, total_delay))

    def close(self) -> None:
        pass


def flights(spark: SparkSession, directory: str, files: int) -> DataFrame:
    days = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", files).parquet(directory)
    columns = (f"{SCHEDULED_DEPARTURE} as sched_dep" if name == "sched_dep" else name for name in COLUMNS)
    return days.where("tailnum is not null").selectExpr(*columns)


def by_spark(spark: SparkSession, source: str, output: str, checkpoint: str, files: int = 2) -> None:
    """All that is there, and no more."""
    histories = (
        flights(spark, source, files)
        .groupBy("tailnum")
        .transformWithState(AircraftHistories(), OUTPUT, "Append", "None")
    )
    query = histories.writeStream.format("parquet").option("checkpointLocation", checkpoint)
    query.option("path", output).outputMode("append").trigger(availableNow=True).start().awaitTermination()
