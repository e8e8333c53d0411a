"""How fast runs are merged: several large runs with the same keys, in this process.

    python benchmarks/merge.py [--keys 1000000] [--runs 4] [--rounds 3] [--directory DIR] [--json]

`rows_per_second` are rows that are read, of the median round, by the clock; `processor_rows_per_second` by processor
time, which tells more where others are busy. What is written is as large as one of the runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # started by its path
    sys.path.insert(0, str(ROOT))

from benchmarks.large_state_worker import COUNT, MAX_PARALLELISM, write_state  # noqa: E402
from holdfast.kernel.key_group import range_of  # noqa: E402
from holdfast.state.compaction import compact  # noqa: E402
from holdfast.state.compaction_plan import CompactionOutput, CompactionPlan, layers, output_ranges  # noqa: E402
from holdfast.state.run_file import RunHandle  # noqa: E402
from holdfast.storage.local import LocalFileSystem  # noqa: E402

OWN = range_of(0, MAX_PARALLELISM, 2)


def written(place: str, keys: int, runs: int) -> list[RunHandle]:
    """Versions of the same keys, one after the other."""
    found = []
    for number in range(runs):
        for run in write_state(place, 2 * keys, OWN):
            path = run.path.replace("base", str(number))
            Path(place, run.path).rename(Path(place, path))
            found.append(replace(run, path=path))
    return found


def measure(place: str, keys: int, runs: int, rounds: int) -> dict[str, Any]:
    inputs = written(place, keys, runs)
    wall, processor = [], []
    outputs: Sequence[RunHandle] = ()
    for number in range(rounds):
        ranges = enumerate(output_ranges(layers(inputs), True, [OWN]))
        wanted = tuple(CompactionOutput(f"shared/merged-{number}-{at}.run", part) for at, part in ranges)
        plan = CompactionPlan(place, tuple(inputs), wanted, True, None, 1)
        began, worked = time.perf_counter(), time.process_time()
        outputs = compact(plan, LocalFileSystem())
        wall.append(time.perf_counter() - began)
        processor.append(time.process_time() - worked)
    rows = sum(run.rows[COUNT.name] for run in inputs)
    return {
        "rows_read": rows,
        "rows_written": sum(run.rows[COUNT.name] for run in outputs),
        "bytes_read": sum(run.size for run in inputs),
        "rows_per_second": round(rows / statistics.median(wall)),
        "processor_rows_per_second": round(rows / statistics.median(processor)),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="How fast runs are merged.")
    parser.add_argument("--keys", type=int, default=1_000_000, help="of each run (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=4, help="that are merged (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", help="where the runs are; the default is the temporary directory")
    parser.add_argument("--json", action="store_true", help="print a JSON line only")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="merge-", dir=chosen.directory) as place:
        found = measure(place, chosen.keys, chosen.runs, chosen.rounds)
    print(json.dumps(found) if chosen.json else "  ".join(f"{name}={value}" for name, value in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
