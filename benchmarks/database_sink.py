"""Rows a second that `DatabaseSink` commits into Postgres: from staged files to the end of the transaction.

    python benchmarks/database_sink.py postgresql://user@host/database [--rows 200000] [--epochs 5] [--json]

Makes the table `holdfast_benchmark` there, and drops it afterwards.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
from adbc_driver_postgresql import dbapi

from holdfast.datastream.connectors.database import DatabaseSink
from holdfast.kernel.ids import new_nonce
from holdfast.testing.sink_contract import SinkStage
from holdfast.types.type_parser import to_type

TABLE = "holdfast_benchmark"
COLUMNS = "id bigint, account string, amount double, at timestamp"
BATCH = 10_000


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Rows a second into Postgres.")
    parser.add_argument("uri", help="of a database in which a table may be made")
    parser.add_argument("--rows", type=int, default=200_000, help="rows an epoch (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=5, help="measured, after one to warm up (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON lines only")
    chosen = parser.parse_args(arguments)
    for key in ((), ("id",)):
        with TemporaryDirectory() as staging:
            seconds = _seconds(chosen.uri, key, chosen.rows, chosen.epochs, Path(staging))
        rates = [chosen.rows / each for each in seconds]
        result = {
            "mode": "put by key" if key else "add",
            "rows": chosen.rows,
            "rows_per_second": round(statistics.median(rates)),
            "epochs": [round(rate) for rate in rates],
        }
        if chosen.json:
            print(json.dumps(result))
        else:
            print(f"{result['mode']:<12} {result['rows_per_second']:>10,} rows/s")
    return 0


def _seconds(uri: str, key: tuple[str, ...], rows: int, epochs: int, staging: Path) -> list[float]:
    _ask(uri, f"drop table if exists {TABLE}")
    sink = DatabaseSink(uri, TABLE, key=key, create_table=True)
    sink.check_input(to_type(COLUMNS))
    stage = SinkStage(sink, staging, COLUMNS, incarnation=new_nonce())
    stage.prepare()
    seconds = []
    for epoch in range(1, epochs + 2):
        entries = staged(stage, epoch, some_rows(epoch * rows // 2, rows))  # half of the keys are there already
        began = time.perf_counter()
        stage.commit(entries)
        seconds.append(time.perf_counter() - began)
    _ask(uri, f"drop table {TABLE}")
    return seconds[1:]


def staged(stage: SinkStage, epoch: int, batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The committables of one task that has written a batch."""
    writer: Any = stage.sink.create_writer(stage.context(epoch))
    for start in range(0, batch.num_rows, BATCH):
        writer.write_batch(batch.slice(start, BATCH))
    writer.flush(False)
    common = {"incarnation": stage.incarnation, "epoch": epoch, "subtask": 0}
    return [{**common, "value": value} for value in writer.prepare_commit()]


def some_rows(first: int, count: int) -> pa.RecordBatch:
    """Rows with ids from `first`."""
    ids = np.arange(first, first + count)
    return pa.record_batch(
        {
            "id": ids,
            "account": [f"account-{number % 5000}" for number in ids],
            "amount": ids * 0.5,
            "at": pa.array(ids * 1000, pa.timestamp("us", "UTC")),
        }
    )


def _ask(uri: str, statement: str) -> None:
    with dbapi.connect(uri) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        connection.commit()


if __name__ == "__main__":
    sys.exit(main())
