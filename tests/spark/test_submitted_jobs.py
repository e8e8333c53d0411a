"""Jobs on real Spark that job managers run: a leader is killed with SIGKILL, and the commands for a real-time job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.cli.locate import running_job
from holdfast.kernel.ids import JobID
from tests.stories.cluster import Cluster, counted, is_gone, processes_of, rows, until
from tests.stories.process import ROOT, children, java_below
from tests.stories.spark import needs_real_time

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

COUNT = """
import sys

from holdfast.datastream import KeyedProcessFunction, ParquetFileSink, StreamExecutionEnvironment
from holdfast.datastream.state import ValueStateDescriptor


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", 0))

    def process_element(self, row, ctx):
        count = self.count.value() + 1
        self.count.update(count)
        yield row.word, count


texts, output = sys.argv[1:]
"""
PROGRAM = (
    COUNT
    + """
from lower import lower

env = StreamExecutionEnvironment.get_execution_environment({"execution.trigger": "100 ms"})
words = env.from_dataframe(env.spark.readStream.text(texts)).uid("texts").flat_map(
    lambda row: [(lower(word),) for word in row.value.split() if lower(word) in open("signs.txt").read()],
    output_type="word string",
)
counts = words.key_by("word").process(Count(), output_type="word string, n bigint").uid("count")
counts.sink_to(ParquetFileSink(output)).uid("out")
env.execute("words")
"""
)


def test_a_standby_job_manager_takes_over_the_spark_job_of_a_killed_leader(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(PROGRAM)
    (tmp_path / "lower.py").write_text("def lower(word):\n    return word.lower()\n")
    (tmp_path / "signs.txt").write_text("kelp sand rock")
    texts, output = tmp_path / "texts", tmp_path / "output"
    texts.mkdir()
    (texts / "1.txt").write_text("Kelp sand kelp")
    cluster = Cluster(tmp_path)
    try:
        leader = cluster.start("-Dspark.master=local[2]")
        cluster.says(0, "leads, in session")
        own = ("-Dpipeline.name=words", "-Dparallelism.default=2")
        own += ("--files", str(tmp_path / "lower.py"))
        job = cluster.run("submit", tmp_path / "job.py", *own, "--files", tmp_path / "signs.txt", "--", texts, output)
        assert job.strip() == str(JobID.from_name("words"))
        until(lambda: rows(output) == counted("kelp sand kelp"), "the first file is counted", 200)
        successor = cluster.start("-Djobmanager.spare-processes=1", "-Dspark.master=local[2]")
        cluster.says(1, "a spare process is ready")
        (spare,) = processes_of(successor)
        (process,) = processes_of(leader)
        java = java_below(process)
        assert java is not None
        assert cluster.run("rescale", job.strip(), "3") == "count  3\n"
        leader.kill()
        until(lambda: is_gone(process) and is_gone(java), "the process of the job and its JVM end with the leader")
        (texts / "2.txt").write_text("rock KELP")
        until(lambda: rows(output) == counted("kelp sand kelp", "rock kelp"), "the other one goes on", 200)
        options = [f"{key}={value}" for key, value in cluster.options.items()]
        assert running_job(job.strip(), None, options).parallelism() == {"count": 3}, "as it was rescaled"
        assert processes_of(successor) == [spare], "in the process that was ready, with the files that were submitted"
        log = cluster.run("logs", job.strip())
        assert "is not used, because" not in log
        assert "spare" not in log, "what warmed it up is nobody's business"
        cluster.run("cancel", job.strip())
        cluster.status(job.strip(), "CANCELED")
        until(lambda: cluster.kept() == [], "nothing is kept of it")
    finally:
        cluster.close()


REAL_TIME_PROGRAM = (
    COUNT
    + """
from holdfast.common import Duration, WatermarkStrategy
from holdfast.datastream.connectors.file_system import FileSource, StreamFormat

