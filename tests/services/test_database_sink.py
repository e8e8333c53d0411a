"""Jobs whose rows go into a table of a real Postgres, and of SQLite where both must do the same."""

from __future__ import annotations

import datetime
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from adbc_driver_postgresql import dbapi as postgres
from adbc_driver_sqlite import dbapi as sqlite

from holdfast.datastream import OutputTag
from holdfast.datastream.connectors.database import DatabaseSink
from holdfast.errors import ConfigurationError, JobExecutionError, StorageError
from holdfast.testing import EpochProgram, TcpProxy
from holdfast.testing.sink_contract import SinkStage
from tests.postgres import PostgresServer
from tests.stories.databases import Database, of_postgres, sqlite_in

pytestmark = pytest.mark.services

COUNTS = "word string, n bigint"
CHANGES = "word string, n bigint, kind string"


def run(sink: DatabaseSink, place: Path, columns: str, *epochs: list[Any], **settings: Any) -> None:
    program = EpochProgram()
    program.source("in", columns).sink_to(sink).uid("out")
    program.run(place / "job", [{"in": rows} for rows in epochs], source_tasks=1, **settings)


def test_rows_are_added_to_a_table_that_is_made(database: Database, tmp_path: Path) -> None:
    sink = DatabaseSink(database.uri, "counts", create_table=True)
    run(sink, tmp_path, COUNTS, [("kelp", 1), ("kelp", 1), (None, None)], [("rock", 2)])
    assert database.ask("select word, n from counts order by n, word") == [
        ("kelp", 1), ("kelp", 1), ("rock", 2), (None, None),
    ] or database.ask("select word, n from counts order by n is not null, n, word") == [
        (None, None), ("kelp", 1), ("kelp", 1), ("rock", 2),
    ]  # fmt: skip


def test_the_last_row_of_a_key_is_put(database: Database, tmp_path: Path) -> None:
    sink = DatabaseSink(database.uri, "counts", key="word", create_table=True)
    run(sink, tmp_path, COUNTS, [("kelp", 1), ("rock", 1), ("kelp", 2)], [("kelp", 3), ("sand", 1), ("kelp", 4)])
    assert database.ask("select word, n from counts order by word") == [("kelp", 4), ("rock", 1), ("sand", 1)]


def test_what_a_column_refuses_is_told_before_it_is_staged(postgres_server: PostgresServer, tmp_path: Path) -> None:
    database = of_postgres(postgres_server)
    database.ask("create table limited (word varchar(4) not null, small int2, n int4 default 7 not null, free text)")
    rows = [
        ("kelp", 1, 2**31 - 1, "x" * 1000),
        ("kelp  ", -(2**15), -(2**31), None),
        (None, 1, 1, "no word"),
        ("seaweed", 1, 1, "long word"),
        ("kelp", 2**15, 1, "large"),
        ("kelp", 1, -(2**31) - 1, "small"),
        ("kelp", None, None, "no n, and a default is for columns that are left out"),
    ]
    sink = DatabaseSink(database.uri, "limited")
    refused: list[Any] = []
    tag = OutputTag("refused")
    program = EpochProgram()
    stream = program.source("in", "word string, small bigint, n bigint, free string")
    out = stream.sink_to(sink).uid("out").set_dead_letter_output(tag)
    out.get_side_output(tag).for_each_epoch(lambda rows, epoch: refused.extend(rows.to_pylist())).uid("refused")
    program.run(tmp_path / "job", [{"in": rows}], source_tasks=1)
    assert database.ask("select small, n from limited order by n") == [(-(2**15), -(2**31)), (1, 2**31 - 1)]
    reasons = [letter["reason"].partition("cannot be written: ")[2].partition(": {")[0] for letter in refused]
    assert reasons == [
        "'word' is null; the table requires it",
        "'word' has 7 characters, but the column allows 4",
        "'small' is 32768, but the column of the table has 16 bits",
        "'n' is -2147483649, but the column of the table has 32 bits",
        "'n' is null; the table requires it",
    ]


