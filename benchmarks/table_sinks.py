"""Seconds that DeltaSink and IcebergSink need to commit an epoch, in a directory and in an object store.

    python benchmarks/table_sinks.py [--rows 200000] [--epochs 5] [--json]

The store is the S3 server of the tests, on this host: it answers at once, so count its requests, each of which takes
the time of a round trip elsewhere. Iceberg's catalog is a local SQLite file. With a key, half of an epoch's rows are
new and half replace others.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.database_sink import COLUMNS, some_rows, staged
from holdfast.datastream.connectors.delta import DeltaSink
from holdfast.datastream.connectors.iceberg import IcebergSink
from holdfast.kernel.ids import new_nonce
from holdfast.runtime.function.sink import Sink
from holdfast.testing import S3Server
from holdfast.testing.sink_contract import UID, SinkStage
from holdfast.types.type_parser import to_type


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Seconds of a commit into tables.")
    parser.add_argument("--rows", type=int, default=200_000, help="rows an epoch (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=5, help="measured, after one to warm up (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON lines only")
    chosen = parser.parse_args(arguments)
    with S3Server() as server:
        for table in ("delta", "iceberg"):
            for place in ("directory", "object store"):
                for key in ((), ("id",)):
                    result = {"table": table, "in": place, "mode": "put by key" if key else "add", "rows": chosen.rows}
                    with _place(place, server) as (path, catalog):
                        sink = _sink(table, path, catalog, key)
                        result |= _measured(sink, chosen.rows, chosen.epochs, server)
                    _print(result, chosen.json)
    return 0


@contextmanager
def _place(kind: str, server: S3Server) -> Iterator[tuple[str, Path]]:
    with TemporaryDirectory() as local:
        path = f"{local}/table"
        if kind != "directory":
            os.environ.update(server.environment)
            bucket = f"bucket-{new_nonce()[:12]}"
            server.make_bucket(bucket)
            path = f"s3://{bucket}/table"
        yield path, Path(local, "catalog.db")


def _sink(table: str, path: str, catalog: Path, key: tuple[str, ...]) -> Sink:
    if table == "delta":
        return DeltaSink(path, key=key, create_table=True)
    warehouse = path if path.startswith("s3:") else f"file://{path}"
    properties = {"type": "sql", "uri": f"sqlite:///{catalog}", "warehouse": warehouse}
    return IcebergSink("benchmark", "db.t", properties=properties, key=key, create_table=True)


def _measured(sink: Any, rows: int, epochs: int, server: S3Server) -> dict[str, Any]:
    """Staging and commit of one task's rows, epoch by epoch; the first is not counted."""
    sink.check_input(to_type(COLUMNS))
    writes, commits, requests = [], [], []
    with TemporaryDirectory() as staging:
        stage = SinkStage(sink, Path(staging), COLUMNS, incarnation=new_nonce())
        stage.prepare()
        committing = stage.committing()
        for epoch in range(1, epochs + 2):
            batch = some_rows(epoch * rows // 2, rows)
            began = time.perf_counter()
            entries = staged(stage, epoch, batch)
            middle, before = time.perf_counter(), len(server.requests)
            committing.commit(epoch, {UID: entries})
            commits.append(time.perf_counter() - middle)
            writes.append(middle - began)
            requests.append(len(server.requests) - before)
        committing.close()
    return {
        "staging_seconds": round(statistics.median(writes[1:]), 3),
        "commit_seconds": round(statistics.median(commits[1:]), 3),
        "commits": [round(each, 3) for each in commits[1:]],
        "requests_of_a_commit": requests[1:],
    }


def _print(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result), flush=True)
        return
    print(
        f"{result['table']:<8} {result['in']:<13} {result['mode']:<11} commit {result['commit_seconds']:>7.3f} s, "
        f"staging {result['staging_seconds']:>7.3f} s, requests {result['requests_of_a_commit'][-1]}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
