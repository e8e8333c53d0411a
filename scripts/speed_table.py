"""Write the table of measured speed into docs/comparison.md, from benchmarks/RESULTS.md.

    python scripts/speed_table.py [--check]

With --check nothing is written; the exit code tells whether the page is current.

The measurements are those of the first heading of this form in RESULTS.md, the newest, with the first fenced `json`
block after it, which is what `benchmarks/keyed_count.py --json` printed:

    ### keyed_count: <machine>, <YYYY-MM-DD>

    ```json
    {"engine": "holdfast", "rows_per_second": 1.0, "rows": 200000, "keys": 100000, "sink": "parquet", ...}
    ```
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "comparison.md"
RESULTS = ROOT / "benchmarks" / "RESULTS.md"

HEADING = re.compile(r"^##+ keyed_count: (?P<machine>.+), (?P<date>\d{4}-\d{2}-\d{2})$", re.MULTILINE)
BLOCK = re.compile(r"^```json\n(?P<lines>.*?)^```$", re.MULTILINE | re.DOTALL)
PLACE = re.compile(r"(?<=^<!-- speed -->\n).*?(?=^<!-- /speed -->$)", re.MULTILINE | re.DOTALL)
NOTHING = "No run is recorded in `benchmarks/RESULTS.md` yet.\n"

ENGINES = {
    "holdfast": ("Holdfast", "one a row"),
    "holdfast-vectorised": ("Holdfast, built-in `count()`", "one a row"),
    "floor": ("floor", "one a row"),
    "spark-native": ("Spark `groupBy().count()`, RocksDB", "one a key"),
    "spark-tws": ("Spark `transformWithState` (Row), RocksDB", "one a row"),
    "pyflink": ("PyFlink, thread mode, hashmap", "one a row"),
}


def main(arguments: list[str] | None = None) -> int:
    """Writes or checks the table."""
    parser = argparse.ArgumentParser(description="Write the table of measured speed into docs/comparison.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is not current")
    check = parser.parse_args(arguments).check
    before = PAGE.read_text(encoding="utf-8")
    after = with_speed(before, RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else "")
    if check:
        return int(before != after)
    PAGE.write_text(after, encoding="utf-8")
    return 0


def with_speed(page: str, results: str) -> str:
    """Return the page with the table that the results give."""
    text, count = PLACE.subn(lambda match: speed(results), page)
    if count != 1:
        raise SystemExit("docs/comparison.md needs one <!-- speed --> and one <!-- /speed -->, each on a line.")
    return text


def speed(results: str) -> str:
    """The table, and where and when it was measured."""
    found = HEADING.search(results)
    if found is None:
        return NOTHING
    block = BLOCK.search(results, found.end())
    if block is None:
        raise SystemExit(f"benchmarks/RESULTS.md has no json block after {found[0]!r}.")
    measured: list[dict[str, Any]] = [json.loads(line) for line in block["lines"].splitlines() if line.strip()]
    floor = next((result["rows_per_second"] for result in measured if result["engine"] == "floor"), None)
    lines = ["| engine | input rows/s | of the floor | rows emitted | sink |", "|---|---:|---:|---|---|"]
    for result in measured:
        name, emitted = ENGINES.get(result["engine"], (result["engine"], "one a row"))
        share = f"{result['rows_per_second'] / floor:.2f}" if floor else "-"
        lines.append(f"| {name} | {rounded(result['rows_per_second'])} | {share} | {emitted} | {result['sink']} |")
    first = measured[0]
    where = f"Measured on {found['machine']}, {found['date']}: {first['rows']:,} rows an epoch, {first['keys']:,} keys"
    rounds = f"the median of {len(first['rounds'])} rounds in which the engines took turns"
    sentence = f"{where}, {rounds} ([source](../benchmarks/RESULTS.md#keyed_count))."
    lines += ["", *textwrap.wrap(sentence, 118, break_long_words=False, break_on_hyphens=False)]
    return "\n".join(lines) + "\n"


def rounded(number: float) -> str:
    """A rate with three digits that mean something."""
    digits = max(0, len(str(int(number))) - 3)
    return f"{round(number, -digits):,.0f}"


if __name__ == "__main__":
    sys.exit(main())