def test_rows_are_put_and_deleted_as_their_kinds_say(database: Database, tmp_path: Path) -> None:
    sink = DatabaseSink(database.uri, "counts", key=["word"], row_kind="kind", create_table=True)
    run(
        sink, tmp_path, CHANGES,
        [("kelp", 1, "+I"), ("rock", 1, "+I"), ("sand", 1, "+I"), ("gone", 1, "+I"), ("gone", 1, "-D")],
        [("kelp", 1, "-U"), ("kelp", 2, "+U"), ("rock", 1, "-U"), ("stone", 1, "+U"), ("sand", 1, "-D")],
    )  # fmt: skip
    assert database.ask("select word, n from counts order by word") == [("kelp", 2), ("stone", 1)]


def test_kinds_may_be_numbers_and_rows_may_be_all_key(database: Database, tmp_path: Path) -> None:
    sink = DatabaseSink(database.uri, "words", key="word", row_kind="kind", create_table=True)
    run(sink, tmp_path, "word string, kind tinyint", [("kelp", 0), ("rock", 2)], [("kelp", 2), ("rock", 3)])
    assert database.ask("select word from words") == [("kelp",)]


@pytest.mark.parametrize(
    ("rows", "message"),
    [([(None, 1, "+I")], "row without a key"), ([("kelp", 1, "x")], "kind 'x'"), ([("kelp", 1, None)], "kind None")],
)
def test_a_row_that_no_table_takes_is_refused_before_it_is_staged(
    database: Database, tmp_path: Path, rows: list[Any], message: str
) -> None:
    sink = DatabaseSink(database.uri, "counts", key="word", row_kind="kind", create_table=True)
    with pytest.raises(JobExecutionError, match=message):
        run(sink, tmp_path, CHANGES, [("rock", 1, "+I")], rows)
    assert database.ask("select word, n from counts") == [("rock", 1)]


