"""What somebody who watches would see: the cards with the most alerts, and what merchants have turned over.

    python examples/payments/dashboard.py --table DIR [--query-port 9069] [--once]

Cards are asked of the running job, which answers from its newest completed checkpoint; hours that are over are in the
Delta table, which needs no job.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
from deltalake import DeltaTable

from holdfast.queryable import QueryableStateClient
from holdfast.queryable.wire.errors import QueryError

JOB, STATE = "payments", "cards"
SECONDS = 2.0


def worst_cards(port: int, most: int = 5) -> list[dict[str, Any]]:
    """The cards with the most alerts, all of them as of one checkpoint."""
    with QueryableStateClient("127.0.0.1", port) as client:
        cards = client.scan(JOB, STATE).to_table()
    with duckdb.connect() as connection:
        connection.register("cards", cards)
        found = connection.sql(
            "select key as card, value.* from cards where value.alerts > 0 order by value.alerts desc, key limit ?",
            params=[most],
        ).to_arrow_table()
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def best_merchants(table: Path, most: int = 5) -> list[dict[str, Any]]:
    """The merchants that have turned over the most in the hours that are over."""
    with duckdb.connect() as connection:
        connection.register("turnovers", DeltaTable(table).to_pyarrow_table())
        found = connection.sql(
            "select merchant, count(*) as hours, sum(payments)::bigint as payments, sum(cents)::bigint as cents "
            "from turnovers group by merchant order by cents desc, merchant limit ?",
            params=[most],
        ).to_arrow_table()
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def page(cards: list[dict[str, Any]], merchants: list[dict[str, Any]]) -> str:
    """Both as text."""
    lines = [f"{'card':<12} {'alerts':>7} {'payments':>9} {'spent':>14}  last in"]
    lines += [
        f"{row['card']:<12} {row['alerts']:>7,} {row['payments']:>9,} {row['cents'] / 100:>14,.2f}  {row['country']}"
        for row in cards
    ]
    lines += ["", f"{'merchant':<12} {'hours':>7} {'payments':>9} {'turnover':>14}"]
    lines += [
        f"{row['merchant']:<12} {row['hours']:>7,} {row['payments']:>9,} {row['cents'] / 100:>14,.2f}"
        for row in merchants
    ]
    return "\n".join(lines)


def main() -> int:
    """Shows both every two seconds, until somebody has seen enough."""
    parser = argparse.ArgumentParser(description="Cards with alerts and turnovers of merchants, live.")
    parser.add_argument("--table", type=Path, required=True, help="directory of the Delta table")
    parser.add_argument("--query-port", type=int, default=9069)
    parser.add_argument("--once", action="store_true", help="show it once")
    arguments = parser.parse_args()
    while True:
        try:
            cards = worst_cards(arguments.query_port)
        except QueryError as error:
            cards = []
            print(f"the job does not answer now: {error}")
        merchants = best_merchants(arguments.table) if DeltaTable.is_deltatable(str(arguments.table)) else []
        print(page(cards, merchants), end="\n\n", flush=True)
        if arguments.once:
            return 0
        time.sleep(SECONDS)


if __name__ == "__main__":
    sys.exit(main())
