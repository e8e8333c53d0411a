"""A model of what an epoch takes, writes and leaves, by the size of the job; docs/scale.md tells of it.

    python benchmarks/scale_model.py                     # held against what was measured, then the large ones
    python benchmarks/scale_model.py --cores 800 --width 800 --levels 2 --rows 80000000 --keys 10000000000 --entry 100

Every coefficient was measured on two cores of one machine, most of them beside nothing else; where from is said beside
it. It adds up what happens one after the other, so it knows nothing of stragglers, of a network, of memory that is too
small, or of what other jobs do.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

# Milliseconds of the clock.
FIXED = 170.0
"""An epoch of next to nothing in an old JVM, without its syncs: planning, logs, start of a job (`small_epoch.py`)."""
SPARK_TASK = 1.1
"""Each task of Spark: scheduled, started, answered (`width.py --spark`, 1,000 a stage; a young JVM takes three)."""
DRIVER_SUBTASK = 0.09
"""What the driver does for a subtask: plan, accept, complete (`width.py`)."""
DRIVER_RUN = 0.007
"""What the driver does for a run that the document names (`width.py`, `wide_state.py`)."""

# Microseconds of a core.
ROW = {"rows": 2.6, "batches": 1.8}
"""Each row and level, in the JVM and in Python, less `small_epoch.py`: between `keyed_count.py`, whose JVM is old (2.2,
1.3), and `large_state.py`, whose JVM has just begun (3.4, 2.4)."""
COLD = 1.5
"""More for a key that is not in a worker's memory, of 5 million of a subtask: it is searched for (`large_state.py`)."""
COLD_KEYS = 5_000_000

# Bytes.
MARKER, SPARK_MARKER, REPORT, DOCUMENT_RUN, MESSAGE_RUN = 24, 94, 550, 290, 300
"""Of `width.py`; what Spark shuffles for a marker was tried with a million rows of six columns."""

# Compaction, which is one process of the driver's host.
MERGED_ROWS = 12_000_000
"""Rows that it reads a second, in memory and by the clock (`merge.py`); a disk or a network may be slower."""
REWRITTEN = 3.0
"""How often a row is read for merges until it stays where it is (`compaction.py`: 2 to 4; 6.5 at the very most)."""
GRACE_SECONDS = 600
"""How long a file stays when nothing needs it any more, by default."""


@dataclass(frozen=True)
class Shape:
    """A job, and what it runs on.

    Attributes:
        rows: Rows an epoch.
        keys: Keys that have state on each level; each row has one of them, any as likely as the other.
        width: Subtasks of a level.
        levels: Keyed levels in a row.
        cores: Of all executors.
        entry: Bytes of a key with its state.
        runs: Runs that a key is looked for in.
        sync_ms: What it takes to make a file durable.
        cached: Keys whose state a worker holds in memory; there is a worker for each core.
        form: Functions of `rows` or of `batches`.
    """

    rows: int = 200_000
    keys: int = 100_000
    width: int = 2
    levels: int = 1
    cores: int = 2
    entry: int = 34
    runs: int = 8
    sync_ms: float = 2.0
    cached: int = 500_000
    form: str = "rows"

    @property
    def touched(self) -> float:
        """Keys that change in an epoch, on each level."""
        return self.keys * -math.expm1(-self.rows / self.keys)

    @property
    def subtasks(self) -> int:
        return self.width * self.levels


