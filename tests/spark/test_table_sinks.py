"""One job on Spark writes into a Delta table, an Iceberg table, a database and files; its tasks know no password."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from holdfast.common import Encoder, Row
from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from holdfast.datastream.connectors.database import DatabaseSink
from holdfast.datastream.connectors.delta import DeltaSink
from holdfast.datastream.connectors.file_system import BucketAssigner, FileSink
from holdfast.datastream.connectors.iceberg import IcebergSink

pytestmark = pytest.mark.spark

WORDS = [(f"word {number % 7}", number) for number in range(100)]
COUNTS = "word string, n bigint"


class Same(KeyedProcessFunction):
    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        yield value


def test_every_table_gets_each_row_once_also_from_a_resumed_job(spark: Any, tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    for _ in range(2):
        options = {
            "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
            "execution.trigger": "available-now",
            "parallelism.default": "2",
        }
        env = StreamExecutionEnvironment.get_execution_environment(options, spark=spark)
        rows = env.from_collection(WORDS, COUNTS).key_by("word").process(Same(), output_type=COUNTS).uid("same")
        rows.sink_to(DeltaSink(tmp_path / "delta", partition_by="word", create_table=True)).uid("delta")
        rows.sink_to(IcebergSink("test", "db.t", properties=properties, create_table=True)).uid("iceberg")
        rows.sink_to(DatabaseSink(f"sqlite:///{tmp_path}/t.db", "t", key="word", create_table=True)).uid("database")
        files = FileSink.for_row_format(tmp_path / "files", Encoder.json_encoder())
        files.with_bucket_assigner(BucketAssigner.column_bucket_assigner("word"))
        rows.sink_to(files.build()).uid("files")
        env.execute("tables")

    delta = DeltaTable(tmp_path / "delta").to_pyarrow_table().to_pylist()
    iceberg = load_catalog("test", **properties).load_table("db.t").scan().to_arrow().to_pylist()
    lines = [line for file in (tmp_path / "files").glob("word=*/*") for line in file.read_text("utf-8").splitlines()]
    for found in (delta, iceberg, map(json.loads, lines)):
        assert sorted((row["n"], row["word"]) for row in found) == [(n, word) for word, n in WORDS]
    with closing(sqlite3.connect(tmp_path / "t.db")) as database:
        last = database.execute("select word, n from t order by word").fetchall()
    assert last == [(f"word {number}", max(n for word, n in WORDS if word == f"word {number}")) for number in range(7)]
