"""The examples of the documentation run as they are printed, also a second time, and under `holdfast run`."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests.documentation import GUIDE, OF_THE_SITE, ROOT, blocks

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

EXAMPLES = ROOT / "examples"
HOLDFAST = Path(sys.executable).with_name("holdfast")
EACH_AS_A_SCRIPT = """
import runpy, sys
for place in sys.argv[1:]:
    print(place, flush=True)
    runpy.run_path(place, run_name="__main__")
"""


def run(*command: object, directory: Path | None = None) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_program_of_the_readme_resumes_where_it_stopped(tmp_path: Path) -> None:
    [block] = blocks(ROOT / "README.md", "python spark")
    program = tmp_path / "word_count.py"
    program.write_text(block.text, encoding="utf-8")
    texts, output, checkpoints = tmp_path / "texts", tmp_path / "out", tmp_path / "checkpoints"
    texts.mkdir()
    (texts / "a.txt").write_text("kelp rock kelp\n", encoding="utf-8")
    run(sys.executable, program, texts, output, checkpoints)
    (texts / "b.txt").write_text("rock sand\nkelp\n", encoding="utf-8")
    run(HOLDFAST, "run", program, "-D", "parallelism.default=3", "--", texts, output, checkpoints)

    rows = ds.dataset(output, format="parquet").to_table().to_pylist()
    assert sorted((row["word"], row["n"]) for row in rows) == [
        ("kelp", 1), ("kelp", 2), ("kelp", 3), ("rock", 1), ("rock", 2), ("sand", 1),
    ]  # fmt: skip
    listed = run(HOLDFAST, "checkpoints", checkpoints, "--json").splitlines()
    assert [json.loads(line)["status"] for line in listed] == ["COMPLETED"] * len(listed)
    inspected = [json.loads(line) for line in run(HOLDFAST, "inspect", checkpoints, "--json").splitlines()]
    assert [(entry["uid"], entry["state"], entry["rows"]) for entry in inspected] == [("count", "count", 3)]

    lines = run(sys.executable, EXAMPLES / "read_checkpoint.py", job_of(checkpoints)).splitlines()
    read = [json.loads(line) for line in lines]
    assert {line["key"]: line["value"] for line in read} == {"kelp": 3, "rock": 2, "sand": 1}


def job_of(checkpoints: Path) -> Path:
    [job] = checkpoints.iterdir()
    return job


def test_the_programs_of_the_guide_and_the_site_run(tmp_path: Path) -> None:
    places = []
    for page in (*GUIDE, *OF_THE_SITE):
        for block in blocks(page, "python spark"):
            places.append(tmp_path / f"{page.stem}-{block.line}.py")
            places[-1].write_text(block.padded, encoding="utf-8")
    run(sys.executable, "-c", EACH_AS_A_SCRIPT, *places, directory=tmp_path)


def test_a_custom_sink_writes_each_line_once(tmp_path: Path) -> None:
    output, checkpoints = tmp_path / "out", tmp_path / "checkpoints"
    for _ in range(2):
        run(sys.executable, EXAMPLES / "own_sink.py", output, checkpoints)

    lines = [line for file in output.glob("*.jsonl") for line in file.read_text(encoding="utf-8").splitlines()]
    assert sorted(json.loads(line)["square"] for line in lines) == sorted(n * n for n in range(100))


def test_a_database_is_written_once_by_epoch(tmp_path: Path) -> None:
    database, checkpoints = tmp_path / "orders.db", tmp_path / "checkpoints"
    for _ in range(2):
        run(sys.executable, EXAMPLES / "database_by_epoch.py", database, checkpoints)

    with closing(sqlite3.connect(database)) as connection:
        last = connection.execute("select customer, max(total), count(*) from orders group by 1 order by 1").fetchall()
    assert last == [("ada", 150, 2), ("bob", 85, 2), ("cid", 10, 1)]
