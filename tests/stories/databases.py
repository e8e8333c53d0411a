"""A table of a real Postgres, or of SQLite, that tests ask what is in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from adbc_driver_postgresql import dbapi as postgres
from adbc_driver_sqlite import dbapi as sqlite

from tests.postgres import PostgresServer


class Database:
    """A database, and a way to ask it."""

    def __init__(self, uri: str, connect: Callable[[str], Any]) -> None:
        self.uri = uri
        self._connect = connect

    @property
    def is_postgres(self) -> bool:
        return self.uri.startswith("postgresql")

    def ask(self, *statements: str) -> list[tuple[Any, ...]]:
        with self._connect(self.uri) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            rows = cursor.fetchall() if cursor.description else []
            connection.commit()
        return rows


def of_postgres(server: PostgresServer) -> Database:
    """The database of a server, empty."""
    found = Database(server.uri, postgres.connect)
    found.ask("drop schema public cascade", "create schema public")
    return found


def sqlite_in(place: Path) -> Database:
    """The one in a directory."""
    return Database(f"file:{place / 'db.sqlite'}", sqlite.connect)


def of_request(request: pytest.FixtureRequest, place: Path) -> Database:
    """The one that a parameter names, `postgres` on the fixture `postgres_server` or `sqlite`."""
    if request.param == "sqlite":
        return sqlite_in(place)
    return of_postgres(request.getfixturevalue("postgres_server"))
