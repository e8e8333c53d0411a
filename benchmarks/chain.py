"""Rows per second of a chain: lines to words, a count by word, a count by the end of the word, all writes durable.

    python benchmarks/chain.py [--engine a,b] [--sink parquet|discard] [--rounds 5] [--rows N] [--keys N]
        [--files N] [--json]

Every word is emitted; `--rows` are words, ten in a line. The floor is the same chain of `mapInArrow` and `repartition`
without state. In `chain-holdfast-rows` elements cross the exchanges as rows of Spark, in `chain-holdfast-files` tasks
read the files. PyFlink's lines are made in its JVM, and its sink drops the rows.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # started by its path
    sys.path.insert(0, str(ROOT))

from benchmarks.harness import rates  # noqa: E402

ENGINES = (
    "chain-holdfast-files",
    "chain-holdfast",
    "chain-holdfast-rows",
    "chain-floor",
    "chain-floor-plain-logs",
    "chain-spark-tws",
    "chain-pyflink",
)
WORDS = 10


def main(arguments: list[str] | None = None) -> int:
    return rates.measure("Rows per second of a chain of operators.", ENGINES, "chain-floor", arguments, WORDS)


if __name__ == "__main__":
    sys.exit(main())
