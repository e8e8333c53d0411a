"""Writes docs/metrics.md from the metrics that the package declares.

    python scripts/metrics_page.py [--check]

With --check nothing is written; the exit code says whether the page is current.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from holdfast.runtime.master.metric_catalog import ALL, MetricEntry

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"

INTRODUCTION = """\
# Metrics

This page is generated from the code: `python scripts/metrics_page.py`. A test checks that it is current.
[Operations](operations.md#metrics) describes Prometheus and OpenTelemetry. `deploy/` has alerts and a dashboard.

- A metric that exists in Flink has the name that Flink's exporter uses. Such counters are gauges, as in Flink.
  Holdfast's own counters end with `_total`.
- Values of operators are summed over their subtasks, and count accepted epochs only.
- Each process starts at 0. A value that is unknown is left out; Flink reports -1.
- [Metrics of your functions](operations.md#your-own-metrics) are exported too. Windows export
  `flink_taskmanager_job_task_operator_numLateRecordsDropped` once they have dropped late elements.

Metrics whose description begins with *Real time* exist in [real-time jobs](real-time.md#reading-the-metrics) only. They
have a value for each subtask, for the last second, and count elements before their checkpoint completes.
"""

GROUPS = {
    "Of a job": lambda metric: metric.labels[:1] == ("job_id",) and "operator_id" not in metric.labels,
    "Of an operator or a source": lambda metric: "operator_id" in metric.labels,
    "Of a job manager": lambda metric: "holdfast_jobmanager" in metric.name,
}


def page() -> str:
    """The page as it is to be."""
    parts, left = [INTRODUCTION], list(ALL)
    for title, belongs in reversed(GROUPS.items()):
        chosen = [metric for metric in left if belongs(metric)]
        left = [metric for metric in left if metric not in chosen]
        parts.insert(1, f"## {title}\n\n" + "\n".join(rows(chosen)) + "\n")
    assert not left, left
    return "\n".join(parts)


def rows(metrics: list[MetricEntry]) -> Iterator[str]:
    """A table in Markdown."""
    yield "| name | labels | what |"
    yield "|---|---|---|"
    for metric in metrics:
        name = f"{metric.name}_total" if metric.is_counter else metric.name
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        yield f"| `{name}` | {labels} | {metric.help} |"


def current() -> bool:
    """Whether the page is as it is to be."""
    return PAGE.exists() and PAGE.read_text(encoding="utf-8") == page()


def main() -> int:
    """Writes the page, or checks it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        return 0 if current() else 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
