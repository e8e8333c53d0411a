"""`IcebergSink` with a catalog behind REST, whose answers get lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from holdfast.datastream.connectors.iceberg import IcebergSink
from holdfast.errors import HoldfastError
from holdfast.runtime.function.sink import Sink
from holdfast.testing import EpochProgram, SinkBackend, SinkContract
from holdfast.testing.sink_contract import SinkStage
from tests.stories.iceberg_rest import IcebergRestServer

pytestmark = pytest.mark.services

COLUMNS = pa.schema([("word", pa.string()), ("n", pa.int64())])


class RestTable(SinkBackend):
    """A table of a catalog that is away when its server refuses."""

    steps = 5
    server: IcebergRestServer

    def __init__(self, uri: str, key: tuple[str, ...] = ()) -> None:
        self.properties = {"type": "rest", "uri": uri}
        self.key = key
        catalog = load_catalog("rest", **self.properties)
        catalog.create_namespace("db")
        catalog.create_table("db.seen", COLUMNS)

    def new_sink(self) -> Sink:
        return IcebergSink("rest", "db.seen", properties=self.properties, key=self.key)

    def rows(self) -> list[tuple[str, int]]:
        rows = load_catalog("rest", **self.properties).load_table("db.seen").scan().to_arrow()
        return [(row["word"], row["n"]) for row in rows.to_pylist()]

    @contextmanager
    def away(self) -> Iterator[None]:
        RestTable.server.is_away = True
        try:
            yield
        finally:
            RestTable.server.is_away = False


@pytest.fixture
def server(tmp_path: Path) -> Iterator[IcebergRestServer]:
    (tmp_path / "behind").mkdir()
    with IcebergRestServer(tmp_path / "behind") as serving:
        RestTable.server = serving
        yield serving


class TestIcebergBehindRest(SinkContract):
    @pytest.fixture
    def sink_backend(self, server: IcebergRestServer) -> SinkBackend:
        return RestTable(server.uri)


@pytest.mark.parametrize("key", [(), ("word", "n")], ids=["adds", "puts"])
@pytest.mark.parametrize("how", ["refused", "lost"])
def test_a_catalog_that_fails_at_any_request_of_a_commit_shows_each_row_once(
    server: IcebergRestServer, tmp_path: Path, how: Any, key: tuple[str, ...]
) -> None:
    """Once it answers again at once, once not before the commit has given up."""
    backend = RestTable(server.uri, key)
    stage = SinkStage(backend.new_sink(), tmp_path, incarnation="1" * 32)
    stage.prepare()
    before = len(server.requests)
    stage.commit(stage.write(1, [("kelp", 1)]))
    asked, epoch = server.requests[before:], 1
    assert any(request.startswith("POST /v1/namespaces/db/tables/seen") for request in asked)
    for number in range(len(asked)):
        for stays_away in (False, True):
            epoch += 1
            entries, left = stage.write(epoch, [("kelp", epoch)]), number

            def strike(request: str) -> Any:
                nonlocal left
                left -= 1
                return how if left == -1 or (left < -1 and stays_away) else None  # noqa: B023 - called before it changes

            server.strike = strike
            with suppress(HoldfastError):
                stage.commit(entries)
            server.strike = lambda request: None
            stage.commit(entries, is_recovered=True)
            assert sorted(backend.rows()) == [("kelp", n + 1) for n in range(epoch)], f"{how} at {asked[number]}"


def test_a_table_is_made_behind_rest_and_the_marker_is_a_property(server: IcebergRestServer, tmp_path: Path) -> None:
    sink = IcebergSink("rest", "db.t", properties={"type": "rest", "uri": server.uri}, partition_by="day(at)",
                       create_table=True)  # fmt: skip
    program = EpochProgram()
    program.source("in", "word string, at timestamp").sink_to(sink).uid("out")
    program.run(tmp_path / "job", [{"in": [("kelp", None)]}, {"in": [("rock", None)]}])
    table = server.catalog.load_table("db.t")
    [marker] = [name for name in table.properties if name.startswith("holdfast.")]
    assert table.properties[marker] == "2"
    assert sorted(table.scan().to_arrow()["word"].to_pylist()) == ["kelp", "rock"]
