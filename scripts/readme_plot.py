"""Draw docs/speed.svg and docs/latency.svg, the charts of the README, from benchmarks/RESULTS.md.

    python scripts/readme_plot.py [--check]

With --check nothing is written; the exit code tells whether the charts are current.

`latency.svg` has the rows of 10,000 events a second in the first table below a heading `### From Kafka to Kafka, ...`.

`speed.svg` has two panels. Left: rows a second by engine, from the first heading `### keyed_count: <machine>, <date>`.
Right: the time of an epoch by the number of keys, from the first heading `### large_state: <machine>, <date>`. A fenced
`json` block follows each, with what `benchmarks/keyed_count.py --json` and `benchmarks/large_state.py --json` printed.
A panel without a run is left out.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
SPEED = ROOT / "docs" / "speed.svg"
LATENCY = ROOT / "docs" / "latency.svg"
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
LONGEST = 1_200.0
"""Milliseconds of the longest bar; longer ones are cut, and say so. Next to one of 20 s all others would be points."""

BLOCK = re.compile(r"^```json\n(?P<lines>.*?)^```$", re.MULTILINE | re.DOTALL)
NAMES = {
    "holdfast": "Holdfast",
    "holdfast-vectorised": "Holdfast, built-in count()",
    "floor": "floor: no state at all",
    "spark-native": "Spark groupBy().count()",
    "spark-tws": "Spark transformWithState",
    "pyflink": "PyFlink, thread mode",
}
SERIES = {
    ("hashmap", "rows"): ("hashmap, rows", "#0b6e69"),
    ("hashmap", "batches"): ("hashmap, batches", "#58b09c"),
    ("columnar", "rows"): ("columnar, rows", "#c8553d"),
    ("columnar", "batches"): ("columnar, batches", "#f2a65a"),
}
LATENCIES = re.compile(r"^\| ([\w-]+) \| 10,000 \| [\d,]+ \| (?:([\d.]+) \| ([\d.]+) \||did not keep up)", re.MULTILINE)
ENGINES = {
    "holdfast-real-time": "Holdfast in real time, two tasks a stage",
    "holdfast-real-time-1": "Holdfast in real time, one task a stage",
    "holdfast-epochs": "Holdfast by epochs",
    "spark-group-by": "Spark groupBy().agg()",
    "spark-tws": "Spark transformWithState",
    "spark-real-time": "Spark groupBy().agg(), real-time mode",
    "pyflink": "PyFlink, thread mode",
    "flink-sql": "Flink SQL",
    "floor": "floor: Kafka's client, no checkpoints",
}
WIDTH, HEIGHT, PANEL = 920, 300, 460
INK, FAINT, OTHERS = "#222222", "#cccccc", "#9aa5b1"


def main(arguments: list[str] | None = None) -> int:
    """Write or check the charts."""
    parser = argparse.ArgumentParser(description="Draw the charts of the README from benchmarks/RESULTS.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a chart is not current")
    check = parser.parse_args(arguments).check
    results = RESULTS.read_text(encoding="utf-8")
    charts = {SPEED: speed(results), LATENCY: latency(results)}
    if check:
        return int(
            any(not path.exists() or path.read_text(encoding="utf-8") != chart for path, chart in charts.items())
        )
    for path, chart in charts.items():
        path.write_text(chart, encoding="utf-8")
    return 0


def speed(results: str) -> str:
    """Return the chart of speed as SVG."""
    return _svg(HEIGHT, [*_engines(newest_run(results, "keyed_count")), *_sizes(newest_run(results, "large_state"))])


def latency(results: str) -> str:
    """Return the chart of latency as SVG: two bars for each engine."""
    section = results.partition("\n### From Kafka to Kafka, ")[2]
    rows = [
        (engine, [float(number) for number in numbers if number])
        for engine, *numbers in LATENCIES.findall(section.partition("\n#")[0])
    ]
    if not rows:
        raise SystemExit("benchmarks/RESULTS.md has no table of latencies below '### From Kafka to Kafka, '.")
    most = min(max(number for _, numbers in rows for number in numbers), LONGEST)
    parts = [_text(20, 26, "Latency from Kafka to Kafka at 10,000 events a second (ms): p50 and p99", bold=True)]
    for position, (engine, numbers) in enumerate(rows):
        top = 44 + position * 34
        parts.append(_text(250, top + 18, ENGINES.get(engine, engine), anchor="end"))
        if not numbers:
            parts.append(_text(260, top + 18, "did not keep up", colour=OTHERS))
            continue
        colours = ("#0b6e69", "#7db8b4") if engine.startswith("holdfast") else ("#6b7681", "#b9c1c9")
        for bar, (number, colour) in enumerate(zip(numbers, colours, strict=True)):
            down, length = top + bar * 13, 560 * min(number, most) / most
            parts.append(f'<rect x="260" y="{down}" width="{length:.1f}" height="11" fill="{colour}"/>')
            parts.append(_text(266 + length, down + 10, f"{number:,.1f}{', cut' if number > most else ''}"))
    return _svg(54 + len(rows) * 34, parts)


def _svg(height: int, parts: Iterable[str]) -> str:
    size = f'viewBox="0 0 {WIDTH} {height}"'
    begin = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12" fill="{INK}">'
    return "\n".join([begin, f'<rect width="{WIDTH}" height="{height}" fill="white"/>', *parts, "</svg>"]) + "\n"


def newest_run(results: str, benchmark: str) -> list[dict[str, Any]]:
    """What the newest recorded run of a benchmark printed, the first on the page; nothing if none is recorded."""
    found = re.search(rf"^##+ {benchmark}: .+, \d{{4}}-\d{{2}}-\d{{2}}$", results, re.MULTILINE)
    if found is None:
        return []
    block = BLOCK.search(results, found.end())
    if block is None:
        raise SystemExit(f"benchmarks/RESULTS.md has no json block after {found[0]!r}.")
    return [json.loads(line) for line in block["lines"].splitlines() if line.strip()]


def _engines(measured: list[dict[str, Any]]) -> Iterable[str]:
    if not measured:
        return
    yield _text(20, 26, "Rows a second, a counter per key", bold=True)
    best = max(result["rows_per_second"] for result in measured)
    step = min(36, 220 / len(measured))
    for position, result in enumerate(sorted(measured, key=lambda result: -result["rows_per_second"])):
        rate, engine = result["rows_per_second"], result["engine"]
        top = 46 + position * step
        length = 190 * rate / best
        colour = "#0b6e69" if engine.startswith("holdfast") else OTHERS
        yield _text(180, top + step * 0.45, NAMES.get(engine, engine), anchor="end")
        yield f'<rect x="188" y="{top:.1f}" width="{length:.1f}" height="{step * 0.66:.1f}" fill="{colour}"/>'
        yield _text(194 + length, top + step * 0.45, f"{round(rate, 3 - len(str(int(rate)))):,.0f}")


def _sizes(measured: list[dict[str, Any]]) -> Iterable[str]:
    if not measured:
        return
    left, right, bottom, top = PANEL + 60, WIDTH - 150, HEIGHT - 44, 46
    keys = sorted({result["keys"] for result in measured})
    least, most = math.log10(keys[0]), math.log10(keys[-1])
    step = _round_step(1000 * max(result["epoch_seconds"] for result in measured) / 4)

    def place(result: dict[str, Any]) -> tuple[float, float]:
        along = (math.log10(result["keys"]) - least) / ((most - least) or 1)
        return left + along * (right - left), bottom - 1000 * result["epoch_seconds"] / (4 * step) * (bottom - top)

    yield _text(PANEL + 20, 26, "Time of an epoch of 200,000 rows (ms), by keys", bold=True)
    for tick in range(5):
        height = bottom - tick / 4 * (bottom - top)
        yield f'<line x1="{left}" y1="{height:.1f}" x2="{right}" y2="{height:.1f}" stroke="{FAINT}"/>'
        yield _text(left - 6, height + 4, f"{tick * step:,g}", anchor="end")
    for count in keys:
        across, _ = place({"keys": count, "epoch_seconds": 0})
        yield _text(across, bottom + 18, f"{count:,}", anchor="middle")
    labels: list[float] = []
    for (backend, form), (name, colour) in SERIES.items():
        line = sorted(
            (result for result in measured if (result["backend"], result["form"]) == (backend, form)),
            key=lambda result: result["keys"],
        )
        if not line:
            continue
        points = [place(result) for result in line]
        path = " ".join(f"{across:.1f},{height:.1f}" for across, height in points)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        yield from (f'<circle cx="{across:.1f}" cy="{height:.1f}" r="3" fill="{colour}"/>' for across, height in points)
        height = points[-1][1] + 4
        while any(abs(height - other) < 14 for other in labels):
            height += 1
        labels.append(height)
        yield _text(right + 8, height, name, colour=colour)


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 5, 10, 20, ... that is not less."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)


def _text(
    across: float, down: float, text: str, *, anchor: str = "start", bold: bool = False, colour: str | None = None
) -> str:
    look = (' font-weight="bold"' if bold else "") + (f' fill="{colour}"' if colour else "")
    return f'<text x="{across:.1f}" y="{down:.1f}" text-anchor="{anchor}"{look}>{escape(text)}</text>'


if __name__ == "__main__":
    sys.exit(main())
