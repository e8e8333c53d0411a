"""Real-time jobs on Spark: one Spark job that lives, a worker that is killed, a stage that is too slow, and refusals.

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

from tests.stories.process import ROOT
from tests.stories.spark import HAS_REAL_TIME, needs_real_time

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

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


def start(place: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, with the place as its first argument; return how it ended."""
    script = place.parent / "job.py"
    script.write_text(program)
    command = [sys.executable, str(script), str(place), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYSPARK_PYTHON": sys.executable}
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=350, check=False)


def printed(ended: subprocess.CompletedProcess[str], word: str) -> Any:
    """Return what a program has printed as JSON behind a word."""
    [line] = [text for text in ended.stdout.splitlines() if f"{word} " in text] or [None]
    assert line is not None, ended.stderr[-4000:]
    return json.loads(line.partition(f"{word} ")[2])


def run(
    place: Path, trigger: str, rows: int = 300, *, kill: bool = False, parallelism: int = 2, program: str = PROGRAM
) -> list[list[Any]]:
    """Run the job until so many rows more have come; return all rows."""
    ended = start(place, program, trigger, str(rows), "kill" if kill else "", str(parallelism))
    found: list[list[Any]] = printed(ended, "FOUND")
    return found


@needs_real_time
@pytest.mark.parametrize("parallelism", [2, 1], ids=["one of four", "one that all stages share"])
def test_a_killed_worker_costs_nothing(tmp_path: Path, parallelism: int) -> None:
    rows = run(tmp_path / "checkpoints", "real-time", 500, kill=True, parallelism=parallelism)
    seen = sorted(map(tuple, rows))
    assert seen == sorted({*seen}), "an element was counted twice"
    for key, count in Counter(key for key, _ in seen).items():
        assert [n for other, n in seen if other == key] == list(range(1, count + 1)), "an element is missing"


@needs_real_time
def test_a_rescale_beyond_the_slots_of_a_cluster_is_refused_and_the_job_goes_on(tmp_path: Path) -> None:
    place = tmp_path / "checkpoints"
    rows = run(place, "real-time", 500, program=on_a_cluster(PROGRAM))
    seen = sorted(map(tuple, rows))
    assert len(seen) >= 800
    assert seen == sorted({*seen}), "an element was counted twice"
    refused = (place / "refused").read_text()
    assert "needs 10 slots at once" in refused
    assert "local-cluster[1,6,700] has 6: give it more executors or cores" in refused


SLOW = """
import json, os, sys, time
from pathlib import Path
from holdfast.common import WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, MapFunction, StreamExecutionEnvironment
from holdfast.datastream.connectors.datagen import DataGeneratorSource

place, keys = Path(sys.argv[1]), int(sys.argv[2])
workers = place / "workers"
workers.mkdir(parents=True)
TEXT = "x" * 1000
env = StreamExecutionEnvironment.get_execution_environment({
    "execution.trigger": "real-time",
    "execution.checkpointing.dir": str(place / "checkpoints"),
    "execution.checkpointing.interval": "1 h",
    "parallelism.default": 2,
    "spark.master": "local[4]",
    "spark.ui.enabled": "false",
    "restart-strategy.type": "none",
})


class Keyed(MapFunction):
    def open(self, runtime_context):
        (workers / f"source-{os.getpid()}").touch()

    def map(self, n):
        return n % keys, n, TEXT


class Slow(KeyedProcessFunction):
    def open(self, runtime_context):
        (workers / f"slow-{os.getpid()}").touch()

    def process_element(self, row, ctx):
        time.sleep(0.001)
        yield row.n


def memory():
    found = {}
    for path in workers.iterdir():
        status = Path("/proc", path.name.partition("-")[2], "status").read_text()
        found[path.name] = int(status.partition("RssAnon:")[2].split()[0]) // 1024
    return found


# The slow stage does less than 1,000 elements a second in each of two tasks.
source = DataGeneratorSource(lambda n: n, rows_per_second=20_000, type_info="bigint")
numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
keyed = numbers.map(Keyed(), "key bigint, n bigint, text string").uid("keyed")
keyed.key_by("key").process(Slow(), "bigint").uid("slow").for_each(lambda n: None).uid("out")
client = env.execute_async("slow")
while len(list(workers.iterdir())) < 4:
    assert not client.get_job_status().is_terminal_state(), client.exception()
    time.sleep(0.05)
time.sleep(2)
seconds, megabytes = [], [memory()]
time.sleep(8)  # so many elements wait as there will ever be
megabytes.append(memory())
for _ in range(5):
    began = time.monotonic()
    try:
        client.trigger_checkpoint().result(30)
    except TimeoutError:
        break
    seconds.append(round(time.monotonic() - began, 2))
    megabytes.append(memory())
print("MEASURED", json.dumps([seconds, megabytes]), flush=True)
client.cancel()
client.await_termination(30)
"""


