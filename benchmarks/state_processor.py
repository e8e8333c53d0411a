"""How fast state is made, read and copied: one process, and with --spark tasks that read it as a DataFrame.

Usage: python benchmarks/state_processor.py [--keys N] [--rounds N] [--directory DIR] [--spark] [--json]

- `bootstrap`: a Parquet file of keys (text) and values (whole numbers) becomes a savepoint.
- `read`: that state becomes an Arrow table. With several runs, because that is how it lies after some epochs.
- `dataframe`: half of its keys, as a DataFrame of Spark with two cores that goes to Spark's sink for nothing.
- `edit`: one key in a hundred is changed, in a copy of the savepoint.
- `copy`: a changed copy of the savepoint with one operator renamed. Beside it `cp -r` of the same bytes and `sync`.

Prints the median of the rounds. `--json` prints one object a line, with `what`, `entries`, `seconds`, `core_seconds`
(of this process, on all cores together) and `per_second`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.state import ValueStateDescriptor
from holdfast.state.run_file import forget_runs
from holdfast.state_processor import OperatorTransformation, SavepointReader, SavepointWriter

COUNT = ValueStateDescriptor("count", "bigint")


def history(place: Path, keys: int) -> Path:
    """A Parquet file with a row for each key."""
    path = place / "history.parquet"
    names = pa.array(np.char.add("user-", np.arange(keys).astype(str)))
    pq.write_table(pa.table({"user": names, "n": np.arange(keys)}), path, row_group_size=1_000_000)
    return path


def bootstrap(source: Path, target: Path) -> str:
    keyed = OperatorTransformation.bootstrap_with(pq.read_table(source)).key_by("user").to_state(COUNT, "n")
    return SavepointWriter.new_savepoint(None, 128).with_operator("count", keyed).write(str(target))


def read(path: str) -> int:
    forget_runs()
    return int(SavepointReader.read(None, path).read_keyed_state("count", "count", columns=["key", "value"]).num_rows)


def read_frame(spark: Any, path: str, groups: range) -> None:
    frame = SavepointReader.read(spark, path).read_keyed_state("count", "count", key_groups=groups)
    frame.write.format("noop").mode("overwrite").save()


def edit(path: str, table: pa.Table, target: Path) -> str:
    return SavepointWriter.from_existing_savepoint(None, path).update_state("count", "count", table).write(str(target))


def copy(path: str, target: Path) -> str:
    writer = SavepointWriter.from_existing_savepoint(None, path).change_operator_identifier("count", "counted")
    return writer.write(str(target))


def plain_copy(path: str, target: Path) -> None:
    shutil.copytree(path, target)
    subprocess.run(["sync", "-f", str(target)], check=True)


def measured(work: Callable[[Path], Any], place: Path, rounds: int) -> tuple[float, float]:
    """The medians of the seconds that something takes, and of those of a core, each time with a new target."""
    seconds, of_cores = [], []
    for number in range(rounds):
        target = place / f"target-{number}"
        started, on_cores = time.perf_counter(), time.process_time()
        work(target)
        seconds.append(time.perf_counter() - started)
        of_cores.append(time.process_time() - on_cores)
        shutil.rmtree(target, ignore_errors=True)
    return statistics.median(seconds), statistics.median(of_cores)


def measure(place: Path, keys: int, rounds: int, spark: Any = None) -> Iterator[dict[str, Any]]:
    source = history(place, keys)

    def told(what: str, entries: int, times: tuple[float, float]) -> dict[str, Any]:
        seconds, of_cores = times
        rate = round(entries / seconds)
        return {
            "what": what,
            "entries": entries,
            "seconds": round(seconds, 3),
            "core_seconds": round(of_cores, 3),
            "per_second": rate,
        }

    yield told("bootstrap", keys, measured(lambda target: bootstrap(source, target), place, rounds))
    path = bootstrap(source, place / "savepoint")
    yield told("read", keys, measured(lambda _: read(path), place, rounds))
    if spark is not None:
        half = range(64)
        rows = SavepointReader.read(None, path).read_keyed_state("count", "count", columns=["key"], key_groups=half)
        read_frame(spark, path, half)  # workers start
        yield told("dataframe", rows.num_rows, measured(lambda _: read_frame(spark, path, half), place, rounds))
    changed = SavepointReader.read(None, path).read_keyed_state("count", "count", columns=["key", "value"])
    some = changed.take(np.arange(0, keys, 100))
    yield told("edit", some.num_rows, measured(lambda target: edit(path, some, target), place, rounds))
    layered = edit(path, some, place / "layered")
    yield told("read of two runs", keys, measured(lambda _: read(layered), place, rounds))
    yield told("copy", keys, measured(lambda target: copy(path, target), place, rounds))
    yield told("cp -r && sync", keys, measured(lambda target: plain_copy(path, target), place, rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", help="Where files go; a temporary directory without it.")
    parser.add_argument("--spark", action="store_true", help="Measure DataFrames, too.")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    spark = None
    if arguments.spark:
        from pyspark.sql import SparkSession

        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers are whatever python3 is
        spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    with tempfile.TemporaryDirectory(prefix="holdfast-state-", dir=arguments.directory) as directory:
        for row in measure(Path(directory), arguments.keys, arguments.rounds, spark):
            if arguments.json:
                print(json.dumps(row), flush=True)
            else:
                times = f"{row['seconds']:>9} s {row['core_seconds']:>9} core-s"
                print(f"{row['what']:>18} {row['entries']:>12,} {times} {row['per_second']:>12,} /s")


if __name__ == "__main__":
    main()
