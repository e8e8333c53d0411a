"""A real-time job without a JVM that writes into a table of Postgres at least once, until all its rows are there."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from adbc_driver_postgresql import dbapi as postgres

from holdfast.datastream.connectors.base import DeliveryGuarantee
from holdfast.datastream.connectors.database import DatabaseSink
from holdfast.runtime.master.job_client import JobClient
from holdfast.testing.real_time_runner import RealTimeProgram
from tests.stories.databases import Database
from tests.unit.runtime.realtime.test_real_time_jobs import RESTARTS, Count, numbers

ROWS = 300
PER_SECOND = 300


def main() -> None:
    place, uri = Path(sys.argv[1]), sys.argv[2]
    database = Database(uri if len(sys.argv) == 3 else sys.argv[3], postgres.connect)
    program = RealTimeProgram()
    rows = numbers(program, PER_SECOND).filter(lambda row: row.n < ROWS).uid("first")
    counted = rows.key_by("key").process(Count(), "key bigint, count bigint").uid("count").set_parallelism(2)
    sink = DatabaseSink(uri, "counts", delivery_guarantee=DeliveryGuarantee.AT_LEAST_ONCE)
    counted.sink_to(sink).uid("out")
    options = {**RESTARTS, "execution.checkpointing.interval": "100 ms"}
    client = JobClient(program.master(place / "checkpoints", options))
    while database.ask("select count(*) from (select distinct key, count from counts) known") != [(ROWS,)]:
        if client.get_job_status().is_terminal_state():
            break
        time.sleep(0.05)
    else:
        client.stop()
    client.await_termination()


if __name__ == "__main__":
    main()
