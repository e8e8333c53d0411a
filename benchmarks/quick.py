"""Whether speed is still what it was, in about three minutes on two cores: ratios of one run beside those committed.

    python benchmarks/quick.py [--json] [--commit]

Each group is a contest by itself, and few epochs: a ratio may be off by a tenth and more, and by chance. What is lower
than three quarters of what is committed is marked; `keyed_count.py`, `chain.py` and `small_epoch.py` measure at length.
`--commit` writes the ratios into `benchmarks/results/quick.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # started by its path
    sys.path.insert(0, str(ROOT))

from benchmarks.chain import WORDS  # noqa: E402
from benchmarks.harness import contest  # noqa: E402
from benchmarks.harness.workload import Workload  # noqa: E402

COMMITTED = ROOT / "benchmarks" / "results" / "quick.json"
LOW = 0.75


@dataclass(frozen=True)
class Group:
    """Engines that are compared with one of them.

    Attributes:
        floor: The engine that the others are compared with.
        engines: The others, each with the name of its ratio.
        workload: What all of them do.
        course: How long that takes.
    """

    floor: str
    engines: dict[str, str]
    workload: Workload
    course: contest.Course


def _workload(rows: int, sink: str = "parquet", words: int = 0) -> Workload:
    return Workload(rows, 100_000, sink, inputs="", workspace="", words=words)


LONG = contest.Course(warm_up=4, rounds=2, settling=2, epochs=4)
SHORT = contest.Course(warm_up=10, rounds=2, settling=3, epochs=15)
GROUPS = (
    Group(
        "floor",
        {
            "holdfast": "keyed_count, rows / floor",
            "holdfast-files": "keyed_count, FileSource and batches / floor",
            "holdfast-event-time": "keyed_count, event time and a timer a key / floor",
        },
        _workload(200_000),
        LONG,
    ),
    Group("chain-floor", {"chain-holdfast-files": "chain, FileSource / floor"}, _workload(200_000, words=WORDS), LONG),
    Group("bare", {"holdfast": "small_epoch, bare / Holdfast"}, _workload(100, "discard"), SHORT),
)


def ratios(group: Group, cache: Path) -> dict[str, float]:
    """Rows a second of each engine by those of the floor."""
    names = [group.floor, *group.engines]
    found = {result.engine: result for result in contest.hold(names, group.workload, group.course, cache)}
    floor = found[group.floor].rows_per_second
    return {told: round(found[name].rows_per_second / floor, 3) for name, told in group.engines.items()}


def committed() -> dict[str, float]:
    """The ratios that are committed; none before the first time."""
    return json.loads(COMMITTED.read_text())["ratios"] if COMMITTED.exists() else {}


def commit(found: dict[str, float]) -> None:
    """Writes ratios to be committed, and what they are of."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    head = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    about = {"commit": head, "date": time.strftime("%Y-%m-%d"), "cores": os.cpu_count()}
    unfinished = COMMITTED.with_suffix(".unfinished")
    unfinished.write_text(json.dumps({**about, "ratios": found}, indent=1) + "\n")
    unfinished.replace(COMMITTED)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Ratios of speed, beside those that are committed.")
    parser.add_argument("--cache", type=Path, default=ROOT / ".bench", help="generated input")
    parser.add_argument("--json", action="store_true", help="print JSON lines only")
    parser.add_argument("--commit", action="store_true", help="write the ratios into benchmarks/results/quick.json")
    chosen = parser.parse_args(arguments)
    begun = time.monotonic()
    found: dict[str, float] = {}
    for group in GROUPS:
        found |= ratios(group, chosen.cache.resolve())
    told = "keyed_count, event time and a timer a key / rows"
    found[told] = round(
        found["keyed_count, event time and a timer a key / floor"] / found["keyed_count, rows / floor"], 3
    )
    before = committed()
    if not chosen.json:
        print(f"{'':<52} {'now':>6} {'committed':>10}")
    for name, ratio in found.items():
        known = before.get(name)
        if chosen.json:
            print(json.dumps({"ratio": name, "now": ratio, "committed": known}))
        else:
            mark = "  lower" if known is not None and ratio < LOW * known else ""
            print(f"{name:<52} {ratio:>6.2f} {'-' if known is None else format(known, '.2f'):>10}{mark}")
    if chosen.commit:
        commit(found)
    contest.progress(f"{time.monotonic() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
