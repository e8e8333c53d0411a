"""The number of the last epoch as a table of Iceberg or a database keeps it: others may write there, too."""

import sqlite3
from contextlib import closing
from typing import Any

from holdfast.datastream.connectors.database import DatabaseSink
from holdfast.datastream.connectors.iceberg import _recorded_epoch
from holdfast.errors import HoldfastError
from tests.fuzz.document import directory
from tests.fuzz.output import INCARNATION, UID, context
from tests.fuzz.target import database_committable

FILE = directory() / "marked.sqlite"


class Table:
    """The properties of a table."""

    def __init__(self, epoch: str) -> None:
        self.properties: Any = {"epoch": epoch}

    def name(self) -> str:
        return "db.t"


def parse(data: bytes) -> None:
    refused = []
    for last_epoch in (of_database, of_table):
        try:
            found = last_epoch(data)
        except HoldfastError as error:
            refused.append(error)
        else:
            assert found is None or type(found) is int
    if len(refused) == 2:
        raise refused[0]


def of_table(data: bytes) -> int | None:
    return _recorded_epoch(Table(data.decode("utf-8", "replace")), "epoch")


def of_database(data: bytes) -> int | None:
    with closing(sqlite3.connect(FILE)) as made:
        if not made.execute("select count(*) from sqlite_master").fetchone()[0]:
            made.executescript(database_committable.MADE.replace("epoch bigint", "epoch"))
        kind = "numeric" if data[:1].isdigit() else "text"  # where nobody looks whether it is one
        made.execute(
            f"insert or replace into holdfast_ledger values (?, ?, cast(? as {kind}))", (INCARNATION, UID, data)
        )
        made.commit()
    committer = DatabaseSink(str(FILE), "seen").create_committer(context("marked"))
    try:
        return committer.last_epoch(INCARNATION)
    finally:
        committer.close()
