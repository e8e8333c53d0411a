"""Tables of both kinds, read by DuckDB's own readers of Delta and Iceberg, which know nothing of the libraries that
wrote them. The readers come from PyPI into an environment of their own, by hash, because they fit one DuckDB only.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from pyiceberg.catalog import load_catalog

from holdfast.datastream.connectors.delta import DeltaSink
from holdfast.datastream.connectors.iceberg import IcebergSink
from holdfast.testing import EpochProgram

LOCK: Final = Path(__file__).resolve().parents[3] / "requirements-duckdb.lock"
COLUMNS: Final = "word string, day date, n bigint"
DAY: Final = datetime.date(2026, 11, 24)
EPOCHS: Final = [[("kelp", DAY, 1), ("rock", DAY, 2)], [("a/b c%=é", DAY, 3), (None, None, 4)], [("kelp", DAY, 5)]]

READ: Final = """
import json, pathlib, sys, duckdb
packages = pathlib.Path(duckdb.__file__).parent.parent
connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
for name in ("avro", "delta", "iceberg"):
    [extension] = (packages / f"duckdb_extension_{name}").rglob(f"{name}.duckdb_extension")
    connection.load_extension(str(extension))
for reader, place in json.loads(sys.argv[1]):
    rows = connection.execute(f"select word, day::varchar, n from {reader}(?) order by n", [place]).fetchall()
    print(json.dumps(rows))
"""


@pytest.fixture(scope="module")
def duckdb(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Python with DuckDB and its readers; without a network the test says that it skips, the CI fails."""
    place = tmp_path_factory.mktemp("duckdb")
    python = place / "bin" / "python"
    for command in (
        ["venv", "--quiet", "--clear", "--python", sys.executable, str(place)],
        ["pip", "install", "--quiet", "--python", str(python), "--require-hashes", "--requirement", str(LOCK)],
    ):
        made = subprocess.run([sys.executable, "-m", "uv", *command], capture_output=True, text=True, check=False)
        if made.returncode:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no DuckDB with readers: {made.stderr[-500:]}")
    return str(python)


def test_duckdb_reads_what_the_sinks_have_written(duckdb: str, tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    sinks: dict[str, Any] = {
        "delta": DeltaSink(tmp_path / "delta", partition_by=["word", "day"], create_table=True),
        "delta by key": DeltaSink(tmp_path / "delta by key", key="n", row_kind="kind", create_table=True),
        "iceberg": IcebergSink("test", "db.t", properties=properties, partition_by="word", create_table=True),
        "iceberg by key": IcebergSink(
            "test", "db.k", properties=properties, key="n", row_kind="kind", create_table=True
        ),
    }
    nothing = [("nobody", DAY, 9, "-D")]
    changes = [nothing, *([(*row, "+U") for row in rows] for rows in [*EPOCHS, [("sand", DAY, 1)]]), nothing]
    for name, sink in sinks.items():
        columns, epochs = (f"{COLUMNS}, kind string", changes) if name.endswith("by key") else (COLUMNS, EPOCHS)
        program = EpochProgram()
        program.source("in", columns).sink_to(sink).uid("out")
        program.run(tmp_path / f"job {name}", [{"in": rows} for rows in epochs], source_tasks=1)
    catalog = load_catalog("test", **properties)
    iceberg = [catalog.load_table(name).metadata_location.removeprefix("file://") for name in ("db.t", "db.k")]
    places = [("delta_scan", str(tmp_path / "delta")), ("delta_scan", str(tmp_path / "delta by key"))]
    places += [("iceberg_scan", place) for place in iceberg]

    asked = subprocess.run([duckdb, "-c", READ, json.dumps(places)], capture_output=True, text=True, check=False)
    assert asked.returncode == 0, asked.stderr
    added = [[word, str(day) if day else None, n] for rows in EPOCHS for word, day, n in rows]
    by_key = [["sand", str(DAY), 1], *added[1:]]
    assert [json.loads(line) for line in asked.stdout.splitlines()] == [added, by_key, added, by_key]
