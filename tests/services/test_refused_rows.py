"""Rows that only the database refuses, when an epoch is committed: they go into a table of their own, or end the job.

Killed commits, leaders that sleep in them and several leaders at once are told in `tests/contract`.
"""

from __future__ import annotations

import datetime
import json
import logging
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from adbc_driver_postgresql import dbapi as postgres
from adbc_driver_sqlite import dbapi as sqlite

from holdfast.datastream.connectors.database import DatabaseSink
from holdfast.errors import ConfigurationError, JobExecutionError, StorageError
from holdfast.testing import EpochProgram, TcpProxy
from tests.postgres import PostgresServer
from tests.stories.databases import Database, of_postgres

pytestmark = pytest.mark.services

COUNTS = "word string, n bigint"
CHANGES = "word string, n bigint, kind string"
ASIDE: dict[str, Any] = {"refused_table": "holdfast_refused"}
PATIENT = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "100",
    "restart-strategy.fixed-delay.delay": "1 ms",
}


def run(sink: DatabaseSink, place: Path, *epochs: list[Any], columns: str = COUNTS, **settings: Any) -> None:
    program = EpochProgram()
    program.source("in", columns).sink_to(sink).uid("out")
    program.run(place / "job", [{"in": rows} for rows in epochs], source_tasks=1, **settings)


def aside(database: Database) -> list[tuple[Any, ...]]:
    """What is in the table for refused rows: epoch, what was to be done, and the row."""
    rows = database.ask(
        'select epoch, operation, "row", sink, target from holdfast_refused order by incarnation, epoch, "number"'
    )
    assert all(row[3:] == ("out", "counts") for row in rows)
    return [(epoch, operation, json.loads(row)) for epoch, operation, row, _, _ in rows]


def counts(database: Database) -> list[tuple[Any, ...]]:
    return database.ask("select word, n from counts order by word, n")


def test_rows_in_the_middle_go_aside_and_all_others_are_written(database: Database, tmp_path: Path) -> None:
    database.ask("create table counts (word text constraint once unique, n bigint constraint positive check (n > 0))")
    first = [(f"word {n}", n) for n in range(1, 1000)]
    first[400:400] = [("none", 0), ("word 7", 7)]  # of two rows with the same word the first is written
    run(DatabaseSink(database.uri, "counts", **ASIDE), tmp_path, first, [("kelp", 5), ("word 8", 1)], [("rock", 6)])
    assert len(counts(database)) == 1001
    assert aside(database) == [
        (1, "insert", {"word": "none", "n": 0}),
        (1, "insert", {"word": "word 7", "n": 7}),
        (2, "insert", {"word": "word 8", "n": 1}),
    ]
    reasons = [reason for (reason,) in database.ask("select reason from holdfast_refused order by epoch, number")]
    assert ["positive" in reasons[0], "CONSTRAINT" in reasons[0].upper(), "UNIQUE" in reasons[1].upper()] == [True] * 3


