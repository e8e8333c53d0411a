"""A standalone cluster of two hosts: speculation, a host that goes away, and packages that travel with the job."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from holdfast.spark.session import REAL_TIME_SETTINGS
from tests.spark.test_ledger_stories import Story
from tests.stories.process import ROOT, run
from tests.stories.spark import HAS_REAL_TIME

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SPECULATION = (
    *("--spark", "spark.speculation=true"),
    *("--spark", "spark.speculation.interval=100ms"),
    *("--spark", "spark.speculation.multiplier=1.1"),
    *("--spark", "spark.speculation.quantile=0.3"),
    *("--spark", "spark.speculation.minTaskRuntime=1s"),
    *("--spark", "spark.executor.memory=512m"),
)


@dataclass
class Cluster:
    """A master and its workers, each worker on a loopback address of its own, which is a host to Spark."""

    url: str
    processes: list[subprocess.Popen[bytes]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    import pyspark

    from holdfast.spark.java import ensure_java

    ensure_java()
    home = Path(pyspark.__file__).parent
    environment = {**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    log = tmp_path / "master.log"
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), *arguments],
            stdout=(tmp_path / f"{name}.log").open("wb"),
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        started.append(process)
        return process

    try:
        deploy = "org.apache.spark.deploy"
        start("master", f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        url = wait_for(log, r"Starting Spark master at (spark://\S+)")
        for host in ("127.0.0.2", "127.0.0.3"):
            work = ("--work-dir", str(tmp_path / f"work-{host}"), "--webui-port", "0")
            start(f"worker-{host}", f"{deploy}.worker.Worker", "--host", host, "-c", "1", "-m", "700m", *work, url)
            wait_for(tmp_path / f"worker-{host}.log", r"(Successfully registered)")
        yield Cluster(url, started)
    finally:
        for process in reversed(started):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(log: Path, pattern: str, seconds: float = 60) -> str:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = re.search(pattern, log.read_text(errors="replace")) if log.exists() else None
        if found:
            return found.group(1)
        time.sleep(0.1)
    raise AssertionError(f"{pattern!r} did not come in {log}: {log.read_text()[-2000:]}")


def test_a_straggler_is_run_twice_and_its_rows_are_used_once(tmp_path: Path, cluster: Cluster) -> None:
    story = Story(tmp_path)
    hazard = ("--hazard", "straggle", "--at", 100, "--marker", story.root / "m")
    ended = run("ledger_job.py", *story.arguments("--master", cluster.url, *SPECULATION, *hazard))
    assert ended.code == 0, ended.output
    assert (story.root / "m").exists()
    assert (story.root / "m.attempt-1").exists(), "Spark did not speculate"
    story.audit()


def test_a_host_is_lost_while_the_job_runs(tmp_path: Path, cluster: Cluster) -> None:
    from tests.stories.process import start

    story = Story(tmp_path, epochs=8)
    setting = ("--spark", "spark.executor.memory=512m")
    process = start(
        "ledger_job.py", *story.arguments("--master", cluster.url, "--hazard", "slow", *setting), log=tmp_path / "log"
    )
    story.wait_for(3, process)
    os.killpg(cluster.processes[-1].pid, signal.SIGKILL)
    assert process.wait(timeout=180) == 0, (tmp_path / "log").read_text()[-4000:]
    story.audit()


PACKED = """
import os
import sys

import holdfast
from holdfast.datastream import KeyedProcessFunction, ParquetFileSink, StreamExecutionEnvironment
from holdfast.datastream.state import ValueStateDescriptor


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", 0))

    def process_element(self, row, ctx):
        self.count.update(self.count.value() + 1)
        yield row.value, self.count.value(), holdfast.__file__, os.getcwd()


texts, output, checkpoints, trigger = sys.argv[1:]
options = {"execution.checkpointing.dir": checkpoints, "execution.trigger": trigger}
env = StreamExecutionEnvironment.get_execution_environment(options)
reader = env.spark.read if trigger == "real-time" else env.spark.readStream
words = env.from_dataframe(reader.text(texts)).uid("words")
counted = words.key_by("value").process(Count(), "word string, n bigint, holdfast string, place string").uid("count")
counted.sink_to(ParquetFileSink(output)).uid("out")
env.execute("packed")
"""
"""Counts words, and says where Holdfast came from and in which executor's directory."""


