"""Writes into a database exactly once, with `for_each_epoch`: idempotently by epoch, in one transaction.

`write(df, epoch)` may be called again with the same rows under the same epoch, after a crash for instance. So it
records the epoch in the transaction that writes the rows, and does nothing if the epoch is recorded already. The same
works with any database; with Delta Lake, `txnAppId` and `txnVersion` do it::

    def write(df, epoch):
        df.write.format("delta").mode("append").option("txnAppId", "orders").option("txnVersion", epoch).save(path)

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
    """A table of orders, and a table of the epochs that it contains."""

    def __init__(self, path: str) -> None:
        self.path = path
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("create table if not exists orders (customer text, amount integer, total integer)")
            connection.execute("create table if not exists epochs (epoch integer primary key)")

    def write(self, df: Any, epoch: int) -> None:
        """Writes the rows of one epoch, once."""
        rows = [tuple(row) for row in df.collect()]
        with closing(sqlite3.connect(self.path)) as connection, connection:
            if connection.execute("select 1 from epochs where epoch = ?", [epoch]).fetchone() is None:
                connection.executemany("insert into orders values (?, ?, ?)", rows)
                connection.execute("insert into epochs values (?)", [epoch])


def main(database: str, checkpoints: str) -> None:
    """Runs the job over a handful of orders."""
    env = StreamExecutionEnvironment.get_execution_environment({"execution.checkpointing.dir": checkpoints})
    orders = env.from_collection(ORDERS, "customer string, amount bigint")
    totals = orders.key_by("customer").process(Turnover(), output_type="customer string, amount bigint, total bigint")
    totals.uid("turnover").for_each_epoch(Database(database).write).uid("database")
    env.execute("turnover")


if __name__ == "__main__":
    main(*sys.argv[1:])
