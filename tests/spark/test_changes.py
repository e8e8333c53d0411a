"""A database's log on Spark: its changes cross two exchanges and a crash, come again, and three tables end right."""

from __future__ import annotations

import json
import os
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from holdfast.common import Row, RowKind
from holdfast.datastream import KeyedProcessFunction, ParquetFileSink, StreamExecutionEnvironment
from holdfast.datastream.connectors.database import DatabaseSink
from holdfast.datastream.connectors.delta import DeltaSink
from holdfast.datastream.connectors.iceberg import IcebergSink
from holdfast.datastream.formats.debezium import DebeziumJsonDeserializationSchema
from holdfast.errors import JobExecutionError
from holdfast.kernel import fault

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

FILES, CHANGES_OF_A_FILE, IDS = 4, 30, 12
PEOPLE = DebeziumJsonDeserializationSchema("id bigint, name string, lsn bigint", metadata={"lsn": "source.lsn"})
Named = dict[int, str]


def history() -> tuple[list[list[str]], Named, Named]:
    """Messages of a log in files that overlap, as of one that is read again; the names in the end, and the first."""
    chance, table, first, messages = random.Random(7), {}, {}, []
    for lsn in range(FILES * CHANGES_OF_A_FILE):
        key, name, before = chance.randrange(IDS), f"{chance.choice(['kelp', 'rock', 'sand'])} {lsn}", None
        if key in table:
            before = {"id": key, "name": table.pop(key)}
        is_deleted = before is not None and chance.random() < 0.3
        after = None if is_deleted else {"id": key, "name": name}
        if after is not None:
            table[key] = name
            first.setdefault(key, name)
        operation = "d" if is_deleted else "c" if before is None else "u"
        messages.append(json.dumps({"op": operation, "before": before, "after": after, "source": {"lsn": lsn}}))
    starts = [max(0, number * CHANGES_OF_A_FILE - 10) for number in range(FILES)]
    files = [messages[start : (number + 1) * CHANGES_OF_A_FILE] for number, start in enumerate(starts)]
    return files, table, first


class Same(KeyedProcessFunction):
    """Says what it gets, behind a second exchange; by a key that keeps the changes of a row together."""

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        assert type(value.get_row_kind()) is RowKind
        yield value


def changes_of(line: Row) -> list[Row]:
    return list(PEOPLE.deserialize_all(line.value.encode()))


def inserted(row: Row) -> list[tuple[int, str]]:
    return [(row.id, row.name)] if row.get_row_kind() in (RowKind.INSERT, RowKind.UPDATE_AFTER) else []


def catalog(place: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": f"file://{place}/warehouse"}


def run(spark: Any, place: Path) -> None:
    options = {
        "execution.checkpointing.dir": str(place / "checkpoints"),
        "execution.trigger": "available-now",
        "restart-strategy.type": "none",
        "parallelism.default": "2",
    }
    env = StreamExecutionEnvironment.get_execution_environment(options, spark=spark)
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(place / "log")).coalesce(1)
    log = env.from_dataframe(lines).uid("log")
    read = log.flat_map(lambda line: PEOPLE.deserialize_all(line.value.encode()), PEOPLE.get_produced_type()).uid(
        "read"
    )
    clean = read.key_by("id").normalize_changes().uid("clean")
    clean.sink_to(ParquetFileSink(place / "changes")).uid("changes")
    spread = (
        clean.key_by(lambda row: row.id % 3, key_type="bigint")
        .process(Same(), output_type=clean.get_type())
        .uid("spread")
    )
    spread.key_by("id").sink_to(DeltaSink(place / "delta", key="id", create_table=True)).uid("delta")
    iceberg = IcebergSink("test", "db.t", properties=catalog(place), key="id", create_table=True)
    spread.sink_to(iceberg).uid("iceberg")
    last = read.key_by("id").last_value(by="lsn").uid("last")
    last.sink_to(DatabaseSink(f"sqlite:///{place}/t.db", "t", key="id", create_table=True)).uid("database")
    names = read.flat_map(inserted, "id bigint, name string").uid("names")
    names.key_by("id").deduplicate().uid("first").sink_to(ParquetFileSink(place / "first")).uid("first names")
    env.execute("people")


def test_tables_match_a_changelog_with_duplicates_read_by_a_killed_job(spark: Any, tmp_path: Path) -> None:
    files, table, first = history()
    (tmp_path / "log").mkdir()
    for number, messages in enumerate(files[:-1]):
        add(tmp_path, number, messages)
    fault.install("before:sink.commit:8=raise")
    try:
        with pytest.raises(JobExecutionError):
            run(spark, tmp_path)
    finally:
        fault.clear()
    add(tmp_path, FILES, files[-1])
    run(spark, tmp_path)

    delta = DeltaTable(tmp_path / "delta").to_pyarrow_table().to_pylist()
    iceberg = load_catalog("test", **catalog(tmp_path)).load_table("db.t").scan().to_arrow().to_pylist()
    for found in (delta, iceberg):
        assert sorted((row["id"], row["name"]) for row in found) == sorted(table.items())
    with closing(sqlite3.connect(tmp_path / "t.db")) as database:
        assert sorted(database.execute("select id, name from t").fetchall()) == sorted(table.items())
    rows = [row for file in (tmp_path / "first").glob("*.parquet") for row in pq.read_table(file).to_pylist()]
    assert sorted((row["id"], row["name"]) for row in rows) == sorted(first.items())
    assert replayed(tmp_path / "changes") == table


def add(place: Path, number: int, messages: list[str]) -> None:
    """Another file of the log; Spark reads them in the order of their times."""
    (place / "new.json").write_text("\n".join(messages))
    os.utime(place / "new.json", (1_000_000 + number, 1_000_000 + number))
    (place / "new.json").rename(place / "log" / f"{number}.json")


def replayed(place: Path) -> Named:
    """The table that the clean changes make, strictly: none puts what is there, or takes back what is not."""
    table: Named = {}
    for file in sorted(place.glob("*.parquet")):  # by epoch; a key has one subtask
        for row in pq.ParquetFile(file).read().to_pylist():
            if RowKind(row["row_kind"]) in (RowKind.INSERT, RowKind.UPDATE_AFTER):
                assert row["id"] not in table, row
                table[row["id"]] = row["name"]
            else:
                assert table.pop(row["id"]) == row["name"], row
    return table
