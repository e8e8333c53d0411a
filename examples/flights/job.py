"""Aircraft that carry their delay along: a stateful stream over the flights of 2013, exactly once.

For each aircraft, in the order of scheduled departure: how many flights it has made, how late its last arrival was, and
whether this departure is late because that arrival was. It processes what is in the input directory, resumes where it
stopped if it is run again, and ends.

    python examples/flights/job.py --input DIR --output DIR --checkpoints DIR [--files-per-epoch N]
    holdfast run examples/flights/job.py -- --input DIR --output DIR --checkpoints DIR

While it runs, anybody on this machine may ask what it knows of an aircraft:

    holdfast query flights aircraft N14228 --watch
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator

from holdfast.common import Configuration, Row
from holdfast.datastream import KeyedProcessFunction, ParquetFileSink, RuntimeContext, StreamExecutionEnvironment
from holdfast.datastream.state import ValueStateDescriptor

LATE = 15
"""Minutes from which a flight counts as late."""

INPUT = """
    flight_id bigint, year bigint, month bigint, day bigint, dep_time double, sched_dep_time bigint, dep_delay double,
    arr_time double, sched_arr_time bigint, arr_delay double, carrier string, flight bigint, tailnum string,
    origin string, dest string, air_time double, distance bigint, hour bigint, minute bigint, time_hour string
"""
SCHEDULED_DEPARTURE = "make_timestamp_ntz(year, month, day, sched_dep_time div 100, sched_dep_time % 100, 0)"
COLUMNS = ("flight_id", "tailnum", "carrier", "origin", "dest", "sched_dep", "dep_delay", "arr_delay")
OUTPUT = """
    flight_id bigint, tailnum string, carrier string, origin string, dest string, sched_dep timestamp_ntz,
    dep_delay double, arr_delay double, seq bigint, prev_arr_delay double, total_arr_delay double, inherited boolean
"""
HISTORY = "flights bigint, last_arr_delay double, total_arr_delay double"


class AircraftHistory(KeyedProcessFunction):
    """Knows of each aircraft the number of its flights, its last known arrival delay, and the sum of all of them."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Gets the state; it always belongs to the aircraft of the flight that is processed."""
        history = ValueStateDescriptor("history", HISTORY)
        history.set_queryable("aircraft")
        self.history = runtime_context.get_state(history)

    def process_element(self, flight: Row, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[object, ...]]:
        """Emits the flight together with what is known of its aircraft."""
        flights, last_delay, total_delay = self.history.value() or (0, None, 0.0)
        inherited = last_delay is not None and last_delay >= LATE and (flight.dep_delay or 0.0) >= LATE
        known_delay = last_delay
        if flight.arr_delay is not None:
            known_delay = flight.arr_delay
            total_delay += flight.arr_delay
        self.history.update((flights + 1, known_delay, total_delay))
        yield (*flight, flights + 1, last_delay, total_delay, inherited)


def main() -> int:
    """Runs the job as the command line says."""
    parser = argparse.ArgumentParser(description="Aircraft that carry their delay along.")
    parser.add_argument("--input", required=True, help="directory with one Parquet file a day")
    parser.add_argument("--output", required=True, help="directory for the result, Parquet files")
    parser.add_argument("--checkpoints", required=True, help="directory for checkpoints, shared by all hosts")
    parser.add_argument("--files-per-epoch", type=int, default=10, help="days in one epoch (default: 10)")
    parser.add_argument("--query-port", default="9069", help="where state can be asked for (default: 9069)")
    arguments = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("holdfast").setLevel(logging.INFO)

    configuration = Configuration()
    configuration.set("execution.checkpointing.dir", arguments.checkpoints)
    configuration.set("execution.trigger", "available-now")
    configuration.set("queryable-state.enable", True)
    configuration.set("queryable-state.proxy.ports", arguments.query_port)
    env = StreamExecutionEnvironment.get_execution_environment(configuration)

    days = env.spark.readStream.schema(INPUT).option("maxFilesPerTrigger", arguments.files_per_epoch)
    flights = env.from_dataframe(days.parquet(arguments.input)).transform(
        lambda df: df.where("tailnum is not null").selectExpr(
            *(f"{SCHEDULED_DEPARTURE} as sched_dep" if column == "sched_dep" else column for column in COLUMNS)
        )
    )
    histories = (
        flights.key_by("tailnum", order_by=["sched_dep", "flight_id"])
        .process(AircraftHistory(), output_type=OUTPUT)
        .name("aircraft history")
        .uid("aircraft-history")
    )
    histories.sink_to(ParquetFileSink(arguments.output)).name("output").uid("output")
    env.execute("flights")
    return 0


if __name__ == "__main__":
    sys.exit(main())
