"""An epoch whose files are committed in parts: no row is lost or shown twice, or the commit is refused by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from adbc_driver_manager.dbapi import Connection
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from holdfast.datastream import ParquetFileSink
from holdfast.datastream.connectors.database import DatabaseSink
from holdfast.datastream.connectors.database.database_committer import DatabaseCommitter
from holdfast.datastream.connectors.database.dialect import SQLite
from holdfast.datastream.connectors.delta import DeltaSink
from holdfast.datastream.connectors.iceberg import IcebergSink
from holdfast.datastream.sinks.driver_sinks import ForEachEpochSink
from holdfast.datastream.sinks.staged_files import name_of
from holdfast.errors import ConfigurationError, HoldfastError, StorageError
from holdfast.runtime.function.sink import CommitRequest, Committer, Sink
from holdfast.testing import EpochProgram
from holdfast.testing.sink_contract import SinkStage
from tests.stories.databases import Database, of_postgres, sqlite_in
from tests.stories.parts import InParts, PartCommitter, one_by_one

SUBTASKS = 4
ROWS = [(f"word-{subtask}", subtask) for subtask in range(SUBTASKS)]


class Target:
    """A target in a directory, with the sinks that write to it."""

    def __init__(self, kind: str, place: Path, database: Database | None = None) -> None:
        self.kind, _, keyed = kind.partition(" ")
        self.database = database or sqlite_in(place)
        self.key: dict[str, Any] = {"key": "word"} if keyed else {}
        self.out = place / "out"
        catalog = {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": f"file://{place}/tables"}
        self.properties = catalog

    def sink(self) -> Sink:
        if self.kind == "files":
            return ParquetFileSink(self.out)
        if self.kind == "delta":
            return DeltaSink(self.out, create_table=True, **self.key)
        if self.kind == "iceberg":
            return IcebergSink("prod", "db.t", properties=self.properties, create_table=True, **self.key)
        return DatabaseSink(self.database.uri, "t", create_table=True, **self.key)

    def rows(self) -> list[tuple[str, int]]:
        if self.kind == "files":
            tables = [pq.ParquetFile(file).read() for file in self.out.glob("*.parquet")]
            return [(row["word"], row["n"]) for table in tables for row in table.to_pylist()]
        if self.kind in DATABASES:
            return [(word, n) for word, n in self.database.ask("select word, n from t")]
        table = DeltaTable(self.out).to_pyarrow_table() if self.kind == "delta" else self.iceberg().scan().to_arrow()
        return [(row["word"], row["n"]) for row in table.to_pylist()]

    def iceberg(self) -> Any:
        return load_catalog("prod", **self.properties).load_table("db.t")

    def forget_names(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Leave what an older release has recorded: the number of the epoch alone."""
        if self.kind == "iceberg":
            [name] = [name for name in self.iceberg().properties if name.startswith("holdfast-files.")]
            with self.iceberg().transaction() as transaction:
                transaction.remove_properties(name)
        elif self.kind in DATABASES:
            self.database.ask("delete from holdfast_ledger_files")
        else:
            real = DeltaTable.history
            own = "holdfast."
            monkeypatch.setattr(
                DeltaTable, "history", lambda *a: [{k: v for k, v in c.items() if own not in k} for c in real(*a)]
            )


DATABASES = ("sqlite", "postgres")
KINDS = ["files", *(f"{kind}{key}" for kind in ("delta", "iceberg", *DATABASES) for key in ("", " by key"))]


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    is_postgres = request.param.startswith("postgres")
    return Target(
        request.param, tmp_path, of_postgres(request.getfixturevalue("postgres_server")) if is_postgres else None
    )


def staged(target: Target, wrap: Callable[[Sink], Any] = lambda sink: sink, epoch: int = 1) -> tuple[SinkStage, Any]:
    stage = SinkStage(target.sink(), target.out.parent, incarnation="abcdef123456")
    stage.sink.check_input(stage.type)
    stage.prepare()
    entries = [entry for subtask, row in enumerate(ROWS) for entry in stage.write(epoch, [row], subtask)]
    stage.sink = wrap(stage.sink)
    return stage, entries


def unwrap(stage: SinkStage) -> None:
    sink: Any = stage.sink
    stage.sink = sink.inner


