"""A program whose sink is changed to another target: output that was staged before reaches the old target, once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from holdfast.common import Encoder
from holdfast.datastream import ParquetFileSink
from holdfast.datastream.connectors.database import DatabaseSink
from holdfast.datastream.connectors.delta import DeltaSink
from holdfast.datastream.connectors.file_system import BucketAssigner, FileSink
from holdfast.errors import HoldfastError
from holdfast.kernel import fault
from holdfast.runtime.function.sink import Sink
from holdfast.testing import EpochProgram
from tests.stories.databases import sqlite_in

COLUMNS = "word string, n bigint"
FRESH = {"execution.state-recovery.fresh": "true"}

Seen = list[tuple[Any, ...]]


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    fault.clear()


def parquet(place: Path, name: str) -> Sink:
    return ParquetFileSink(place / name)


def rows_of_parquet(place: Path, name: str) -> Seen:
    return [tuple(row.values()) for file in (place / name).glob("*.parquet") for row in pq.read_table(file).to_pylist()]


def lines(place: Path, name: str) -> Sink:
    builder = FileSink.for_row_format(place / name, Encoder.json_encoder())
    return builder.with_bucket_assigner(BucketAssigner.column_bucket_assigner("word")).build()


def rows_of_lines(place: Path, name: str) -> Seen:
    files = [file for file in (place / name).glob("word=*/*") if file.is_file()]
    return [tuple(json.loads(line).values()) for file in files for line in file.read_text("utf-8").splitlines()]


def delta(place: Path, name: str) -> Sink:
    return DeltaSink(place / name, create_table=True)


def rows_of_delta(place: Path, name: str) -> Seen:
    return [tuple(row.values()) for row in DeltaTable(place / name).to_pyarrow_table().to_pylist()]


def table(place: Path, name: str) -> Sink:
    return DatabaseSink(sqlite_in(place).uri, name, create_table=True)


def rows_of_table(place: Path, name: str) -> Seen:
    return sqlite_in(place).ask(f"select word, n from {name}")


@pytest.mark.parametrize("options", [{}, FRESH], ids=["goes on", "begins anew"])
@pytest.mark.parametrize(
    ("sink", "rows"),
    [(parquet, rows_of_parquet), (lines, rows_of_lines), (delta, rows_of_delta), (table, rows_of_table)],
    ids=["parquet", "json", "delta", "database"],
)
def test_staged_files_are_committed_to_their_original_target(
    tmp_path: Path, sink: Callable[[Path, str], Sink], rows: Callable[[Path, str], Seen], options: dict[str, str]
) -> None:
    """A start without state commits nothing of the job before."""

    def run(name: str, epochs: int, **settings: str) -> None:
        program = EpochProgram()
        program.source("in", COLUMNS).sink_to(sink(tmp_path, name)).uid("out")
        program.run(tmp_path / "job", [{"in": [("kelp", n)]} for n in range(1, epochs + 1)], settings)

    fault.install("before:sink.commit:2=raise")
    with pytest.raises(HoldfastError):
        run("before", 2)
    fault.clear()
    assert rows(tmp_path, "before") == [("kelp", 1)]
    run("after", 3, **options)
    run("after", 4)
    assert sorted(rows(tmp_path, "before")) == ([("kelp", 1)] if options else [("kelp", 1), ("kelp", 2)])
    assert sorted(rows(tmp_path, "after")) == [("kelp", n) for n in ((1, 2, 3, 4) if options else (3, 4))]
    run("before", 5)
    assert ("kelp", 5) in rows(tmp_path, "before")
