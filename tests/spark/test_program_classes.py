"""State has objects of the script's own classes; each run is another driver with other workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stories.process import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

HOLDFAST_RUN = ("-c", "from holdfast.cli import main; main()", "run")
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


def run(directory: Path, script: str, *, command: tuple[str, ...] = (), succeeds: bool = True) -> str:
    """Run a script over one line more; return what it prints."""
    texts = directory / "texts"
    texts.mkdir(exist_ok=True)
    (texts / f"{len(list(texts.iterdir()))}.txt").write_text("a\n", encoding="utf-8")
    (directory / "job.py").write_text(script, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, *command, "job.py"],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
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
    for file in (tmp_path / "checkpoints").rglob("*"):
        assert file.is_dir() or b"not to be kept" not in file.read_bytes()

    told = run(tmp_path, gone, succeeds=False)
    assert "State 'money' of operator 'orders': A value was written with 'Money' of the main module" in told
    assert "the program does not have it now" in told
    assert run(tmp_path, repaired).count("True, True, 2.5 euros") == 2, "the refused line and the new one"
