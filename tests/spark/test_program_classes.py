"""State has objects of the script's own classes; each run is another driver with other workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from holdfast.spark.java import ensure_java
from tests.stories.cluster import Cluster, is_gone, processes_of, until
from tests.stories.process import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

SPARK = Path(pyspark.__file__).parent
PYTHON = (sys.executable,)
HOLDFAST_RUN = (sys.executable, "-c", "from holdfast.cli import main; main()", "run")
SPARK_SUBMIT = (str(SPARK / "bin" / "spark-submit"), "--master", "local[2]")
JOB = """
import enum
from dataclasses import dataclass

from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from holdfast.datastream.state import ValueStateDescriptor

PASSWORD = "not to be kept"


class Status(enum.Enum):
    NEW = "new"
    PAID = "paid"


class Money:
    def __init__(self, cents):
        self.cents = cents

    def euros(self):
        assert PASSWORD
        return self.cents / 10  # a bug


def main():
    @dataclass
    class Order:
        status: Status

    class Orders(KeyedProcessFunction):
        def open(self, runtime_context):
            self.order = runtime_context.get_state(ValueStateDescriptor("order"))
            self.money = runtime_context.get_state(ValueStateDescriptor("money"))

        def process_element(self, row, ctx):
            order = self.order.value()
            if order is None:
                self.order.update(Order(Status.NEW))
                self.money.update(Money(250))
            else:
                yield f"{order == Order(Status.NEW)}, {order.status is Status.NEW}, {self.money.value().euros()} euros"

    env = StreamExecutionEnvironment.get_execution_environment(
        {
            "execution.checkpointing.dir": "checkpoints",
            "execution.trigger": "available-now",
            "parallelism.default": "1",
            "restart-strategy.type": "none",
        }
    )
    lines = env.from_dataframe(env.spark.readStream.text("texts")).uid("lines")
    lines.key_by("value").process(Orders(), "string").uid("orders").print()
    env.execute("orders")


main()
"""


def run(directory: Path, script: str, *, command: tuple[str, ...] = PYTHON, succeeds: bool = True) -> str:
    """Run a script over one line more; return what it prints."""
    texts = directory / "texts"
    texts.mkdir(exist_ok=True)
    (texts / f"{len(list(texts.iterdir()))}.txt").write_text("a\n", encoding="utf-8")
    (directory / "job.py").write_text(script, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYSPARK_PYTHON": sys.executable}
    if command is SPARK_SUBMIT:
        ensure_java()
        environment |= {"SPARK_HOME": str(SPARK), "PYSPARK_DRIVER_PYTHON": sys.executable}
        environment |= {name: os.environ[name] for name in ("JAVA_HOME", "PATH") if name in os.environ}
    done = subprocess.run(
        [*command, "job.py"],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert (done.returncode == 0) == succeeds, done.stderr[-4000:]
    return done.stdout if succeeds else done.stderr


def test_a_new_driver_finds_the_classes_and_repairs_them(tmp_path: Path) -> None:
    repaired = JOB.replace("/ 10  # a bug", "/ 100")
    gone = repaired.replace("self.money.update(Money(250))", "pass").replace("class Money", "class Cents")

    assert run(tmp_path, JOB) == ""
    assert run(tmp_path, repaired) == "True, True, 2.5 euros\n"
    assert run(tmp_path, repaired, command=HOLDFAST_RUN) == "True, True, 2.5 euros\n"
    require_no_secret(tmp_path / "checkpoints")

    told = run(tmp_path, gone, succeeds=False)
    assert "State 'money' of operator 'orders': A value was written with 'Money' of the main module" in told
    assert "the program does not have it now" in told
    assert run(tmp_path, repaired).count("True, True, 2.5 euros") == 2, "the refused line and the new one"


def require_no_secret(checkpoints: Path) -> None:
    files = [file for file in checkpoints.rglob("*") if file.is_file()]
    assert any(b"__main__:Money" in file.read_bytes() for file in files)
    assert not any(b"not to be kept" in file.read_bytes() for file in files)


def test_drivers_of_spark_submit_find_the_classes_and_repair_them(tmp_path: Path) -> None:
    assert run(tmp_path, JOB) == ""
    # It writes the log to the same stream.
    found = run(tmp_path, JOB.replace("/ 10  # a bug", "/ 100"), command=SPARK_SUBMIT).splitlines()
    assert [line for line in found if line.endswith(" euros")] == ["True, True, 2.5 euros"]
    found = run(tmp_path, JOB, command=SPARK_SUBMIT).splitlines()
    assert [line for line in found if line.endswith(" euros")] == ["True, True, 25.0 euros"]
    require_no_secret(tmp_path / "checkpoints")


WRITE = """
def write(frame, epoch):
    with open({found!r}, "a") as file:
        file.writelines(row["value"] + chr(10) for row in frame.collect())


