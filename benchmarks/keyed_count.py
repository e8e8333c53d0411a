"""Rows per second of a counter per key: string key and two longs, every row emitted, all durable writes on.

    python benchmarks/keyed_count.py [--engine a,b] [--sink parquet|discard] [--rounds 5] [--rows N] [--keys N]
        [--fill N] [--files N] [--json]

With the Parquet sink every engine writes its rows exactly once, except PyFlink, whose sink drops them. With ``discard``
nobody writes rows. ``spark-native`` emits one row a key and epoch, the others one an input row. With ``--fill`` each
key comes once before the measurement.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # started by its path
    sys.path.insert(0, str(ROOT))

from benchmarks.harness import rates  # noqa: E402

ENGINES = ("holdfast", "floor", "spark-native", "spark-tws", "pyflink")


def main(arguments: list[str] | None = None) -> int:
    return rates.measure("Rows per second of a counter per key.", ENGINES, "floor", arguments)


if __name__ == "__main__":
    sys.exit(main())
