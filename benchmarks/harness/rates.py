"""What benchmarks of rows a second have in common: their options, the contest, and how results are printed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import contest
from benchmarks.harness.workload import SINKS, Workload, chosen_engines, sink_of

ROOT = Path(__file__).resolve().parents[2]


def measure(
    description: str, engines: Sequence[str], floor: str, arguments: Sequence[str] | None, words: int = 0
) -> int:
    """Runs a program that holds a contest, and returns its exit code.

    Args:
        description: What is measured.
        engines: Those that take part if nothing else is said.
        floor: The engine that the others are compared with.
        arguments: Of the command line; None for those of the process.
        words: How many keys stand in a line of the input, 0 for rows.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--engine",
        default=",".join(engines),
        help="names, separated by commas, each perhaps with settings of Spark: floor@spark.a=1;spark.b=2 (%(default)s)",
    )
    parser.add_argument("--sink", choices=SINKS, default="parquet")
    parser.add_argument("--rows", type=int, default=200_000, help="rows an epoch (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=100_000, help="distinct keys (default: %(default)s)")
    parser.add_argument("--fill", type=int, default=0, help="rows an epoch of a first run in which each key comes once")
    parser.add_argument("--files", type=int, default=1, help="files an epoch (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in which the engines take turns")
    parser.add_argument("--warm-up", type=int, default=3, help="epochs before the first round")
    parser.add_argument("--epochs", type=int, default=8, help="measured epochs a round; two of slow engines")
    parser.add_argument("--cache", type=Path, default=ROOT / ".bench", help="generated input and environments")
    parser.add_argument("--json", action="store_true", help="print JSON lines only")
    chosen = parser.parse_args(arguments)
    taking_part = chosen_engines(chosen.engine, settings=True)
    workload = Workload(chosen.rows, chosen.keys, chosen.sink, "", "", chosen.fill, words, chosen.files)
    course = contest.Course(chosen.warm_up, chosen.rounds, settling=4, epochs=chosen.epochs)
    results = contest.hold(taking_part, workload, course, chosen.cache.resolve())

    compared = next((result.rows_per_second for result in results if result.engine == floor), None)
    width = max(14, *(len(name) for name in taking_part))
    if not chosen.json:
        print(
            f"{'engine':<{width}} {'rows/s':>10} {'of floor':>9}   {chosen.rows:,} rows an epoch, {chosen.keys:,} keys"
        )
    for result in results:
        ratio = round(result.rows_per_second / compared, 4) if compared else None
        if chosen.json:
            facts = {
                "rows": chosen.rows,
                "keys": chosen.keys,
                "files": chosen.files,
                "sink": sink_of(result.engine, chosen.sink),
                "ratio_to_floor": ratio,
            }
            print(json.dumps(result.to_json() | facts))
        else:
            share = f"{ratio:.2f}" if ratio is not None else "-"
            print(f"{result.engine:<{width}} {result.rows_per_second:>10,.0f} {share:>9}")
    return 0
