"""The contract of sinks over databases: Postgres and SQLite, appending and upserting."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from adbc_driver_postgresql import dbapi

from holdfast.datastream.connectors.database import DatabaseSink
from holdfast.runtime.function.sink import Sink
from holdfast.testing import SinkBackend, SinkContract
from holdfast.testing.sink_contract import CommitContract
from tests.postgres import PostgresServer
from tests.stories.parts import InParts, one_by_one

LOCK_TIMEOUT = 0.02


class SQLiteFile(SinkBackend):
    """SQLite; it is away when its disk is not mounted."""

    steps = 16

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        with closing(sqlite3.connect(self._file)) as database:
            database.execute("create table seen (word text, n integer not null)")

    @property
    def _file(self) -> Path:
        return self.path / "db.sqlite"

    def new_sink(self) -> Sink:
        return DatabaseSink(str(self._file), "seen", lock_timeout=LOCK_TIMEOUT)

    def rows(self) -> list[tuple[str, int]]:
        with closing(sqlite3.connect(self._file)) as database:
            return database.execute("select word, n from seen").fetchall()

    def refused_row(self) -> tuple[str, None] | None:
        return "rock", None

    @contextmanager
    def away(self) -> Iterator[None]:
        self.path.rename(self.path.with_name("unmounted"))
        try:
            yield
        finally:
            self.path.with_name("unmounted").rename(self.path)


class ChoosySQLiteFile(SQLiteFile):
    """One whose table refuses rocks, which go into another table. A reader looks into both."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with closing(sqlite3.connect(self._file)) as database:
            database.executescript("drop table seen; create table seen (word text check (word <> 'rock'), n integer);")

    def new_sink(self) -> Sink:
        return DatabaseSink(str(self._file), "seen", lock_timeout=LOCK_TIMEOUT, refused_table="holdfast_refused")

    def rows(self) -> list[tuple[str, int]]:
        with closing(sqlite3.connect(self._file)) as database:
            refused = database.execute("select row from holdfast_refused").fetchall()
        return super().rows() + rocks(refused)

    def refused_row(self) -> None:
        """Tasks refuse none here."""


def rocks(refused: list[tuple[str]]) -> list[tuple[str, int]]:
    rows = [tuple(json.loads(row).values()) for (row,) in refused]
    assert {word for word, _ in rows} <= {"rock"}
    return rows


class PostgresTable(SinkBackend):
    """A table of a Postgres server, which is away when it is down."""

    steps = 16

    def __init__(self, uri: str, table: str) -> None:
        self.uri = uri
        self.table = table
        self.server: PostgresServer | None = None

    def new_sink(self) -> Sink:
        return DatabaseSink(self.uri, self.table, lock_timeout=LOCK_TIMEOUT)

    def rows(self) -> list[tuple[str, int]]:
        with dbapi.connect(self.uri) as connection, connection.cursor() as cursor:
            cursor.execute(f"select word, n from {self.table}")
            return cursor.fetchall()  # type: ignore[no-any-return]

    def refused_row(self) -> tuple[str, None] | None:
        return "rock", None

    @contextmanager
    def away(self) -> Iterator[None]:
        assert self.server is not None
        self.server.stop()
        try:
            yield
        finally:
            self.server.start()

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "server": None}


class ChoosyPostgresTable(PostgresTable):
    """As `ChoosySQLiteFile`."""

    def new_sink(self) -> Sink:
        return DatabaseSink(self.uri, self.table, lock_timeout=LOCK_TIMEOUT, refused_table="holdfast_refused")

    def rows(self) -> list[tuple[str, int]]:
        with dbapi.connect(self.uri) as connection, connection.cursor() as cursor:
            cursor.execute('select "row" from holdfast_refused')
            refused = cursor.fetchall()
        return super().rows() + rocks(refused)

    def refused_row(self) -> None:
        """Tasks refuse none here."""


class TestSQLite(SinkContract):
    @pytest.fixture
    def sink_backend(self, tmp_path: Path) -> SinkBackend:
        return SQLiteFile(tmp_path / "out")


class TestSQLiteThatRefuses(SinkContract):
    @pytest.fixture
    def sink_backend(self, tmp_path: Path) -> SinkBackend:
        return ChoosySQLiteFile(tmp_path / "out")


class TestPostgres(SinkContract):
    @pytest.fixture
    def sink_backend(self, postgres_server: PostgresServer) -> SinkBackend:
        return empty(PostgresTable(postgres_server.uri, "seen"), postgres_server)


class TestPostgresThatRefuses(SinkContract):
    @pytest.fixture
    def sink_backend(self, postgres_server: PostgresServer) -> SinkBackend:
        return empty(ChoosyPostgresTable(postgres_server.uri, "seen"), postgres_server, "check (word <> 'rock')")


class SQLiteFileInParts(SQLiteFile):
    """Each file of an epoch is committed by itself, and so recorded by its name."""

    packages = ("holdfast",)

    def new_sink(self) -> Sink:
        return InParts(super().new_sink(), one_by_one)


class PostgresTableInParts(PostgresTable):
    """As `SQLiteFileInParts`."""

    packages = ("holdfast",)

    def new_sink(self) -> Sink:
        return InParts(super().new_sink(), one_by_one)


class TestSQLiteInParts(CommitContract):
    @pytest.fixture
    def sink_backend(self, tmp_path: Path) -> SinkBackend:
        return SQLiteFileInParts(tmp_path / "out")


class TestPostgresInParts(CommitContract):
    @pytest.fixture
    def sink_backend(self, postgres_server: PostgresServer) -> SinkBackend:
        return empty(PostgresTableInParts(postgres_server.uri, "seen"), postgres_server)


def empty(backend: PostgresTable, server: PostgresServer, check: str = "") -> PostgresTable:
    with dbapi.connect(server.uri) as connection, connection.cursor() as cursor:
        ledger = "holdfast_ledger, holdfast_ledger_identity, holdfast_ledger_files"
        cursor.execute(f"drop table if exists seen, {ledger}, holdfast_refused")
        cursor.execute(f"create table seen (word text {check}, n bigint not null)")
        connection.commit()
    backend.server = server
    return backend
