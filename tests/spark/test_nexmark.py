"""Nexmark on Spark: queries that are Spark's expressions, windows, and two joins, against DuckDB; nine are killed."""

from __future__ import annotations

import operator
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.nexmark.engines.holdfast import start
from benchmarks.nexmark.files import events_on_disk
from benchmarks.nexmark.queries import QUERIES
from benchmarks.nexmark.query import Query
from holdfast.datastream import ParquetFileSink
from tests.stories import nexmark, process

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return events_on_disk(tmp_path_factory.mktemp("events"), 10_000, 5_000)


def _runs_on_spark(query: Query) -> bool:
    return query.needs_spark or query.has_event_time or query.name == "q9"


@pytest.mark.parametrize("name", [name for name, query in QUERIES.items() if _runs_on_spark(query)])
def test_a_query_on_spark_gives_the_answer_of_duckdb(name: str, spark: Any, folder: Path, tmp_path: Path) -> None:
    """The events are of one second, so all windows of event time are open when the input ends."""
    start(spark, QUERIES[name], folder, tmp_path / "job", ParquetFileSink(tmp_path / "out"))
    nexmark.judge(QUERIES[name], folder, tmp_path / "out")


EPOCHS = 8
STATELESS = [name for name, query in QUERIES.items() if query.needs_spark]


@pytest.mark.parametrize("queries", ["stateless", "q4"])
def test_queries_on_spark_that_are_killed_in_the_middle_give_the_same_answers(queries: str, tmp_path: Path) -> None:
    """All without state, in one job, and a join: the driver, its JVM and the workers are gone at once; then the driver.

    The others are killed without Spark.
    """
    folder = events_on_disk(tmp_path / "events", 1_000 * EPOCHS, 1_000)
    outputs = (
        {tmp_path / "out": QUERIES[queries]}
        if queries in QUERIES
        else {tmp_path / "out" / name: QUERIES[name] for name in STATELESS}
    )
    program = "nexmark_on_spark_job.py", queries, folder, tmp_path / "job", tmp_path / "out"
    job = process.start(*program, log=tmp_path / "log")
    deadline = time.monotonic() + 200
    while not all(map(epochs_in, outputs)):
        assert job.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()
        time.sleep(0.01)
    process.kill_group(job)
    before = [epochs_in(output) for output in outputs]
    assert max(before) < EPOCHS, "it was in the middle"
    killed = process.run(*program, fault="before:pointer.write:2=kill")
    assert killed.was_killed, killed.output
    again = [epochs_in(output) for output in outputs]
    assert max(again) < EPOCHS and all(map(operator.le, before, again))
    ended = process.run(*program)
    assert ended.code == 0, ended.output
    assert max(map(epochs_in, outputs)) == EPOCHS
    for output, query in outputs.items():
        nexmark.judge(query, folder, output)


def epochs_in(output: Path) -> int:
    """Of how many epochs a reader sees rows."""
    return len({path.name.split("-")[1] for path in output.glob("part-*.parquet")})