def test_without_such_a_table_the_job_ends_once_and_says_which_row_and_what_to_do(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With the restart strategy of jobs that name none, which has no end."""
    database.ask("create table counts (word text, n bigint constraint positive check (n > 0))")
    address = "https://ada:s3cret@example.org/" + "x" * 1000
    rows = [("kelp", 1), (address, -1), ("sand", -2)]
    sink = DatabaseSink(database.uri, "counts")
    for _ in range(2):  # started again, it says the same
        with caplog.at_level(logging.WARNING), pytest.raises(ConfigurationError) as caught:
            run(sink, tmp_path, rows, options={"restart-strategy.type": "exponential-delay"})
        said = str(caught.value)
        assert "refuses 2 of the rows that the sink 'out' writes into 'counts' in epoch 1" in said
        assert (
            "The first, to insert: " in said
            and "positive" in said
            and "'word': 'https://******@example.org/xxx" in said
        )
        assert "Nothing of the epoch was committed" in said and "refused_table='holdfast_refused'" in said
        assert len(said) < 1600 and "s3cret" not in said
    assert "restart" not in caplog.text.lower()
    assert counts(database) == []
    run(DatabaseSink(database.uri, "counts", **ASIDE), tmp_path, rows, [("rock", 2)])
    assert counts(database) == [("kelp", 1), ("rock", 2)]
    assert [row for _, _, row in aside(database)] == [{"word": address, "n": -1}, {"word": "sand", "n": -2}]


def test_of_a_key_the_last_row_is_tried_and_deletes_may_be_refused(database: Database, tmp_path: Path) -> None:
    database.ask("create table counts (word text primary key, n bigint check (n > 0))")
    if database.is_postgres:
        database.ask("create table likes (word text references counts)")
        likes = ["insert into likes values ('rock')"]
    else:
        keep = "when old.word = 'rock' begin select raise(abort, 'somebody likes it'); end"
        likes = [f"create trigger likes before delete on counts {keep}"]
    sink = DatabaseSink(database.uri, "counts", key="word", row_kind="kind", **ASIDE)
    first = [("kelp", 1, "+I"), ("rock", 1, "+I"), ("sand", 1, "+I"), ("mud", 1, "+I")]
    run(sink, tmp_path, first, columns=CHANGES)
    database.ask(*likes)
    second = [("rock", 1, "-D"), ("kelp", 2, "+U"), ("kelp", -3, "+U"), ("sand", 9, "+U"), ("mud", 1, "-D")]
    run(sink, tmp_path, first, second, columns=CHANGES)
    assert counts(database) == [("kelp", 1), ("rock", 1), ("sand", 9)]
    assert aside(database) == [
        (2, "delete", {"word": "rock", "n": 1}),
        (2, "upsert", {"word": "kelp", "n": -3}),
    ]


def test_rows_of_a_stream_of_changes_go_aside_too(database: Database, tmp_path: Path) -> None:
    database.ask("create table counts (word text primary key, n bigint check (n > 0))")
    sink = DatabaseSink(database.uri, "counts", key="word", **ASIDE)
    rows = [("kelp", 1, 0), ("rock", 0, 0), ("kelp", 1, 1), ("kelp", 2, 2)]
    run(sink, tmp_path, rows, columns="changelog<word: string, n: bigint>")
    assert counts(database) == [("kelp", 2)]
    assert aside(database) == [(1, "upsert", {"word": "rock", "n": 0})]


def test_a_row_that_others_of_the_epoch_make_room_for_is_not_refused(database: Database, tmp_path: Path) -> None:
    """Seen one after the other, the first three are in each other's way; a refused row has them seen so."""
    database.ask("create table counts (word text primary key, n bigint unique check (n > 0))")
    sink = DatabaseSink(database.uri, "counts", key="word", **ASIDE)
    first = [("kelp", 1), ("rock", 2), ("sand", 3)]
    run(sink, tmp_path, first, [("kelp", 2), ("rock", 3), ("sand", 4), ("mud", -1), ("silt", 4)])
    assert counts(database) == [("kelp", 2), ("rock", 3), ("sand", 4)]
    assert aside(database) == [
        (2, "upsert", {"word": "mud", "n": -1}),
        (2, "upsert", {"word": "silt", "n": 4}),
    ]


def test_rows_that_are_all_refused_go_aside_up_to_a_bound(database: Database, tmp_path: Path) -> None:
    database.ask("create table counts (word text, n bigint check (n > 0))")
    rows = [(f"word {n}", -n) for n in range(40)]
    few = DatabaseSink(database.uri, "counts", **ASIDE, max_refused=39)
    message = r"refuses more than 39 of the rows.*Nothing of the epoch was committed.*raise max_refused=39"
    with pytest.raises(ConfigurationError, match=message):
        run(few, tmp_path, rows)
    assert aside(database) == []
    run(DatabaseSink(database.uri, "counts", **ASIDE, max_refused=40), tmp_path, rows, [("kelp", 1)])
    assert counts(database) == [("kelp", 1)]
    assert [row["n"] for _, _, row in aside(database)] == [-n for n in range(40)]


def test_a_few_rows_of_many_are_found_by_few_statements(postgres_server: PostgresServer, tmp_path: Path) -> None:
    database = of_postgres(postgres_server)
    database.ask(
        "create table counts (word text, n bigint check (n % 1000 > 0))",
        "create sequence tries",
        "create function tried() returns trigger language plpgsql as $$ begin perform nextval('tries'); return null; "
        "end $$",
        "create trigger tried before insert on counts for each statement execute function tried()",
    )
    run(DatabaseSink(database.uri, "counts", **ASIDE), tmp_path, [("kelp", n) for n in range(1, 4001)])
    assert [row["n"] for _, _, row in aside(database)] == [1000, 2000, 3000, 4000]
    [(tries,)] = database.ask("select last_value from tries")
    assert tries <= 2 * 4 * 12 + 6  # two halves a level for each of them, then these again, and the first of all


@pytest.mark.parametrize("state", ["40001", "40P01", "53200", "57014"])
def test_what_is_no_refusal_is_tried_again_as_a_whole(
    postgres_server: PostgresServer, tmp_path: Path, state: str
) -> None:
    """A conflict of transactions, a deadlock, want of memory, a statement that was cancelled."""
    database = of_postgres(postgres_server)
    database.ask(
        "create table counts (word text, n bigint)",
        "create sequence tries",
        "create function fail() returns trigger language plpgsql as $$ begin if nextval('tries') < 3 then raise "
        f"exception 'not now' using errcode = '{state}'; end if; return null; end $$",
        "create trigger fail before insert on counts for each statement execute function fail()",
    )
    run(DatabaseSink(database.uri, "counts", **ASIDE), tmp_path, [("kelp", n) for n in range(100)])
    assert len(counts(database)) == 100 and aside(database) == []
    assert database.ask("select last_value from tries") == [(3,)]


def test_an_answer_that_is_lost_while_rows_are_looked_for_changes_nothing(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    database = of_postgres(postgres_server)
    database.ask("create table counts (word text, n bigint check (n > 0))")
    with TcpProxy("127.0.0.1", postgres_server.port) as proxy:
        sink = DatabaseSink(database.uri.replace(str(postgres_server.port), str(proxy.port)), "counts", **ASIDE)
        epochs = [[("kelp", n), ("rock", -n), ("sand", n)] for n in range(1, 9)]
        for n in range(1, len(epochs) + 1):
            if n > 1:
                proxy.lose_next_answer(after=12 + 9 * n)
            run(sink, tmp_path, *epochs[:n], options=PATIENT)
            assert counts(database) == sorted((word, m) for word in ("kelp", "sand") for m in range(1, n + 1))
            assert aside(database) == [(m, "insert", {"word": "rock", "n": -m}) for m in range(1, n + 1)]


def test_a_table_for_refused_rows_that_is_locked_makes_the_job_wait(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    database = of_postgres(postgres_server)
    database.ask("create table counts (word text, n bigint check (n > 0))")
    sink = DatabaseSink(database.uri, "counts", **ASIDE, lock_timeout=0.05)
    run(sink, tmp_path, [("kelp", 1)])
    epochs = [("kelp", 1)], [("rock", -1), ("sand", 2)]
    with postgres.connect(database.uri) as other, other.cursor() as cursor:
        cursor.execute("lock table holdfast_refused in share mode")
        with pytest.raises(
            JobExecutionError, match=r"cannot be inserted into .holdfast_refused..*lock timeout"
        ) as held:
            run(sink, tmp_path, *map(list, epochs), options={"sink.committer.retries": "1"})
        assert isinstance(held.value.__cause__, StorageError)
        other.rollback()
    assert counts(database) == [("kelp", 1)]
    run(sink, tmp_path, *map(list, epochs))
    assert counts(database) == [("kelp", 1), ("sand", 2)] and len(aside(database)) == 1


def test_a_table_for_refused_rows_that_somebody_drops_is_made_anew(database: Database, tmp_path: Path) -> None:
    database.ask("create table counts (word text, n bigint check (n > 0))")
    dropped: list[int] = []

    def drop(stage: int, subtask: int) -> None:
        if not dropped:
            dropped.append(stage)
            database.ask("drop table holdfast_refused")

    sink = DatabaseSink(database.uri, "counts", **ASIDE)
    options = {**PATIENT, "sink.committer.retries": "0"}
    run(sink, tmp_path, [("kelp", 1), ("rock", 0)], options=options, interceptor=drop)
    assert dropped and counts(database) == [("kelp", 1)]
    assert aside(database) == [(1, "insert", {"word": "rock", "n": 0})]


def test_a_table_for_refused_rows_that_is_not_writable_ends_the_job_by_name(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    database = of_postgres(postgres_server)
    database.ask("create table counts (word text, n bigint check (n > 0))")
    sink = DatabaseSink(database.uri, "counts", **ASIDE)
    run(sink, tmp_path, [("kelp", 1)])
    database.ask(
        "do $$ begin create role reader login; exception when duplicate_object then null; end $$",
        "grant usage, create on schema public to reader",
        "grant select, insert, update on counts, holdfast_ledger, holdfast_ledger_identity to reader",
        "grant select on holdfast_refused to reader",
    )
    reader = DatabaseSink(database.uri.replace("holdfast@", "reader@"), "counts", **ASIDE)
    epochs = [("kelp", 1)], [("rock", -1), ("sand", 2)]
    message = "cannot be inserted into 'holdfast_refused'.*permission denied.*Make that table writable"
    with pytest.raises(ConfigurationError, match=f"(?s){message}"):
        run(reader, tmp_path, *map(list, epochs))
    assert counts(database) == [("kelp", 1)]
    database.ask("grant insert on holdfast_refused to reader")
    run(reader, tmp_path, *map(list, epochs))
    assert counts(database) == [("kelp", 1), ("sand", 2)]


def test_what_the_end_of_the_transaction_would_refuse_is_found(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """Also where the parent of a row comes behind it, which only the end of a statement, or of all, can tell."""
    database = of_postgres(postgres_server)
    database.ask(
        "create table counts (word text, n bigint primary key, "
        "parent bigint constraint family references counts deferrable initially deferred)"
    )
    rows = [("kelp", 1, 2), ("rock", 2, None), ("sand", 3, 99), ("mud", 4, 1)]
    columns = f"{COUNTS}, parent bigint"
    with pytest.raises(ConfigurationError, match=r'(?s)refuses 1 of the rows.*constraint "family".*\'parent\': 99'):
        run(DatabaseSink(database.uri, "counts"), tmp_path, rows, columns=columns)
    run(DatabaseSink(database.uri, "counts", **ASIDE), tmp_path, rows, columns=columns)
    assert counts(database) == [("kelp", 1), ("mud", 4), ("rock", 2)]
    assert aside(database) == [(1, "insert", {"word": "sand", "n": 3, "parent": 99})]


def test_values_that_a_column_does_not_take_go_aside(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """As JSON in characters that each database has, also where it has not those of the row."""
    if not postgres_has(postgres_server, "japanese"):
        with postgres.connect(postgres_server.uri, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("create database japanese encoding 'EUC_JP' locale 'C' template template0")
    database = Database(postgres_server.uri.replace("/postgres", "/japanese"), postgres.connect)
    ledger = "holdfast_ledger, holdfast_ledger_identity, holdfast_ledger_files"
    database.ask(f"drop table if exists counts, {ledger}, holdfast_refused")
    database.ask(
        "create table counts (word text, body jsonb, d numeric(4, 1), at date, f float8 check (f < 1), b bytea)"
    )
    day, columns = datetime.date(2026, 11, 26), "word string, body string, d decimal(9, 2), at date, f double, b binary"
    rows = [
        ("kelp", "{}", Decimal("1.25"), day, 0.5, b"\0"),
        ("wave 🌊", "{}", Decimal("1.25"), day, 0.5, b"\0"),
        ("text", "{", None, day, 0.5, None),
        ("large", "{}", Decimal("1234.50"), day, 0.5, None),
        ("no number", None, Decimal("0"), None, float("nan"), b"\xff"),
    ]
    run(DatabaseSink(database.uri, "counts", **ASIDE), tmp_path, rows, columns=columns)
    assert database.ask("select word, d::text from counts") == [("kelp", "1.3")]
    found = {row["word"]: list(row.values()) for _, _, row in aside(database)}
    assert found == {
        "wave 🌊": ["wave 🌊", "{}", "1.25", "2026-11-26", 0.5, "AA=="],
        "text": ["text", "{", None, "2026-11-26", 0.5, None],
        "large": ["large", "{}", "1234.50", "2026-11-26", 0.5, None],
        "no number": ["no number", None, "0.00", None, "nan", "/w=="],
    }


def postgres_has(postgres_server: PostgresServer, name: str) -> bool:
    found = Database(postgres_server.uri, postgres.connect).ask(f"select 1 from pg_database where datname = '{name}'")
    return bool(found)


def test_values_of_another_kind_go_aside_in_sqlite_too(tmp_path: Path) -> None:
    database = Database(f"file:{tmp_path / 'db.sqlite'}", sqlite.connect)
    database.ask("create table counts (word real, n integer primary key) strict")
    rows = [(1.5, 0.5), (2.0, 2.0), (float("inf"), 3.5)]
    run(DatabaseSink(database.uri, "counts", **ASIDE), tmp_path, rows, columns="word double, n double")
    assert counts(database) == [(2.0, 2)]
    assert [row for _, _, row in aside(database)] == [{"word": 1.5, "n": 0.5}, {"word": "inf", "n": 3.5}]


def test_a_table_whose_conflicts_roll_everything_back_ends_the_job_by_name(tmp_path: Path) -> None:
    """SQLite gives up the savepoint with the rest, so what is refused cannot be found."""
    database = Database(f"file:{tmp_path / 'db.sqlite'}", sqlite.connect)
    database.ask("create table counts (word text unique on conflict rollback, n integer)")
    with pytest.raises(ConfigurationError, match=r"no such savepoint.*Nothing of the transaction was committed"):
        run(DatabaseSink(database.uri, "counts", **ASIDE), tmp_path, [("kelp", 1), ("rock", 2), ("kelp", 3)])
    assert counts(database) == [] and aside(database) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"refused_table": "counts"}, "a table of its own, not 'counts'"),
        ({"refused_table": "holdfast_ledger"}, "a table of its own, not 'holdfast_ledger'"),
        ({"refused_table": "r", "max_refused": 0}, "at least 1, not 0"),
        ({"refused_table": "r", "max_refused": True}, "at least 1, not True"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        DatabaseSink("file:x.db", "counts", **settings)


def test_another_table_of_the_name_is_refused_before_the_job_runs(database: Database, tmp_path: Path) -> None:
    database.ask("create table counts (word text, n bigint)", "create table holdfast_refused (word text)")
    with pytest.raises(ConfigurationError, match=r"has the columns \['word'\], but a table for refused rows needs"):
        run(DatabaseSink(database.uri, "counts", **ASIDE), tmp_path, [("kelp", 1)])
