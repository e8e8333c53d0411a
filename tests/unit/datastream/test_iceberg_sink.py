"""Jobs whose rows go into an Iceberg table in a catalog of SQL, judged by what pyiceberg and Polars read from it."""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from holdfast.datastream.connectors.iceberg import IcebergSink
from holdfast.datastream.connectors.table_files import IDENTITY
from holdfast.errors import ConfigurationError, HoldfastError, JobExecutionError, StorageError
from holdfast.storage.local import LocalFileSystem
from holdfast.testing import EpochProgram
from holdfast.testing.sink_contract import SinkStage
from tests.stories.iceberg_rest import IcebergRestServer

# Without the package polars_iceberg, Polars lets pyiceberg say which files there are, and warns; it reads them itself.
pytestmark = pytest.mark.filterwarnings("ignore:Iceberg scan planning")

COUNTS = "word string, n bigint"
SCHEMA = pa.schema([("word", pa.string()), ("n", pa.int64())])
INCARNATION = "1" * 12


class Warehouse:
    """A catalog of SQL and its tables below one directory."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.properties = {"type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": f"file://{path}"}

    def sink(self, **settings: Any) -> IcebergSink:
        return IcebergSink("test", "db.t", properties=self.properties, **settings)

    def catalog(self) -> Catalog:
        return load_catalog("test", **self.properties)

    def table(self) -> Table:
        return self.catalog().load_table("db.t")

    def make(self, schema: pa.Schema = SCHEMA, **settings: Any) -> Table:
        self.catalog().create_namespace_if_not_exists("db")
        return self.catalog().create_table("db.t", schema, **settings)

    def append(self, word: str, n: int) -> None:
        self.table().append(pa.table({"word": [word], "n": [n]}))

    def rows(self) -> list[tuple[Any, ...]]:
        """What is in the table, as two readers agree; `test_tables_in_duckdb.py` has a third."""
        table = self.table()
        found = [tuple(row.values()) for row in table.scan().to_arrow().to_pylist()]
        by_polars = polars.scan_iceberg(table.metadata_location, reader_override="native").collect().rows()
        assert sorted(map(repr, by_polars)) == sorted(map(repr, found))
        return sorted(found, key=repr)


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(tmp_path / "warehouse")


@pytest.fixture(params=["sql", pytest.param("rest", marks=pytest.mark.services)])
def any_warehouse(warehouse: Warehouse, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Warehouse]:
    if request.param == "sql":
        yield warehouse
        return
    with IcebergRestServer(tmp_path / "warehouse") as server:
        warehouse.properties = {"type": "rest", "uri": server.uri}
        yield warehouse


def run(sink: IcebergSink, place: Path, columns: str, *epochs: list[Any], **settings: Any) -> None:
    program = EpochProgram()
    program.source("in", columns).sink_to(sink).uid("out")
    program.run(place / "job", [{"in": rows} for rows in epochs], source_tasks=1, **settings)


def prepared(warehouse: Warehouse, staging: Path, columns: str = COUNTS, **settings: Any) -> SinkStage:
    sink = warehouse.sink(create_table=True, **settings)
    staging.mkdir()
    stage = SinkStage(sink, staging, columns, incarnation=INCARNATION)
    sink.check_input(stage.type)
    stage.prepare()
    return stage


def meanwhile(monkeypatch: pytest.MonkeyPatch, *deeds: Callable[[], Any]) -> list[Callable[[], Any]]:
    """Does one of these between look and commit of each who commits, until none is left; returns those that are."""
    begin, left = Table.transaction, list(deeds)

    def be_overtaken(table: Table) -> Any:
        transaction = begin(table)
        if left:
            with pytest.MonkeyPatch.context() as undisturbed:
                undisturbed.setattr(Table, "transaction", begin)
                left.pop(0)()
        return transaction

    monkeypatch.setattr(Table, "transaction", be_overtaken)
    return left


def test_an_epoch_is_one_snapshot_and_its_number_a_property(warehouse: Warehouse, tmp_path: Path) -> None:
    run(warehouse.sink(create_table=True), tmp_path, COUNTS, [("kelp", 1), ("rock", 1)], [], [("kelp", 2)])
    assert warehouse.rows() == [("kelp", 1), ("kelp", 2), ("rock", 1)]
    assert len(warehouse.table().snapshots()) == 2
    [marker] = [name for name in warehouse.table().properties if name.startswith("holdfast.")]
    assert marker.endswith(".out") and warehouse.table().properties[marker] == "3"
    assert "commit.retry.num-retries" not in warehouse.table().properties


def test_partitions_by_columns_and_times(warehouse: Warehouse, tmp_path: Path) -> None:
    columns = "word string, at timestamp, n bigint"
    days = [datetime.datetime(2026, 11, day, 23, 59, 59, 999999, tzinfo=datetime.UTC) for day in (1, 2)]
    long = "a word of more than sixteen letters, " * 4
    rows = [
        ("kelp", days[0], 1), ("kelp", days[1], 2), ("kelp", days[0].replace(hour=0), 3), (None, None, 4),
        ("a/b c%=é", days[0], 5), (long, days[1], 6), (long + "x", days[1], 7),
        ("old", datetime.datetime(1969, 12, 31, 23, tzinfo=datetime.UTC), 8),
    ]  # fmt: skip
    run(warehouse.sink(partition_by=["word", "day(at)"], create_table=True), tmp_path, columns, rows)
    assert sorted(row[2] for row in warehouse.rows()) == [row[2] for row in rows]
    assert {row[2]: row for row in warehouse.rows()}[5][0] == "a/b c%=é"
    assert len(warehouse.table().inspect.partitions()) == 7
    for condition, count in (("word = 'kelp'", 3), ("at < '2026-11-02T00:00:00+00:00'", 4), (f"word = '{long}'", 1)):
        assert warehouse.table().scan(row_filter=condition).to_arrow().num_rows == count


def test_two_leaders_that_find_their_epoch_missing_add_it_once(
    warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library alone would try again on the newer snapshot, and add the files a second time."""
    stage = prepared(warehouse, tmp_path / "staged")
    entries = stage.write(1, [("kelp", 1)])
    left = meanwhile(monkeypatch, lambda: stage.commit(entries, is_recovered=True))
    stage.commit(entries, is_recovered=True)
    assert not left and warehouse.rows() == [("kelp", 1)]
    assert len(warehouse.table().snapshots()) == 1


