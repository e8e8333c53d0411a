"""A job on real Spark that two job managers run in turn: the leader is killed with SIGKILL, the other one goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli.locate import running_job
from holdfast.kernel.ids import JobID
from tests.stories.cluster import Cluster, counted, is_gone, processes_of, rows, until
from tests.stories.process import java_below

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PROGRAM = """
import sys

from lower import lower

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
env = StreamExecutionEnvironment.get_execution_environment({"execution.trigger": "100 ms"})
words = env.from_dataframe(env.spark.readStream.text(texts)).uid("texts").flat_map(
    lambda row: [(lower(word),) for word in row.value.split() if lower(word) in open("signs.txt").read()],
    output_type="word string",
)
counts = words.key_by("word").process(Count(), output_type="word string, n bigint").uid("count")
counts.sink_to(ParquetFileSink(output)).uid("out")
env.execute("words")
"""


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
