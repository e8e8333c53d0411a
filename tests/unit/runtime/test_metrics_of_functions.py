"""What functions count themselves: summed over tasks, once for each epoch that was accepted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.datastream import (
    BatchFunction,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    RuntimeContext,
)
from holdfast.datastream.window import CountTrigger, GlobalWindows
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.metrics import MetricGroup
from holdfast.rest.metric_samples import collect_samples
from holdfast.rest.prometheus import exposition
from holdfast.runtime.exchange.task_report import StepReport
from holdfast.runtime.function.metric import MAX_METRICS, TaskMetrics
from holdfast.runtime.master.job_master import JobMaster
from holdfast.runtime.task.steps import SplitReaderExecutor
from tests.stories.local import RESTARTING, Program, master


class Screening(KeyedProcessFunction):
    """Counts in every way, also through what closes over the function, and through a group that it keeps."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.group = runtime_context.get_metrics_group().add_group("screen")
        self.seen = self.group.counter("seen")
        self.events = self.group.meter("events")
        self.sizes = self.group.distribution("sizes")
        self.held: list[int] = []
        self.group.gauge("held", lambda: len(self.held))
        self.count_one = lambda: self.seen.inc()

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.count_one()
        self.events.mark_event(2)
        self.sizes.update(value[0])
        self.held.append(value[0])
        if value[0] % 2:
            self.group.counter("odd").inc()
        yield value


ASIDE, UNREAD = OutputTag("aside", "bigint"), OutputTag("unread", "bigint")


def deal(value: Any) -> Iterator[Any]:
    yield value
    yield ASIDE, value.n
    yield UNREAD, value.n


class Dealing(ProcessFunction):
    """Emits each element, and its number to two side outputs."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        return deal(value)


class KeyedDealing(KeyedProcessFunction):
    """The same."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        return deal(value)


def job(tmp_path: Path, epochs: list[list[int]], **settings: Any) -> JobMaster:
    program = Program()
    numbers = program.source("numbers", "n bigint").map(lambda row: (row.n,), output_type="n bigint").uid("narrow")
    numbers.key_by("n").process(Screening(), output_type="n bigint").uid("screen").for_each_epoch(
        lambda rows, epoch: None
    ).uid("sink")
    return master(program, tmp_path, [{"numbers": [(n,) for n in epoch]} for epoch in epochs], **settings)


def counted(running: JobMaster) -> dict[str, list[Any]]:
    return running.metrics.numbers.operators["screen"].own


def test_numbers_of_all_tasks_are_added_up(tmp_path: Path) -> None:
    running = job(tmp_path, [[1, 2, 3, 4, 5], [10, 11]], parallelism=3)
    running.run()
    assert counted(running) == {
        "screen_seen": ["counter", 7],
        "screen_odd": ["counter", 4],
        "screen_events": ["meter", 14],
        "screen_sizes": ["distribution", 7, 36, 1, 11],
        "screen_held": ["gauge", 2.0],
    }, "and the gauge is that of the last epoch"
    text = bytes(exposition(collect_samples(running)).body).decode()  # type: ignore[arg-type]
    prefix = "flink_taskmanager_job_task_operator_screen"
    for name, number in (("seen", 7), ("events_count", 14), ("sizes_sum", 36), ("sizes_max", 11), ("held", 2)):
        assert (
            f'{prefix}_{name}{{job_id="{running.job.job_id}",job_name="job",operator_id="screen"}} {number}.0' in text
        )


def test_side_outputs_count_as_emitted_elements(tmp_path: Path) -> None:
    """As in Flink, also those that no step reads."""
    program = Program()
    numbers = program.source("numbers", "n bigint").process(Dealing(), "n bigint").uid("deal")
    keyed = numbers.key_by("n").process(KeyedDealing(), "n bigint").uid("keyed deal")
    for stream in (keyed, numbers.get_side_output(ASIDE), keyed.get_side_output(ASIDE)):
        stream.for_each_epoch(lambda rows, epoch: None)
    epochs = [{"numbers": [(n,) for n in range(10)]}, {"numbers": [(n,) for n in range(10, 15)]}]
    running = master(program, tmp_path, epochs)
    running.run()
    operators = running.metrics.numbers.operators
    assert [(operators[uid].records_in, operators[uid].records_out) for uid in ("deal", "keyed deal")] == [
        (15, 15 + 2 * 15),
        (15, 15 + 2 * 15),
    ]


def test_of_an_attempt_that_fails_nothing_is_counted(tmp_path: Path) -> None:
    failures = [True]

    def fails_once(stage: int, partition: int) -> None:
        if stage == 1 and partition == 1 and failures:
            failures.pop()
            raise HoldfastError("the worker is gone")

    running = job(tmp_path, [[1, 2, 3, 4]], options=RESTARTING, interceptor=fails_once)
    running.run()
    assert failures == []
    assert counted(running)["screen_seen"] == ["counter", 4]


def test_a_worker_that_forgets_everything_counts_the_same(tmp_path: Path) -> None:
    running = job(tmp_path, [[1, 2], [3]], amnesia=True)
    running.run()
    assert counted(running)["screen_seen"] == ["counter", 3]


