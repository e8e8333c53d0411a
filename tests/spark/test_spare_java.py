"""What is kept of a JVM for the next session of its process, which nobody knew of when it was started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.spark

PROGRAM = """
import json, os, sys
from pyspark.sql import SparkSession
from holdfast.spark.spare_java import SpareJava

def told(session):
    context = session.sparkContext
    java = context._jvm.java.lang.ProcessHandle.current().pid()
    rows = session.range(0, 2, 1, 2).mapInArrow(pids, "pid bigint").collect()
    workers = sorted(row.pid for row in rows)
    return {"application": context.applicationId, "name": context._jsc.sc().appName(), "java": java, "workers": workers}

def pids(batches):
    import pyarrow
    yield pyarrow.record_batch({"pid": [os.getpid() for _ in batches][:1]})

os.mkdir("spare")
os.chdir("spare")
spare = SpareJava()
before = told(spare.start_session({}))
spare.give_away()
os.rename("../spare", "../job")
builder = SparkSession.builder.appName("theirs")
for key, value in json.loads(sys.argv[1]).items():
    builder = builder.config(key, value)
session = builder.getOrCreate()
session.range(5).write.parquet("numbers")
session.range(3).write.saveAsTable("kept")
after = told(session) | {
    "sum": session.read.parquet("numbers").mapInArrow(lambda batches: batches, "id bigint").groupBy().sum().first()[0],
    "kept": session.table("kept").count(),
    "partitions": session.conf.get("spark.sql.shuffle.partitions"),
}
session.stop()
again = SparkSession.builder.master("local[1]").getOrCreate()
print(json.dumps([before, after, told(again)]))
again.stop()
"""


def run(place: Path, settings: dict[str, str]) -> tuple[Any, Any, Any]:
    command = [sys.executable, "-c", PROGRAM, json.dumps(settings)]
    environment = {"PATH": "/usr/bin:/bin", "PYSPARK_PYTHON": sys.executable}
    ended = subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    before, after, again = json.loads(ended.stdout.splitlines()[-1])
    assert (after["name"], after["sum"], after["kept"]) == ("theirs", 10, 3)
    assert sorted(path.name for path in (place / "job").iterdir() if path.is_dir()) == ["numbers", "spark-warehouse"]
    assert (place / "job" / "spark-warehouse" / "kept").is_dir()
    assert not (place / "spare").exists(), "everything is where the process works now"
    assert again["application"] not in (before["application"], after["application"])
    return before, after, again


def test_a_session_without_own_settings_shares_the_context(tmp_path: Path) -> None:
    before, after, again = run(tmp_path, {"spark.sql.shuffle.partitions": "3"})
    assert (after["application"], after["java"]) == (before["application"], before["java"])
    assert set(after["workers"]) & set(before["workers"]), "a worker that has imported what it needs is there"
    assert after["partitions"] == "3"
    assert again["java"] == before["java"]


@pytest.mark.parametrize(
    ("settings", "in_the_same_java"), [({"spark.master": "local[1]"}, True), ({"spark.driver.memory": "700m"}, False)]
)
def test_a_session_with_other_settings_gets_its_own_context(
    tmp_path: Path, settings: dict[str, str], in_the_same_java: bool
) -> None:
    before, after, _ = run(tmp_path, settings)
    assert after["application"] != before["application"]
    assert (after["java"] == before["java"]) == in_the_same_java
