"""The time that Holdfast adds to a small epoch: 100 rows, compared with the bare micro-batch that it stands on.

    python benchmarks/small_epoch.py [--engine bare,holdfast] [--rows 100] [--rounds 5] [--epochs 20] [--json]

The bare side is the same ``repartitionById`` and ``mapInArrow`` in a ``foreachBatch`` that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # started by its path
    sys.path.insert(0, str(ROOT))

from benchmarks.harness import contest  # noqa: E402
from benchmarks.harness.workload import SINKS, Workload, chosen_engines, sink_of  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The time that Holdfast adds to an epoch of few rows.")
    parser.add_argument("--engine", default="bare,holdfast", help="names, separated by commas (default: %(default)s)")
    parser.add_argument("--sink", choices=SINKS, default="discard", help="of Holdfast; the bare side never writes")
    parser.add_argument("--rows", type=int, default=100, help="rows an epoch (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=100_000, help="distinct keys (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in which the engines take turns")
    parser.add_argument("--warm-up", type=int, default=10, help="epochs before the first round")
    parser.add_argument("--epochs", type=int, default=20, help="measured epochs a round, after three to settle")
    parser.add_argument("--cache", type=Path, default=ROOT / ".bench", help="generated input")
    parser.add_argument("--json", action="store_true", help="print JSON lines only")
    chosen = parser.parse_args(arguments)
    engines = chosen_engines(chosen.engine)
    workload = Workload(chosen.rows, chosen.keys, chosen.sink, inputs="", workspace="")
    course = contest.Course(chosen.warm_up, chosen.rounds, settling=3, epochs=chosen.epochs)
    results = contest.hold(engines, workload, course, chosen.cache.resolve())

    bare = next((result.median_seconds for result in results if result.engine == "bare"), None)
    if not chosen.json:
        print(f"{'engine':<14} {'ms/epoch':>10} {'added ms':>10}   {chosen.rows:,} rows an epoch")
    for result in results:
        added = round(1000 * (result.median_seconds - bare), 1) if bare is not None else None
        if chosen.json:
            print(
                json.dumps(
                    result.to_json()
                    | {"rows": chosen.rows, "sink": sink_of(result.engine, chosen.sink), "added_milliseconds": added}
                )
            )
        else:
            print(
                f"{result.engine:<14} {1000 * result.median_seconds:>10,.0f} {added if added is not None else '-':>10}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
