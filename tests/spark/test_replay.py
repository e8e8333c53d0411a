"""`holdfast replay`: an epoch of yesterday once more, on files that are read again, with nothing but lines of text."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint, read_by_path
from tests.stories.spark import HAS_REAL_TIME

pytestmark = [pytest.mark.spark, pytest.mark.long]

PROGRAM = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from holdfast.datastream.state import ValueStateDescriptor

root = Path(sys.argv[1])


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_element(self, row, ctx):
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        now = ctx.timer_service().current_processing_time()
        ctx.timer_service().register_processing_time_timer(now + 10**9)
        yield row.value, n, now


spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
env = StreamExecutionEnvironment.get_execution_environment(
    {"execution.checkpointing.dir": str(root / "checkpoints"), "execution.trigger": "available-now",
     "execution.checkpointing.num-retained": 10, "parallelism.default": 2}, spark=spark)
lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(root / "in"))
counted = env.from_dataframe(lines).uid("lines").key_by("value").process(Count(), "word string, n bigint, at bigint")
counted.uid("count").for_each_epoch(lambda frame, epoch: (root / "written").open("a").write(f"{epoch}\\n")).uid("out")
env.execute("words")
"""


IN_REAL_TIME = """
import time
import pyarrow as pa
import pyarrow.parquet as pq
from holdfast.common import Duration, WatermarkStrategy
from holdfast.datastream.connectors.file_system import FileSource
from holdfast.datastream.formats.parquet import ParquetColumnarRowInputFormat

env = StreamExecutionEnvironment.get_execution_environment(
    {"execution.checkpointing.dir": str(root / "checkpoints"), "execution.trigger": "real-time",
     "execution.checkpointing.interval": "200 ms", "execution.checkpointing.num-retained": 1000}, spark=spark)
env.set_parallelism(1)
files = FileSource.for_bulk_file_format(ParquetColumnarRowInputFormat("value string"), str(root / "in"))
source = files.monitor_continuously(Duration.of_millis(50)).build()
lines = env.from_source(source, WatermarkStrategy.no_watermarks(), "lines").uid("lines")
counted = lines.key_by("value").process(Count(), "word string, n bigint, at bigint")
counted.uid("count").for_each_epoch(
    lambda frame, epoch: (root / "written").open("a").write("x" * frame.count())
).uid("out")
client = env.execute_async("words")
expected = 0
for number, words in enumerate((["kelp", "rock"], ["kelp"], ["kelp", "sand"])):
    pq.write_table(pa.table({"value": words}), root / "new")
    (root / "new").rename(root / "in" / f"{number}.parquet")
    expected += len(words)
    while not (root / "written").exists() or len((root / "written").read_text()) < expected:
        time.sleep(0.05)
    client.trigger_checkpoint().result(60)
client.stop()
client.await_termination()
"""


def holdfast(*arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", *arguments]
    return subprocess.run(
        command, input=typed, capture_output=True, text=True, env=environment, timeout=280, check=False
    )


def newest_offset(checkpoint: CompletedCheckpoint) -> str:
    streaming = checkpoint.metadata.source_positions["streaming"]
    offset: str = streaming["offsets"][str(streaming["batch_id"])]
    return offset


def tree(root: Path) -> dict[str, Any]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.timeout(300)
def test_an_old_epoch_is_replayed_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number, words in enumerate(("kelp rock", "kelp", "kelp sand")):
        file = tmp_path / "in" / f"{number}.txt"
        file.write_text("\n".join(words.split()) + "\n")
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))
    script = tmp_path / "job.py"
    script.write_text(PROGRAM)
    ran = holdfast("run", str(script), "--", str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    [job] = (tmp_path / "checkpoints").iterdir()
    first, second, *_ = sorted(job.glob("chk-*"), key=lambda path: int(path.name[4:]))
    before = tree(tmp_path)

    again = holdfast("replay", str(first), str(script), "--key", "kelp", "--", str(tmp_path))
    assert again.returncode == 0, again.stderr
    [emitted, *told] = again.stdout.splitlines()
    assert "[kelp,2," in emitted
    assert str(read_by_path(str(second)).metadata.processing_time) in emitted
    assert any("count" in line and "changed" in line and line.rstrip().endswith("2") for line in told)
    assert any("timer of processing time" in line and "added" in line for line in told)
    assert tree(tmp_path) == before

    stopping = tmp_path / "stopping.py"
    stopping.write_text(
        PROGRAM.replace("        yield row", "        row.value == 'kelp' and breakpoint()\n        yield row")
    )
    debugged = holdfast("replay", str(first), str(stopping), "--pdb", "--", str(tmp_path), typed="p n\n!n = 77\nc\n")
    assert debugged.returncode == 0, debugged.stderr
    assert "(Pdb) 2" in debugged.stdout
    assert "77" in debugged.stdout.splitlines()[-1]


@pytest.mark.timeout(300)
@pytest.mark.skipif(not HAS_REAL_TIME, reason="Spark before 4.3 has no pipelined shuffle")
def test_what_a_real_time_job_read_between_two_checkpoints_is_replayed_as_an_epoch(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    script = tmp_path / "job.py"
    script.write_text(PROGRAM.partition("env = ")[0] + IN_REAL_TIME)
    ran = holdfast("run", str(script), "--", str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    [job] = (tmp_path / "checkpoints").iterdir()
    checkpoints = [read_by_path(str(path)) for path in job.glob("chk-*")]
    checkpoints.sort(key=lambda one: one.checkpoint_id)
    *_, second, third = [pair for pair in pairwise(checkpoints) if newest_offset(pair[0]) != newest_offset(pair[1])]
    before = tree(tmp_path)
    for (start, end), words in ((second, ["kelp,2"]), (third, ["kelp,3", "sand,1"])):
        again = holdfast("replay", start.path, str(script), "--", str(tmp_path))
        assert again.returncode == 0, again.stderr
        at = end.metadata.processing_time
        emitted = sorted(line.partition("> ")[2] for line in again.stdout.splitlines())
        assert emitted == [f"+I[{word},{at}]" for word in words]
    assert tree(tmp_path) == before
