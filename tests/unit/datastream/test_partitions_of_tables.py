"""Tables that somebody else has made, partitioned: no row is put where nobody looks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from holdfast.common import Types
from holdfast.datastream import OutputTag, ParquetFileSink, Sink
from holdfast.datastream.connectors.delta import DeltaSink
from holdfast.datastream.connectors.iceberg import IcebergSink
from holdfast.errors import ConfigurationError, JobExecutionError
from holdfast.runtime.function.sink import RefusedElementError, WriterInitContext
from holdfast.testing import EpochProgram

REFUSED = OutputTag("refused")


class Lake:
    """A catalog of Iceberg in a directory, with one table."""

    def __init__(self, place: Path) -> None:
        place.mkdir()
        self.properties = {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": f"file://{place}"}
        self.catalog = SqlCatalog("test", **self.properties)
        self.catalog.create_namespace("db")

    def make(self, columns: list[Any], partition: str, **properties: str) -> None:
        table = self.catalog.create_table("db.t", pa.schema(columns), properties=properties)
        with table.update_spec() as spec:
            spec.add_identity(partition)

    def sink(self, **settings: Any) -> IcebergSink:
        return IcebergSink("test", "db.t", properties=self.properties, **settings)

    @property
    def table(self) -> Table:
        return self.catalog.load_table("db.t")

    def partitions(self) -> dict[Any, int]:
        found = self.table.inspect.partitions().to_pylist()
        return {next(iter(row["partition"].values())): row["record_count"] for row in found}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def run(sink: Sink, place: Path, columns: str, rows: list[Any], is_careful: bool = False) -> list[Any]:
    """Runs one epoch; returns the rows that were refused."""
    program = EpochProgram()
    out = program.source("in", columns).sink_to(sink).uid("out")
    if is_careful:
        out.set_dead_letter_output(REFUSED)
        out.get_side_output(REFUSED).sink_to(ParquetFileSink(place / "refused")).uid("refused")
    program.run(place / "job", [{"in": rows}], source_tasks=1)
    return [row for file in (place / "refused").glob("*.parquet") for row in pq.read_table(file).to_pylist()]


@pytest.mark.parametrize("kept", ["none", "counts"])
def test_a_table_of_iceberg_that_keeps_no_statistics_has_its_rows_in_their_partitions(
    lake: Lake, tmp_path: Path, kept: str
) -> None:
    """Who asks for one of them would not find its rows among those of no partition."""
    lake.make([("word", pa.string()), ("n", pa.int64())], "word", **{"write.metadata.metrics.default": kept})
    run(lake.sink(), tmp_path, "word string, n bigint", [("kelp", 1), ("rock", 2), ("kelp", 3), (None, 4)])
    assert lake.partitions() == {"kelp": 2, "rock": 1, None: 1}
    assert lake.table.scan(row_filter="word = 'kelp'").to_arrow().num_rows == 2
    assert [name for name in lake.table.properties if "metrics" in name] == ["write.metadata.metrics.default"]


@pytest.mark.parametrize(
    ("columns", "kind", "good", "bad"),
    [
        ("word string, n bigint", pa.string(), "x" * 4096, "x" * 4097),
        ("word binary, n bigint", pa.binary(), b"\xff", b"x" * 4097),
        ("word double, n bigint", pa.float64(), float("inf"), float("nan")),
    ],
)
def test_a_value_that_statistics_do_not_tell_is_refused_by_iceberg_before_it_is_staged(
    lake: Lake, tmp_path: Path, columns: str, kind: pa.DataType, good: Any, bad: Any
) -> None:
    lake.make([("word", kind), ("n", pa.int64())], "word")
    refused = run(lake.sink(), tmp_path, columns, [(good, 1), (bad, 2), (None, 3)], is_careful=True)
    assert [row["row"]["n"] for row in refused] == [2]
    assert "whose partition would be lost: 'word' is NaN, or has more than 4096 bytes" in refused[0]["reason"]
    assert lake.partitions() == {good: 1, None: 1}


def test_a_stream_without_the_column_of_a_partition_is_refused_by_name(lake: Lake, tmp_path: Path) -> None:
    lake.make([("word", pa.string()), ("n", pa.int64())], "word")
    with pytest.raises(ConfigurationError, match=r"table 'db\.t' is partitioned by 'word', .* no column of the stream"):
        run(lake.sink(), tmp_path, "n bigint", [(1,)])
    schema = Schema.from_arrow(pa.schema([("word", pa.string()), ("n", pa.int64())]))
    DeltaTable.create(tmp_path / "delta", schema, partition_by=["word"])
    with pytest.raises(ConfigurationError, match=r"The Delta table .* by 'word', which is no column of the stream"):
        run(DeltaSink(tmp_path / "delta"), tmp_path, "n bigint", [(1,)])


def test_a_table_of_delta_that_is_partitioned_by_what_is_no_text_is_refused_by_name(tmp_path: Path) -> None:
    """Its rows would be there, and their bytes be others."""
    schema = pa.schema([("x", pa.binary()), ("n", pa.int64())])
    DeltaTable.create(tmp_path / "delta", Schema.from_arrow(schema), partition_by=["x"])
    with pytest.raises(ConfigurationError, match=r"The Delta table .* is partitioned by 'x', which is binary"):
        run(DeltaSink(tmp_path / "delta"), tmp_path, "x binary, n bigint", [(b"\xff", 1)])
    assert DeltaTable(tmp_path / "delta").version() == 0


def test_a_directory_whose_name_no_file_system_takes_is_refused_before_its_rows_are_staged(tmp_path: Path) -> None:
    """A commit that finds it out would be tried for ever, and the checkpoint would have the rows in it."""
    rows = [("x" * 250, 1), ("x" * 251, 2), ("海" * 83 + "xx", 3), ("kelp", 4)]
    sink = ParquetFileSink(tmp_path / "out", partition_by="word")
    refused = run(sink, tmp_path, "word string, n bigint", rows, is_careful=True)
    assert sorted(row["row"]["n"] for row in refused) == [2, 3]
    assert "would have a name of 256 bytes; file systems allow 255" in max(row["reason"] for row in refused)
    assert sorted(len(path.name) for path in (tmp_path / "out").glob("word=*")) == [9, 255]
    strict = ParquetFileSink(tmp_path / "other", partition_by="word")
    with pytest.raises(JobExecutionError, match="file systems allow 255"):
        run(strict, tmp_path / "strict", "word string, n bigint", rows)


def test_an_object_whose_key_no_store_takes_is_refused_before_a_store_is_asked() -> None:
    columns = [f"part{number}" for number in range(5)]
    kind = Types.ROW_NAMED([*columns, "n"], [*[Types.STRING()] * 5, Types.LONG()])
    sink = ParquetFileSink("s3://bucket/lake", partition_by=columns)
    writer = sink.create_writer(WriterInitContext("0" * 32, "out", 1, 0, 1, 1, 1, kind, "s3://bucket/job"))
    row = pa.record_batch([*[["海" * 66]] * 5, [1]], [*columns, "n"])
    with pytest.raises(RefusedElementError, match=r"a key of 1,\d+ bytes; object stores allow 1,024"):
        writer.write_batch(row)
