"""What a checkpoint says that a DatabaseSink has staged: rows of one file of the job go into one table, or nowhere."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from functools import cache

import pyarrow as pa

from holdfast.datastream.connectors.database import DatabaseSink
from tests.fuzz.document import directory
from tests.fuzz.output import ROWS, STAGED_NAME, commit, committable_of, context, stage

ROOT = directory() / "database"
FILE = ROOT / "db.sqlite"
IDENTITY = "an identity"
MADE = f"""
create table seen (word text, n integer);
create table holdfast_ledger
    (incarnation varchar(255), sink varchar(255), epoch bigint, primary key (incarnation, sink));
create table holdfast_ledger_identity (one integer primary key, identity varchar(36));
insert into holdfast_ledger_identity values (1, '{IDENTITY}');
"""


@cache
def sink() -> DatabaseSink:
    """The sink, with a database as it was before, and a file beside that of the job."""
    shutil.rmtree(ROOT, ignore_errors=True)
    stage(ROOT / "staging" / f"{STAGED_NAME}.parquet")
    stage(ROOT / f"{STAGED_NAME}.parquet", pa.table({"word": ["of others"], "n": [0]}))
    with closing(sqlite3.connect(ROOT / "before.sqlite")) as made:
        made.executescript(MADE)
    return DatabaseSink(str(FILE), "seen")


def parse(data: bytes) -> None:
    committer = sink().create_committer(context("database"))
    try:
        committable = committable_of(data)
    except (ValueError, RecursionError):
        return
    shutil.copyfile(ROOT / "before.sqlite", FILE)
    try:
        commit(committer, committable)
    finally:
        with closing(sqlite3.connect(FILE)) as made:
            [rows, epochs] = (made.execute(f"select * from {name}").fetchall() for name in ("seen", "holdfast_ledger"))
        expected = [tuple(row.values()) for row in ROWS.to_pylist()] if epochs else []
        assert rows == expected, "other rows than those of the file are there"
