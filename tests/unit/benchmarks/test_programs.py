"""Programs that measure are run seldom: what they import has to be there all the same."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documentation import ROOT

PLACES = ("benchmarks", "benchmarks/engines", "benchmarks/nexmark", "benchmarks/realtime_engines")
PROGRAMS = sorted(path for place in PLACES for path in (ROOT / place).glob("*.py"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_finds_what_it_imports(program: Path) -> None:
    importlib.import_module(".".join(program.relative_to(ROOT).with_suffix("").parts))


@pytest.mark.parametrize(
    "small",
    [
        "state_micro.py --keys 2000 --rounds 1 --json",
        "timers.py --timers 10 1000 --due 1000 --panes 1000 --json",
        "checkpoint.py --subtasks 2 --keys 1000 --rounds 1 --json",
        "compaction.py --epochs 20 --rows 100 --keys 100 --executor thread --json",
        "merge.py --keys 1000 --rounds 1 --json",
        "metrics.py --rows 1000 --keys 100 --epochs 3 --json",
        "large_state_worker.py --keys 1000 --rows 2000 --epochs 1 --json",
    ],
    ids=lambda small: small.split(".")[0],
)
def test_a_program_that_needs_no_spark_prints_what_it_measured(small: str, tmp_path: Path) -> None:
    program, *options = small.split()
    command = [sys.executable, str(ROOT / "benchmarks" / program), *options]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines and all(lines)
