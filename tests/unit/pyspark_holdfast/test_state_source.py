"""`spark.read.format("holdfast")` without Spark: the types, the partitions and the rows that it would get."""

import datetime
import pickle

import pyarrow as pa
import pytest

from holdfast.errors import ConfigurationError
from holdfast.queryable import ServerSettings, StateServer
from holdfast.queryable.wire.errors import CheckpointNotAvailableError, UnauthorizedError
from holdfast.state.descriptor import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from tests.programs.written_job import WrittenJob

datasource = pytest.importorskip("pyspark.sql.datasource", reason="Spark has data sources in Python since 4.0")
from pyspark_holdfast import DefaultSource  # noqa: E402

DAY = datetime.date(2013, 1, 1)
NOON = datetime.time(12, 0, 0, 1)


def write(n):
    def of(states):
        states.total.update((n, f"x{n}"))
        states.items.update([n, n + 1])
        states.by.put(n, DAY)
        states.at.update((NOON, [NOON, None]))

    return of


@pytest.fixture
def served(tmp_path):
    descriptors = [
        ValueStateDescriptor("total", "struct<n: bigint, s: string>"),
        ListStateDescriptor("items", "bigint"),
        MapStateDescriptor("by", "int", "date"),
        ValueStateDescriptor("at", "struct<of: time, several: array<time>>"),
    ]
    for descriptor in descriptors:
        descriptor.set_queryable(descriptor.name)
    text = WrittenJob(tmp_path, descriptors, name="text")
    text.checkpoint([(f"k{i}", write(i)) for i in range(100)])
    days = WrittenJob(tmp_path, descriptors, "struct<origin: string, day: date>", name="days")
    days.checkpoint([(("EWR", DAY), write(1)), ((None, DAY), write(2))])
    with StateServer(ServerSettings(token="secret", poll=0.01)) as server:
        for job in (text, days):
            server.serve_job(job.directory, job.register)
        yield server, text


def source(server, **options):
    address = "{}:{}".format(*server.get_server_address())
    return DefaultSource({"address": address, "token": "secret", "job": "text", "state": "total", **options})


def rows_of(reader):
    """As Spark does it: the reader and each partition go to another process."""
    reader = pickle.loads(pickle.dumps(reader))
    batches = [batch for part in reader.partitions() for batch in reader.read(pickle.loads(pickle.dumps(part)))]
    return [row for batch in batches for row in batch.to_pylist()]


def test_the_types_come_from_the_server(served):
    server, _ = served
    assert DefaultSource.name() == "holdfast"
    assert source(server).schema().simpleString() == "struct<key:string,value:struct<n:bigint,s:string>>"
    assert source(server, state="items").schema().simpleString() == "struct<key:string,value:array<bigint>>"
    assert source(server, state="by").schema().simpleString() == "struct<key:string,map_key:int,value:date>"
    days = source(server, job="days").schema().simpleString()
    assert days.startswith("struct<key:struct<origin:string,day:date>,value")


def test_all_rows_come_once_from_one_checkpoint_though_another_completes(served):
    server, job = served
    reader = source(server, partitions="3").reader(None)
    parts = reader.partitions()
    assert len(parts) == 3
    job.checkpoint([(f"k{i}", write(1000 + i)) for i in range(100)])
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert {row["key"]: row["value"]["n"] for row in rows} == {f"k{i}": i for i in range(100)}
    assert len(rows) == 100


def test_lists_maps_and_keys_of_several_columns(served):
    server, _ = served
    items = rows_of(source(server, state="items").reader(None))
    assert {row["key"]: row["value"] for row in items}["k7"] == [7, 8]
    entries = rows_of(source(server, state="by").reader(None))
    assert {"key": "k7", "map_key": 7, "value": DAY} in entries
    days = rows_of(source(server, job="days").reader(None))
    assert {"key": {"origin": None, "day": DAY}, "value": {"n": 2, "s": "x2"}} in days


def test_columns_are_exactly_of_the_types_that_spark_was_told(served):
    server, _ = served
    reader = source(server, state="items").reader(None)
    batch = next(batch for part in reader.partitions() for batch in reader.read(part))
    assert batch.schema.field("value").type == pa.list_(pa.field("element", pa.int64()))


def test_filters_go_to_the_server_and_spark_checks_them_again(served):
    server, _ = served
    # Spark refuses readers that take filters unless it was told to push them down.
    assert type(source(server).reader(None)).pushFilters is datasource.DataSourceReader.pushFilters
    reader = source(server, pushdown="true").reader(None)
    filters = [
        datasource.GreaterThanOrEqual(("value", "n"), 90),
        datasource.LessThan(("value", "n"), 93),
        datasource.In(("key",), ("k1", "k90")),
    ]
    assert list(reader.pushFilters(filters)) == filters
    assert sorted(row["key"] for row in rows_of(reader)) == ["k90", "k91", "k92"]
    keyed = source(server, job="days", pushdown="true").reader(None)
    list(keyed.pushFilters([datasource.EqualTo(("key", "origin"), "EWR")]))
    assert len(rows_of(keyed)) == 2


def test_what_is_missing_or_wrong_is_said(served):
    server, _ = served
    with pytest.raises(ConfigurationError, match=r"missing: \['job', 'state'\]"):
        DefaultSource({"address": "127.0.0.1:1"}).schema()
    with pytest.raises(UnauthorizedError):
        source(server, token="wrong").schema()
    with pytest.raises(CheckpointNotAvailableError):
        rows_of(source(server, checkpoint="99").reader(None))


def test_times_of_day_are_texts_since_spark_has_no_columns_of_them(served):
    server, _ = served
    found = source(server, state="at")
    assert found.schema().simpleString() == "struct<key:string,value:struct<of:string,several:array<string>>>"
    rows = rows_of(found.reader(None))
    assert len(rows) == 100
    assert {str(row["value"]) for row in rows} == {str({"of": "12:00:00.000001", "several": ["12:00:00.000001", None]})}
