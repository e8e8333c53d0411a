"""An epoch whose files are committed in parts: no row is lost or shown twice, or the commit is refused by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import adbc_driver_sqlite.dbapi as sqlite
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from holdfast.datastream import ParquetFileSink
from holdfast.datastream.connectors.database import DatabaseSink
from holdfast.datastream.connectors.database.dialect import SQLite
from holdfast.datastream.connectors.delta import DeltaSink
from holdfast.datastream.connectors.iceberg import IcebergSink
from holdfast.datastream.sinks.driver_sinks import ForEachEpochSink
from holdfast.errors import ConfigurationError, HoldfastError, StorageError
from holdfast.runtime.function.sink import CommitRequest, Committer, Sink
from holdfast.testing import EpochProgram
from holdfast.testing.sink_contract import SinkStage

SUBTASKS = 4
ROWS = [(f"word-{subtask}", subtask) for subtask in range(SUBTASKS)]


class Target:
    """A target in a directory, with the sinks that write to it."""

    def __init__(self, kind: str, place: Path) -> None:
        self.kind, _, keyed = kind.partition(" ")
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
        return DatabaseSink(f"sqlite:///{self.out}.db", "t", create_table=True, **self.key)

    def rows(self) -> list[tuple[str, int]]:
        if self.kind == "files":
            tables = [pq.ParquetFile(file).read() for file in self.out.glob("*.parquet")]
            return [(row["word"], row["n"]) for table in tables for row in table.to_pylist()]
        if self.kind == "database":
            return [(word, n) for word, n in self.ask("select word, n from t")]
        table = DeltaTable(self.out).to_pyarrow_table() if self.kind == "delta" else self.iceberg().scan().to_arrow()
        return [(row["word"], row["n"]) for row in table.to_pylist()]

    def iceberg(self) -> Any:
        return load_catalog("prod", **self.properties).load_table("db.t")

    def ask(self, statement: str) -> list[Any]:
        with sqlite.connect(f"{self.out}.db") as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            found = cursor.fetchall() if statement.startswith("select") else []
            connection.commit()
            return found

    def forget_names(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Leave what an older release has recorded: the number of the epoch alone."""
        if self.kind == "iceberg":
            [name] = [name for name in self.iceberg().properties if name.startswith("holdfast-files.")]
            with self.iceberg().transaction() as transaction:
                transaction.remove_properties(name)
        elif self.kind == "database":
            self.ask("delete from holdfast_ledger_files")
        else:
            real = DeltaTable.history
            own = "holdfast."
            monkeypatch.setattr(
                DeltaTable, "history", lambda *a: [{k: v for k, v in c.items() if own not in k} for c in real(*a)]
            )


KINDS = ["files", "delta", "delta by key", "iceberg", "iceberg by key", "database", "database by key"]


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    return Target(request.param, tmp_path)


class InParts(Sink):
    """A sink that wraps another one, as programs do to count, log or gate."""

    def __init__(self, inner: Sink, hand_on: Callable[[Committer, Sequence[CommitRequest]], None]) -> None:
        self.inner, self.hand_on = inner, hand_on

    def __getattribute__(self, name: str) -> Any:
        own = ("inner", "hand_on", "create_committer", "__class__", "__dict__", "__reduce_ex__", "__getstate__")
        return super().__getattribute__(name) if name in own else getattr(super().__getattribute__("inner"), name)

    def __getstate__(self) -> dict[str, Any]:
        return {"inner": self.inner, "hand_on": None}

    def create_committer(self, context: Any) -> Committer:
        return PartCommitter(self.inner.create_committer(context), self.hand_on)

    def create_writer(self, context: Any) -> Any:
        raise NotImplementedError


class PartCommitter(Committer):
    def __init__(self, inner: Any, hand_on: Callable[[Committer, Sequence[CommitRequest]], None]) -> None:
        self.inner, self.hand_on = inner, hand_on

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        self.hand_on(self.inner, requests)

    def last_epoch(self, incarnation: str) -> int | None:
        return self.inner.last_epoch(incarnation)  # type: ignore[no-any-return]

    def close(self) -> None:
        self.inner.close()


def one_by_one(inner: Committer, requests: Sequence[CommitRequest]) -> None:
    for request in requests:
        inner.commit([request])


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


def test_a_committer_that_hands_the_requests_of_an_epoch_on_one_by_one_commits_all(target: Target) -> None:
    stage, entries = staged(target, lambda sink: InParts(sink, one_by_one))
    for is_recovered in (False, True, True):
        stage.commit(entries, is_recovered=is_recovered)
        assert sorted(target.rows()) == ROWS


def test_a_committer_that_dies_between_two_parts_commits_the_rest_when_it_is_back(target: Target) -> None:
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


def test_a_committer_that_holds_one_request_back_commits_it_with_the_next_try(target: Target) -> None:
    def gated(inner: Committer, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            if request.subtask == 2 and not request.number_of_retries:
                request.retry_later()
        inner.commit([request for request in requests if request.answer != "retry"])

    stage, entries = staged(target, lambda sink: InParts(sink, gated))
    stage.commit(entries)
    assert sorted(target.rows()) == ROWS


def test_an_epoch_that_an_older_leader_has_committed_with_fewer_files_gets_the_others(target: Target) -> None:
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


def test_other_files_of_the_same_epoch_are_refused_as_those_of_a_copy_of_the_job(target: Target) -> None:
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


def test_staged_files_of_an_epoch_before_the_last_one_are_not_taken_for_committed(tmp_path: Path) -> None:
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


def test_a_database_user_who_may_not_record_names_commits_whole_epochs_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite has no rights: a view in the place of the table is refused as a table without them."""
    monkeypatch.setattr(SQLite, "is_refusal", lambda self, error: "because it is a view" in str(error))
    target = Target("database", tmp_path)
    stage, entries = staged(target, lambda sink: InParts(sink, one_by_one))
    target.ask("create view holdfast_ledger_files as select 1 as incarnation")
    with pytest.raises(ConfigurationError, match=r"1 of 4 committables of epoch 1.*Nothing of the epoch was committed"):
        stage.commit(entries)
    assert target.rows() == []
    assert "create this table, or grant select, insert and update" in caplog.text
    unwrap(stage)
    for is_recovered in (False, True):
        stage.commit(entries, is_recovered=is_recovered)
        assert sorted(target.rows()) == ROWS


def test_a_function_for_each_epoch_never_gets_a_part_of_one(tmp_path: Path) -> None:
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
