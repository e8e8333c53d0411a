"""What a function that raises prints on Spark: the traceback of the program once, and no stack traces of Java."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stories.spark import needs_real_time

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

JOB = """
import sys
from holdfast.common import WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from holdfast.datastream.connectors.file_system import FileSource, StreamFormat


class Price(KeyedProcessFunction):
    def process_element(self, row, ctx):
        yield row.word, 10 // (len(row.word) - 3)


env = StreamExecutionEnvironment.get_execution_environment({
    "execution.checkpointing.dir": "checkpoints",
    "execution.trigger": sys.argv[1],
    "spark.master": "local[4]",
    "spark.ui.showConsoleProgress": "false",
    "parallelism.default": 1,
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.delay": "0 ms",
    "restart-strategy.fixed-delay.attempts": 9,
})
source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), "words").build()
lines = env.from_source(source, WatermarkStrategy.no_watermarks(), "lines").uid("lines")
words = lines.flat_map(lambda line: [(word,) for word in line.split()], output_type="word string").uid("words")
words.key_by("word").process(Price(), "word string, n bigint").name("pricing").uid("prices").print().uid("out")
env.execute("words")
"""
ON_SPARK = ["available-now", pytest.param("real-time", marks=needs_real_time)]


OWN_JOB = """
try:
    env.execute("words")
except Exception as error:
    print("ended:", type(error).__name__, flush=True)
from pyspark.sql import SparkSession
SparkSession.builder.getOrCreate().range(1).rdd.map(lambda row: 1 // 0).collect()
"""


def run(place: Path, trigger: str, *command: str, job: str = JOB) -> list[str]:
    """What the job prints, from the line on that says that it has started."""
    (place / "words").mkdir()
    (place / "words" / "1.txt").write_text("kelp eel\n")
    (place / "job.py").write_text(job)
    done = subprocess.run(
        [sys.executable, *command, "job.py", *(["--"] if command else []), trigger],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, "HOLDFAST_LOG_LEVEL": "INFO"},
    )
    assert done.returncode == 1, done.stdout
    lines = done.stdout.splitlines()
    started = next(number for number, line in enumerate(lines) if "is served at http" in line)
    return lines[started + 1 :]


HOLDFAST = ("-c", "from holdfast.cli import main; main()", "run")


@pytest.mark.parametrize("command", [(), HOLDFAST], ids=["python", "holdfast run"])
@pytest.mark.parametrize("trigger", ON_SPARK)
def test_a_function_that_raises_prints_at_most_forty_lines(
    tmp_path: Path, trigger: str, command: tuple[str, ...]
) -> None:
    lines = run(tmp_path, trigger, *command)
    text = "\n".join(lines)
    assert len(lines) <= 40, text
    assert "\tat " not in text
    assert "holdfast-error:" not in text
    assert text.count("    yield row.word, 10 // (len(row.word) - 3)\n") == 1
    assert text.count("  element: Row(word='eel')\n") == 1
    assert 'job.py", line 10, in process_element\n' in text
    first, *again, last = [line for line in lines if "'pricing' (uid 'prices')" in line or "same error" in line]
    assert "restarts in 0 ms from its last completed checkpoint, after 1 failure(s) in a row" in first
    assert [line.partition("in a row: ")[2] for line in again] == ["the same error as attempt 1"]
    assert "JobExecutionError: job 'words' failed 3 times in a row in the same way" in last


@pytest.mark.parametrize("trigger", ON_SPARK)
def test_a_job_of_the_program_itself_that_fails_later_in_the_session_logs_as_spark_does(
    tmp_path: Path, trigger: str
) -> None:
    lines = run(tmp_path, trigger, job=JOB.replace('env.execute("words")\n', OWN_JOB))
    ended = lines.index("ended: JobExecutionError")
    assert "Exception in task" not in "\n".join(lines[:ended])
    after = "\n".join(lines[ended:])
    assert "ERROR Executor: Exception in task" in after
    assert "WARN TaskSetManager: Lost task" in after
    assert "failed 1 times; aborting job" in after
    assert "\tat org.apache.spark" in after


@pytest.mark.parametrize("trigger", ON_SPARK)
def test_a_python_worker_that_dies_prints_at_most_forty_lines_too(tmp_path: Path, trigger: str) -> None:
    dies = JOB.replace("yield row.word, 10 // (len(row.word) - 3)", "__import__('os')._exit(3)")
    lines = run(tmp_path, trigger, job=dies.replace('attempts": 9', 'attempts": 1'))
    text = "\n".join(lines)
    assert len(lines) <= 40, text
    assert "\tat " not in text, text
    assert text.count("EngineError: a Python worker of Spark ended without an error") == 1
    assert "aborting job" in text


def test_verbose_prints_all_that_spark_says(tmp_path: Path) -> None:
    text = "\n".join(run(tmp_path, "available-now", *HOLDFAST, "--verbose"))
    assert "\tat org.apache.spark" in text
    assert "ZeroDivisionError" in text