def environment_without_holdfast(place: Path) -> Path:
    """A Python that has what this one has, but for what is installed there by a link, as Holdfast is."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    [own] = place.glob("lib/python*/site-packages")
    (own / "others.pth").write_text(sysconfig.get_path("purelib"))
    python = place / "bin" / "python"
    asked = subprocess.run([python, "-c", "import holdfast"], capture_output=True, cwd=place, check=False)
    assert asked.returncode, "Holdfast is installed, so this shows nothing"
    return python


def packed_environment(place: Path) -> tuple[Path, Path]:
    """What the README says: an environment of the wheel and what it needs, and the archive that venv-pack makes."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "env"], check=True)
    python = place / "env" / "bin" / "python"
    wheels, archive = place / "wheels", place / "env.tar.gz"
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", wheels, ROOT], check=True)
    [wheel] = wheels.iterdir()
    subprocess.run([*pip, "--python", python, "install", "-q", wheel, "venv-pack", "setuptools<81"], check=True)
    subprocess.run([python.with_name("venv-pack"), "-q", "-p", place / "env", "-o", archive], check=True)
    return python, archive


BOTH_WORKERS = [
    text
    for setting in (
        "spark.cores.max=2",
        "spark.scheduler.minRegisteredResourcesRatio=1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime=600s",
        "spark.locality.wait=0",
    )
    for text in ("--conf", setting)
]
"""No task begins before both are there, or waits for the one that has its rows; else one may do all the work."""


@pytest.mark.parametrize(
    ("form", "trigger"),
    [
        ("zip", "available-now"),
        ("venv-pack", "available-now"),
        pytest.param("zip", "real-time", marks=pytest.mark.skipif(not HAS_REAL_TIME, reason="Spark 4.3")),
    ],
)
def test_spark_submit_ships_the_files_of_a_job(tmp_path: Path, cluster: Cluster, form: str, trigger: str) -> None:
    import pyspark

    if form == "zip":
        driver = environment_without_holdfast(tmp_path / "driver")
        package = shutil.make_archive(str(tmp_path / "holdfast"), "zip", ROOT / "src", "holdfast")
        travels, worker, origin = ["--py-files", package], str(driver), "holdfast.zip"
    else:
        driver, archive = packed_environment(tmp_path)
        travels, worker, origin = ["--archives", f"{archive}#env"], "./env/bin/python", "/env/lib/"
    (tmp_path / "packed.py").write_text(PACKED)
    texts, out = tmp_path / "texts", tmp_path / "out"
    texts.mkdir()
    words = [f"w{n % 20}" for n in range(200)]
    (texts / "a.txt").write_text("\n".join(words))

    home = Path(pyspark.__file__).parent
    leaves = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "VIRTUAL"))
    }
    arguments = [str(texts), str(out), str(tmp_path / "checkpoints"), trigger]
    settings = REAL_TIME_SETTINGS.items() if trigger == "real-time" else ()
    conf = [text for key, value in settings for text in ("--conf", f"{key}={value}")]
    submitted = subprocess.run(
        [str(home / "bin" / "spark-submit"), "--master", cluster.url, "--conf", "spark.executor.memory=512m",
         *BOTH_WORKERS, *conf, *travels, str(tmp_path / "packed.py"), *arguments],
        env={**leaves, "SPARK_HOME": str(home), "PYSPARK_DRIVER_PYTHON": str(driver), "PYSPARK_PYTHON": worker,
             "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=400,
    )  # fmt: skip
    assert submitted.returncode == 0, submitted.stdout[-6000:]
    rows = ds.dataset(out, format="parquet").to_table().to_pylist()
    assert sorted((row["word"], row["n"]) for row in rows) == sorted(
        (f"w{n}", i) for n in range(20) for i in range(1, 11)
    )
    assert all(origin in row["holdfast"] for row in rows), rows[0]
    hosts = {re.search(r"work-([\d.]+)", row["place"])[1] for row in rows}  # type: ignore[index]
    assert len(hosts) == (1 if trigger == "real-time" else 2), "in real time all tasks share a worker"