def test_an_unreadable_gauge_does_no_harm(tmp_path: Path) -> None:
    class Broken(MapFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            runtime_context.get_metrics_group().gauge("broken", lambda: 1 // 0)
            runtime_context.get_metrics_group().gauge("endless", lambda: float("inf"))

        def map(self, value: Any) -> Any:
            return value

    program = Program()
    numbers = program.source("numbers", "n bigint").map(Broken(), output_type="n bigint").uid("broken")
    numbers.for_each_epoch(lambda rows, epoch: None).uid("sink")
    running = master(program, tmp_path, [{"numbers": [(1,)]}])
    running.run()
    assert running.metrics.numbers.operators["broken"].own == {}


def test_numpy_numbers_of_batch_functions_are_counted(tmp_path: Path) -> None:
    class Counting(BatchFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            group = runtime_context.get_metrics_group()
            self.large, self.values = group.counter("large"), group.distribution("values")

        def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Any:
            numbers = batch.column("n").to_numpy()
            self.large.inc((numbers > 2).sum())
            self.values.update(numbers.max() / np.float32(2))
            return batch

    program = Program()
    program.source("numbers", "n bigint").key_by("n").process_batches(Counting()).uid("counting").for_each_epoch(
        lambda rows, epoch: None
    ).uid("sink")
    running = master(program, tmp_path, [{"numbers": [(1,), (2,), (3,), (4,)]}], source_tasks=1, parallelism=1)
    running.run()
    assert running.metrics.numbers.operators["counting"].own == {
        "large": ["counter", 2],
        "values": ["distribution", 1, 2.0, 2.0, 2.0],
    }


def test_metrics_of_a_trigger_and_an_assigner_belong_to_the_operator(tmp_path: Path) -> None:
    class Counted(CountTrigger[Any, Any]):
        def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> Any:
            ctx.get_metric_group().counter("triggered").inc()
            return super().on_element(element, timestamp, window, ctx)

    class Assigning(GlobalWindows[Any]):
        def assign_windows(self, element: Any, timestamp: int, context: Any) -> Any:
            context.get_runtime_context().get_metrics_group().counter("assigned").inc()
            return super().assign_windows(element, timestamp, context)

    program = Program()
    windows = program.source("numbers", "n bigint").key_by("n").window(Assigning()).trigger(Counted(2))
    windows.reduce(lambda one, other: other).uid("windows").for_each_epoch(lambda rows, epoch: None).uid("sink")
    running = master(program, tmp_path, [{"numbers": [(1,), (2,)]}, {"numbers": [(1,)]}])
    running.run()
    own = running.metrics.numbers.operators["windows"].own
    assert own == {"triggered": ["counter", 3], "assigned": ["counter", 3]}


def test_a_name_means_one_thing() -> None:
    group = MetricGroup(TaskMetrics())
    assert group.counter("a.b") is group.add_group("a").counter("b")
    for refused in (
        lambda: group.meter("a b"),
        lambda: group.gauge("a-b", lambda: 1),
        lambda: group.counter("numRecordsIn"),
        lambda: group.counter("..."),
    ):
        with pytest.raises(ConfigurationError):
            refused()
    assert group.add_group("color", "red").counter("n").name == "color_red_n"


def test_an_operator_has_so_many_metrics_and_no_more() -> None:
    group = MetricGroup(TaskMetrics())
    for number in range(MAX_METRICS):
        group.counter(f"n{number}")
    with pytest.raises(ConfigurationError, match="at most"):
        group.counter("one_more")


def test_an_operator_has_its_own_metrics_beside_the_functions() -> None:
    metrics = TaskMetrics()
    metrics.count("numLateRecordsDropped")
    group = MetricGroup(metrics)
    with pytest.raises(ConfigurationError, match="already"):
        group.counter("numLateRecordsDropped")
    for number in range(MAX_METRICS):
        group.counter(f"n{number}")


@pytest.mark.parametrize("metrics", [[], {"n": 1}, {"n": []}, {"n": ["counter", "many"]}, {"n": ["counter", True]}])
def test_a_metric_that_no_task_can_report_is_rejected(metrics: Any) -> None:
    report = StepReport("screen", 0).to_json()
    assert "metrics" not in report, "who counts nothing sends nothing"
    with pytest.raises(TypeError):
        StepReport.from_json({**report, "metrics": metrics})


def test_dead_letters_of_a_reader_of_splits_count_as_emitted_elements() -> None:
    class Lines:
        """Reads one row, and refuses one."""

        def dead_letters(self) -> str:
            return "unreadable"

        def read(self, splits: Any, refuse: Any) -> Iterator[pa.RecordBatch]:
            refuse("a bad line")
            yield pa.RecordBatch.from_pydict({"n": [1]})

    spec = SimpleNamespace(function=Lines())
    executor = SplitReaderExecutor(SimpleNamespace(uid="lines", operator=spec, output_type=None), 0)  # type: ignore[arg-type]
    for _ in executor.read(pa.RecordBatch.from_pydict({"splits": [b"one", b"two"]})):
        executor.side_outputs()
    assert (executor.records_in, executor.records_out) == (2, 4)