def main():"""
SUBMITTED = {
    ".print()": '.for_each_epoch(write).uid("out")',
    "self.money.update(Money(250))": "self.money.update(Money(250)); yield 'new'",
    "available-now": "100 ms",
    '"restart-strategy.type": "none"': (
        '"execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION"'
    ),
}
"""What a job that goes on has instead: it writes its lines into a file, and its checkpoints stay after a cancel."""


# Two Sparks start, one after the other; on two busy cores it did not end within its limits.
@pytest.mark.soak
def test_job_managers_find_the_classes_and_repair_them(tmp_path: Path) -> None:
    """A leader is killed, and the driver of the next one goes on; then the job is submitted with repaired classes."""
    found = tmp_path / "found"
    script = JOB.replace("\ndef main():", WRITE.format(found=str(found)))
    for before, now in SUBMITTED.items():
        assert before in script
        script = script.replace(before, now)
    for name in ("checkpoints", "texts"):
        script = script.replace(f'"{name}"', repr(str(tmp_path / name)))

    def add_line() -> None:
        number = len(list((tmp_path / "texts").iterdir()))
        (tmp_path / f"{number}.txt").write_text("a\n", encoding="utf-8")
        (tmp_path / f"{number}.txt").rename(tmp_path / "texts" / f"{number}.txt")

    def has(*lines: str) -> bool:
        return found.exists() and found.read_text().splitlines() == list(lines)

    (tmp_path / "texts").mkdir()
    (tmp_path / "job.py").write_text(script, encoding="utf-8")
    lease = {"lease-duration": "10 s", "renew-deadline": "8 s", "retry-period": "1 s"}
    options = {f"high-availability.filesystem.leader-election.{name}": value for name, value in lease.items()}
    cluster = Cluster(tmp_path, options)
    try:
        leader = cluster.start("-Dspark.master=local[2]")
        cluster.says(0, "leads, in session")
        job = cluster.run("submit", tmp_path / "job.py").strip()
        add_line()
        until(lambda: has("new"), "the first line is in state", 400)
        cluster.start("-Dspark.master=local[2]")
        (process,) = processes_of(leader)
        leader.kill()
        until(lambda: is_gone(process), "the driver ends with its leader")
        add_line()
        until(lambda: has("new", "True, True, 25.0 euros"), "the other one goes on", 400)
        cluster.run("cancel", job)
        cluster.status(job, "CANCELED")
        (tmp_path / "job.py").write_text(script.replace("/ 10  # a bug", "/ 100"), encoding="utf-8")
        assert cluster.run("submit", tmp_path / "job.py").strip() == job
        add_line()
        until(lambda: has("new", "True, True, 25.0 euros", "True, True, 2.5 euros"), "it is repaired", 400)
        cluster.run("cancel", job)
        cluster.status(job, "CANCELED")
    finally:
        cluster.close()
    require_no_secret(tmp_path / "checkpoints")
