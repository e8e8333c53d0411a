"""Columns of Iceberg that get other names, and directories whose names mean something in a URI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.types import LongType, StringType

from holdfast.datastream.connectors.iceberg import IcebergSink, current_names
from holdfast.errors import ConfigurationError
from holdfast.testing import EpochProgram
from holdfast.testing.sink_contract import SinkStage

pytestmark = pytest.mark.filterwarnings("ignore:Iceberg scan planning")

NESTED = "word string, n bigint, l array<struct<n: bigint>>, m map<string, bigint>, s struct<n: bigint>"


class Lake:
    """A catalog of Iceberg in a directory, with one table."""

    def __init__(self, place: Path, location: str | None = None) -> None:
        place.mkdir(parents=True)
        self.properties = {
            "type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": location or f"file://{place}"
        }  # fmt: skip

    def sink(self, **settings: Any) -> IcebergSink:
        return IcebergSink("test", "db.t", properties=self.properties, create_table=True, **settings)

    def table(self) -> Table:
        return SqlCatalog("test", **self.properties).load_table("db.t")

    def rows(self, filtered: str = "word is not null") -> list[dict[str, Any]]:
        """What two readers agree about."""
        found = self.table().scan(row_filter=filtered).to_arrow().to_pylist()
        if filtered == "word is not null":
            by_polars = polars.scan_iceberg(self.table().metadata_location, reader_override="native").collect()
            assert sorted(map(repr, by_polars.to_dicts())) == sorted(map(repr, found))
        return sorted(found, key=repr)

    def give_the_name_away(self) -> None:
        """Calls `n` by another name, and a new column `n`."""
        with self.table().update_schema() as update:
            update.rename_column("n", "before")
        with self.table().update_schema() as update:
            update.add_column("n", LongType())


def run(sink: IcebergSink, place: Path, columns: str, *rows: Any) -> None:
    program = EpochProgram()
    program.source("in", columns).sink_to(sink).uid("out")
    program.run(place, [{"in": rows}], {"sink.committer.retries": 0}, source_tasks=1)


@pytest.mark.parametrize("key", [(), ("word",)], ids=["added", "by key"])
def test_rows_stay_in_the_column_in_which_they_were_written_when_its_name_is_given_away(
    tmp_path: Path, key: tuple[str, ...]
) -> None:
    lake = Lake(tmp_path / "lake")
    run(lake.sink(key=key), tmp_path / "first", "word string, n bigint", ("kelp", 1))
    lake.give_the_name_away()
    run(lake.sink(key=key), tmp_path / "second", "word string, n bigint", ("rock", 2))
    assert lake.rows() == [
        {"word": "kelp", "before": 1, "n": None},
        {"word": "rock", "before": None, "n": 2},
    ]


def test_rows_that_are_staged_when_the_name_is_given_away_are_in_the_column_that_had_it(tmp_path: Path) -> None:
    """Also for a reader that asks statistics which files it can leave out."""
    lake = Lake(tmp_path / "lake")
    run(lake.sink(), tmp_path / "makes it", "word string, n bigint")
    stage = SinkStage(lake.sink(), tmp_path, "word string, n bigint", incarnation="1" * 12)
    stage.prepare()
    staged = stage.write(1, [("kelp", 1)])
    lake.give_the_name_away()
    stage.commit(staged)
    for filtered in ("word is not null", "n is null", "before = 1"):
        assert lake.rows(filtered) == [{"word": "kelp", "before": 1, "n": None}]
    assert lake.rows("n = 1") == []
    assert [field.name for field in lake.table().schema().fields] == ["word", "before", "n"]


class Staged:
    """Changes by key that are staged, into a table that has `kelp` and `rock` already."""

    def __init__(self, place: Path, *rows: Any, columns: str = "n bigint", before: tuple[Any, ...] = (1,)) -> None:
        self.lake = Lake(place / "lake")
        columns = f"word string, {columns}"
        run(self.lake.sink(key="word"), place / "first", columns, ("kelp", *before), ("rock", *before))
        sink = self.lake.sink(key="word", row_kind="kind")
        self._stage = SinkStage(sink, place, f"{columns}, kind string", incarnation="1" * 12)
        self._stage.prepare()
        self._staged = self._stage.write(1, list(rows))

    def rename(self, name: str, to: str, kind: Any) -> None:
        """Calls a column by another name, and a new one by its."""
        with self.lake.table().update_schema() as update:
            update.rename_column(name, to)
        with self.lake.table().update_schema() as update:
            update.add_column(name, kind)

    def commit(self) -> list[dict[str, Any]]:
        self._stage.commit(self._staged)
        return sorted(self.lake.table().scan().to_arrow().to_pylist(), key=repr)


def test_changes_that_are_staged_when_a_name_is_given_away_go_into_the_column_that_had_it(tmp_path: Path) -> None:
    staged = Staged(tmp_path, ("kelp", 2, "+U"), ("rock", None, "-D"), ("sand", 3, "+I"))
    staged.lake.give_the_name_away()
    assert staged.commit() == [{"word": "kelp", "before": 2, "n": None}, {"word": "sand", "before": 3, "n": None}]


def test_changes_find_their_key_in_the_column_that_had_its_name(tmp_path: Path) -> None:
    staged = Staged(tmp_path, ("kelp", 2, "+U"), ("rock", None, "-D"))
    staged.rename("word", "term", StringType())
    assert staged.commit() == [{"term": "kelp", "n": 2, "word": None}]


def test_two_columns_may_exchange_their_names(tmp_path: Path) -> None:
    staged = Staged(tmp_path, ("kelp", 2, 20, "+U"), columns="n bigint, m bigint", before=(1, 10))
    with staged.lake.table().update_schema() as update:
        update.rename_column("n", "x")
    with staged.lake.table().update_schema() as update:
        update.rename_column("m", "n")
    with staged.lake.table().update_schema() as update:
        update.rename_column("x", "m")
    assert staged.commit() == [{"word": "kelp", "m": 2, "n": 20}, {"word": "rock", "m": 1, "n": 10}]


def test_parts_of_changes_stay_in_the_parts_that_had_their_names(tmp_path: Path) -> None:
    parts = "s struct<n: bigint>, l array<struct<n: bigint>>, m map<string, bigint>"
    row = ({"n": 2}, [{"n": 3}], {"x": 4})
    staged = Staged(tmp_path, ("kelp", *row, "+U"), ("rock", None, None, None, "-D"), columns=parts, before=row)
    with staged.lake.table().update_schema() as update:
        update.rename_column(("s", "n"), "before")
    with staged.lake.table().update_schema() as update:
        update.add_column(("s", "n"), LongType())
    assert staged.commit() == [{"word": "kelp", "s": {"before": 2, "n": None}, "l": [{"n": 3}], "m": [("x", 4)]}]


def test_a_partition_whose_column_has_another_name_gets_its_changes(tmp_path: Path) -> None:
    staged = Staged(tmp_path, ("kelp", 2, "+U"), ("sand", 3, "+I"))
    with staged.lake.table().update_spec() as spec:
        spec.add_identity("n")
    with staged.lake.table().update_schema() as update:
        update.rename_column("n", "before")
    assert staged.commit() == [
        {"word": "kelp", "before": 2}, {"word": "rock", "before": 1}, {"word": "sand", "before": 3},
    ]  # fmt: skip


def test_rows_that_an_older_version_has_staged_keep_the_names_of_their_columns(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    run(lake.sink(), tmp_path / "makes it", "word string, n bigint")
    schema = pa.schema([("word", pa.string()), ("n", pa.int64())])
    assert current_names(schema, lake.table().schema().fields) == {"word": "word", "n": "n"}


def test_changes_without_a_column_that_was_dropped_are_there_and_without_their_key_refused(tmp_path: Path) -> None:
    (tmp_path / "value").mkdir()
    staged = Staged(tmp_path / "value", ("kelp", 2, "+U"))
    with staged.lake.table().update_schema() as update:
        update.delete_column("n")
    assert staged.commit() == [{"word": "kelp"}, {"word": "rock"}]
    (tmp_path / "key").mkdir()
    staged = Staged(tmp_path / "key", ("kelp", 2, "+U"))
    with staged.lake.table().update_schema() as update:
        update.delete_column("word")
    with staged.lake.table().update_schema() as update:
        update.add_column("word", StringType())
    with pytest.raises(ConfigurationError, match="has dropped the key column 'word' since rows were"):
        staged.commit()
    assert len(staged.lake.table().scan().to_arrow()) == 2


def test_parts_of_columns_have_ids_too(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    row = ("kelp", 1, [{"n": 2}], {"x": 3}, {"n": 4})
    run(lake.sink(), tmp_path / "first", NESTED, row)
    with lake.table().update_schema() as update:
        update.rename_column(("s", "n"), "before")
    with lake.table().update_schema() as update:
        update.add_column(("s", "n"), LongType())
    [found] = lake.table().scan().to_arrow().to_pylist()
    assert found == {"word": "kelp", "n": 1, "l": [{"n": 2}], "m": [("x", 3)], "s": {"before": 4, "n": None}}


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%20b"])
def test_a_directory_whose_name_may_mean_another_one_is_refused(tmp_path: Path, name: str) -> None:
    lake = Lake(tmp_path / "catalog", f"file://{tmp_path}/{name}")
    with pytest.raises(ConfigurationError, match=r"The location 'file:.* contains [#?%], which clients of Iceberg"):
        lake.sink()


def test_a_directory_with_spaces_and_other_letters_is_one(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "das Meer ü 海")
    run(lake.sink(), tmp_path / "job", "word string, n bigint", ("kelp", 1))
    assert lake.rows() == [{"word": "kelp", "n": 1}]
