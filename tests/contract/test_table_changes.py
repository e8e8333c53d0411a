"""Sinks that apply changes to tables by a key: whatever happens to a commit, the table has each change once.

An epoch changes one row, adds or deletes another, and moves a third from one key to the next, with the two halves of
that update in two tasks. So an epoch that is missing, or there twice, or in the wrong order, is seen.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from adbc_driver_postgresql import dbapi
from deltalake import DeltaTable, Schema, write_deltalake
from pyiceberg.catalog import Catalog, load_catalog

from holdfast.common import Row, RowKind
from holdfast.datastream.connectors.database import DatabaseSink
from holdfast.datastream.connectors.delta import DeltaSink
from holdfast.datastream.connectors.iceberg import IcebergSink
from holdfast.errors import HoldfastError, JobExecutionError
from holdfast.kernel import fault
from holdfast.kernel.ids import JobID
from holdfast.runtime.function.sink import Sink
from holdfast.testing import EpochProgram, SinkBackend
from holdfast.testing.sink_contract import CommitProcess, SinkJob
from holdfast.types.type_parser import to_type

COLUMNS = pa.schema([("word", pa.string()), ("n", pa.int64())])
CHANGES = "changelog<word: string, n: bigint>"
MOMENTS = ("before:sink.commit:2", "after:sink.commit:2", "lost:pointer.write:2", "after:pointer.write:2")
Seen = list[tuple[str, int]]


def change(kind: RowKind, word: str, n: int) -> Row:
    return Row.of_kind(kind, word=word, n=n)


def changes(epoch: int) -> tuple[list[Row], list[Row]]:
    """What two tasks write."""
    first = [change(RowKind.UPDATE_AFTER if epoch > 1 else RowKind.INSERT, "kelp", epoch)]
    if epoch > 1:
        first = [change(RowKind.UPDATE_BEFORE, "kelp", epoch - 1), *first]
        first.append(change(RowKind.UPDATE_BEFORE, f"at {epoch - 1}", epoch - 1))
    second = [change(RowKind.INSERT if epoch % 2 else RowKind.DELETE, "rock", epoch | 1)]
    second.append(change(RowKind.UPDATE_AFTER if epoch > 1 else RowKind.INSERT, f"at {epoch}", epoch))
    return first, second


def table(epoch: int) -> Seen:
    """What is in the table after an epoch."""
    return sorted([("kelp", epoch), (f"at {epoch}", epoch), *([("rock", epoch)] if epoch % 2 else [])])


class ChangedTable(SinkBackend):
    """A table by the key `word`."""

    columns = CHANGES
    steps = 7

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()

    def sink(self) -> Sink:
        raise NotImplementedError

    def others_add(self, word: str, n: int) -> None:
        """Somebody else adds a row."""
        raise NotImplementedError

    def new_sink(self) -> Sink:
        sink = self.sink()
        sink.check_input(to_type(CHANGES))
        return sink

    def away(self) -> Any:
        raise NotImplementedError


class DeltaDirectory(ChangedTable):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        DeltaTable.create(path / "t", Schema.from_arrow(COLUMNS), partition_by=["n"])

    def sink(self) -> Sink:
        return DeltaSink(self.path / "t", key="word")

    def others_add(self, word: str, n: int) -> None:
        write_deltalake(self.path / "t", pa.table({"word": [word], "n": [n]}), mode="append")

    def rows(self) -> Seen:
        return [(row["word"], row["n"]) for row in DeltaTable(self.path / "t").to_pyarrow_table().to_pylist()]


class IcebergWarehouse(ChangedTable):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.properties = {"type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": f"file://{path}"}
        self.catalog().create_namespace("db")
        self.catalog().create_table("db.t", COLUMNS)

    def catalog(self) -> Catalog:
        return load_catalog("test", **self.properties)

    def sink(self) -> Sink:
        return IcebergSink("test", "db.t", properties=self.properties, key="word")

    def others_add(self, word: str, n: int) -> None:
        self.catalog().load_table("db.t").append(pa.table({"word": [word], "n": [n]}))

    def rows(self) -> Seen:
        found = self.catalog().load_table("db.t").scan().to_arrow()
        return [(row["word"], row["n"]) for row in found.to_pylist()]


class SQLiteFile(ChangedTable):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with closing(sqlite3.connect(self.path / "t.db")) as database:
            database.execute("create table t (word text primary key, n integer)")

    def sink(self) -> Sink:
        return DatabaseSink(f"sqlite:///{self.path}/t.db", "t", key="word", lock_timeout=0.02)

    def others_add(self, word: str, n: int) -> None:
        with closing(sqlite3.connect(self.path / "t.db")) as database, database:
            database.execute("insert into t values (?, ?)", (word, n))

    def rows(self) -> Seen:
        with closing(sqlite3.connect(self.path / "t.db")) as database:
            return database.execute("select word, n from t").fetchall()


class PostgresTable(ChangedTable):
    def __init__(self, path: Path, uri: str) -> None:
        super().__init__(path)
        self.uri = uri
        with self.cursor() as cursor:
            cursor.execute("drop table if exists t, holdfast_ledger, holdfast_ledger_identity, holdfast_ledger_files")
            cursor.execute("create table t (word text primary key, n bigint)")

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        with dbapi.connect(self.uri) as connection, connection.cursor() as cursor:
            yield cursor
            connection.commit()

    def sink(self) -> Sink:
        return DatabaseSink(self.uri, "t", key="word", lock_timeout=0.02)

    def others_add(self, word: str, n: int) -> None:
        with self.cursor() as cursor:
            cursor.execute("insert into t values ($1, $2)", (word, n))

    def rows(self) -> Seen:
        with self.cursor() as cursor:
            cursor.execute("select word, n from t")
            return cursor.fetchall()  # type: ignore[no-any-return]


@pytest.fixture(params=["Delta", "Iceberg", "SQLite", pytest.param("Postgres", marks=pytest.mark.services)])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> ChangedTable:
    if request.param == "Postgres":
        return PostgresTable(tmp_path / "out", request.getfixturevalue("postgres_server").uri)
    kinds: dict[str, Callable[[Path], ChangedTable]] = {
        "Delta": DeltaDirectory,
        "Iceberg": IcebergWarehouse,
        "SQLite": SQLiteFile,
    }
    return kinds[request.param](tmp_path / "out")


@pytest.fixture
def job(target: ChangedTable, tmp_path: Path) -> SinkJob:
    staging = tmp_path / "staged by the job"
    staging.mkdir()
    return SinkJob(target, staging)


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    fault.clear()


def write(job: SinkJob, epoch: int) -> Any:
    return job.write(epoch, *changes(epoch))


def on_sand(job: SinkJob, epoch: int, kind: RowKind = RowKind.DELETE) -> Any:
    """A change of a row that no other epoch knows."""
    return job.write(epoch, [change(kind, "sand", epoch)])


def stops(job: SinkJob, target: ChangedTable, second: Callable[[SinkJob, int], Any] = write) -> list[int]:
    """Lines of a commit, spread over all of them; the first two epochs are committed then."""
    job.commit(write(job, 1))
    lines = job.lines(second(job, 2))
    return sorted({1 + step * (lines - 1) // (target.steps - 1) for step in range(target.steps)})


def test_commits_repeated_much_later_change_nothing(job: SinkJob, target: ChangedTable) -> None:
    epochs = [write(job, epoch) for epoch in (1, 2, 3)]
    for last, committables in enumerate(epochs):
        job.commit(committables)
        assert sorted(target.rows()) == table(last + 1)
        for earlier in epochs[: last + 1]:
            job.commit(earlier, is_recovered=True)
            assert sorted(target.rows()) == table(last + 1)


def test_several_epochs_of_one_checkpoint_are_applied_in_their_order(job: SinkJob, target: ChangedTable) -> None:
    committables = write(job, 3) + write(job, 1) + write(job, 2)
    for _ in range(2):
        job.commit(committables, is_recovered=True)
        assert sorted(target.rows()) == table(3)


def test_a_process_that_is_killed_in_a_commit_leaves_work_that_the_next_one_finishes(
    job: SinkJob, target: ChangedTable
) -> None:
    for epoch, line in enumerate(stops(job, target), start=3):
        committables = write(job, epoch)
        process = job.process(committables, line)
        process.answer()
        process.kill()
        job.commit(committables, is_recovered=True)
        assert sorted(target.rows()) == table(epoch), f"killed at line {line} of the commit"


def test_a_process_that_wakes_in_a_commit_when_others_are_two_epochs_further_changes_nothing(
    job: SinkJob, target: ChangedTable
) -> None:
    for epoch, line in zip(range(3, 1000, 2), stops(job, target), strict=False):
        committables, after = write(job, epoch), write(job, epoch + 1)
        process = job.process(committables, line)
        process.answer()
        with suppress(HoldfastError):  # the one that sleeps may hold a lock of the target
            job.commit(committables, is_recovered=True)
            assert sorted(target.rows()) == table(epoch), f"asleep at line {line} of the commit"
            job.commit(after, is_recovered=True)
        process.go_on()
        job.commit(committables, is_recovered=True)
        job.commit(after, is_recovered=True)
        assert sorted(target.rows()) == table(epoch + 1), f"woken at line {line} of the commit"


def test_an_epoch_that_changes_nothing_is_committed_as_well(job: SinkJob, target: ChangedTable) -> None:
    """Whoever repeats it does not delete what others have added since."""
    for epoch in (1, 3):
        committables = on_sand(job, epoch)
        job.commit(committables)
        target.others_add("sand", epoch)
        job.commit(committables, is_recovered=True)
        assert target.rows() == [("sand", epoch)]
        job.commit(on_sand(job, epoch + 1))
        assert target.rows() == []


@pytest.mark.parametrize("then", [RowKind.DELETE, RowKind.INSERT], ids=["nothing", "something"])
def test_a_process_that_wakes_in_an_epoch_of_no_changes_when_others_are_further_changes_nothing(
    job: SinkJob, target: ChangedTable, then: RowKind
) -> None:
    """The two epochs after it change nothing either, or the second takes back what the first has added."""
    for epoch, line in zip(range(3, 1000, 4), stops(job, target, on_sand), strict=False):
        epochs = [on_sand(job, epoch), on_sand(job, epoch + 1, then), on_sand(job, epoch + 2)]

        def commit_all(epochs: list[Any] = epochs) -> bool:
            for committables in epochs:
                job.commit(committables, is_recovered=True)
            return True

        process = job.process(epochs[0], line)
        process.answer()
        are_further = False
        with suppress(HoldfastError):  # the one that sleeps may hold a lock of the target
            are_further = commit_all()
        process.go_on()
        assert are_further or commit_all()
        target.others_add("sand", epoch)
        commit_all()
        assert sorted(target.rows()) == sorted([*table(1), ("sand", epoch)]), f"woken at line {line} of the commit"
        job.commit(on_sand(job, epoch + 3))


def test_processes_that_commit_the_same_at_the_same_time_apply_it_once(job: SinkJob, target: ChangedTable) -> None:
    for epoch in (1, 2, 3):
        committables = write(job, epoch)
        with ThreadPoolExecutor(3) as pool:
            processes = list(pool.map(lambda _, c=committables: job.process(c), range(3)))
            list(pool.map(CommitProcess.answer, processes))
        for process in processes:
            process.kill()
        job.commit(committables, is_recovered=True)
        assert sorted(target.rows()) == table(epoch)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_job_that_dies_and_is_started_again_applies_each_change_once(
    target: ChangedTable, tmp_path: Path, moment: str
) -> None:
    fault.install(f"{moment}=raise")
    with suppress(HoldfastError):
        run(target, tmp_path, 4)
    fault.clear()
    run(target, tmp_path, 4)
    assert sorted(target.rows()) == table(4)


def test_a_job_restored_from_an_older_checkpoint_ends_with_the_same_table(target: ChangedTable, tmp_path: Path) -> None:
    """It applies again what came since, to a table that is further."""
    fault.install("before:sink.commit:5=raise")
    with pytest.raises(JobExecutionError):
        run(target, tmp_path, 5, {"execution.checkpointing.num-retained": "5"})
    fault.clear()
    assert sorted(target.rows()) == table(4)
    place = tmp_path / "checkpoints" / JobID.from_name("job").to_hex()
    older = sorted(place.glob("chk-*"), key=lambda path: int(path.name.partition("-")[2]))[1]
    run(target, tmp_path, 6, {"execution.state-recovery.path": str(older)})
    assert sorted(target.rows()) == table(6)


def run(target: ChangedTable, place: Path, epochs: int, options: dict[str, Any] | None = None) -> None:
    program = EpochProgram()
    rows = program.source("in", CHANGES).map(lambda row: row, CHANGES).uid("same")
    rows.sink_to(target.sink()).uid("out")
    inputs = [{"in": [row for part in changes(epoch) for row in part]} for epoch in range(1, epochs + 1)]
    program.run(place / "checkpoints", inputs, options)
