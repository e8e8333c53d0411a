"""Replays a seed, or runs many: `python -m tests.simulation --help`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from math import inf

from tests.simulation.bugs import BUGS, IN_REAL_TIME, descriptions
from tests.simulation.kind import KINDS
from tests.simulation.many import history_of, run_many, seeds_for_all
from tests.simulation.report import seeds_needed, table
from tests.simulation.shrink import shrunk


def main(arguments: Sequence[str]) -> int:
    """What is typed on a command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", help="tell the history of this seed")
    parser.add_argument("--shrink", action="store_true", help="make it as short as possible while it fails")
    parser.add_argument("--bug", choices=sorted(BUGS), help="put a bug into the code")
    parser.add_argument("--real", action="store_true", help="with the real tasks, state backend and Parquet files")
    parser.add_argument("--real-time", action="store_true", help="in real time, with the real tasks")
    parser.add_argument("--seeds", type=int, help="run that many seeds and print what they have met")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--bugs", type=int, metavar="LIMIT", help="find each bug within that many seeds")
    parser.add_argument("--minutes", type=float, default=inf, help="begin no more of them after that")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args(arguments)
    name = "real-time" if chosen.real_time or chosen.bug in IN_REAL_TIME else "real" if chosen.real else "light"
    if chosen.bugs is not None:
        found = seeds_for_all([chosen.bug] if chosen.bug else list(BUGS), chosen.bugs, chosen.processes)
        print(seeds_needed(found, descriptions()))
        return 0 if all(found.values()) else 1
    if chosen.seeds is not None:
        totals = run_many(chosen.first, chosen.seeds, chosen.processes, chosen.minutes, name)
        print(table(totals))
        print("\n".join(f"seed {seed}: {failure}" for seed, failure in sorted(totals.failures.items())))
        return 1 if totals.failures else 0
    if chosen.seed is None:
        parser.error("name a seed, or --seeds")
    kind = KINDS[name]
    history = history_of(chosen.seed, chosen.bug, kind=kind)
    if chosen.shrink and history.failure is not None:
        history = shrunk(history, lambda recorded: history_of(chosen.seed, chosen.bug, recorded, kind))
    print("\n".join(history.trace))
    print(
        f"seed {history.seed}: {history.failure or 'nothing found'}; {history.steps} calls, {len(history.drawn)} draws"
    )
    return 1 if history.failure is not None else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
