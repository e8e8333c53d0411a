"""Puts what `benchmarks/nexmark/run.py --json` printed into benchmarks/results/nexmark.md, and makes its table anew.

    python scripts/nexmark_table.py [--check] [FILE ...]

The lines of the files go into the first fenced `json` block, each in the place of an older one of the same query and
engine, so that a run may come in pieces. The table, between two comments, is made of that block. With --check nothing
is written; the exit code says whether the table is current.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = ROOT / "benchmarks" / "results" / "nexmark.md"
BLOCK: Final = re.compile(r"(?<=^```json\n)(?P<lines>.*?)(?=^```$)", re.MULTILINE | re.DOTALL)
PLACE: Final = re.compile(r"(?<=^<!-- table -->\n).*?(?=^<!-- /table -->$)", re.MULTILINE | re.DOTALL)
ENGINES: Final = {
    "holdfast": "Holdfast",
    "flink-sql": "Flink SQL",
    "flink-sql-without-keys": "without keys",
    "spark-sql": "Spark's SQL",
    "pyflink": "PyFlink",
}
BY_COLUMNS: Final = ("q5", "q7", "q8", "q11", "q12", "q15", "q16", "q17", "q18", "q19")
"""Windows and known aggregates, of which Flink's SQL is the peer."""
JOINS: Final = ("q3", "q4", "q9", "q20")
"""Queries that know that ids are unique."""

Measured = dict[tuple[str, str], dict[str, Any]]


def main(arguments: list[str] | None = None) -> int:
    """Writes or checks the table."""
    parser = argparse.ArgumentParser(description="Make the table in benchmarks/results/nexmark.md.")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="JSON lines of a run")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the table is not current")
    chosen = parser.parse_args(arguments)
    before = RESULTS.read_text(encoding="utf-8")
    after = with_table(before, [line for path in chosen.files for line in path.read_text("utf-8").splitlines()])
    if chosen.check:
        return int(before != after)
    RESULTS.write_text(after, encoding="utf-8")
    return 0


def with_table(results: str, lines: Iterable[str] = ()) -> str:
    """The page with further lines in its block, and the table of that block."""
    block = BLOCK.search(results)
    if block is None or not PLACE.search(results):
        raise SystemExit("The page needs a json block, and a place between <!-- table --> and <!-- /table -->.")
    measured: Measured = {}
    for line in [*block["lines"].splitlines(), *lines]:
        if line.startswith("{"):
            result = json.loads(line)
            measured[result["query"], result["engine"]] = result
    ordered = sorted(measured, key=lambda name: (int(name[0][1:]), list(ENGINES).index(name[1])))
    kept = "".join(json.dumps(measured[name]) + "\n" for name in ordered)
    page = BLOCK.sub(lambda match: kept, results, count=1)
    return PLACE.sub(lambda match: table(measured), page, count=1)


def table(measured: Measured) -> str:
    """Events a second of each query and engine, the ratios of Holdfast to its peers, and their medians."""
    queries = sorted({query for query, _ in measured}, key=lambda query: int(query[1:]))
    ratios = ("of Flink SQL", "of Flink SQL without keys", "of PyFlink")
    lines = [
        f"| events/s | {' | '.join((*ENGINES.values(), *ratios))} | Holdfast, s | Flink SQL, s |",
        "|---|" + "---:|" * 8 + "---|---|",
    ]
    for query in queries:
        cells = [query, *(_rate(measured.get((query, engine))) for engine in ENGINES)]
        for peer, digits in (("flink-sql", 2), ("flink-sql-without-keys", 2), ("pyflink", 0)):
            ratio = _ratio(measured, query, peer)
            cells.append("-" if ratio is None else f"{ratio:.{digits}f}")
        cells += [_rounds(measured.get((query, engine))) for engine in ("holdfast", "flink-sql")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_medians(measured)]) + "\n"


def _medians(measured: Measured) -> Iterable[str]:
    everything = sorted({query for query, _ in measured})
    for peer, queries, what in (
        ("flink-sql", BY_COLUMNS, "Ratio to Flink SQL, queries that run by columns"),
        ("flink-sql", JOINS, "Ratio to Flink SQL with primary keys, joins"),
        ("flink-sql-without-keys", JOINS, "Ratio to Flink SQL without primary keys, joins"),
        ("pyflink", everything, "Ratio to PyFlink"),
    ):
        found = {query: ratio for query in queries if (ratio := _ratio(measured, query, peer)) is not None}
        if found:
            least = min(found, key=lambda query: found[query])
            median = statistics.median(found.values())
            yield f"{what}: {len(found)} measured, median {median:.2f}, lowest {found[least]:.2f} ({least})."


def _ratio(measured: Mapping[tuple[str, str], Mapping[str, Any]], query: str, peer: str) -> float | None:
    rates = [
        measured[query, engine]["events_per_second"] for engine in ("holdfast", peer) if (query, engine) in measured
    ]
    return float(rates[0] / rates[1]) if len(rates) == 2 else None


def _rate(result: Mapping[str, Any] | None) -> str:
    return "-" if result is None else f"{result['events_per_second']:,.0f}"


def _rounds(result: Mapping[str, Any] | None) -> str:
    return "-" if result is None else ", ".join(f"{seconds:.1f}" for seconds in result["rounds"])


if __name__ == "__main__":
    sys.exit(main())
