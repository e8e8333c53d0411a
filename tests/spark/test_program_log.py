"""What `python job.py` shows of a job, where the program says nothing about logging and where it does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(200)]

JOB = """
import logging, sys
from holdfast.datastream import ParquetFileSink, StreamExecutionEnvironment
if sys.argv[1:]:
    logging.basicConfig(level=sys.argv[1], format="%(message)s")
env = StreamExecutionEnvironment.get_execution_environment({"execution.checkpointing.dir": "checkpoints"})
words = env.from_collection([("a",), ("b",)], "word string").key_by("word").count().uid("count")
words.sink_to(ParquetFileSink("out")).uid("out")
print(env.execute("words").status.value)
"""


@pytest.mark.parametrize("configured", [False, True], ids=["as it is", "only critical"])
def test_a_program_shows_the_log_of_its_job_unless_it_has_configured_its_own(tmp_path: Path, configured: bool) -> None:
    (tmp_path / "job.py").write_text(JOB)
    command = [sys.executable, "job.py", *(["CRITICAL"] if configured else [])]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "FINISHED"
    ours = [line for line in done.stderr.splitlines() if " holdfast." in line or "ended FINISHED" in line]
    if configured:
        assert ours == []
    else:
        assert any("INFO holdfast.runtime.master.job_master: job 'words' ended FINISHED" in line for line in ours), ours
        assert any("INFO holdfast.progress: " in line and "2 rows" in line for line in ours)
        told = [line.partition(" holdfast.")[2] for line in ours]  # without the time
        assert len(told) == len(set(told)), "each is told once"
