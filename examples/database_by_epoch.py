"""Writes into a database exactly once, with `for_each_epoch`: idempotently by epoch, in one transaction.

`write(df, epoch, incarnation)` may be called again with the same rows under the same epoch and incarnation, after a
crash for instance. So the transaction that writes the rows begins by recording the epoch as the last one of the
incarnation, and does nothing if that one or a later one is recorded already. A job that is started anew (with another
checkpoint directory, `--fresh` or `-s`) counts its epochs in a new incarnation, so its rows are not taken for those.
Recording comes first because it also makes a second leader wait: one that looked first and wrote afterwards would
write beside it.

`last_epoch(incarnation)` tells the job what is recorded. So a checkpoint directory that was put back from an older copy
is refused: its next rows would come under numbers that are recorded already, and be skipped.

The same works with any database; with Delta Lake, `txnAppId` and `txnVersion` do it::

    def write(df, epoch, incarnation):
        writer = df.write.format("delta").mode("append")
        writer.option("txnAppId", f"orders-{incarnation}").option("txnVersion", epoch).save(path)

    def last_epoch(incarnation):  # with the package deltalake
        is_there = DeltaTable.is_deltatable(path)
        return DeltaTable(path).transaction_version(f"orders-{incarnation}") if is_there else None

    python examples/database_by_epoch.py DATABASE_FILE CHECKPOINTS
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from holdfast.common import Row
from holdfast.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from holdfast.datastream.state import ValueStateDescriptor

ORDERS = [
    ("ada", 120),
    ("bob", 80),
    ("ada", 30),
    ("cid", 10),
    ("bob", 5),
]


RECORD = """
insert into ledger values (?, ?)
on conflict (incarnation) do update set epoch = excluded.epoch where epoch < excluded.epoch
returning epoch
"""
"""Returns no row if this epoch, or a later one, is in the table."""


class Turnover(KeyedProcessFunction):
    """The sum of a customer's orders so far."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Gets the state."""
        self.total = runtime_context.get_state(ValueStateDescriptor("total", "bigint", 0))

    def process_element(self, order: Row, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[object, ...]]:
        """Emits each order with the sum."""
        total = self.total.value() + order.amount
        self.total.update(total)
        yield order.customer, order.amount, total


class Database:
    """A table of orders, and a table of the last epoch that it contains of each incarnation of the job."""

    def __init__(self, path: str) -> None:
        self.path = path
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("create table if not exists orders (customer text, amount integer, total integer)")
            connection.execute("create table if not exists ledger (incarnation text primary key, epoch integer)")

    def write(self, df: Any, epoch: int, incarnation: str) -> None:
        """Writes the rows of one epoch, once."""
        rows = [tuple(row) for row in df.collect()]
        with closing(sqlite3.connect(self.path)) as connection, connection:
            if connection.execute(RECORD, [incarnation, epoch]).fetchone() is not None:
                connection.executemany("insert into orders values (?, ?, ?)", rows)

    def last_epoch(self, incarnation: str) -> int | None:
        """The last epoch of an incarnation that the table contains."""
        with closing(sqlite3.connect(self.path)) as connection:
            row = connection.execute("select epoch from ledger where incarnation = ?", [incarnation]).fetchone()
            return None if row is None else row[0]


def main(database: str, checkpoints: str) -> None:
    """Runs the job over a handful of orders."""
    env = StreamExecutionEnvironment.get_execution_environment({"execution.checkpointing.dir": checkpoints})
    orders = env.from_collection(ORDERS, "customer string, amount bigint")
    totals = orders.key_by("customer").process(Turnover(), output_type="customer string, amount bigint, total bigint")
    target = Database(database)
    totals.uid("turnover").for_each_epoch(target.write, target.last_epoch).uid("database")
    env.execute("turnover")


if __name__ == "__main__":
    main(*sys.argv[1:])
