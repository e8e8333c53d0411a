"""The contract of sinks over built-in sinks, a database behind `for_each_epoch`, and a user-defined sink."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from examples.own_sink import JsonLinesSink
from holdfast.common import Encoder
from holdfast.datastream import ForEachEpochSink, ParquetFileSink
from holdfast.datastream.connectors.file_system import BucketAssigner, FileSink, RollingPolicy
from holdfast.runtime.function.sink import Sink
from holdfast.testing import SinkBackend, SinkContract


class Directory(SinkBackend):
    """A directory; it is away when it is not mounted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()

    @contextmanager
    def away(self) -> Iterator[None]:
        self.path.rename(self.path.with_name("unmounted"))
        try:
            yield
        finally:
            self.path.with_name("unmounted").rename(self.path)


class Parquet(Directory):
    def new_sink(self) -> Sink:
        return ParquetFileSink(self.path)

    def rows(self) -> list[tuple[str, int]]:
        tables = [pq.ParquetFile(file).read() for file in self.path.glob("*.parquet")]
        return [(row["word"], row["n"]) for table in tables for row in table.to_pylist()]


class WholeNumbers(Encoder):
    """JSON lines of rows that have a number."""

    def encode(self, element: Any) -> bytes:
        if element.n is None:
            raise ValueError("there is no number")
        return Encoder.json_encoder().encode(element)


class Buckets(Directory):
    """JSON lines in a directory for each word, and a file for each row."""

    steps = 25

    def new_sink(self) -> Sink:
        builder = FileSink.for_row_format(self.path, WholeNumbers())
        builder.with_bucket_assigner(BucketAssigner.column_bucket_assigner("word"))
        return builder.with_rolling_policy(RollingPolicy.default_rolling_policy(part_size=1)).build()

    def rows(self) -> list[tuple[str, int]]:
        files = [file for file in self.path.glob("word=*/*") if file.is_file()]
        rows = [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]
        return [(row["word"], row["n"]) for row in rows]

    def refused_row(self) -> tuple[str, None]:
        return "rock", None


class JsonLines(Directory):
    def new_sink(self) -> Sink:
        return JsonLinesSink(str(self.path))

    def rows(self) -> list[tuple[str, int]]:
        lines = [line for file in self.path.glob("*.jsonl") for line in file.read_text("utf-8").splitlines()]
        return [(row["word"], row["n"]) for row in map(json.loads, lines)]


class Database(Directory):
    """SQLite, with the ledger that the guide recommends; one transaction an epoch."""

    steps = 25

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with closing(self._connect()) as database:
            database.execute("pragma journal_mode = wal")
            database.execute("create table seen (word text, n integer)")
            database.execute("create table ledger (incarnation text primary key, epoch integer)")

    def new_sink(self) -> Sink:
        return ForEachEpochSink(self.write, self.last_epoch)

    def write(self, frame: Any, epoch: int, incarnation: str) -> None:
        with closing(self._connect()) as database, database:
            database.execute("begin immediate")
            new = database.execute(
                "insert into ledger values (?, ?) on conflict do update set epoch = excluded.epoch "
                "where epoch < excluded.epoch returning epoch",
                (incarnation, epoch),
            ).fetchall()
            if new:
                rows = [(row["word"], row["n"]) for row in frame.to_pylist()]
                database.executemany("insert into seen values (?, ?)", rows)

    def last_epoch(self, incarnation: str) -> int | None:
        with closing(self._connect()) as database:
            row = database.execute("select epoch from ledger where incarnation = ?", [incarnation]).fetchone()
            return None if row is None else row[0]

    def rows(self) -> list[tuple[str, int]]:
        with closing(self._connect()) as database:
            return database.execute("select word, n from seen").fetchall()

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path / "db.sqlite", timeout=0.05)


class TestParquetFileSink(SinkContract):
    @pytest.fixture
    def sink_backend(self, tmp_path: Path) -> SinkBackend:
        return Parquet(tmp_path / "out")


class TestFileSink(SinkContract):
    @pytest.fixture
    def sink_backend(self, tmp_path: Path) -> SinkBackend:
        return Buckets(tmp_path / "out")


class TestSinkOfOnesOwn(SinkContract):
    @pytest.fixture
    def sink_backend(self, tmp_path: Path) -> SinkBackend:
        return JsonLines(tmp_path / "out")


class TestForEachEpochIntoADatabase(SinkContract):
    @pytest.fixture
    def sink_backend(self, tmp_path: Path) -> SinkBackend:
        return Database(tmp_path / "out")