def test_a_committer_that_forwards_requests_one_by_one_commits_all(target: Target) -> None:
    stage, entries = staged(target, lambda sink: InParts(sink, one_by_one))
    for is_recovered in (False, True, True):
        stage.commit(entries, is_recovered=is_recovered)
        assert sorted(target.rows()) == ROWS


def test_a_committer_killed_between_two_parts_commits_the_rest_after_its_restart(target: Target) -> None:
    for part in range(1, SUBTASKS):

        def dying(inner: Committer, requests: Sequence[CommitRequest], part: int = part) -> None:
            inner.commit(requests[:part])
            raise StorageError("the process dies")

        stage, entries = staged(target, lambda sink: InParts(sink, dying), epoch=part)
        with pytest.raises(StorageError):
            stage.commit(entries)
        unwrap(stage)
        for _ in range(2):
            stage.commit(entries, is_recovered=True)
        assert set(Counter(target.rows()).values()) == {1 if target.key else part}
        assert sorted(set(target.rows())) == ROWS


class DiedError(BaseException):
    """The end of a process: nothing after it runs."""


def end_commit_of(part: int, moment: str, patch: pytest.MonkeyPatch) -> None:
    """Let a process die at the commit of a part, or get no answer to it."""
    record, commit = DatabaseCommitter._record_names, Connection.commit
    left = [part]
    is_of_part = [False]

    def recorded(*arguments: Any) -> None:
        record(*arguments)
        is_of_part[0] = True
        left[0] -= 1

    def committed(connection: Any) -> None:
        is_last = is_of_part[0] and not left[0]
        is_of_part[0] = False
        if not is_last or moment != "dies before":
            commit(connection)
        if is_last:
            raise (OSError("no answer") if moment == "never hears of" else DiedError)

    patch.setattr(DatabaseCommitter, "_record_names", recorded)
    patch.setattr(Connection, "commit", committed)


