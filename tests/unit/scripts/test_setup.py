"""A machine that lacks something is told the one line that installs it, before anything is touched."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "setup.sh"


def program(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("git", "python", "told"),
    [
        (False, "exit 0", "git is missing; on Debian or Ubuntu: sudo apt-get install -y git make python3 python3-venv"),
        (True, None, "python3 is missing; on Debian or Ubuntu: sudo apt-get install -y git make python3 python3-venv"),
        (
            True,
            "exit 1",
            "python3 is older than 3.11; on Debian or Ubuntu: sudo apt-get install -y git make python3.11",
        ),
        (
            True,
            'case "$2" in *venv*) exit 1;; esac',
            "the venv module of python3 is missing; on Debian or Ubuntu: sudo",
        ),
    ],
)
def test_what_is_missing_is_named_in_one_line(tmp_path: Path, git: bool, python: str | None, told: str) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "dirname"):
        (programs / name).symlink_to(str(shutil.which(name)))
    if git:
        program(programs, "git", "exit 0")
    if python is not None:
        program(programs, "python3", python)
    (tmp_path / "project" / "scripts").mkdir(parents=True)
    copied = shutil.copy(SCRIPT, tmp_path / "project" / "scripts")
    answer = subprocess.run(["bash", copied], env={"PATH": str(programs)}, capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert answer.stderr.startswith(f"make: {told}")
    assert len(answer.stderr.splitlines()) == 1
    assert not (tmp_path / "project" / ".venv").exists()


def test_a_version_of_spark_that_is_none_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    copied = shutil.copy(SCRIPT, tmp_path / "scripts")
    environment = {"PATH": os.environ["PATH"], "SPARK": "../elsewhere"}
    answer = subprocess.run(["bash", copied], env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert answer.stderr == "make: SPARK=../elsewhere is not a version, such as 3.5.9\n"
    assert [path.name for path in tmp_path.iterdir()] == ["scripts"]


def test_another_version_of_spark_needs_a_python_that_it_knows(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "dirname"):
        (programs / name).symlink_to(str(shutil.which(name)))
    program(programs, "git", "exit 0")
    program(programs, "python3", 'case "$2" in *"< (3, 12)"*) exit 1;; esac')
    (tmp_path / "scripts").mkdir()
    copied = shutil.copy(SCRIPT, tmp_path / "scripts")
    environment = {"PATH": str(programs), "SPARK": "3.5.9"}
    answer = subprocess.run(["bash", copied], env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert answer.stderr.startswith("make: python3 is older than 3.11, or too new for Spark 3.5.9; ")
