"""Tables that their own tools clean up: what was replaced goes, and what a job still needs stays."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from holdfast.datastream.connectors.delta import DeltaSink
from holdfast.datastream.connectors.iceberg import IcebergSink
from holdfast.datastream.connectors.table_files import TableDirectory
from holdfast.testing.sink_contract import SinkStage

COUNTS = "word string, n bigint"
MONTH = timedelta(days=30).total_seconds()


class Cleaned:
    """A table, and the tools that clean it up."""

    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "staging").mkdir(parents=True)
        sink = self.sink()
        self.stage = SinkStage(sink, place / "staging", COUNTS, incarnation="1" * 12)
        sink.check_input(self.stage.type)
        self.stage.prepare()

    def sink(self) -> Any:
        raise NotImplementedError

    def directory(self) -> Path:
        raise NotImplementedError

    def rows(self) -> list[tuple[str, int]]:
        raise NotImplementedError

    def compact(self) -> None:
        """Replaces all files by one."""
        raise NotImplementedError

    def clean(self, age: float = 0) -> None:
        """Deletes what no version names any more, and is so many seconds old."""
        raise NotImplementedError

    def write(self, *epochs: int) -> Any:
        return [entry for epoch in epochs for entry in self.stage.write(epoch, [("kelp", epoch)])]

    def files(self, folder: str) -> list[Path]:
        return sorted(path for path in (self.directory() / folder).rglob("*") if path.suffix in (".parquet", ".staged"))

    def grow_old(self) -> None:
        for folder in ("_holdfast", "data"):
            for path in self.files(folder):
                long_ago = path.stat().st_mtime - MONTH
                os.utime(path, (long_ago, long_ago))


class Delta(Cleaned):
    def sink(self) -> DeltaSink:
        return DeltaSink(self.place / "t", create_table=True)

    def directory(self) -> Path:
        return self.place / "t"

    def rows(self) -> list[tuple[str, int]]:
        found = DeltaTable(self.directory()).to_pyarrow_table().to_pylist()
        return sorted((row["word"], row["n"]) for row in found)

    def compact(self) -> None:
        DeltaTable(self.directory()).optimize.compact()

    def clean(self, age: float = 0) -> None:
        hours = int(age // 3600)
        DeltaTable(self.directory()).vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)


class Iceberg(Cleaned):
    @property
    def table(self) -> Any:
        return load_catalog("test", **self.properties).load_table("db.t")

    @property
    def properties(self) -> dict[str, str]:
        return {"type": "sql", "uri": f"sqlite:///{self.place}/catalog.db", "warehouse": f"file://{self.place}/w"}

    def sink(self) -> IcebergSink:
        return IcebergSink("test", "db.t", properties=self.properties, create_table=True)

    def directory(self) -> Path:
        return Path(self.table.location().removeprefix("file://"))

    def rows(self) -> list[tuple[str, int]]:
        return sorted((row["word"], row["n"]) for row in self.table.scan().to_arrow().to_pylist())

    def compact(self) -> None:
        table = self.table
        table.overwrite(table.scan().to_arrow())

    def clean(self, age: float = 0) -> None:
        """pyiceberg expires snapshots and deletes no file; this is what Iceberg's `remove_orphan_files` does then."""
        self.table.maintenance.expire_snapshots().older_than(datetime.now() + timedelta(days=1)).commit()
        table, latest = self.table, datetime.now().timestamp() - age
        named = {row["file_path"].removeprefix("file://") for row in table.inspect.all_files().to_pylist()}
        for path in self.directory().rglob("*.parquet"):
            is_hidden = any(part[0] in "_." for part in path.relative_to(self.directory()).parts)
            if not is_hidden and str(path) not in named and path.stat().st_mtime <= latest:
                path.unlink()


@pytest.fixture(params=[Delta, Iceberg])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Cleaned:
    made: Cleaned = request.param(tmp_path)
    return made


def seen(last: int) -> list[tuple[str, int]]:
    return [("kelp", epoch) for epoch in range(1, last + 1)]