@pytest.mark.parametrize("moment", ["dies before", "dies after", "never hears of"])
def test_names_and_rows_of_a_part_are_in_one_transaction(
    target: Target, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A process dies before or after each commit of a connection, or gets no answer and tries again."""
    if target.kind not in DATABASES:
        pytest.skip("only databases have transactions over a connection")
    for part in range(1, SUBTASKS + 1):
        stage, entries = staged(target, lambda sink: InParts(sink, one_by_one), epoch=part)
        with monkeypatch.context() as patch, suppress(DiedError):
            end_commit_of(part, moment, patch)
            stage.commit(entries)
        if moment != "never hears of" and not target.key:
            committed = part if moment == "dies after" else part - 1
            assert len(target.rows()) == SUBTASKS * (part - 1) + committed
        for _ in range(2):
            stage.commit(entries, is_recovered=True)
            assert sorted(target.rows()) == sorted(ROWS * (1 if target.key else part))
        [(epoch, names)] = target.database.ask("select epoch, names from holdfast_ledger_files")
        assert epoch == part
        assert sorted(names.split()) == sorted(name_of(entry["value"]) for entry in entries)


def test_a_committer_that_delays_one_request_commits_it_in_the_next_attempt(target: Target) -> None:
    def gated(inner: Committer, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            if request.subtask == 2 and not request.number_of_retries:
                request.retry_later()
        inner.commit([request for request in requests if request.answer != "retry"])

    stage, entries = staged(target, lambda sink: InParts(sink, gated))
    stage.commit(entries)
    assert sorted(target.rows()) == ROWS


def test_an_epoch_committed_by_an_older_leader_with_fewer_files_gets_the_others(target: Target) -> None:
    """As in releases whose ledgers named only what a call was offered."""
    stage, entries = staged(target)
    stage.commit(entries[:1])
    assert target.rows() == ROWS[:1]
    with pytest.raises(ConfigurationError, match="two copies of one job directory"):
        stage.commit(entries[1:2], is_recovered=True)
    assert target.rows() == ROWS[:1], "without the others nothing tells it from a copy of the job"
    for _ in range(2):
        stage.commit(entries, is_recovered=True)
        assert sorted(target.rows()) == ROWS
    stage.commit(entries[1:2], is_recovered=True)
    assert sorted(target.rows()) == ROWS


def test_other_files_of_the_same_epoch_are_rejected_as_those_of_a_copied_job(target: Target) -> None:
    stage, entries = staged(target)
    others = [(word, n + 100) for word, n in ROWS]
    copies = [entry for subtask, row in enumerate(others) for entry in stage.write(1, [row], subtask, attempt=2)]
    stage.commit(entries)
    with pytest.raises(ConfigurationError, match=r"two copies of one job directory.*Nothing was committed"):
        stage.commit(copies, is_recovered=True)
    assert sorted(target.rows()) == ROWS


def test_an_epoch_that_an_older_release_has_recorded_without_names_is_committed(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    if target.kind == "files":
        pytest.skip("ledgers of files have named them from the beginning")
    stage, entries = staged(target)
    stage.commit(entries)
    target.forget_names(monkeypatch)
    stage.commit(entries, is_recovered=True)
    assert sorted(target.rows()) == ROWS


def test_staged_files_of_an_earlier_epoch_do_not_count_as_committed(tmp_path: Path) -> None:
    target = Target("files", tmp_path)
    stage, entries = staged(target)
    later = stage.write(2, [("later", 9)])
    stage.commit(entries[:3])
    stage.commit(later)
    with pytest.raises(ConfigurationError, match=r"1 of its files are still staged.*rename each"):
        stage.commit(entries, is_recovered=True)
    (tmp_path / "out" / entries[3]["value"]["staged"]).rename(tmp_path / "out" / entries[3]["value"]["final"])
    stage.commit(entries, is_recovered=True)
    assert sorted(target.rows()) == sorted([*ROWS, ("later", 9)])


def test_a_database_user_without_a_table_of_names_commits_whole_epochs_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite has no rights: a view in the place of the table is refused as a table without them."""
    monkeypatch.setattr(SQLite, "is_refusal", lambda self, error: "because it is a view" in str(error))
    target = Target("sqlite", tmp_path)
    stage, entries = staged(target, lambda sink: InParts(sink, one_by_one))
    target.database.ask("create view holdfast_ledger_files as select 1 as incarnation")
    with pytest.raises(ConfigurationError, match=r"1 of 4 committables of epoch 1.*Nothing of the epoch was committed"):
        stage.commit(entries)
    assert target.rows() == []
    assert "create this table, or grant select, insert and update" in caplog.text
    unwrap(stage)
    for is_recovered in (False, True):
        stage.commit(entries, is_recovered=is_recovered)
        assert sorted(target.rows()) == ROWS


def test_for_each_epoch_never_gets_a_part_of_an_epoch(tmp_path: Path) -> None:
    calls: list[list[Any]] = []
    stage = SinkStage(ForEachEpochSink(lambda frame, epoch: calls.append(frame.to_pylist())), tmp_path)
    entries = [entry for subtask, row in enumerate(ROWS) for entry in stage.write(1, [row], subtask)]
    inner = stage.sink
    stage.sink = InParts(inner, one_by_one)
    with pytest.raises(ConfigurationError, match="for_each_epoch commits an epoch in one call, and was offered 1 of 4"):
        stage.commit(entries)
    assert calls == []
    stage.sink = inner
    stage.commit(entries)
    assert [len(call) for call in calls] == [SUBTASKS]


def test_a_job_whose_sink_wraps_a_sink_of_files_shows_all_rows(tmp_path: Path) -> None:
    """As it was found: all files but the first of each epoch stayed staged, and counted as committed."""

    class Wrapped(ParquetFileSink):
        def create_committer(self, context: Any) -> Committer:
            return PartCommitter(super().create_committer(context), one_by_one)

    program = EpochProgram()
    program.source("in", "id bigint, k string").key_by("k").count().uid("n").sink_to(Wrapped(tmp_path / "out")).uid("o")
    epochs = [{"in": [(20 * epoch + n, f"k{n % 7}") for n in range(20)]} for epoch in range(3)]
    with suppress(HoldfastError):
        program.run(str(tmp_path / "job"), epochs)
    assert sum(pq.ParquetFile(file).metadata.num_rows for file in (tmp_path / "out").glob("*.parquet")) == 60
