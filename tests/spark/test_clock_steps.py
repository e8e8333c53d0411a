"""The clock of the host steps back by an hour while a job on Spark runs: that of its driver, or of its JVM as well."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.stories.process import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
JOB = ROOT / "tests" / "programs" / "clock_job.py"


def add_file(folder: Path, number: int) -> None:
    pq.write_table(pa.table({"n": [number]}), folder.parent / "new")
    (folder.parent / "new").rename(folder / f"{number}.parquet")


def numbers(folder: Path) -> list[int]:
    return sorted(row["n"] for row in pq.read_table(folder).to_pylist()) if folder.exists() else []


def wait_for(expected: list[int], folder: Path, process: subprocess.Popen[str], log: Path) -> None:
    deadline = time.monotonic() + 240
    while numbers(folder) != expected:
        assert process.poll() is None and time.monotonic() < deadline, log.read_text("utf-8")[-4000:]
        time.sleep(0.2)


def libfaketime() -> str:
    """A library that moves the clock of a JVM. A machine without it skips the test, the CI fails."""
    named = os.environ.get("LIBFAKETIME")
    found = [named] if named else sorted(map(str, Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")))
    if not found:
        reason = "no libfaketime: install it, for instance apt-get install libfaketime"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    return found[0]


@pytest.mark.parametrize("trigger", ["1 s", "continuous"])
@pytest.mark.parametrize("clocks", ["driver", "driver and JVM"])
def test_a_job_continues_although_the_clock_steps_back_an_hour(tmp_path: Path, trigger: str, clocks: str) -> None:
    rows, output, offset, log = tmp_path / "in", tmp_path / "out", tmp_path / "offset", tmp_path / "log"
    rows.mkdir()
    offset.write_text("+0")
    command = [sys.executable, str(JOB), str(rows), str(output), str(tmp_path / "checkpoints"), trigger, str(offset)]
    if clocks == "driver and JVM":
        command.append(libfaketime())
    with log.open("w") as written:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=written, stderr=written, text=True, start_new_session=True
        )
    try:
        add_file(rows, 1)
        wait_for([1], output, process, log)
        offset.write_text("-3600")
        time.sleep(1)
        for number in (2, 3):
            add_file(rows, number)
            wait_for(list(range(1, number + 1)), output, process, log)
        offset.write_text("+0")
        add_file(rows, 4)
        wait_for([1, 2, 3, 4], output, process, log)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0, log.read_text("utf-8")[-4000:]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with its JVM
        process.wait()
    told: dict[str, Any] = json.loads((tmp_path / "checkpoints" / "told.json").read_text("utf-8"))
    assert told["last_failure"] is None if trigger == "continuous" else "was set back by 3600 s" in told["last_failure"]
    assert ("was set back by 3600 s" in log.read_text("utf-8")) is (trigger != "continuous")