@needs_real_time
@pytest.mark.parametrize("keys", [50, 1], ids=["many keys", "one hot key"])
def test_barriers_pass_a_last_stage_that_is_ten_times_too_slow_and_memory_stays(tmp_path: Path, keys: int) -> None:
    seconds, megabytes = printed(start(tmp_path / "job", SLOW, str(keys)), "MEASURED")
    growth = max(sum(sample.values()) for sample in megabytes) - sum(megabytes[0].values())
    print(f"checkpoints took {seconds} s; the workers grew by {growth} MB: {megabytes}")
    # Up to 20 MB a second would wait in front of the slow stage if the source did not.
    assert growth < 50
    assert len(seconds) == 5, "one took over 30 seconds"
    assert sorted(seconds)[2] < 2, "a barrier passes in less than two seconds"


FAILS = """
import json, os, signal, sys, time
from holdfast.common import WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from holdfast.datastream.connectors.datagen import DataGeneratorSource
from holdfast.errors import JobExecutionError

place, parallelism, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
env = StreamExecutionEnvironment.get_execution_environment({
    "execution.trigger": "real-time",
    "execution.checkpointing.dir": place,
    "parallelism.default": parallelism,
    "spark.master": f"local-cluster[1,{2 * parallelism},700]",
    "spark.executor.memory": "700m",
    "spark.ui.enabled": "false",
    "restart-strategy.type": "none",
})
LAST = 50_000  # many rows are on their way to the worker


class Fails(KeyedProcessFunction):
    def process_element(self, row, ctx):
        if row.n == LAST and how == "raises":
            raise ValueError("this one is bad")
        if row.n == LAST:
            os.kill(os.getpid(), signal.SIGKILL)
        yield row.n


source = DataGeneratorSource(lambda n: (n % 5, n), rows_per_second=50_000, type_info="key bigint, n bigint")
numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
numbers.key_by("key").process(Fails(), "bigint").uid("fails").for_each(lambda n: None).uid("out")
try:
    env.execute("fails")
except JobExecutionError as error:
    print("FAILED", json.dumps([type(error.__cause__).__name__, str(error.__cause__)]))
"""


@needs_real_time
@pytest.mark.parametrize("parallelism", [1, 2], ids=["all stages in one task", "an exchange"])
@pytest.mark.parametrize(
    ("how", "cause", "text"),
    [
        ("raises", "UserFunctionError", "ValueError: this one is bad"),
        ("is killed", "EngineError", "a Python worker of Spark ended without an error"),
    ],
)
def test_a_cluster_tells_why_a_task_failed(tmp_path: Path, parallelism: int, how: str, cause: str, text: str) -> None:
    """On a cluster, and not with a local master, Spark runs a task that has failed again, up to three times."""
    found = printed(start(tmp_path / "job", FAILS, str(parallelism), how), "FAILED")
    assert found[0] == cause, found
    assert text in found[1]


REFUSED = """
import json, sys
from holdfast.datastream import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment({
    "execution.trigger": "real-time",
    "execution.checkpointing.dir": sys.argv[1],
    "spark.ui.enabled": "false",
    **json.loads(sys.argv[2]),
})
env.from_collection([1, 2], "bigint").print()
env.execute("refused")
"""
OF_THE_SESSION = [
    ({"spark.master": "local[4]", "spark.authenticate": "true"}, "spark.authenticate=true"),
    (
        {
            "spark.master": "local-cluster[1,4,700]",
            "spark.executor.memory": "700m",
            "spark.dynamicAllocation.enabled": "true",
        },
        "spark.dynamicAllocation.enabled=true",
    ),
]
OF_OLD_SPARK = [({"spark.master": "local[4]"}, f"Spark {pyspark.__version__}")]


@pytest.mark.parametrize(("options", "reason"), OF_THE_SESSION if HAS_REAL_TIME else OF_OLD_SPARK)
def test_a_session_that_cannot_run_it_is_refused_in_one_sentence(
    tmp_path: Path, options: dict[str, str], reason: str
) -> None:
    ended = start(tmp_path / "job", REFUSED, json.dumps(options))
    assert ended.returncode == 1, ended.stderr[-4000:]
    last = ended.stderr.strip().splitlines()[-1]
    assert f"ConfigurationError: A real-time job cannot run with {reason}: " in last, ended.stderr[-4000:]
    assert last.endswith(".") and ". " not in last.partition("ConfigurationError: ")[2]
    assert not list(tmp_path.rglob("chk-*")), "it has not begun"
