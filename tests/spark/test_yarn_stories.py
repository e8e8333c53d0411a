"""A YARN of two hosts: packages travel with a job, and containers are killed, also those of a real-time job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests.spark.test_ledger_stories import Story
from tests.spark.test_standalone_stories import PACKED, packed_environment
from tests.stories.cluster import until
from tests.stories.process import ROOT
from tests.stories.spark import HAS_REAL_TIME, needs_real_time
from tests.stories.yarn import DRIVER, EXECUTOR, SPARK, YarnCluster, require_jars

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SUBMIT = (str(SPARK / "bin" / "spark-submit"), "--master", "yarn", "--deploy-mode")
WORKER = "./env/bin/python"


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnCluster]:
    require_jars()
    cluster = YarnCluster(tmp_path_factory.mktemp("yarn"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The Python of a packed environment, and the archive."""
    return packed_environment(tmp_path_factory.mktemp("packed"))


@pytest.mark.parametrize(
    ("form", "trigger"),
    [
        ("client", "available-now"),
        ("holdfast run", "available-now"),
        ("cluster", "real-time" if HAS_REAL_TIME else "available-now"),
    ],
)
def test_yarn_ships_the_files_of_a_job(
    tmp_path: Path, yarn: YarnCluster, packed: tuple[Path, Path], form: str, trigger: str
) -> None:
    """The Python of the containers is the packed one, which has the only Holdfast that they see."""
    driver, archive = packed
    program, texts, out = tmp_path / "packed.py", tmp_path / "texts", tmp_path / "out"
    program.write_text(PACKED)
    texts.mkdir()
    (texts / "a.txt").write_text("\n".join(f"w{n % 20}" for n in range(200)))
    places = [str(texts), str(out), str(tmp_path / "checkpoints"), trigger]
    leaves = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "VIRTUAL"))
    }
    environment = {**leaves, **yarn.environment}
    if form == "holdfast run":
        options = ["spark.master=yarn", f"spark.archives={archive}#env", f"spark.pyspark.python={WORKER}"]
        of_job = [word for option in options for word in ("-D", option)]
        command = [str(driver.with_name("holdfast")), "run", *of_job, str(program), "--", *places]
        environment["PYTHONPATH"] = os.pathsep.join(map(str, SPARK.glob("python/lib/*.zip")))
    else:
        command = [*SUBMIT, form, "--archives", f"{archive}#env", str(program), *places]
        environment |= {
            "PYSPARK_DRIVER_PYTHON": str(driver) if form == "client" else WORKER,
            "PYSPARK_PYTHON": WORKER,
        }
    submitted = subprocess.run(
        command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False, timeout=600,
    )  # fmt: skip
    assert submitted.returncode == 0, submitted.stdout[-6000:]
    rows = ds.dataset(out, format="parquet").to_table().to_pylist()
    assert sorted((row["word"], row["n"]) for row in rows) == sorted(
        (f"w{n}", i) for n in range(20) for i in range(1, 11)
    )
    assert all(f"{row['place']}/env/lib/" in row["holdfast"] for row in rows), rows[0]
    hosts = {Path(row["place"]).relative_to(yarn.directory).parts[0] for row in rows}
    assert len(hosts) == (1 if trigger == "real-time" else 2), "in real time all tasks share a worker"


def test_an_executor_and_the_driver_are_killed_in_their_containers(tmp_path: Path, yarn: YarnCluster) -> None:
    """YARN gives the driver another executor, and starts another driver, which goes on from the newest checkpoint."""
    story = Story(tmp_path, epochs=20)
    log = tmp_path / "log"
    path = f"{ROOT / 'src'}:{ROOT}"
    program = str(ROOT / "tests" / "programs" / "ledger_job.py")
    with log.open("wb") as output:
        submitted = subprocess.Popen(
            [*SUBMIT, "cluster", "--conf", f"spark.yarn.appMasterEnv.PYTHONPATH={path}", program,
             *map(str, story.arguments("--master", "yarn", "--hazard", "slow"))],
            env={**os.environ, **yarn.environment, "PYSPARK_PYTHON": sys.executable},
            cwd=tmp_path, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        story.wait_for(2, submitted, seconds=300)
        os.kill(next(yarn.processes(EXECUTOR)), signal.SIGKILL)
        before = yarn.containers()
        until(lambda: yarn.containers() - before, "YARN starts another executor")
        os.kill(next(yarn.processes(DRIVER)), signal.SIGKILL)
        assert submitted.wait(timeout=300) == 0, log.read_text()[-6000:]
    finally:
        submitted.kill()
    assert yarn.attempts() == 2
    story.audit()


GENERATED = """
import sys
import time

from holdfast.common import WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, ParquetFileSink, StreamExecutionEnvironment
from holdfast.datastream.connectors.datagen import DataGeneratorSource
from holdfast.datastream.state import ValueStateDescriptor


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", 0))

    def process_element(self, row, ctx):
        self.count.update(self.count.value() + 1)
        yield row.key, self.count.value()


output, checkpoints, rows = sys.argv[1:]
env = StreamExecutionEnvironment.get_execution_environment({
    "execution.trigger": "real-time",
    "execution.checkpointing.dir": checkpoints,
    "execution.checkpointing.interval": "500 ms",
    "parallelism.default": 1,
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": 9,
    "restart-strategy.fixed-delay.delay": "1 s",
})


def slowly(n):
    time.sleep(0.005)
    return n % 5, n


source = DataGeneratorSource(lambda n: n, int(rows), type_info="bigint")
numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
keyed = numbers.map(slowly, "key bigint, n bigint").uid("keyed")
counted = keyed.key_by("key").process(Count(), "key bigint, count bigint").uid("count")
counted.sink_to(ParquetFileSink(output)).uid("out")
env.execute("generated")
"""


@pytest.mark.long
@needs_real_time
def test_a_real_time_job_goes_on_in_new_containers(tmp_path: Path, yarn: YarnCluster) -> None:
    """An executor is killed, then the driver: no row is lost or counted twice."""
    program, log, out, checkpoints = (tmp_path / name for name in ("generated.py", "log", "out", "checkpoints"))
    program.write_text(GENERATED)
    rows = 6_000

    def completed() -> int:
        return max((int(path.parent.name[4:]) for path in checkpoints.glob("*/chk-*/_metadata")), default=0)

    def goes_on() -> None:
        since = completed()
        until(lambda: completed() > since + 2 or submitted.poll() is not None, "the job goes on", seconds=120)
        assert submitted.poll() is None, log.read_text()[-6000:]

    with log.open("wb") as output:
        submitted = subprocess.Popen(
            [*SUBMIT, "cluster", "--conf", f"spark.yarn.appMasterEnv.PYTHONPATH={ROOT / 'src'}",
             str(program), str(out), str(checkpoints), str(rows)],
            env={**os.environ, **yarn.environment, "PYSPARK_PYTHON": sys.executable},
            cwd=tmp_path, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        goes_on()
        before = yarn.containers()
        os.kill(next(yarn.processes(EXECUTOR)), signal.SIGKILL)
        until(lambda: yarn.containers() - before, "YARN starts another executor")
        goes_on()
        os.kill(next(yarn.processes(DRIVER)), signal.SIGKILL)
        goes_on()
        assert submitted.wait(timeout=300) == 0, log.read_text()[-6000:]
    finally:
        submitted.kill()
    assert yarn.attempts() == 2
    counts = Counter((row["key"], row["count"]) for row in ds.dataset(out, format="parquet").to_table().to_pylist())
    assert counts == Counter((key, count) for key in range(5) for count in range(1, rows // 5 + 1))
