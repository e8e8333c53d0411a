"""A checkpoint whose state has objects of the script's own classes by value is read with the classes of today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from holdfast.state_processor import SavepointReader
from tests.golden.test_golden import HERE, unpacked


def run(root: Path, epochs: int) -> list[str]:
    program = [sys.executable, str(HERE / "by_value.py"), str(root), str(epochs)]
    return subprocess.run(program, check=True, capture_output=True, text=True, timeout=120).stdout.splitlines()


def newest(root: Path) -> Path:
    return max(root.glob("*/chk-*"), key=lambda path: int(path.name.split("-")[1]))


def by_value(root: Path, uid: str, state: str) -> bool:
    rows = SavepointReader.read(None, str(newest(root))).read_keyed_state(uid, state).to_pylist()
    return any(b"_make_skeleton_" in row["value"] for row in rows)


def test_a_job_goes_on_and_what_it_writes_is_by_name(tmp_path: Path) -> None:
    root = unpacked(HERE / "classes-by-value.zip", tmp_path)
    assert by_value(root, "keep", "status")

    told = run(root, 3)

    assert sorted(told) == [
        "declared True",
        "declared True",
        "lines [True, True]",
        "lines [True]",
        "order True",
        "order True",
        "seen 2",
        "seen 3",
        "status True, kind True",
        "status True, kind True",
        "sums True",
        "sums True",
        "untouched True",
        "untouched True",
        "window [True, True]",
    ]
    for state in ("status", "order", "sum", "total"):
        assert not by_value(root, "keep", state), state
    assert by_value(root, "keep", "untouched"), "nobody has written it again"

    assert "lines [True, True, True]" in run(root, 4), "another process reads what this one has written"