def test_others_may_write_between_look_and_commit(
    warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = prepared(warehouse, tmp_path / "staged")
    left = meanwhile(monkeypatch, *[lambda: warehouse.append("other", 0)] * 2)
    stage.commit(stage.write(1, [("kelp", 1)]))
    assert not left and warehouse.rows() == [("kelp", 1), ("other", 0), ("other", 0)]


def test_others_may_change_the_table_between_look_and_put(
    warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written anew was read before the others have changed it, so it is read again."""
    stage = prepared(warehouse, tmp_path / "staged", key="word")
    stage.commit(stage.write(1, [("kelp", 1), ("rock", 1)]))
    deeds = lambda: warehouse.append("other", 0), lambda: warehouse.table().delete("word = 'rock'")
    left = meanwhile(monkeypatch, *deeds)
    stage.commit(stage.write(2, [("kelp", 2), ("sand", 2)]))
    assert not left and warehouse.rows() == [("kelp", 2), ("other", 0), ("sand", 2)]


@pytest.mark.parametrize("before", [[], [("kelp", 1)]], ids=["an empty table", "a table"])
@pytest.mark.parametrize("later", ["-D -D", "+I -D"], ids=["nothing", "something"])
def test_a_leader_that_wakes_in_an_epoch_that_changes_nothing_does_not_set_the_number_back(
    any_warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: list[Any], later: str
) -> None:
    """If the next two epochs change nothing either, nothing of the table but its number says that they are there."""
    columns, warehouse = f"{COUNTS}, kind string", any_warehouse
    stage = prepared(warehouse, tmp_path / "staged", columns, key="word", row_kind="kind")
    for row in before:
        stage.commit(stage.write(1, [(*row, "+I")]))
    epochs = [stage.write(epoch, [("rock", epoch, kind)]) for epoch, kind in enumerate(["-D", *later.split()], 2)]

    def be_overtaken() -> None:
        for entries in epochs:
            stage.commit(entries, is_recovered=True)

    left = meanwhile(monkeypatch, be_overtaken)
    stage.commit(epochs[0], is_recovered=True)
    warehouse.append("rock", 0)
    for entries in epochs:
        stage.commit(entries, is_recovered=True)
    assert not left and warehouse.rows() == [*before, ("rock", 0)]


@pytest.mark.parametrize("key", ["", "word"])
def test_the_number_outlives_the_expiry_of_snapshots(warehouse: Warehouse, tmp_path: Path, key: str) -> None:
    stage = prepared(warehouse, tmp_path / "staged", key=[key] if key else ())
    epochs = [stage.write(epoch, [("kelp", epoch)]) for epoch in (1, 2, 3)]
    for entries in epochs:
        stage.commit(entries)
    table = warehouse.table()
    table.maintenance.expire_snapshots().older_than(datetime.datetime.now() + datetime.timedelta(days=1)).commit()
    assert len(warehouse.table().snapshots()) == 1
    for entries in epochs:
        stage.commit(entries, is_recovered=True)
    assert warehouse.rows() == ([("kelp", 3)] if key else [("kelp", 1), ("kelp", 2), ("kelp", 3)])


def test_a_file_that_is_gone_or_cut_is_refused_before_it_breaks_the_table(warehouse: Warehouse, tmp_path: Path) -> None:
    stage = prepared(warehouse, tmp_path / "staged")
    for epoch, damage in ((1, lambda file: file.unlink()), (2, lambda file: file.write_bytes(b"PAR1"))):
        entries = stage.write(epoch, [("kelp", epoch)])
        file = Path(entries[0]["value"]["path"], entries[0]["value"]["staged"])
        whole = file.read_bytes()
        damage(file)
        with pytest.raises(ConfigurationError, match=r"is missing, and|has 4 bytes instead of"):
            stage.commit(entries)
        file.write_bytes(whole)
        stage.commit(entries, is_recovered=True)
        assert warehouse.rows()[-1] == ("kelp", epoch)


def test_columns_are_added_when_that_is_asked_for(warehouse: Warehouse, tmp_path: Path) -> None:
    run(warehouse.sink(create_table=True), tmp_path, COUNTS, [("kelp", 1)])
    wider = "word string, n bigint, place string"
    rows = [("kelp", 1, "x")], [("rock", 2, "sea")]
    with pytest.raises(ConfigurationError, match=r"has no columns \['place'\].*add_columns=True"):
        run(warehouse.sink(), tmp_path, wider, *rows)
    run(warehouse.sink(add_columns=True), tmp_path, wider, *rows)
    run(warehouse.sink(), tmp_path, COUNTS, [], [], [("sand", 3)])
    assert warehouse.rows() == [("kelp", 1, None), ("rock", 2, "sea"), ("sand", 3, None)]


def test_columns_are_added_to_a_table_with_a_key_that_is_partitioned(warehouse: Warehouse, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"key": "word", "partition_by": "n"}
    run(warehouse.sink(create_table=True, **settings), tmp_path, COUNTS, [("kelp", 1), ("rock", 1)])
    wider = "word string, n bigint, place string"
    rows = [("kelp", 1, "x"), ("rock", 1, "x")], [("rock", 2, "sea"), ("sand", 1, "sky")]
    run(warehouse.sink(add_columns=True, **settings), tmp_path, wider, *rows)
    assert warehouse.rows() == [("kelp", 1, None), ("rock", 2, "sea"), ("sand", 1, "sky")]


def test_a_table_made_anew_where_a_dropped_one_was_takes_the_rows_of_a_new_job(
    warehouse: Warehouse, tmp_path: Path
) -> None:
    """The catalog forgets a table that is dropped, and its directory does not."""
    run(warehouse.sink(create_table=True), tmp_path, COUNTS, [("kelp", 1)])
    warehouse.catalog().drop_table("db.t")
    run(warehouse.sink(create_table=True), tmp_path / "another", COUNTS, [("rock", 1)])
    assert warehouse.rows() == [("rock", 1)]


@pytest.mark.parametrize("is_written", [False, True])
def test_who_dies_while_the_directory_of_a_dropped_table_gets_a_new_name_is_followed_by_one_who_goes_on(
    warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    run(warehouse.sink(create_table=True), tmp_path, COUNTS, [("kelp", 1)])
    warehouse.catalog().drop_table("db.t")
    write = LocalFileSystem.write_atomic

    def dies(fs: LocalFileSystem, path: str, content: Any) -> None:
        if path.endswith(f"/{IDENTITY}"):
            if is_written:
                write(fs, path, content)
            raise StorageError("the answer never came")
        write(fs, path, content)

    with monkeypatch.context() as patched:
        patched.setattr(LocalFileSystem, "write_atomic", dies)
        with pytest.raises(HoldfastError, match="the answer never came"):
            run(warehouse.sink(create_table=True), tmp_path / "another", COUNTS, [("rock", 1)])
    run(warehouse.sink(create_table=True), tmp_path / "another", COUNTS, [("rock", 1)])
    assert warehouse.rows() == [("rock", 1)]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            [("word", pa.string()), ("n", pa.int32())],
            "'n' of the Iceberg table 'db.t' is int32, and that of the stream",
        ),
        ([*SCHEMA, pa.field("id", pa.int64(), nullable=False)], r"needs values for \['id'\]"),
        (None, "no Iceberg table 'db.t' .*create_table=True"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_by_name(
    warehouse: Warehouse, tmp_path: Path, schema: Any, message: str
) -> None:
    if schema is not None:
        warehouse.make(pa.schema(schema))
    with pytest.raises(ConfigurationError, match=message):
        run(warehouse.sink(), tmp_path, COUNTS, [("kelp", 1)])


def test_a_table_that_is_partitioned_otherwise_is_refused(warehouse: Warehouse, tmp_path: Path) -> None:
    with warehouse.make().update_spec() as spec:
        spec.add_field("word", "bucket[4]", "b")
    with pytest.raises(ConfigurationError, match=r"partitioned by bucket\[4\]\(word\)"):
        run(warehouse.sink(), tmp_path, COUNTS, [("kelp", 1)])


def test_another_table_of_the_name_is_refused_and_the_catalog_may_be_away(warehouse: Warehouse, tmp_path: Path) -> None:
    run(warehouse.sink(create_table=True), tmp_path, COUNTS, [("kelp", 1)])
    warehouse.catalog().drop_table("db.t")
    with pytest.raises(JobExecutionError, match="found no table"):
        run(warehouse.sink(create_table=True), tmp_path, COUNTS, [("kelp", 1)], [("kelp", 2)])
    warehouse.make()
    with pytest.raises(JobExecutionError, match="is not the one that the job writes into"):
        run(warehouse.sink(create_table=True), tmp_path, COUNTS, [("kelp", 1)], [("kelp", 2)])


def test_a_small_integer_is_an_integer_and_a_row_that_lacks_a_value_is_refused(
    warehouse: Warehouse, tmp_path: Path
) -> None:
    warehouse.make(pa.schema([pa.field("word", pa.string(), nullable=False), ("n", pa.int32())]))
    run(warehouse.sink(), tmp_path, "word string, n smallint", [("kelp", 1)])
    with pytest.raises(JobExecutionError, match="'word' is null; the table requires it"):
        run(warehouse.sink(), tmp_path, "word string, n smallint", [("kelp", 1)], [(None, 2)])
    assert warehouse.rows() == [("kelp", 1)]


def test_keys_of_the_catalog_stay_in_the_driver(tmp_path: Path) -> None:
    properties = {"type": "rest", "uri": "https://ada:s3cret@host/", "token": "s3cret"}
    sink = IcebergSink("prod", "db.t", properties=properties)
    assert b"s3cret" not in pickle.dumps(sink) and "s3cret" not in repr(vars(sink))
    with pytest.raises(JobExecutionError) as caught:
        program = EpochProgram()
        program.source("in", COUNTS).sink_to(sink)
        program.run(tmp_path, [])
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        (("test", "t"), {}, "'namespace.table', not 't'"),
        (("test", "db.t"), {"partition_by": "bucket(n)"}, "such as 'day"),
        (("test", "db.t"), {"partition_by": "nothing"}, "'nothing' is no column of the stream"),
        (("test", "db.t"), {"partition_by": "day(word)"}, "'word' is string"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        EpochProgram().source("in", COUNTS).sink_to(IcebergSink(*arguments, **settings))


CHANGED = "a string, b int, n bigint, kind string"


def test_rows_are_put_and_deleted_by_a_key_of_several_columns(warehouse: Warehouse, tmp_path: Path) -> None:
    sink = warehouse.sink(key=["a", "b"], row_kind="kind", partition_by="a", create_table=True)
    first = [("x", 1, 10, "+I"), ("x", 2, 20, "+I"), ("y", 1, 30, "+I"), ("x", 1, 11, "+U")]
    second = [("x", 2, 20, "-D"), ("y", 1, 31, "-U"), ("z", 9, 31, "+U"), ("nobody", 0, 0, "-D")]
    run(sink, tmp_path, CHANGED, first, second, [("x", 1, 12, "+U")])
    assert warehouse.rows() == [("x", 1, 12), ("z", 9, 31)]
    assert warehouse.table().schema().column_names == ["a", "b", "n"]


def test_of_two_leaders_one_puts_the_rows_of_an_epoch_and_a_lost_answer_is_found_out(
    warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one commits this epoch and the next between look and commit; then an answer is lost."""
    stage = prepared(warehouse, tmp_path / "staged", key="word")
    first, second = stage.write(1, [("kelp", 1), ("rock", 1)]), stage.write(2, [("kelp", 2)])
    left = meanwhile(monkeypatch, lambda: stage.commit(first + second, 2, is_recovered=True))
    stage.commit(first, is_recovered=True)
    assert not left and warehouse.rows() == [("kelp", 2), ("rock", 1)]

    commit, lost = SqlCatalog.commit_table, []

    def lose(catalog: Any, *arguments: Any) -> Any:
        answer = commit(catalog, *arguments)
        if not lost:
            lost.append(True)
            raise OSError("the answer is lost")
        return answer

    monkeypatch.setattr(SqlCatalog, "commit_table", lose)
    third = stage.write(3, [("kelp", 3), ("sand", 1)])
    stage.commit(third, 3)
    assert lost
    stage.commit(third, 3, is_recovered=True)
    assert warehouse.rows() == [("kelp", 3), ("rock", 1), ("sand", 1)]


def test_a_key_must_be_there_and_comparable(warehouse: Warehouse, tmp_path: Path) -> None:
    program = EpochProgram()
    with pytest.raises(ConfigurationError, match="cannot use 'x' as key, because it is double"):
        program.source("in", "x double").sink_to(warehouse.sink(key="x"))
    with pytest.raises(JobExecutionError, match="got a row without a key: 'word' is null"):
        run(warehouse.sink(key="word", create_table=True), tmp_path, COUNTS, [(None, 1)])
