"""PyFlink 2.3 in thread mode with the hashmap backend, in an environment of its own.

Everything that is not the operator favours it: the rows are made in its JVM instead of read from files, and its sink
drops them. It checkpoints to files every ten seconds, exactly once. An epoch is a stretch of as many rows as one of the
others has; the operator notes the time when it has seen its share of one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.workload import PARALLELISM, Engine, Workload

SINK = "blackhole"  # whatever the others write to
REQUIREMENT = "apache-flink==2.3.0"


def interpreter(cache: Path) -> str:
    """The Python of PyFlink's environment, which is made once: its dependencies contradict those of Spark."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache / f"{REQUIREMENT.replace('==', '-')}-python-{version}"
    python, finished = folder / "bin" / "python", folder / ".finished"
    if not finished.exists():
        sys.stderr.write(f"making an environment for {REQUIREMENT} in {folder} (once, about 850 MB)\n")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, stdout=sys.stderr)
        install = [str(python), "-m", "pip", "install", "--quiet", REQUIREMENT, "setuptools<80"]
        subprocess.run(install, check=True, stdout=sys.stderr)
        finished.touch()
    return str(python)


class PyFlinkEngine:
    """One bounded job a run; the JVM stays, the state does not, so a run begins with an epoch that is not measured.

    Args:
        workload: What is counted.
        job: Runs a job over so many epochs, whose last operator writes into a directory when each of them ends.
    """

    def __init__(self, workload: Workload, job: Callable[[Workload, int, Path], None]) -> None:
        self._workload = workload
        self._job = job
        self._runs = 0
        # The interpreter inside Flink's JVM knows nothing of a virtual environment.
        os.environ["PYTHONPATH"] = os.pathsep.join([os.environ.get("PYTHONPATH", ""), sysconfig.get_path("purelib")])

    def run(self, epochs: int) -> Sequence[float]:
        self._runs += 1
        marks = Path(self._workload.workspace) / f"marks-{self._runs}"
        marks.mkdir(parents=True)
        started = time.time()
        self._job(self._workload, epochs, marks)
        return epoch_seconds(marks, epochs, started)

    def close(self) -> None:
        pass


def start(workload: Workload) -> Any:
    """An environment for tables, whose streams are of two subtasks and are checkpointed."""
    from pyflink.common import Configuration
    from pyflink.datastream import StreamExecutionEnvironment
    from pyflink.table import StreamTableEnvironment

    configuration = Configuration()
    configuration.set_string("python.execution-mode", "thread")
    configuration.set_string("python.executable", sys.executable)
    configuration.set_string("state.backend.type", "hashmap")
    configuration.set_string("restart-strategy.type", "none")
    configuration.set_string("execution.checkpointing.interval", "10 s")
    configuration.set_string(
        "execution.checkpointing.dir", (Path(workload.workspace) / "checkpoints").resolve().as_uri()
    )
    environment = StreamExecutionEnvironment.get_execution_environment(configuration)
    environment.set_parallelism(PARALLELISM)
    return StreamTableEnvironment.create(environment)


def drop(tables: Any, stream: Any, columns: str) -> None:
    """Run the job of a stream to its end, and do nothing with its rows."""
    tables.execute_sql(f"create temporary table nowhere ({columns}) with ('connector' = 'blackhole')")
    tables.from_data_stream(stream).execute_insert("nowhere").wait()


class Marks:
    """Where a subtask notes the time each time it has seen its share of an epoch."""

    def __init__(self, workload: Workload, folder: Path) -> None:
        self._seen = 0
        self._share = workload.rows // PARALLELISM
        self._file = (folder / uuid.uuid4().hex).open("a", buffering=1)

    def count(self) -> None:
        """One row more."""
        self._seen += 1
        if self._seen == self._share:
            self._seen = 0
            self._file.write(f"{time.time()}\n")


def run_job(workload: Workload, epochs: int, marks: Path) -> None:
    """Counts so many epochs and blocks until the job has finished."""
    from pyflink.common import Types
    from pyflink.datastream import KeyedProcessFunction, RuntimeContext
    from pyflink.datastream.state import ValueStateDescriptor

    class Counter(KeyedProcessFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
            self._marks = Marks(workload, marks)

        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[str, int, int]]:
            count = (self._count.value() or 0) + 1
            self._count.update(count)
            self._marks.count()
            yield value[0], value[1], count

    tables = start(workload)
    # A margin of one epoch: the keys do not fall evenly on the subtasks, and each must see its share of every epoch.
    tables.execute_sql(
        f"""create temporary table numbers (id bigint, val bigint, ts bigint) with (
            'connector' = 'datagen', 'number-of-rows' = '{workload.rows * (epochs + 1)}',
            'fields.id.min' = '0', 'fields.id.max' = '{workload.keys - 1}',
            'fields.val.min' = '0', 'fields.val.max' = '999999')"""
    )
    rows = tables.sql_query("select concat('key-', lpad(cast(id as string), 9, '0')), val, ts from numbers")
    counted = (
        tables.to_data_stream(rows)
        .key_by(lambda row: row[0], key_type=Types.STRING())
        .process(Counter(), output_type=Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG()]))
    )
    drop(tables, counted, "a string, b bigint, c bigint")


def epoch_seconds(marks: Path, epochs: int, started: float) -> list[float]:
    """From the times at which each subtask had seen its share of an epoch; the slower one counts."""
    times = [[float(line) for line in path.read_text().split()][:epochs] for path in sorted(marks.iterdir())]
    ends = [max(of_epoch) for of_epoch in zip(*times, strict=True)]
    return [end - begin for begin, end in zip([started, *ends], ends, strict=False)]


def make_engine(workload: Workload) -> Engine:
    return PyFlinkEngine(workload, run_job)
