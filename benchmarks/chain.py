"""Rows per second of a chain: flat map, count by a key, count by another key, every row emitted, all writes durable.

    python benchmarks/chain.py [--engine a,b] [--sink parquet|discard] [--rounds 5] [--rows N] [--keys N] [--json]

The floor is the same chain of `mapInArrow` and `repartition` whose functions do nothing. In `chain-holdfast-rows`
elements cross the exchanges as rows of Spark, as before there were messages.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # started by its path
    sys.path.insert(0, str(ROOT))

from benchmarks import contest  # noqa: E402
from benchmarks.workload import SINKS, Workload, chosen_engines, sink_of  # noqa: E402

ENGINES = ("chain-holdfast", "chain-holdfast-rows", "chain-floor")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Rows per second of a chain of operators.")
    parser.add_argument("--engine", default=",".join(ENGINES), help="names, separated by commas (default: %(default)s)")
    parser.add_argument("--sink", choices=SINKS, default="parquet")
    parser.add_argument("--rows", type=int, default=200_000, help="rows an epoch (default: %(default)s)")
    parser.add_argument("--words", type=int, default=10, help="words a line (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=100_000, help="distinct keys (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in which the engines take turns")
    parser.add_argument("--warm-up", type=int, default=3, help="epochs before the first round")
    parser.add_argument("--epochs", type=int, default=8, help="measured epochs a round; two of slow engines")
    parser.add_argument("--cache", type=Path, default=ROOT / ".bench", help="generated input and environments")
    parser.add_argument("--json", action="store_true", help="print JSON lines only")
    chosen = parser.parse_args(arguments)
    engines = chosen_engines(chosen.engine)
    workload = Workload(chosen.rows, chosen.keys, chosen.sink, inputs="", workspace="", words=chosen.words)
    course = contest.Course(chosen.warm_up, chosen.rounds, settling=4, epochs=chosen.epochs)
    results = contest.hold(engines, workload, course, chosen.cache.resolve())

    floor = next((result.rows_per_second for result in results if result.engine == "chain-floor"), None)
    if not chosen.json:
        print(f"{'engine':<20} {'rows/s':>10} {'of floor':>9}   {chosen.rows:,} rows an epoch, {chosen.keys:,} keys")
    for result in results:
        ratio = round(result.rows_per_second / floor, 4) if floor else None
        if chosen.json:
            facts = {
                "rows": chosen.rows,
                "keys": chosen.keys,
                "sink": sink_of(result.engine, chosen.sink),
                "ratio_to_floor": ratio,
            }
            print(json.dumps(result.to_json() | facts))
        else:
            share = f"{ratio:.2f}" if ratio is not None else "-"
            print(f"{result.engine:<20} {result.rows_per_second:>10,.0f} {share:>9}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
