"""A real-time job without a JVM, from a generator into Parquet files, until all its rows are committed."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from holdfast.datastream import ParquetFileSink
from holdfast.runtime.master.job_client import JobClient
from holdfast.testing.real_time_runner import RealTimeProgram
from tests.unit.runtime.realtime.test_real_time_jobs import RESTARTS, Count, numbers

ROWS = 300
PER_SECOND = 300


def rows_in(output: Path) -> list[tuple[int, int]]:
    """The committed rows: a key, and which of its elements this is."""
    tables = [pq.ParquetFile(path).read() for path in output.glob("*.parquet")]
    return sorted((row["key"], row["count"]) for table in tables for row in table.to_pylist())


def main() -> None:
    place = Path(sys.argv[1])
    program = RealTimeProgram()
    rows = numbers(program, PER_SECOND).filter(lambda row: row.n < ROWS).uid("first")
    counted = rows.key_by("key").process(Count(), "key bigint, count bigint").uid("count").set_parallelism(2)
    counted.sink_to(ParquetFileSink(place / "out")).uid("out")
    options = {**RESTARTS, "execution.checkpointing.interval": "100 ms"}
    client = JobClient(program.master(place / "checkpoints", options))
    while len(rows_in(place / "out")) < ROWS:
        if client.get_job_status().is_terminal_state():
            break
        time.sleep(0.02)
    else:
        client.stop()
    client.await_termination()


if __name__ == "__main__":
    main()
