"""Draws docs/nexmark.svg from the newest run in benchmarks/results/nexmark.md.

    python scripts/nexmark_plot.py [--check]

With --check nothing is written; the exit code says whether the plot is current. The run is the first fenced `json`
block, with what `benchmarks/nexmark/run.py --json` printed: for each query a bar for each engine, events a second.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

ROOT: Final = Path(__file__).resolve().parent.parent
PLOT: Final = ROOT / "docs" / "nexmark.svg"
RESULTS: Final = ROOT / "benchmarks" / "results" / "nexmark.md"
BLOCK: Final = re.compile(r"^```json\n(?P<lines>.*?)^```$", re.MULTILINE | re.DOTALL)
ENGINES: Final = {
    "holdfast": ("Holdfast", "#0b6e69"),
    "flink-sql": ("Flink SQL", "#c8553d"),
    "spark-sql": ("Spark Structured Streaming", "#9aa5b1"),
    "pyflink": ("PyFlink DataStream", "#f2a65a"),
}
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 920, 300, 70, 262, 60


def main(arguments: list[str] | None = None) -> int:
    """Writes or checks the plot."""
    parser = argparse.ArgumentParser(description="Draw docs/nexmark.svg from benchmarks/results/nexmark.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the plot is not current")
    check = parser.parse_args(arguments).check
    after = plot(RESULTS.read_text(encoding="utf-8"))
    if check:
        return int(not PLOT.exists() or PLOT.read_text(encoding="utf-8") != after)
    PLOT.write_text(after, encoding="utf-8")
    return 0


def plot(results: str) -> str:
    """The plot as SVG; without a bar where nothing was measured."""
    block = BLOCK.search(results)
    if block is None:
        raise SystemExit(f"{RESULTS.relative_to(ROOT)} has no json block.")
    lines = [json.loads(line) for line in block["lines"].splitlines() if line.strip()]
    measured = [result for result in lines if result["engine"] in ENGINES]
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12" fill="#222222">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(20, 24, "Nexmark, thousands of events a second", "start"),
        *_bars(measured),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _bars(measured: list[dict[str, Any]]) -> Iterable[str]:
    queries = sorted({result["query"] for result in measured}, key=lambda query: int(query[1:]))
    engines = [engine for engine in ENGINES if any(result["engine"] == engine for result in measured)]
    best = max(result["events_per_second"] for result in measured)
    step = (WIDTH - LEFT - 20) / len(queries)
    width = step * 0.8 / len(engines)
    for part in range(5):
        height = BOTTOM - part / 4 * (BOTTOM - TOP)
        yield f'<line x1="{LEFT}" y1="{height:.1f}" x2="{WIDTH - 20}" y2="{height:.1f}" stroke="#cccccc"/>'
        yield _text(LEFT - 6, height + 4, f"{best * part / 4000:,.0f}", "end")
    for number, engine in enumerate(engines):
        name, colour = ENGINES[engine]
        yield f'<rect x="{LEFT + number * 200}" y="36" width="10" height="10" fill="{colour}"/>'
        yield _text(LEFT + number * 200 + 15, 45, name, "start")
    for result in measured:
        height = (BOTTOM - TOP) * result["events_per_second"] / best
        across = LEFT + queries.index(result["query"]) * step + step * 0.1 + engines.index(result["engine"]) * width
        yield (
            f'<rect x="{across:.1f}" y="{BOTTOM - height:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'fill="{ENGINES[result["engine"]][1]}"/>'
        )
    for at, query in enumerate(queries):
        yield _text(LEFT + (at + 0.5) * step, BOTTOM + 18, query, "middle")


def _text(across: float, down: float, text: str, anchor: str) -> str:
    return f'<text x="{across:.1f}" y="{down:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


if __name__ == "__main__":
    sys.exit(main())
