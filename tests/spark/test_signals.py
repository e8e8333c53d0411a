"""Signals to programs: SIGTERM while jobs run one after the other, and Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.stories.process import ROOT
from tests.stories.spark import needs_real_time

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

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


TICKS = """
import sys
from holdfast.common import WatermarkStrategy
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.datastream.connectors.datagen import DataGeneratorSource

env = StreamExecutionEnvironment.get_execution_environment({
    "execution.checkpointing.dir": "checkpoints",
    "execution.checkpointing.interval": "500 ms",
    "execution.trigger": sys.argv[1],
    "spark.master": "local[4]",
    "spark.ui.showConsoleProgress": "false",
    "parallelism.default": 1,
})
source = DataGeneratorSource(lambda n: (n % 3, n), rows_per_second=20, type_info="k bigint, n bigint")
numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
numbers.key_by("k").count().uid("counted").print().uid("out")
env.execute("ticks")
"""
HOLDFAST = ("-c", "from holdfast.cli import main; main()", "run")
ON_SPARK = ["1 s", pytest.param("real-time", marks=needs_real_time)]


@pytest.mark.parametrize(("command", "code"), [((), -signal.SIGINT), (HOLDFAST, 130)], ids=["python", "holdfast run"])
@pytest.mark.parametrize("trigger", ON_SPARK)
def test_ctrl_c_ends_a_job_that_prints_with_one_line_that_says_how_to_resume(
    tmp_path: Path, trigger: str, command: tuple[str, ...], code: int
) -> None:
    (tmp_path / "ticks.py").write_text(TICKS)
    with (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *command, "ticks.py", *(["--"] if command else []), trigger],
            cwd=tmp_path,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT / "src")},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    printed = tmp_path / "output"
    try:
        deadline = time.monotonic() + 240
        while not re.search(r"\+I\[1,\d+,2\]", printed.read_text()):
            assert process.poll() is None and time.monotonic() < deadline, printed.read_text()
            time.sleep(0.02)
        before = len(printed.read_text())
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        assert process.wait(60) == code, printed.read_text()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    after = [line for line in printed.read_text()[before:].splitlines() if not line.startswith("+I[")]
    assert not [line for line in after if "Traceback" in line or "Error" in line or "Lost task" in line], after
    assert after[-1] == "Interrupted. Job 'ticks' ended SUSPENDED: it was stopped; run the job again to resume it."
