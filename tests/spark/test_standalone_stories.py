"""The ledger on a standalone cluster of two hosts: speculation, and a host that goes away."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.spark.test_ledger_stories import Story
from tests.stories.process import ROOT, run

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


def test_a_host_goes_away_in_the_middle(tmp_path: Path, cluster: Cluster) -> None:
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