def predict(shape: Shape) -> dict[str, float]:
    """What an epoch of a job takes (milliseconds), carries and writes (bytes), and leaves (files)."""
    waves = math.ceil(shape.width / shape.cores)
    is_cold = max(0.0, 1 - shape.cached * shape.cores / (shape.levels * shape.keys))
    depth = math.log2(max(2, shape.keys / shape.width)) / math.log2(COLD_KEYS)
    found = {
        "spark_ms": FIXED + SPARK_TASK * (shape.levels + 1) * max(0, shape.width - 2),
        "rows_ms": shape.levels * shape.rows * ROW[shape.form] / shape.cores / 1000,
        "cold_ms": shape.levels * shape.touched * is_cold * COLD * depth / shape.cores / 1000,
        # A run of each subtask, the output of each of the last level, the document, the pointer.
        "sync_ms": shape.sync_ms * (waves * (shape.levels + 1) + 2),
        "driver_ms": shape.subtasks * (DRIVER_SUBTASK + DRIVER_RUN * shape.runs),
    }
    epoch = sum(found.values())
    written = shape.touched * shape.levels
    merging = 1000 * REWRITTEN * written / MERGED_ROWS
    exchanges = shape.levels - 1
    return found | {
        "epoch_ms": epoch,
        "rows_per_second": 1000 * shape.rows / epoch,
        "run_bytes": written * shape.entry,
        "marker_bytes": exchanges * shape.width**2 * MARKER,
        "shuffled_marker_bytes": exchanges * shape.width**2 * SPARK_MARKER,
        "report_bytes": shape.width * REPORT * max(0, exchanges),
        "message_bytes": shape.width * shape.runs * MESSAGE_RUN,
        "document_bytes": shape.subtasks * shape.runs * DOCUMENT_RUN,
        "files": shape.subtasks + shape.width + 2,
        "files_waiting": shape.subtasks * GRACE_SECONDS * 1000 / epoch,
        "merging_ms": merging,
        "merging_by_epoch": merging / epoch,
    }


MEASURED = (
    # what, its shape, what was measured (benchmarks/RESULTS.md)
    ("small_epoch, 100 rows", Shape(rows=100), {"epoch_ms": 177}),
    ("keyed_count, rows", Shape(), {"epoch_ms": 396}),
    ("keyed_count, batches", Shape(form="batches"), {"epoch_ms": 307}),
    ("large_state, 100,000 keys, rows", Shape(), {"epoch_ms": 518, "run_bytes": 2_940_000}),
    ("large_state, 100,000 keys, batches", Shape(form="batches"), {"epoch_ms": 419}),
    ("large_state, 10 million, rows", Shape(keys=10**7), {"epoch_ms": 575, "run_bytes": 6_740_000}),
    ("large_state, 10 million, batches", Shape(keys=10**7, form="batches"), {"epoch_ms": 552}),
    ("large_state, 100 million, rows", Shape(keys=10**8), {"epoch_ms": 683}),
    ("large_state, 100 million, batches", Shape(keys=10**8, form="batches"), {"epoch_ms": 619}),
)
LARGE = (
    ("200 executors of 4 cores, 1 TB", Shape(80_000_000, 5 * 10**9, 800, 2, 800, 100)),
    ("the same, 1% of the rows", Shape(800_000, 5 * 10**9, 800, 2, 800, 100)),
)


def held() -> list[dict[str, object]]:
    """The model beside what was measured."""
    return [
        {"what": what, "of": name, "model": round(predict(shape)[name]), "measured": value}
        for what, shape, measured in MEASURED
        for name, value in measured.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What an epoch takes, writes and leaves, by the size of the job.")
    for field in fields(Shape):
        default = field.default
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(default), help=f"default: {default}")
    parser.add_argument("--json", action="store_true", help="print JSON lines only")
    chosen = vars(parser.parse_args(arguments))
    as_json = chosen.pop("json")
    given = {name: value for name, value in chosen.items() if value is not None}
    if not given:
        for line in held():
            print(json.dumps(line) if as_json else "  ".join(f"{name}={value}" for name, value in line.items()))
    for what, shape in (("as asked", Shape(**given)),) if given else LARGE:
        found = {name: round(value, 2 if value < 10 else None) for name, value in predict(shape).items()}
        if as_json:
            print(json.dumps({"what": what, **asdict(shape), **found}))
            continue
        print(f"\n{what}: {shape}")
        for name, value in found.items():
            print(f"    {name:<24} {value:>18,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
