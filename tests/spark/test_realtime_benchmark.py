"""The real-time benchmark with Holdfast, at a small rate and for a few seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.realtime_traffic import FILE_SECONDS
from tests.documentation import ROOT
from tests.stories.kafka import require_jars

RATE, SECONDS = 200, 3
pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]


@pytest.mark.parametrize("source", [pytest.param("kafka", marks=pytest.mark.services), "files", "generator"])
def test_holdfast_is_measured_in_real_time_and_by_epochs(source: str, tmp_path: Path) -> None:
    if source == "kafka":
        require_jars()
    options = f"--input {source} --engines holdfast-real-time,holdfast-epochs --rates {RATE} --keys 50 --json"
    command = [sys.executable, str(ROOT / "benchmarks" / "realtime.py"), *options.split()]
    command += ["--seconds", str(SECONDS), "--warm-up", "5", "--cache", str(tmp_path)]
    # The broker has a collector of its own, and a JVM refuses two.
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_TOOL_OPTIONS"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["engine"], line["rate"]) for line in found] == [
        ("holdfast-real-time", RATE),
        ("holdfast-epochs", RATE),
    ]
    for line in found:
        assert line["kept_up"], line
        assert line["events"] >= 0.99 * RATE * (SECONDS - FILE_SECONDS)  # the last file may be late
        assert 0 < line["p50_ms"] <= line["p99_ms"] <= line["max_ms"]
        assert 0 < line["engine_of_two_cores"] <= line["all_of_two_cores"] * 1.1
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
