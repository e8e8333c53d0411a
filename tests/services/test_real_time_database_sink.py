"""Real-time jobs that write into a database at least once: rows are there long before the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.datastream.connectors.base import DeliveryGuarantee
from holdfast.datastream.connectors.database import DatabaseSink
from holdfast.errors import ConfigurationError
from holdfast.runtime.job.control import JobStatus
from holdfast.runtime.master.job_client import JobClient
from holdfast.testing import TcpProxy
from holdfast.testing.real_time_runner import RealTimeProgram
from tests.postgres import PostgresServer
from tests.programs import real_time_database_job
from tests.stories.databases import Database, of_postgres
from tests.stories.process import run
from tests.unit.runtime.realtime.test_real_time_jobs import (
    KEYS,
    RESTARTS,
    ROWS,
    Count,
    Failing,
    numbers,
    until,
)

pytestmark = pytest.mark.services

COUNTS = "key bigint, count bigint"
TOTALS = [(key, len(range(key, len(ROWS), KEYS))) for key in range(KEYS)]


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Database:
    return of_postgres(postgres_server)


def number_of_rows(postgres: Database) -> int:
    return int(postgres.ask("select count(*) from counts")[0][0])


def at_least_once(postgres: Database, **settings: Any) -> DatabaseSink:
    guarantee = DeliveryGuarantee.AT_LEAST_ONCE
    return DatabaseSink(postgres.uri, "counts", create_table=True, delivery_guarantee=guarantee, **settings)


def test_rows_are_in_the_table_long_before_the_checkpoint(postgres: Database, tmp_path: Path) -> None:
    postgres.ask("create table counts (key bigint, count bigint)")
    program = RealTimeProgram()
    counts = numbers(program, 500).key_by("key").process(Count(), COUNTS).uid("counts")
    counts.sink_to(at_least_once(postgres)).uid("out")
    client = JobClient(program.master(tmp_path, {"execution.checkpointing.interval": "1 h"}))
    until(lambda: number_of_rows(postgres) >= 100)
    client.stop()
    client.await_termination()
    seen = postgres.ask("select key, count from counts order by key, count")
    assert seen == sorted({*seen}), "nothing has failed, so nothing is there twice"


def test_after_a_failure_rows_of_a_key_replace_themselves(postgres: Database, tmp_path: Path) -> None:
    program = RealTimeProgram()
    rows = program.from_collection(ROWS, "key bigint, n bigint").uid("rows")
    mapped = rows.map(Failing(tmp_path / "failed", 1700), "key bigint, n bigint").uid("map")
    mapped.key_by("key").process(Count(), COUNTS).uid("counts").sink_to(at_least_once(postgres, key="key")).uid("out")
    assert program.run(tmp_path / "job", RESTARTS) is JobStatus.FINISHED
    assert (tmp_path / "failed").exists()
    assert postgres.ask("select key, count from counts order by key") == TOTALS


def test_rows_that_were_staged_exactly_once_are_written_when_the_guarantee_changes(
    postgres: Database, tmp_path: Path
) -> None:
    for sink, rows in (
        (DatabaseSink(postgres.uri, "counts", create_table=True), ROWS[:1000]),
        (at_least_once(postgres), ROWS),
    ):
        program = RealTimeProgram()
        source = program.from_collection(rows, "key bigint, n bigint").uid("rows")
        source.key_by("key").process(Count(), COUNTS).uid("counts").sink_to(sink).uid("out")
        program.run(tmp_path / f"job-{len(rows)}", RESTARTS)
    assert number_of_rows(postgres) == 4000


def test_a_database_in_the_place_of_the_known_one_is_refused(postgres: Database, tmp_path: Path) -> None:
    postgres.ask("create table counts (key bigint, count bigint)")
    sink = at_least_once(postgres)
    program = RealTimeProgram()
    numbers(program, 500).key_by("key").process(Count(), COUNTS).uid("counts").sink_to(sink).uid("out")
    client = JobClient(program.master(tmp_path, RESTARTS))
    until(lambda: number_of_rows(postgres) >= 10)
    client.stop()
    client.await_termination()
    postgres.ask("update holdfast_ledger_identity set identity = 'another'")
    before = number_of_rows(postgres)
    program = RealTimeProgram()
    numbers(program, 500).key_by("key").process(Count(), COUNTS).uid("counts").sink_to(at_least_once(postgres)).uid(
        "out"
    )
    with pytest.raises(Exception, match="found 'another'"):
        program.run(tmp_path)
    assert number_of_rows(postgres) == before


def rows_of_all(postgres: Database) -> list[tuple[int, int]]:
    return sorted((n % KEYS, n // KEYS + 1) for n in range(real_time_database_job.ROWS))


def require_at_least_once(postgres: Database) -> int:
    """Each row is there; returns how many are there again."""
    seen = postgres.ask("select key, count from counts order by key, count")
    assert sorted({*seen}) == rows_of_all(postgres)
    return len(seen) - len({*seen})


@pytest.mark.parametrize("number", [1, 20])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_process_that_dies_at_a_transaction(postgres: Database, tmp_path: Path, moment: str, number: int) -> None:
    postgres.ask("create table counts (key bigint, count bigint)")
    first = run("real_time_database_job.py", tmp_path, postgres.uri, fault=f"{moment}:sink.write:{number}=kill")
    assert first.was_killed, first.output
    written = number_of_rows(postgres)
    assert written >= number - 2, "another task may have been in its transaction"
    second = run("real_time_database_job.py", tmp_path, postgres.uri)
    assert second.code == 0, second.output
    repeated = require_at_least_once(postgres)
    if moment == "after":
        assert repeated, "it was committed, and no checkpoint knows"


@pytest.mark.parametrize("number", [1, 20])
def test_a_task_that_never_hears_whether_its_transaction_was_committed(
    postgres: Database, postgres_server: PostgresServer, tmp_path: Path, number: int
) -> None:
    postgres.ask("create table counts (key bigint, count bigint)")
    with TcpProxy("127.0.0.1", postgres_server.port) as proxy:
        uri = postgres.uri.replace(str(postgres_server.port), str(proxy.port))
        sink = DatabaseSink(uri, "counts", delivery_guarantee=DeliveryGuarantee.AT_LEAST_ONCE)
        program = RealTimeProgram()
        rows = numbers(program, 300).filter(lambda row: row.n < real_time_database_job.ROWS).uid("first")
        rows.key_by("key").process(Count(), COUNTS).uid("counts").sink_to(sink).uid("out")
        master = program.master(tmp_path, {**RESTARTS, "execution.checkpointing.interval": "100 ms"})
        client = JobClient(master)
        until(lambda: number_of_rows(postgres) >= number)
        for statements in range(3):  # the answer to a statement, or to the commit
            proxy.lose_next_answer(after=statements)
            until(lambda statements=statements: len(master.history.failures) > statements)
        until(lambda: len(set(postgres.ask("select key, count from counts"))) == real_time_database_job.ROWS)
        client.stop()
        client.await_termination()
    require_at_least_once(postgres)


def test_what_cannot_be_written_at_least_once_is_refused(postgres: Database) -> None:
    with pytest.raises(ConfigurationError, match="refused_table belongs to the transaction of an epoch"):
        at_least_once(postgres, refused_table="holdfast_refused")
    with pytest.raises(ConfigurationError, match=r"must be DeliveryGuarantee.EXACTLY_ONCE or AT_LEAST_ONCE"):
        DatabaseSink(postgres.uri, "counts", delivery_guarantee=DeliveryGuarantee.NONE)
    with pytest.raises(ConfigurationError, match="SQLite allows one writer at a time"):
        DatabaseSink("sqlite:///counts.db", "counts", delivery_guarantee=DeliveryGuarantee.AT_LEAST_ONCE)
