"""SIGTERM to a program that executes one job after the other: it was told to end, and not to begin the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.stories.process import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

JOBS = """
import time
from pathlib import Path
from holdfast.datastream import StreamExecutionEnvironment

def linger(word):
    Path(marker).touch()
    time.sleep(3)
    return word

marker = str(Path("marker").absolute())
env = StreamExecutionEnvironment.get_execution_environment({"execution.checkpointing.dir": "checkpoints"})
env.set_parallelism(1)
for words, change in ((["first"], linger), (["second"], str.upper)):
    env.from_collection(words, "string").map(change, "string").print()
    print(env.execute().status.value, flush=True)
"""


@pytest.mark.parametrize("told", ["the process", "its group"])
def test_sigterm_ends_a_program_of_several_jobs_with_exit_code_0(tmp_path: Path, told: str) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(
        [sys.executable, "jobs.py"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "log").open("wb"),
        text=True,
        start_new_session=True,
    )
    while not (tmp_path / "marker").exists():
        assert process.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.02)
    (os.kill if told == "the process" else os.killpg)(process.pid, signal.SIGTERM)
    output, _ = process.communicate()
    log = (tmp_path / "log").read_text()
    assert process.returncode == 0, log
    assert "SUSPENDED" in output and "SECOND" not in output
    assert "SIGTERM ended job 'jobs': job 'jobs-2' is not started" in log
