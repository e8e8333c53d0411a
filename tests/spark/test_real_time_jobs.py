"""Real-time jobs on Spark: one Spark job that lives, a worker that is killed, and back to epochs.

The job runs in a process of its own, whose session Holdfast creates, as that of a user does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyspark
import pytest

ROOT = Path(__file__).resolve().parents[2]
REAL_TIME = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 3)
pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not REAL_TIME, reason="Spark before 4.3 has no pipelined shuffle"),
]

PROGRAM = """
import json, os, signal, sys, time
from holdfast.common import WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from holdfast.datastream.connectors.datagen import DataGeneratorSource
from holdfast.datastream.state import ValueStateDescriptor

place, trigger, rows, kill = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "kill"
parallelism = int(sys.argv[5])
env = StreamExecutionEnvironment.get_execution_environment({
    "execution.trigger": trigger,
    "execution.checkpointing.dir": place,
    "execution.checkpointing.interval": "200 ms",
    "parallelism.default": parallelism,
    "spark.master": f"local[{4 * parallelism if parallelism > 1 else 2}]",  # one slot for collect()
    "spark.ui.enabled": "false",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": 5,
    "restart-strategy.fixed-delay.delay": "0 ms",
})


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_element(self, row, ctx):
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield row.key, count, os.getpid()


found = []
source = DataGeneratorSource(lambda n: (n % 5, n), rows_per_second=500, type_info="key bigint, n bigint")
numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
counted = numbers.key_by("key").process(Count(), "key bigint, count bigint, process bigint").uid("count")
epochs = set()


def write(frame, epoch):
    if epoch not in epochs:  # after a failure it may be called with one again
        epochs.add(epoch)
        found.extend(frame.collect())


counted.for_each_epoch(write).uid("out")
client = env.execute_async("counts")


def until(wanted):
    deadline = time.monotonic() + 150
    while len(found) < wanted:
        if time.monotonic() > deadline or client.get_job_status().is_terminal_state():
            client.await_termination()
            sys.exit(f"only {len(found)} rows came; the job is {client.get_job_status()}")
        time.sleep(0.05)


until(300)
if kill:
    os.kill(found[-1].process, signal.SIGKILL)
until(len(found) + rows)
client.stop()
client.await_termination()
print("FOUND", json.dumps([[row.key, row["count"]] for row in found]))
"""


def on_a_cluster(program: str) -> str:
    """Return the program with a cluster of six slots, whose job is to have more of them."""
    here = program.index('    "spark.master"')
    cluster = '    "spark.master": "local-cluster[1,6,700]",\n    "spark.executor.memory": "700m",\n'
    asked = """until(300)
try:
    client.rescale(8).result(60)
except ConfigurationError as error:
    (Path(place) / "refused").write_text(str(error))
"""
    program = program[:here] + cluster + program[program.index("\n", here) + 1 :]
    imports = "from pathlib import Path\nfrom holdfast.errors import ConfigurationError\n"
    return imports + program.replace("until(300)\n", asked)


def run(
    place: Path, trigger: str, rows: int = 300, *, kill: bool = False, parallelism: int = 2, program: str = PROGRAM
) -> list[list[Any]]:
    """Run the job until so many rows more have come; return all rows."""
    script = place.parent / "job.py"
    script.write_text(program)
    command = [sys.executable, str(script), str(place), trigger, str(rows), "kill" if kill else "", str(parallelism)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYSPARK_PYTHON": sys.executable}
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=350, check=False)
    [line] = [text for text in ended.stdout.splitlines() if "FOUND " in text] or [None]
    assert line is not None, ended.stderr[-4000:]
    found: list[list[Any]] = json.loads(line.partition("FOUND ")[2])
    return found


@pytest.mark.parametrize("parallelism", [2, 1], ids=["one of four", "one that all stages share"])
def test_a_killed_worker_costs_nothing(tmp_path: Path, parallelism: int) -> None:
    rows = run(tmp_path / "checkpoints", "real-time", 500, kill=True, parallelism=parallelism)
    seen = sorted(map(tuple, rows))
    assert seen == sorted({*seen}), "an element was counted twice"
    for key, count in Counter(key for key, _ in seen).items():
        assert [n for other, n in seen if other == key] == list(range(1, count + 1)), "an element is missing"


def test_a_rescale_beyond_the_slots_of_a_cluster_is_refused_and_the_job_goes_on(tmp_path: Path) -> None:
    place = tmp_path / "checkpoints"
    rows = run(place, "real-time", 500, program=on_a_cluster(PROGRAM))
    seen = sorted(map(tuple, rows))
    assert len(seen) >= 800
    assert seen == sorted({*seen}), "an element was counted twice"
    refused = (place / "refused").read_text()
    assert "needs 10 slots at once" in refused
    assert "local-cluster[1,6,700] has 6: give it more executors or cores" in refused
