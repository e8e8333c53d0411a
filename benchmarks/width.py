"""What an epoch costs beside its rows, by the number of subtasks: three keyed levels in a row, without a JVM.

    python benchmarks/width.py [--subtasks 8,64,200,1000] [--epochs 3] [--spark] [--json]

Tasks, exchange columns, job master, checkpoints and files are the real ones; the epoch runner of tests runs the tasks
one after the other in this process. Every subtask has keys, and changes them in every epoch.

The fields: `exchange_bytes` is what one exchange between two levels carries beside its rows, the greater of the two;
`task_bytes` what the longest message to a task of one level is; `driver_ms` what an epoch takes beyond its tasks and
exchanges (`driver_cpu_ms` is its processor time, which tells more where others are busy), of it `plan_ms` before its
first task, `accept_ms` until its reports are accepted, `complete_ms` until its checkpoint is complete and committed;
`metadata_bytes` the length of the last checkpoint's document; `driver_mb` how much more memory the process took, its
tasks included, in megabytes. With `--spark`, `spark_ms` is what Spark takes, on this machine, for a job of as many
tasks that do next to nothing: three stages with an exchange between each two, one row a task.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # started by its path
    sys.path.insert(0, str(ROOT))

import cloudpickle  # noqa: E402
import pyarrow as pa  # noqa: E402

from holdfast.datastream import KeyedProcessFunction  # noqa: E402
from holdfast.datastream.stream.keyed_stream import NoOutput  # noqa: E402
from holdfast.runtime.exchange.layout import CONTROL  # noqa: E402
from holdfast.runtime.exchange.stage_message import (  # noqa: E402
    EpochDescriptor,
    StageMessage,
)
from holdfast.runtime.graph.plan import Stage  # noqa: E402
from holdfast.runtime.graph.stream_graph import StreamGraph  # noqa: E402
from holdfast.runtime.job.engine import EpochInput, Outcome, StagedInput  # noqa: E402
from holdfast.state.descriptor import ValueStateDescriptor  # noqa: E402
from holdfast.testing.epoch_runner import OPTIONS, Batches, EpochProgram, LocalEngine, run_job  # noqa: E402  # noqa: E402

LEVELS = ("a", "b", "c")
ROWS_A_SUBTASK = 4
UNCOMPACTED = {**OPTIONS, "state.compaction.enabled": "false"}
SPARK_ROUNDS = 3
FIELDS = (
    "exchange_bytes",
    "task_bytes",
    "metadata_bytes",
    "driver_ms",
    "driver_cpu_ms",
    "plan_ms",
    "accept_ms",
    "complete_ms",
    "driver_mb",
)


class Count(KeyedProcessFunction):
    """Counts the elements of a key, and hands them on but on the last level."""

    def __init__(self, hands_on: bool) -> None:
        self.hands_on = hands_on

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        return [value] if self.hands_on else []


class MeasuringEngine(LocalEngine):
    """Notes what each epoch sends, and how long it takes beside its tasks."""

    def __init__(self, inputs: Sequence[dict[str, Any]]) -> None:
        super().__init__(inputs, is_bounded=True)
        self.epochs: list[dict[str, float]] = []
        self._kept: list[Sequence[Batches]] = []

    def drive(self, driver: Any) -> Outcome:
        return super().drive(_Timed(driver, self))

    def process(self, driver: Any, epoch_input: EpochInput) -> None:
        """One epoch."""
        self._elsewhere = self._elsewhere_cpu = 0.0
        self._longest_exchange, self._longest_message = 0, 0
        began, began_cpu = time.perf_counter(), time.process_time()
        driver.process(epoch_input)
        took, took_cpu = time.perf_counter() - began, time.process_time() - began_cpu
        beside = took - self._elsewhere
        planned, accepted = self._began - began, self._ended - self._began - self._elsewhere
        self.epochs.append(
            {
                "exchange_bytes": self._longest_exchange,
                "task_bytes": self._longest_message,
                "driver_ms": 1000 * beside,
                "driver_cpu_ms": 1000 * (took_cpu - self._elsewhere_cpu),
                "plan_ms": 1000 * planned,
                "accept_ms": 1000 * accepted,
                "complete_ms": 1000 * (beside - planned - accepted),
                "tasks_ms": 1000 * self._elsewhere,
            }
        )

    def execute(self, epoch: EpochDescriptor, epoch_input: EpochInput | StagedInput | None) -> Any:
        self._began = time.perf_counter()
        answers = super().execute(epoch, epoch_input)
        self._ended = time.perf_counter()
        return answers

    def hand_over(self, stage: Stage, crossing: Sequence[Batches]) -> Sequence[Batches]:
        began, began_cpu = time.perf_counter(), time.process_time()
        self._kept.clear()
        if stage.index > 1:
            carried = sum(_control_bytes(batch) for batches in crossing for batch in batches)
            self._longest_exchange = max(self._longest_exchange, carried)
        whole = pa.Table.from_batches([batch for batches in crossing for batch in batches]).combine_chunks()
        placed = super().hand_over(stage, [whole.to_batches()])
        self._kept += [placed, crossing]
        self._was_elsewhere(began, began_cpu)
        return placed

    def _run_stage(self, stage: Stage, epoch: Any, inputs: Sequence[Batches], next_tasks: int) -> list[Batches]:
        # What a driver does for Spark; the epoch runner does it again, which counts as its tasks.
        self._longest_message = max(self._longest_message, len(cloudpickle.dumps(StageMessage.of(epoch, stage))))
        began, began_cpu = time.perf_counter(), time.process_time()
        self._kept = [inputs]  # what others have held until now is freed here, and not in the driver's time
        left = super()._run_stage(stage, epoch, inputs, next_tasks)
        # The tasks of a real job leave nothing in the driver's process for its collector to go through.
        gc.collect()
        gc.freeze()
        self._was_elsewhere(began, began_cpu)
        return left

    def _was_elsewhere(self, began: float, began_cpu: float) -> None:
        self._elsewhere += time.perf_counter() - began
        self._elsewhere_cpu += time.process_time() - began_cpu


class _Timed:
    """The driver of epochs, timed."""

    def __init__(self, driver: Any, engine: MeasuringEngine) -> None:
        self._driver, self._engine = driver, engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def process(self, epoch_input: EpochInput) -> None:
        self._engine.process(self._driver, epoch_input)


def _control_bytes(batch: Any) -> int:
    """Bytes of the control rows of a batch."""
    control = batch.column(batch.schema.get_field_index(CONTROL)).drop_null()
    return sum(len(content) for content in control.to_pylist())


def three_levels() -> StreamGraph:
    """A job of three keyed levels in a row."""
    program = EpochProgram()
    stream = program.source("rows", "key bigint")
    for uid in LEVELS:
        stream = stream.key_by("key").process(Count(uid != LEVELS[-1]), "key bigint").uid(uid)
    stream.sink_to(NoOutput()).uid("out")
    return program.get_stream_graph()


def rows_of_epoch(subtasks: int) -> dict[str, list[tuple[int]]]:
    """Some keys for each subtask."""
    return {"rows": [(key,) for key in range(ROWS_A_SUBTASK * subtasks)]}


def measure(subtasks: int, epochs: int) -> dict[str, Any]:
    """Runs a job of three levels of so many subtasks for some epochs; the first one is not counted."""
    engine = MeasuringEngine([rows_of_epoch(subtasks)] * (epochs + 1))
    before = _peak_megabytes()
    with tempfile.TemporaryDirectory() as place:
        run_job(three_levels(), place, engine, UNCOMPACTED, parallelism=subtasks).run()
        documents = sorted(Path(place).glob("*/chk-*/_metadata"), key=lambda path: path.stat().st_mtime)
        document = documents[-1].stat().st_size
    counted = engine.epochs[1:]
    found = {name: statistics.median(epoch[name] for epoch in counted) for name in counted[0]}
    return {
        "subtasks": subtasks,
        **{name: round(value, 1) if name.endswith("_ms") else int(value) for name, value in found.items()},
        "metadata_bytes": document,
        "driver_mb": round(_peak_megabytes() - before, 1),
    }


def _peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def spark_milliseconds(subtasks: Sequence[int]) -> dict[int, float]:
    """What Spark takes for a job of three stages of so many tasks that do next to nothing, by their number."""
    from pyspark.sql import functions as F

    from benchmarks.harness.spark_session import start_session

    session = start_session("width", {"spark.driver.memory": "2g"})
    found = {}
    for number in subtasks:
        rows = session.range(0, number, 1, number).repartition(number, "id")
        # What is drawn at random stands between the exchanges, which Spark would make one of otherwise.
        placed = rows.withColumn("drawn", F.rand()).repartition(number, "drawn")
        seconds = []
        for _ in range(1 + SPARK_ROUNDS):
            began = time.perf_counter()
            placed.write.format("noop").mode("overwrite").save()
            seconds.append(time.perf_counter() - began)
        found[number] = round(1000 * statistics.median(seconds[1:]), 1)
    session.stop()
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What an epoch costs beside its rows, by the number of subtasks.")
    parser.add_argument("--subtasks", default="8,64,200,1000", help="numbers, separated by commas")
    parser.add_argument("--epochs", type=int, default=3, help="measured epochs, after one to settle")
    parser.add_argument("--spark", action="store_true", help="say what Spark takes for as many tasks, too")
    parser.add_argument("--json", action="store_true", help="print JSON lines only")
    chosen = parser.parse_args(arguments)
    widths = [int(text) for text in chosen.subtasks.split(",")]
    fields = (*FIELDS, "spark_ms") if chosen.spark else FIELDS
    spark = spark_milliseconds(widths) if chosen.spark else {}
    if not chosen.json:
        print(f"{'subtasks':>8} " + " ".join(f"{name:>14}" for name in fields))
    for subtasks in widths:
        found = measure(subtasks, chosen.epochs)
        if chosen.spark:
            found["spark_ms"] = spark[subtasks]
        if chosen.json:
            print(json.dumps(found), flush=True)
        else:
            print(f"{subtasks:>8} " + " ".join(f"{found[name]:>14,}" for name in fields), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