@pytest.mark.parametrize(
    ("table", "settings", "message"),
    [
        ("others (a int)", {}, "no table 'counts'.*create_table=True"),
        ("counts (word text)", {}, r"has no columns \['n'\]"),
        ("counts (word text, n bigint, more text not null)", {}, r"needs values for \['more'\]"),
        ("counts (word bigint, n bigint)", {}, "'word' of the table 'counts' is .*stream's string"),
        ("counts (word text, n bigint)", {"key": "word"}, r"several rows with the same \['word'\]"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_by_name(
    database: Database, tmp_path: Path, table: str, settings: dict[str, Any], message: str
) -> None:
    database.ask(f"create table {table}")
    with pytest.raises(ConfigurationError, match=message):
        run(DatabaseSink(database.uri, "counts", **settings), tmp_path, COUNTS, [("kelp", 1)])


def test_only_an_index_by_which_postgres_finds_a_row_makes_a_key(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """One that is checked at the end of a transaction would make the job wait for ever, for what never becomes true."""
    database = of_postgres(postgres_server)
    database.ask(
        "create table late (word text unique deferrable, n bigint)",
        "create table wide (word text, n bigint)",
        "create unique index on wide (word) include (n)",
    )
    with pytest.raises(ConfigurationError, match=r"'late' may contain several rows with the same \['word'\]"):
        run(DatabaseSink(database.uri, "late", key="word"), tmp_path, COUNTS, [("kelp", 1)])
    run(DatabaseSink(database.uri, "wide", key="word"), tmp_path / "wide", COUNTS, [("kelp", 1)], [("kelp", 2)])
    assert database.ask("select word, n from wide") == [("kelp", 2)]


def test_columns_that_the_stream_has_not_keep_their_defaults(database: Database, tmp_path: Path) -> None:
    database.ask("create table counts (id integer primary key, word text, n bigint, origin text not null default 'x')")
    sink = DatabaseSink(database.uri, "counts", key="id")
    run(sink, tmp_path, "id int, word string", [(1, "kelp")])
    assert database.ask("select id, word, n, origin from counts") == [(1, "kelp", None, "x")]


def test_an_empty_database_in_the_place_of_the_known_one_is_refused_and_the_job_waits(
    database: Database, tmp_path: Path
) -> None:
    sink = DatabaseSink(database.uri, "counts", create_table=True)
    run(sink, tmp_path, COUNTS, [("kelp", 1)])
    [(identity,)] = database.ask("select identity from holdfast_ledger_identity")
    database.ask("update holdfast_ledger_identity set identity = 'another'")
    with pytest.raises(JobExecutionError, match=f"expected the identity '{identity}' .* found 'another'"):
        run(sink, tmp_path, COUNTS, [("kelp", 1)], [("kelp", 2)])
    database.ask(f"update holdfast_ledger_identity set identity = '{identity}'")
    run(sink, tmp_path, COUNTS, [("kelp", 1)], [("kelp", 2)])
    assert database.ask("select n from counts order by n") == [(1,), (2,)]


def test_output_that_waits_does_not_fit_a_key_that_came_later(tmp_path: Path) -> None:
    database = sqlite_in(tmp_path)
    database.ask(
        "create table counts (word varchar primary key, n bigint, id bigint unique)",
        "create trigger shut before insert on counts begin select raise(abort, 'shut'); end",
    )
    with pytest.raises(ConfigurationError, match="refuses 1 of the rows"):
        run(DatabaseSink(database.uri, "counts", key="word"), tmp_path, COUNTS, [("kelp", 1)])
    database.ask("drop trigger shut")
    with pytest.raises(ConfigurationError, match=r"'out' uses the columns \['id'\] as key or row_kind"):
        run(DatabaseSink(database.uri, "counts", key="id"), tmp_path, f"{COUNTS}, id bigint", [], [("rock", 1, 1)])
    run(DatabaseSink(database.uri, "counts", key="word"), tmp_path, COUNTS, [])
    run(DatabaseSink(database.uri, "counts", key="id"), tmp_path, f"{COUNTS}, id bigint", [], [("rock", 1, 1)])
    assert database.ask("select word, n, id from counts order by word") == [("kelp", 1, None), ("rock", 1, 1)]


def test_a_file_of_sqlite_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "db.sqlite"
    sink = DatabaseSink(f"sqlite:///{path}", "counts", create_table=True)
    run(sink, tmp_path, COUNTS, [("kelp", 1)])
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(JobExecutionError, match="does not exist"):
        run(sink, tmp_path, COUNTS, [("kelp", 1)], [("kelp", 2)])
    assert not path.exists()


def test_a_file_of_sqlite_is_the_one_that_is_called_so(tmp_path: Path) -> None:
    """What looks like an address with escapes in it may be a name, and the address of another file."""
    for name in ("a%20b", "a b"):
        (tmp_path / name).mkdir()
    path = tmp_path / "a%20b" / "db.sqlite"
    run(DatabaseSink(path, "counts", create_table=True), tmp_path / "one", COUNTS, [("kelp", 1)])
    address = f"file:{tmp_path}/a%2520b/db.sqlite"
    run(DatabaseSink(address, "counts"), tmp_path / "two", COUNTS, [("rock", 2)])
    assert list((tmp_path / "a b").iterdir()) == []
    with sqlite.connect(f"file:{quote(str(path))}") as there, there.cursor() as cursor:
        cursor.execute("select word, n from counts order by n")
        assert cursor.fetchall() == [("kelp", 1), ("rock", 2)]


def test_every_type_of_a_stream_comes_back(postgres_server: PostgresServer, tmp_path: Path) -> None:
    database = of_postgres(postgres_server)
    columns = (
        "a tinyint, b smallint, c int, d bigint, e float, f double, g string, h boolean, i binary, j date, "
        "k timestamp, l timestamp_ntz, m decimal(20, 4), n array<bigint>, o array<string>"
    )
    moment = datetime.datetime(2026, 11, 24, 7, 30, 0, 123456)
    row = (
        -1, 2**15 - 1, -(2**31), 2**63 - 1, 0.5, 0.1, "kelp ' \" \\ é 🌊", True, b"\0\xff", datetime.date(1969, 12, 31),
        moment.replace(tzinfo=datetime.UTC), moment, Decimal("-1234567890123456.7891"), [1, None], ["a", ""],
    )  # fmt: skip
    run(DatabaseSink(database.uri, "t", create_table=True), tmp_path, columns, [row, (None,) * len(row)])
    found, nothing = database.ask("select * from t order by a")
    assert [Decimal(value) if isinstance(value, str) and value[0] == "-" else value for value in found] == list(row)
    assert set(nothing) == {None}


def test_dates_and_times_go_into_columns_of_sqlite_that_are_called_so(tmp_path: Path) -> None:
    """Such a column is NUMERIC to SQLite, which takes for a number only what is one as a whole."""
    path = tmp_path / "db.sqlite"
    moment = datetime.datetime(2026, 11, 24, 7, 30, 0, 123456)
    rows = [(moment.date(), moment.replace(tzinfo=datetime.UTC), moment, moment.time(), n) for n in (1, 2)]
    with sqlite.connect(str(path)) as made:
        made.cursor().execute("create table t (day date primary key, at datetime, l timestamp, t time, n int)")
        made.commit()
    columns = "day date, at timestamp, l timestamp_ntz, t time, n int"
    run(DatabaseSink(path, "t", key="day"), tmp_path, columns, rows[:1], rows[1:])
    with sqlite.connect(str(path)) as made, made.cursor() as cursor:
        cursor.execute("select *, typeof(day) || typeof(at) || typeof(l) || typeof(t) from t")
        [(day, at, local, time, n, kinds)] = cursor.fetchall()
    assert (day, time, n, kinds) == ("2026-11-24", "07:30:00.123456000", 2, "text" * 4)
    assert at.startswith("2026-11-24T07:30:00.123456") and local == "2026-11-24T07:30:00.123456"


def test_text_goes_into_json_and_uuid_columns_and_integers_into_smaller_ones(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    database = of_postgres(postgres_server)
    database.ask("create table t (id uuid, body jsonb, n smallint)")
    sink, columns = DatabaseSink(database.uri, "public.t"), "id string, body string, n bigint"
    some = "0f0e0d0c-0000-4000-8000-000000000001"
    first, second = [(some, '{"a": 1}', 7)], [(some, "{}", 70_000)]
    run(sink, tmp_path, columns, first)
    assert database.ask("select id::text, body ->> 'a', n from t") == [(some, "1", 7)]
    with pytest.raises(JobExecutionError, match="'n' is 70000, but the column of the table has 16 bits"):
        run(sink, tmp_path, columns, first, second)
    database.ask("alter table t alter n type bigint")
    run(sink, tmp_path, columns, first, second)
    assert database.ask("select n from t order by n") == [(7,), (70_000,)]
    with pytest.raises(ConfigurationError, match=r"(?s)invalid input syntax.*Nothing of the epoch was committed"):
        run(sink, tmp_path, columns, first, second, [(some, "no json", 1)])


def test_a_text_that_postgres_does_not_store_is_refused_before_it_is_staged(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    database = of_postgres(postgres_server)
    sink = DatabaseSink(database.uri, "counts", create_table=True)
    with pytest.raises(JobExecutionError, match="'word' has a text with the character NUL"):
        run(sink, tmp_path, COUNTS, [("ke\0lp", 1)])


def test_a_commit_whose_answer_is_lost_is_not_repeated(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """Whichever answer it is: that of a statement, or that of the commit itself."""
    database = of_postgres(postgres_server)
    with TcpProxy("127.0.0.1", postgres_server.port) as proxy:
        sink = DatabaseSink(
            database.uri.replace(str(postgres_server.port), str(proxy.port)), "counts", create_table=True
        )
        epochs = [[("kelp", number)] for number in range(1, 11)]
        for number in range(1, len(epochs) + 1):
            if number > 1:
                proxy.lose_next_answer(after=3 * number)
            run(sink, tmp_path, COUNTS, *epochs[:number], options={
                "restart-strategy.type": "fixed-delay",
                "restart-strategy.fixed-delay.attempts": "100",
                "restart-strategy.fixed-delay.delay": "1 ms",
            })  # fmt: skip
            assert database.ask("select n from counts order by n") == [(n,) for n in range(1, number + 1)]


def test_a_leader_that_sleeps_in_its_transaction_makes_others_wait_but_not_for_ever(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    database = of_postgres(postgres_server)
    sink = DatabaseSink(database.uri, "counts", create_table=True, lock_timeout=0.05)
    run(sink, tmp_path, COUNTS, [("kelp", 1)])
    with postgres.connect(database.uri) as asleep, asleep.cursor() as cursor:
        cursor.execute("update holdfast_ledger set epoch = epoch")
        with pytest.raises(JobExecutionError, match="canceling statement due to lock timeout"):
            run(sink, tmp_path, COUNTS, [("kelp", 1)], [("kelp", 2)], options={"sink.committer.retries": "1"})
        asleep.rollback()
    run(sink, tmp_path, COUNTS, [("kelp", 1)], [("kelp", 2)])
    assert database.ask("select n from counts order by n") == [(1,), (2,)]


def test_nobody_is_told_the_password(tmp_path: Path) -> None:
    sink = DatabaseSink("postgresql://ada:s3cret@127.0.0.1:1/db?password=s3cret", "counts")
    assert "s3cret" not in repr(sink) + repr(vars(sink)) + repr(pickle.loads(pickle.dumps(sink)))
    assert b"s3cret" not in pickle.dumps(sink)
    with pytest.raises(JobExecutionError) as caught:
        run(sink, tmp_path, COUNTS, [("kelp", 1)])
    assert "s3cret" not in str(caught.value) and isinstance(caught.value.__cause__, StorageError)


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        (("sqlite:///:memory:", "t"), {}, "would lose"),
        (("mysql://host/db", "t"), {}, "not 'mysql://host/db'"),
        (("sqlite:x.db", "t"), {}, "not 'sqlite:x.db'"),
        (("host=db user=ada password=s3cret", "t"), {}, "not as key=value"),
        (("file:x.db", "a.b.c"), {}, "not 'a.b.c'"),
        (("file:x.db", "t"), {"lock_timeout": 0}, "not 0"),
        (("file:x.db", "t"), {"options": {"a": "b"}}, "has no options"),
    ],
)
def test_what_is_no_target_is_refused(arguments: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        DatabaseSink(*arguments, **settings)


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        (COUNTS, {"key": "id"}, "'id', but the elements of the stream have only"),
        (CHANGES, {"row_kind": "kind"}, "but no key"),
        ("word string, kind boolean", {"key": "word", "row_kind": "kind"}, "is bool: it must be"),
        (None, {}, "was not declared"),
    ],
)
def test_a_stream_that_does_not_go_with_the_sink_is_refused(
    columns: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        EpochProgram().source("in", columns).sink_to(DatabaseSink("file:x.db", "t", **settings))


@pytest.mark.parametrize(
    "changed", [{"file": "../x.parquet"}, {"file": 1}, {"identity": []}, {"table": "t; drop table t"}]
)
def test_committables_that_somebody_changed_are_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    sink = DatabaseSink(f"sqlite:///{tmp_path}/db", "counts", create_table=True)
    stage = SinkStage(sink, tmp_path, COUNTS, incarnation="1" * 12)
    sink.check_input(stage.type)
    stage.prepare()
    [entry] = stage.write(1, [("kelp", 1)])
    with pytest.raises(ConfigurationError, match=r"no DatabaseSink can have written|There is no table"):
        stage.commit([{**entry, "value": {**entry["value"], **changed}}])
    stage.commit([entry])
    assert Database(f"file:{tmp_path}/db", sqlite.connect).ask("select word, n from counts") == [("kelp", 1)]