env = StreamExecutionEnvironment.get_execution_environment()
source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), texts)
source = source.monitor_continuously(Duration.of_millis(100)).build()
lines = env.from_source(source, WatermarkStrategy.no_watermarks(), "lines").uid("lines")
words = lines.flat_map(lambda line: [(word,) for word in line.split()], output_type="word string").uid("words")
counts = words.key_by("word").process(Count(), output_type="word string, n bigint").uid("count")
counts.sink_to(ParquetFileSink(output)).uid("out")
env.execute("words")
"""
)


def runs_in_real_time(*processes: int) -> bool:
    """Whether a process below these forks the workers of real-time jobs."""
    below = [child for process in processes for child in children(process)]
    is_one = any(b"holdfast.spark.daemon" in Path(f"/proc/{child}/cmdline").read_bytes() for child in below)
    return is_one or (bool(below) and runs_in_real_time(*below))


OPTIONS = ("-Dexecution.trigger=real-time", "-Dexecution.checkpointing.interval=200 ms", "-Dparallelism.default=1")


@needs_real_time
def test_a_real_time_job_obeys_the_commands(tmp_path: Path) -> None:
    script, texts, output = tmp_path / "job.py", tmp_path / "texts", tmp_path / "output"
    script.write_text(REAL_TIME_PROGRAM)
    texts.mkdir()
    seen: list[str] = []

    def put(text: str) -> None:
        seen.append(text)
        (tmp_path / "new").write_text(text)
        (tmp_path / "new").rename(texts / f"{len(seen)}.txt")

    def all_counted() -> None:
        until(lambda: rows(output) == counted(*seen), f"{seen} are counted, not {rows(output)}", 200)

    cluster = Cluster(tmp_path)
    try:
        manager = cluster.start("-Dspark.master=local[4]")
        cluster.says(0, "leads, in session")
        put("kelp sand kelp")
        job = cluster.run("submit", script, *OPTIONS, "-Dpipeline.name=words", "--", texts, output).strip()
        all_counted()
        assert runs_in_real_time(*processes_of(manager))
        assert cluster.run("rescale", job, "2") == "count  2\n"
        put("rock kelp")
        all_counted()
        savepoint = Path(cluster.run("savepoint", job, tmp_path / "savepoints").strip())
        assert (savepoint / "_metadata").exists()
        before = list(seen)
        put("sand sand")
        all_counted()
        stopped = cluster.run("stop", job, "-p", tmp_path / "savepoints").strip()
        assert (Path(stopped) / "_metadata").exists()
        cluster.status(job, "SUSPENDED")
        put("kelp rock")
        cluster.run("submit", script, *OPTIONS, "-Dpipeline.name=words", "--", texts, output)
        all_counted()
        cluster.run("cancel", job)
        cluster.status(job, "CANCELED")
        put("sand")
    finally:
        cluster.close()

    # The same program goes on from the savepoint as a job of its own.
    again, place = tmp_path / "again", tmp_path / "checkpoints"
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", "run", str(script), *OPTIONS]
    command += ["-s", str(savepoint), f"-Dexecution.checkpointing.dir={place}", "-Dspark.master=local[4]"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYSPARK_PYTHON": sys.executable}
    with (tmp_path / "run.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--", str(texts), str(again)], stdout=log, stderr=subprocess.STDOUT, env=environment
        )
    try:
        until(lambda: process.poll() is not None or rows(again) == counted(*seen) - counted(*before), "it goes on", 200)
        assert runs_in_real_time(process.pid)
        assert rows(again) == counted(*seen) - counted(*before), (tmp_path / "run.log").read_text()[-4000:]
        ended = CliRunner().invoke(main, ["cancel", str(place)])
        assert ended.exit_code == 0, ended.output
        assert process.wait(60) == 0, (tmp_path / "run.log").read_text()[-4000:]
    finally:
        process.kill()
        process.wait()