def test_what_a_compaction_has_replaced_is_deleted_and_old_epochs_are_known_all_the_same(table: Cleaned) -> None:
    epochs = [table.write(epoch) for epoch in (1, 2, 3)]
    for committables in epochs:
        table.stage.commit(committables)
    ours = table.files("data")
    assert len(ours) == 3 and not table.files("_holdfast"), "each file has one name"
    table.compact()
    assert table.rows() == seen(3) and all(path.exists() for path in ours)
    table.clean()
    assert table.rows() == seen(3) and not any(path.exists() for path in ours)
    for committables in epochs:
        table.stage.commit(committables, is_recovered=True)
    table.stage.commit(table.write(4))
    assert table.rows() == seen(4)


def test_what_the_table_names_stays_and_old_versions_can_be_read(tmp_path: Path) -> None:
    table = Delta(tmp_path)
    for epoch in (1, 2, 3):
        table.stage.commit(table.write(epoch))
    table.clean()
    assert table.rows() == seen(3)
    table.compact()
    table.clean(MONTH)
    assert DeltaTable(table.directory(), version=2).to_pyarrow_table().num_rows == 2


def test_what_is_staged_stays_though_the_job_is_down_for_a_month(table: Cleaned) -> None:
    committables = table.write(1)
    table.grow_old()
    table.clean()
    table.stage.commit(committables, is_recovered=True)
    assert table.rows() == seen(1)


def test_a_commit_takes_no_file_that_is_old_enough_to_be_cleaned_up(table: Cleaned) -> None:
    committables = table.write(1)
    table.grow_old()
    with dies("require_complete"):
        table.stage.commit(committables)
    [path] = table.files("data")
    table.clean(MONTH / 2)
    assert path.exists()


def test_who_dies_before_the_commit_and_comes_back_long_after_finds_the_file(table: Cleaned) -> None:
    committables = table.write(1)
    with dies("require_complete"):
        table.stage.commit(committables)
    assert len(table.files("data")) == len(table.files("_holdfast")) == 1
    table.grow_old()
    table.clean()
    assert not table.files("data"), "no version names it, and nobody knows that one will"
    table.stage.commit(committables, is_recovered=True)
    assert table.rows() == seen(1) and not table.files("_holdfast")


@pytest.mark.parametrize("comes_back", [True, False])
def test_who_dies_after_the_commit_leaves_a_name_that_the_next_one_or_a_sweep_takes_away(
    table: Cleaned, comes_back: bool
) -> None:
    committables = table.write(1)
    with dies("release"):
        table.stage.commit(committables)
    assert len(table.files("_holdfast")) == 1
    if comes_back:
        table.stage.commit(committables, is_recovered=True)
    else:
        assert table.stage.sweep(lambda name: True) == 1
    assert table.rows() == seen(1) and not table.files("_holdfast")


def test_files_of_earlier_releases_stay_where_they_are(table: Cleaned) -> None:
    """One that an earlier driver has renamed before it died, and one that is in the table."""
    committables = table.write(1)
    [staged] = table.files("_holdfast")
    staged.rename(staged.with_suffix(".parquet"))
    table.stage.commit(committables, is_recovered=True)
    assert table.rows() == seen(1) and not table.files("data")
    table.stage.commit(table.write(2))
    table.clean()
    assert table.rows() == seen(2) and len(table.files("_holdfast")) == len(table.files("data")) == 1


def test_a_file_system_without_links_moves_files(table: Cleaned, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise OSError(errno.EPERM, "no links here")

    committables = table.write(1)
    monkeypatch.setattr(os, "link", refused)
    table.stage.commit(committables)
    assert table.rows() == seen(1) and not table.files("_holdfast")
    assert pq.read_table(table.files("data")[0]).select(["n"]).equals(pa.table({"n": [1]}))


@contextmanager
def dies(method: str) -> Iterator[None]:
    """A driver that ends when it comes to a step of a commit."""

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TableDirectory, method, die)
        yield
