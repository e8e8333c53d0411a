"""The contract of sinks over tables: Delta Lake and Iceberg."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema
from pyiceberg.catalog import load_catalog

from holdfast.datastream.connectors.delta import DeltaSink
from holdfast.datastream.connectors.iceberg import IcebergSink
from holdfast.runtime.function.sink import Sink
from holdfast.testing import SinkBackend, SinkContract

COLUMNS = pa.schema([pa.field("word", pa.string()), pa.field("n", pa.int64(), nullable=False)])


class DeltaDirectory(SinkBackend):
    """A Delta table; it is away when its directory is not mounted."""

    steps = 14

    def __init__(self, path: Path) -> None:
        self.path = path
        DeltaTable.create(path, Schema.from_arrow(COLUMNS), partition_by=["word"])

    def new_sink(self) -> Sink:
        return DeltaSink(self.path)

    def rows(self) -> list[tuple[str, int]]:
        return [(row["word"], row["n"]) for row in DeltaTable(self.path).to_pyarrow_table().to_pylist()]

    def refused_row(self) -> tuple[str, None]:
        return "rock", None

    @contextmanager
    def away(self) -> Iterator[None]:
        self.path.rename(self.path.with_name("unmounted"))
        try:
            yield
        finally:
            self.path.with_name("unmounted").rename(self.path)


class TestDelta(SinkContract):
    @pytest.fixture
    def sink_backend(self, tmp_path: Path) -> SinkBackend:
        return DeltaDirectory(tmp_path / "out")


class IcebergWarehouse(SinkBackend):
    """An Iceberg table in a catalog of SQL; both are away when their directory is not mounted."""

    steps = 10

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.properties = {"type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": f"file://{path}"}
        catalog = load_catalog("test", **self.properties)
        catalog.create_namespace("db")
        catalog.create_table("db.seen", COLUMNS)

    def new_sink(self) -> Sink:
        return IcebergSink("test", "db.seen", properties=self.properties)

    def rows(self) -> list[tuple[str, int]]:
        rows = load_catalog("test", **self.properties).load_table("db.seen").scan().to_arrow()
        return [(row["word"], row["n"]) for row in rows.to_pylist()]

    def refused_row(self) -> tuple[str, None]:
        return "rock", None

    @contextmanager
    def away(self) -> Iterator[None]:
        self.path.rename(self.path.with_name("unmounted"))
        try:
            yield
        finally:
            self.path.with_name("unmounted").rename(self.path)


class TestIceberg(SinkContract):
    @pytest.fixture
    def sink_backend(self, tmp_path: Path) -> SinkBackend:
        return IcebergWarehouse(tmp_path / "out")
