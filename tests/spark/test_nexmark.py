"""Nexmark on Spark: the queries that are Spark's expressions, and one with windows, against DuckDB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.nexmark.engines.holdfast import start
from benchmarks.nexmark.files import events_on_disk
from benchmarks.nexmark.queries import QUERIES
from holdfast.datastream import ParquetFileSink
from tests.stories import nexmark

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return events_on_disk(tmp_path_factory.mktemp("events"), 10_000, 5_000)


@pytest.mark.parametrize("name", [name for name, query in QUERIES.items() if query.needs_spark or name == "q9"])
def test_a_query_on_spark_gives_the_answer_of_duckdb(name: str, spark: Any, folder: Path, tmp_path: Path) -> None:
    start(spark, QUERIES[name], folder, tmp_path / "job", ParquetFileSink(tmp_path / "out"))
    nexmark.judge(QUERIES[name], folder, tmp_path / "out")
