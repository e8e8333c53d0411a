"""Nexmark on Spark: the queries that are Spark's expressions, and one with windows, against DuckDB; two are killed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.nexmark.engines.holdfast import start
from benchmarks.nexmark.files import events_on_disk
from benchmarks.nexmark.queries import QUERIES
from holdfast.datastream import ParquetFileSink
from tests.stories import nexmark, process

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return events_on_disk(tmp_path_factory.mktemp("events"), 10_000, 5_000)


@pytest.mark.parametrize("name", [name for name, query in QUERIES.items() if query.needs_spark or name == "q9"])
def test_a_query_on_spark_gives_the_answer_of_duckdb(name: str, spark: Any, folder: Path, tmp_path: Path) -> None:
    start(spark, QUERIES[name], folder, tmp_path / "job", ParquetFileSink(tmp_path / "out"))
    nexmark.judge(QUERIES[name], folder, tmp_path / "out")


EPOCHS = 8


@pytest.mark.parametrize(("name", "faults"), [("q1", []), ("q4", ["before:pointer.write:2=kill"])])
def test_a_query_on_spark_that_is_killed_in_the_middle_gives_the_same_answer(
    name: str, faults: list[str], tmp_path: Path
) -> None:
    """One without state and a join: the driver, its JVM and the workers are gone at once; then the driver alone."""
    folder = events_on_disk(tmp_path / "events", 1_000 * EPOCHS, 1_000)
    output = tmp_path / "out"
    program = "nexmark_on_spark_job.py", name, folder, tmp_path / "job", output
    job = process.start(*program, log=tmp_path / "log")
    deadline = time.monotonic() + 200
    while not epochs_in(output):
        assert job.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()
        time.sleep(0.01)
    process.kill_group(job)
    before = epochs_in(output)
    assert 0 < before < EPOCHS, "it was in the middle"
    for fault in faults:
        killed = process.run(*program, fault=fault)
        assert killed.was_killed, killed.output
        assert before <= epochs_in(output) < EPOCHS
    ended = process.run(*program)
    assert ended.code == 0, ended.output
    assert epochs_in(output) == EPOCHS
    nexmark.judge(QUERIES[name], folder, output)


def epochs_in(output: Path) -> int:
    """Of how many epochs a reader sees rows."""
    return len({path.name.split("-")[1] for path in output.glob("part-*.parquet")})
