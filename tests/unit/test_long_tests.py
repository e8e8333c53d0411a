"""The lists of long tests name tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.long_tests import LONG, SHORT, durations

ROOT = Path(__file__).resolve().parents[2]


def test_each_entry_names_tests() -> None:
    entries = [*LONG, *SHORT, *durations()]
    files = sorted({entry.partition("::")[0] for entry in entries})
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", "--assert", "plain"]
    command = [sys.executable, "-m", "pytest", *options, *files]
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [entry for entry in entries if not any(name.startswith(entry) for name in collected)] == []
