"""Delta and Iceberg tables as Spark's own connectors see them, which there are not for every Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pyspark
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from holdfast.datastream.connectors.delta import DeltaSink
from holdfast.datastream.connectors.iceberg import IcebergSink
from holdfast.testing import EpochProgram
from tests.documentation import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.services, pytest.mark.long, pytest.mark.timeout(600)]

SPARK = ".".join(pyspark.__version__.split(".")[:2])
PACKAGES = (
    f"io.delta:delta-spark_{SPARK}_2.13:4.4.0",
    f"org.apache.iceberg:iceberg-spark-runtime-{SPARK}_2.13:1.12.0",
    "org.xerial:sqlite-jdbc:3.50.3.0",
)


@pytest.fixture(scope="module")
def packages() -> str:
    for coordinates in PACKAGES:
        group, artifact, version = coordinates.split(":")
        place = f"https://repo1.maven.org/maven2/{group.replace('.', '/')}/{artifact}/{version}"
        try:
            urllib.request.urlopen(f"{place}/{artifact}-{version}.pom", timeout=30).close()
        except (urllib.error.HTTPError, OSError) as error:
            pytest.skip(f"there is no {coordinates} for Spark {pyspark.__version__}: {error}")
    return ",".join(PACKAGES)


def write(place: Path, last: int) -> dict[str, list[list[Any]]]:
    """A job whose tables have all epochs up to one; what is in them then."""
    properties = {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": f"file://{place}/warehouse"}
    program = EpochProgram()
    rows = program.source("in", "word string, n bigint, part string")
    for kind, key in (("added", ()), ("put", ("word",))):
        delta = DeltaSink(place / f"delta-{kind}", key=key, partition_by="part", create_table=True)
        rows.sink_to(delta).uid(f"delta {kind}")
        catalog = {"properties": properties, "partition_by": "part", "create_table": True}
        rows.sink_to(IcebergSink("test", f"db.{kind}", key=key, **catalog)).uid(f"iceberg {kind}")
    epochs = [{"in": [("kelp", n, "x"), (f"word {n}", n, "a b/c%")]} for n in range(1, last + 1)]
    program.run(place / "job", epochs, source_tasks=1)
    found, tables = {}, load_catalog("test", **properties)
    for kind in ("added", "put"):
        found[f"delta {kind}"] = DeltaTable(place / f"delta-{kind}").to_pyarrow_table()
        found[f"iceberg {kind}"] = tables.load_table(f"db.{kind}").scan().to_arrow()
    return {
        name: sorted([row["word"], row["n"], row["part"]] for row in table.to_pylist()) for name, table in found.items()
    }


def expected(last: int, *more: list[Any]) -> dict[str, list[list[Any]]]:
    words = [[f"word {n}", n, "a b/c%"] for n in range(1, last + 1)]
    added = sorted([*more, *([["kelp", n, "x"] for n in range(1, last + 1)]), *words])
    put = sorted([*more, ["kelp", last, "x"], *words])
    return {"delta added": added, "iceberg added": added, "delta put": put, "iceberg put": put}


def test_spark_can_read_append_compact_and_expire_while_the_job_runs(tmp_path: Path, packages: str) -> None:
    assert write(tmp_path, 3) == expected(3)
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "programs" / "tables_by_spark.py"), str(tmp_path), packages],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1]) == expected(3)
    assert write(tmp_path, 4) == expected(4, ["by spark", 9, "x"])
