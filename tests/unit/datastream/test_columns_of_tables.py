"""Columns that a table cannot have, or that are never null in it, by their names."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema
from pyiceberg.catalog.sql import SqlCatalog

from holdfast.common import Row, RowKind
from holdfast.datastream import ForEachEpochSink, ParquetFileSink, Sink
from holdfast.datastream.connectors.delta import DeltaSink
from holdfast.datastream.connectors.file_system import BulkWriterFactory, FileSink
from holdfast.datastream.connectors.iceberg import IcebergSink
from holdfast.errors import ConfigurationError, JobExecutionError
from holdfast.testing import EpochProgram


def start(sink: Sink, place: Path, columns: str) -> None:
    program = EpochProgram()
    program.source("in", columns).sink_to(sink).uid("out")
    program.run(place / "job", [])


def lake(place: Path) -> dict[str, str]:
    place.mkdir()
    return {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": f"file://{place}"}


@pytest.mark.parametrize("columns", ["n bigint, at time", "n bigint, at interval day to second"])
def test_delta_has_no_such_type(tmp_path: Path, columns: str) -> None:
    with pytest.raises(ConfigurationError, match=r"Delta has no type for the column 'at', which is (time64|duration)"):
        start(DeltaSink(tmp_path / "t", create_table=True), tmp_path, columns)
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("kind", ["struct<>", "array<struct<>>", "map<string, struct<>>", "struct<a: struct<>>"])
@pytest.mark.parametrize("sink", ["files", "bulk", "delta", "iceberg", "function"])
def test_parquet_files_have_no_structs_without_fields(tmp_path: Path, sink: str, kind: str) -> None:
    made: dict[str, Callable[[], Sink]] = {
        "files": lambda: ParquetFileSink(tmp_path / "t"),
        "bulk": lambda: FileSink.for_bulk_format(tmp_path / "t", BulkWriterFactory.parquet()).build(),
        "delta": lambda: DeltaSink(tmp_path / "t", create_table=True),
        "iceberg": lambda: IcebergSink("test", "db.t", properties=lake(tmp_path / "lake"), create_table=True),
        "function": lambda: ForEachEpochSink(lambda table, epoch: None),
    }
    with pytest.raises(
        ConfigurationError, match=r"Parquet files, which cannot store structs without .* column 'odd' is"
    ):
        start(made[sink](), tmp_path, f"n bigint, odd {kind}")
    assert not (tmp_path / "job").exists() and not (tmp_path / "t").exists()


def test_files_of_arrow_have_them(tmp_path: Path) -> None:
    sink = FileSink.for_bulk_format(tmp_path / "t", BulkWriterFactory.arrow()).build()
    program = EpochProgram()
    program.source("in", "n bigint, odd struct<>").sink_to(sink).uid("out")
    program.run(tmp_path / "job", [{"in": [(1, {}), (2, None)]}], source_tasks=1)
    [file] = (tmp_path / "t").rglob("part-*")
    assert pa.ipc.open_file(file).read_all().to_pylist() == [{"n": 1, "odd": {}}, {"n": 2, "odd": None}]


@pytest.mark.parametrize("is_there", [False, True])
def test_iceberg_has_no_such_type(tmp_path: Path, is_there: bool) -> None:
    properties = lake(tmp_path / "lake")
    catalog = SqlCatalog("test", **properties)
    catalog.create_namespace("db")
    if is_there:
        catalog.create_table("db.t", pa.schema([("n", pa.int64())]))
    sink = IcebergSink("test", "db.t", properties=properties, create_table=True, add_columns=True)
    with pytest.raises(ConfigurationError, match="Iceberg has no type for the column 'at', which is duration"):
        start(sink, tmp_path, "n bigint, at interval day to second")
    assert catalog.table_exists("db.t") == is_there


@pytest.mark.parametrize("key", ["", "at"])
def test_iceberg_has_times_of_day(tmp_path: Path, key: str) -> None:
    properties = lake(tmp_path / "lake")
    sink = IcebergSink("test", "db.t", properties=properties, key=[key] if key else (), create_table=True)
    program = EpochProgram()
    program.source("in", "at time, n bigint").sink_to(sink).uid("out")
    dawn = datetime.time(6, 30, 0, 123456)
    program.run(tmp_path / "job", [{"in": [(dawn, 1)]}, {"in": [(dawn, 2)]}], source_tasks=1)
    found = SqlCatalog("test", **properties).load_table("db.t").scan(row_filter="n > 0").to_arrow().to_pylist()
    assert sorted(row["n"] for row in found) == ([2] if key else [1, 2]) and {row["at"] for row in found} == {dawn}


@pytest.mark.parametrize("is_there", [False, True])
def test_names_that_differ_in_case_only_are_one_to_delta(tmp_path: Path, is_there: bool) -> None:
    """Spark would not know which of them somebody means, and read neither."""
    if is_there:
        DeltaTable.create(tmp_path / "t", Schema.from_arrow(pa.schema([("Word", pa.string()), ("n", pa.int64())])))
    columns = "word string, n bigint" if is_there else "Word string, word string"
    with pytest.raises(ConfigurationError, match="columns 'Word' and 'word', which Delta does not distinguish"):
        start(DeltaSink(tmp_path / "t", create_table=True, add_columns=True), tmp_path, columns)


def test_a_column_of_columns_that_differs_is_shown_with_them(tmp_path: Path) -> None:
    there: Any = pa.schema([("s", pa.struct([("x", pa.int32())]))])
    DeltaTable.create(tmp_path / "t", Schema.from_arrow(there))
    with pytest.raises(ConfigurationError, match=r"'s' of the Delta table .*\"x\".* and that of the stream .*\"y\""):
        start(DeltaSink(tmp_path / "t"), tmp_path, "s struct<x: int, y: int>")


def test_a_deletion_needs_its_key_alone_also_where_a_column_is_never_null(tmp_path: Path) -> None:
    """As Debezium tells it of a table of Postgres that was not told otherwise."""
    properties = lake(tmp_path / "lake")
    catalog = SqlCatalog("test", **properties)
    catalog.create_namespace("db")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string(), nullable=False)])
    catalog.create_table("db.t", schema)
    DeltaTable.create(tmp_path / "delta", Schema.from_arrow(schema))
    sinks = {
        "delta": DeltaSink(tmp_path / "delta", key="id"),
        "iceberg": IcebergSink("test", "db.t", properties=properties, key="id"),
    }
    ada, grace = ((RowKind.INSERT, number, name) for number, name in enumerate(["Ada", "Grace"]))
    epochs = [ada, grace], [(RowKind.DELETE, 0, None), (RowKind.DELETE, 7, None), (RowKind.UPDATE_AFTER, 1, "Hopper")]
    inputs = [{"in": [Row.of_kind(kind, id=key, name=name) for kind, key, name in rows]} for rows in epochs]
    for name, sink in sinks.items():
        program = EpochProgram()
        program.source("in", "changelog<id: bigint, name: string>").sink_to(sink).uid("out")
        program.run(tmp_path / name / "job", inputs, source_tasks=1)
        with pytest.raises(JobExecutionError, match="'name' is null; the table requires it"):
            wrong = [{"in": [Row.of_kind(RowKind.INSERT, id=2, name=None)]}]
            program.run(tmp_path / name / "job", [*inputs, *wrong], source_tasks=1)
    expected = [{"id": 1, "name": "Hopper"}]
    assert DeltaTable(tmp_path / "delta").to_pyarrow_table().to_pylist() == expected
    assert catalog.load_table("db.t").scan().to_arrow().to_pylist() == expected


def test_a_key_may_have_quotes_and_points_in_its_name(tmp_path: Path) -> None:
    names = pa.schema([('a "b"', pa.string()), ("c.d", pa.int64()), ("order", pa.int64())])
    rows = [("kelp", 1, 1), ("rock", 1, 1)], [("kelp", 2, 1), ("kelp", 3, 2)]
    program = EpochProgram()
    program.source("in", names).sink_to(DeltaSink(tmp_path / "t", key=['a "b"', "order"], create_table=True)).uid("out")
    program.run(tmp_path / "job", [{"in": list(epoch)} for epoch in rows], source_tasks=1)
    found = [tuple(row.values()) for row in DeltaTable(tmp_path / "t").to_pyarrow_table().to_pylist()]
    assert sorted(found) == [("kelp", 2, 1), ("kelp", 3, 2), ("rock", 1, 1)]


@pytest.mark.parametrize("key", ["", "n"])
def test_a_table_of_delta_whose_deleted_rows_may_be_told_in_vectors_takes_rows(tmp_path: Path, key: str) -> None:
    schema = Schema.from_arrow(pa.schema([("n", pa.int64())]))
    DeltaTable.create(tmp_path / "t", schema, configuration={"delta.enableDeletionVectors": "true"})
    program = EpochProgram()
    program.source("in", "n bigint").sink_to(DeltaSink(tmp_path / "t", key=[key] if key else ())).uid("out")
    program.run(tmp_path / "job", [{"in": [(1,)]}, {"in": [(2,)]}], source_tasks=1)
    added = pa.table(DeltaTable(tmp_path / "t").get_add_actions(flatten=True))
    assert sum(added["num_records"].to_pylist()) == 2
