"""Real-time jobs without a JVM, judged from outside: what sinks have equals what sources gave."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from holdfast.common import Time, Types, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction
from holdfast.datastream.connectors.datagen import DataGeneratorSource
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.datastream.window import TumblingEventTimeWindows
from holdfast.errors import ConfigurationError, JobExecutionError
from holdfast.kernel.watermark import MIN_WATERMARK
from holdfast.runtime.exchange.stage_message import JobDescriptor
from holdfast.runtime.function.source import SourceReader, SourceSplit, SplitEnumerator, SplitSource
from holdfast.runtime.graph.plan import JobPlan
from holdfast.runtime.job.control import JobStatus
from holdfast.runtime.master.job_client import JobClient
from holdfast.runtime.realtime.engine import RealTimeEngine, TaskGroup
from holdfast.runtime.realtime.task import RealTimeStage
from holdfast.testing.epoch_runner import OPTIONS, EpochProgram, run_job
from holdfast.testing.real_time_runner import LocalRealTimeEngine, RealTimeProgram

KEYS = 7
ROWS = [(n % KEYS, n) for n in range(3000)]
RESTARTS = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": "50",
            "restart-strategy.fixed-delay.delay": "0 ms"}  # fmt: skip


class Count(KeyedProcessFunction):
    """Emits the number of each element of a key; a gap or a repeat shows."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_element(self, row: Any, ctx: Any) -> Any:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield row.key, count


class Rows(list[Any]):
    """The rows of a sink, each epoch once: after a failure `for_each_epoch` may be called with one again."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: set[tuple[str, int]] = set()

    def write(self, frame: Any, epoch: int, incarnation: str) -> None:
        if (incarnation, epoch) not in self.epochs:
            self.epochs.add((incarnation, epoch))
            self.extend(frame.to_pylist())


class Failing:
    """A map that raises once, at the given element; also in another process of the same path."""

    def __init__(self, place: Path, at: int) -> None:
        self.place, self.at = place, at

    def __call__(self, row: Any) -> Any:
        if row.n == self.at and not self.place.exists():
            self.place.touch()
            raise RuntimeError(f"element {self.at} fails once")
        return row.key, row.n


class FailingCount(Count):
    def __init__(self, failing: Failing) -> None:
        self.failing = failing

    def process_element(self, row: Any, ctx: Any) -> Any:
        self.failing(row)
        yield from super().process_element(row, ctx)


def counted(stream: Any, found: Rows) -> None:
    numbered = stream.key_by("key").process(Count(), "key bigint, count bigint").uid("count")
    numbered.for_each_epoch(found.write).uid("out")


def each_once(found: Rows, rows: int = len(ROWS)) -> None:
    seen = sorted((row["key"], row["count"]) for row in found)
    assert len(seen) == rows
    assert seen == sorted({*seen}), "an element was counted twice"
    assert Counter(key for key, _ in seen) == Counter(n % KEYS for n in range(rows))


def test_each_element_is_counted_once(tmp_path: Path) -> None:
    found = Rows()
    program = RealTimeProgram()
    counted(program.from_collection(ROWS, "key bigint, n bigint").uid("rows"), found)
    assert program.run(tmp_path) is JobStatus.FINISHED
    each_once(found)


@pytest.mark.parametrize("at", [0, 17, 2999])
def test_after_a_failure_each_element_is_counted_once(tmp_path: Path, at: int) -> None:
    found = Rows()
    program = RealTimeProgram()
    rows = program.from_collection(ROWS, "key bigint, n bigint").uid("rows")
    counted(rows.map(Failing(tmp_path / "failed", at), "key bigint, n bigint").uid("map"), found)
    assert program.run(tmp_path / "checkpoints", RESTARTS) is JobStatus.FINISHED
    each_once(found)


@pytest.mark.parametrize("at", [0, 17, 2999])
@pytest.mark.parametrize("is_behind", [False, True], ids=["before the exchange", "behind it"])
def test_after_a_failure_in_a_shared_worker_each_element_is_counted_once(
    tmp_path: Path, at: int, is_behind: bool
) -> None:
    found = Rows()
    program = RealTimeProgram()
    rows = program.from_collection(ROWS, "key bigint, n bigint").uid("rows")
    failing = Failing(tmp_path / "failed", at)
    if is_behind:
        keyed = rows.key_by("key").process(FailingCount(failing), "key bigint, count bigint").uid("count")
        keyed.for_each_epoch(found.write).uid("out")
    else:
        counted(rows.map(failing, "key bigint, n bigint").uid("map"), found)
    assert program.run(tmp_path / "job", RESTARTS, parallelism=1, source_tasks=1) is JobStatus.FINISHED
    assert failing.place.exists()
    each_once(found)


class Workers(LocalRealTimeEngine):
    """Keeps the stages of each group that shares its workers, and how many these are."""

    def start_tasks(
        self, job: JobDescriptor, stages: Sequence[Sequence[RealTimeStage]], workers: Sequence[int]
    ) -> TaskGroup:
        self.groups = [([stage.stage for stage in group], count) for group, count in zip(stages, workers, strict=True)]
        return super().start_tasks(job, stages, workers)

    def check(self, plan: JobPlan, workers: Sequence[int], *, is_running: bool) -> None:
        self.checked = sum(workers)


@pytest.mark.parametrize(
    ("source_tasks", "parallelism", "groups"),
    [
        (1, 1, [([0, 1, 2], 1)]),
        (2, 1, [([0], 2), ([1, 2], 1)]),
        (1, 2, [([0], 1), ([1], 2), ([2], 2)]),
    ],
)
def test_neighbours_of_one_task_each_share_a_worker(
    tmp_path: Path, source_tasks: int, parallelism: int, groups: list[tuple[list[int], int]]
) -> None:
    found, program = Rows(), RealTimeProgram()
    rows = program.from_collection(ROWS, "key bigint, n bigint").uid("rows")
    counted(rows.key_by("key").process(Count(), "key bigint, n bigint").uid("first"), found)
    engine = Workers(OPTIONS, source_tasks=source_tasks)
    graph = program.get_stream_graph()
    assert run_job(graph, tmp_path, engine, OPTIONS, parallelism=parallelism).run() is JobStatus.FINISHED
    assert engine.groups == groups
    assert engine.checked == sum(count for _, count in groups), "so many slots are needed"
    each_once(found)


def test_state_goes_from_a_shared_worker_to_workers_of_their_own_and_back(tmp_path: Path) -> None:
    found = Rows()
    for parallelism in (1, 2, 1):
        program = RealTimeProgram()
        counted(numbers(program, 2000), found)
        options = {"execution.checkpointing.interval": "20 ms"}
        client = JobClient(program.master(tmp_path, options, parallelism=parallelism, source_tasks=parallelism))
        wanted = len(found) + 300
        until(lambda n=wanted: len(found) > n)  # type: ignore[misc]
        client.stop()
        client.await_termination()
    counts = Counter(row["key"] for row in found)
    assert sorted((row["key"], row["count"]) for row in found) == [
        (key, n) for key in sorted(counts) for n in range(1, counts[key] + 1)
    ], "an element is missing, or was counted twice"


def paced(program: Any, found: Rows, count: int, per_second: int) -> None:
    """Numbers at a rate, so that a job has many barriers."""
    counted(numbers(program, per_second).filter(lambda row: row.n < count).uid("first"), found)


SEEN: list[int] = []


def see(row: Any) -> Any:
    """Remember an element; tasks are threads here, and this function is pickled by its name."""
    SEEN.append(row.n)
    return row.key, row.n


def numbers(program: Any, per_second: int) -> Any:
    source = DataGeneratorSource(lambda n: n, rows_per_second=per_second).split_source()
    numbers = program.source("numbers", source, Types.LONG())
    return numbers.map(lambda n: (n % KEYS, n), "key bigint, n bigint").uid("keys")


def until(is_met: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_met():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)


def test_what_was_read_is_in_the_sink_after_a_requested_checkpoint(tmp_path: Path) -> None:
    SEEN.clear()
    found, program = Rows(), RealTimeProgram()
    counted(numbers(program, 300).map(see, "key bigint, n bigint").uid("seen"), found)
    client = JobClient(program.master(tmp_path, {"execution.checkpointing.interval": "1 h"}))
    until(lambda: len(SEEN) > 50)
    with pytest.raises(ConfigurationError, match=r"Use trigger_checkpoint\(\)"):
        client.process_all_available()
    before = len(SEEN)
    client.trigger_checkpoint().result(60)
    assert len(found) >= before
    client.stop()
    client.await_termination()


def test_a_job_that_is_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    found = Rows()
    for wanted in (300, 900, 1500):
        program = RealTimeProgram()
        paced(program, found, 1500, 2000)
        client = JobClient(program.master(tmp_path))
        until(lambda wanted=wanted: len(found) >= wanted)
        client.stop()
        client.await_termination()
    each_once(found, 1500)


def test_a_job_is_rescaled_while_it_runs(tmp_path: Path) -> None:
    found = Rows()
    program = RealTimeProgram()
    paced(program, found, 3000, 1500)
    client = JobClient(program.master(tmp_path))
    for parallelism, wanted in ((3, 500), (1, 1200), (2, 2200)):
        until(lambda wanted=wanted: len(found) >= wanted)
        client.rescale(parallelism)
    until(lambda: len(found) >= 3000)
    client.stop()
    client.await_termination()
    each_once(found, 3000)


def test_a_rescale_without_slots_is_refused_and_the_job_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(self: RealTimeEngine, plan: JobPlan, tasks: Sequence[int], *, is_running: bool) -> None:
        checked.append(is_running)
        if sum(tasks) > 4:
            raise ConfigurationError(f"{sum(tasks)} tasks need {sum(tasks)} slots, and 4 exist")

    checked: list[bool] = []
    monkeypatch.setattr(RealTimeEngine, "check", check)
    found = Rows()
    program = RealTimeProgram()
    paced(program, found, 1500, 1500)
    client = JobClient(program.master(tmp_path))
    until(lambda: len(found) >= 300)
    with pytest.raises(ConfigurationError, match="5 slots, and 4 exist"):
        client.rescale(3).result(60)
    assert checked == [False, True], "the slots of a cluster are known when the job runs"
    assert not list(tmp_path.rglob("parallelism-*")), "the next attempt does not try it either"
    until(lambda: len(found) >= 1500)
    client.stop()
    client.await_termination()
    each_once(found, 1500)


def test_a_savepoint_of_a_running_job_starts_another_one(tmp_path: Path) -> None:
    found = Rows()
    program = RealTimeProgram()
    paced(program, found, 1500, 300)  # slow enough that the savepoint finds it in the middle
    client = JobClient(program.master(tmp_path / "one"))
    until(lambda: len(found) >= 200)
    path = client.stop_with_savepoint(False, str(tmp_path / "savepoints")).result(60)
    before = len(found)
    client.await_termination()
    program = RealTimeProgram()
    paced(program, found, 1500, 2000)
    client = JobClient(program.master(tmp_path / "two", {"execution.state-recovery.path": path}))
    until(lambda: len(found) >= 1500)
    client.stop()
    client.await_termination()
    assert before < 1500
    each_once(found, 1500)


def windowed(stream: Any, found: Rows) -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(milliseconds=100))
    timed = stream.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(lambda row, before: row.n))
    windows = timed.uid("times").key_by("key").window(TumblingEventTimeWindows.of(Time.milliseconds(50)))
    sums = windows.reduce(lambda one, other: (one[0], one[1] + other[1])).uid("sums")
    sums.for_each_epoch(found.write).uid("out")


def test_windows_are_those_of_an_epoch_job(tmp_path: Path) -> None:
    real_time = Rows()
    program = RealTimeProgram()
    windowed(program.from_collection(ROWS, "key bigint, n bigint").uid("rows"), real_time)
    assert program.run(tmp_path / "one", source_tasks=1) is JobStatus.FINISHED
    by_epochs = Rows()
    epochs = EpochProgram()
    windowed(epochs.source("rows", "key bigint, n bigint"), by_epochs)
    inputs = [{"rows": ROWS[at : at + 500]} for at in range(0, len(ROWS), 500)]
    assert epochs.run(tmp_path / "two", inputs, is_bounded=True) is JobStatus.FINISHED
    assert sorted((row["key"], row["n"]) for row in real_time) == sorted((row["key"], row["n"]) for row in by_epochs)


class Alarm(KeyedProcessFunction):
    """Emits a key some time after its first element."""

    def open(self, runtime_context: Any) -> None:
        self.is_set = runtime_context.get_state(ValueStateDescriptor("set", "boolean"))

    def process_element(self, row: Any, ctx: Any) -> Any:
        if self.is_set.value() is None:
            self.is_set.update(True)
            now = ctx.timer_service().current_processing_time()
            ctx.timer_service().register_processing_time_timer(now + 50)
        return ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), ctx.timer_service().current_processing_time() - timestamp


ONE_OR_TWO = pytest.mark.parametrize("tasks", [1, 2], ids=["one worker", "a worker for each task"])


@ONE_OR_TWO
def test_timers_of_processing_time_fire_when_they_are_due(tmp_path: Path, tasks: int) -> None:
    found = Rows()
    program = RealTimeProgram()
    alarms = numbers(program, 500).key_by("key").process(Alarm(), "key bigint, late bigint").uid("alarms")
    alarms.for_each_epoch(found.write).uid("out")
    client = JobClient(program.master(tmp_path, parallelism=tasks, source_tasks=tasks))
    until(lambda: len(found) == KEYS)
    client.stop()
    client.await_termination()
    assert sorted(row["key"] for row in found) == list(range(KEYS))
    assert min(row["late"] for row in found) >= 0


def test_a_function_that_always_fails_ends_the_job_with_its_error(tmp_path: Path) -> None:
    program = RealTimeProgram()
    rows = program.from_collection(ROWS, "key bigint, n bigint").uid("rows")
    counted(rows.map(lambda row: 1 // 0, "key bigint, n bigint").uid("map"), Rows())
    with pytest.raises(JobExecutionError, match="ZeroDivisionError"):
        program.run(tmp_path)


def test_sorted_input_is_refused(tmp_path: Path) -> None:
    program = RealTimeProgram()
    rows = program.from_collection(ROWS, "key bigint, n bigint").uid("rows")
    ordered = rows.key_by("key", order_by="n").process(Count(), "key bigint, count bigint").uid("count")
    ordered.for_each_epoch(lambda frame, epoch: None).uid("out")
    with pytest.raises((ConfigurationError, JobExecutionError), match="order_by"):
        program.run(tmp_path)


def test_no_thread_is_left(tmp_path: Path) -> None:
    before = {thread.name for thread in threading.enumerate()}
    program = RealTimeProgram()
    counted(program.from_collection(ROWS, "key bigint, n bigint").uid("rows"), Rows())
    program.run(tmp_path)
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("task-") and t.name not in before])


class Written:
    """A target of `for_each` that records what it was given, and when it was flushed."""

    elements: list[Any] = []  # noqa: RUF012 - tasks are threads here, and copies of it share the list
    flushed: list[int] = []  # noqa: RUF012

    def process(self, row: Any) -> None:
        Written.elements.append((row.key, row.count))

    def flush(self) -> None:
        Written.flushed.append(len(Written.elements))


def test_elements_reach_for_each_long_before_the_checkpoint(tmp_path: Path) -> None:
    Written.elements.clear()
    program = RealTimeProgram()
    numbered = numbers(program, 500).key_by("key").process(Count(), "key bigint, count bigint").uid("count")
    numbered.for_each(Written()).uid("out")
    client = JobClient(program.master(tmp_path, {"execution.checkpointing.interval": "1 h"}))
    until(lambda: len(Written.elements) >= 100)
    client.stop()
    client.await_termination()
    assert len(Written.flushed) >= 2, "the last checkpoint flushes each task"
    seen = sorted({*Written.elements})
    assert [count for key, count in seen if key == 0] == list(range(1, 1 + sum(key == 0 for key, _ in seen)))


class Slow(KeyedProcessFunction):
    """Takes ten times as long as elements take to come, and counts them in this process."""

    taken: ClassVar = itertools.count()

    def process_element(self, row: Any, ctx: Any) -> Any:
        time.sleep(0.0005)
        next(Slow.taken)
        yield row.key, row.n


@ONE_OR_TWO
def test_a_barrier_passes_a_stage_that_is_too_slow(tmp_path: Path, tasks: int) -> None:
    found = Rows()
    program = RealTimeProgram()
    hot = numbers(program, 20_000).key_by("key").process(Slow(), "key bigint, n bigint").uid("slow")
    slow = hot.key_by("key").process(Slow(), "key bigint, n bigint").uid("slower")
    slow.for_each_epoch(found.write).uid("out")
    options = {"execution.checkpointing.interval": "200 ms"}
    client = JobClient(program.master(tmp_path, options, parallelism=tasks, source_tasks=tasks))
    until(lambda: client.get_job_status() is JobStatus.RUNNING)
    time.sleep(1)  # elements wait before the slow stages
    passed = []
    for _ in range(5):
        before = next(Slow.taken)
        client.trigger_checkpoint().result(60)
        passed.append(next(Slow.taken) - before)
    client.stop()
    client.await_termination()
    print("elements in front of barriers:", passed)
    # Two tasks of each of two stages take at most 2,000 elements a second each, and fewer on a busy host.
    assert max(passed) < 4 * 2 * 2_000, "a barrier passes in less than two seconds"
    keys = sorted(row["n"] for row in found)
    assert len(keys) == len({*keys})


class TwoPartitions(SplitSource):
    """Two ordered partitions of one task; the second one is a thousand times slower to come."""

    def create_enumerator(self, position: Any, tasks: int) -> SplitEnumerator:
        return _TwoSplits(position)

    def create_reader(self, task: int) -> SourceReader:
        return _InTurns()


class _TwoSplits(SplitEnumerator):
    def __init__(self, position: Any) -> None:
        self.position = position or {"fast": 0, "slow": 0}
        self.is_done = False

    def discover(self) -> list[SourceSplit]:
        found = [] if self.is_done else [SourceSplit(name, at) for name, at in self.position.items()]
        self.is_done = True
        return found

    def is_exhausted(self) -> bool:
        return True

    def snapshot(self, splits: Any) -> Any:
        return dict(splits)


class _InTurns(SourceReader):
    ROWS = 1000

    def __init__(self) -> None:
        self.at: dict[str, int] = {}
        self.ended: list[str] = []
        self.polled = ""
        self.turn = 0

    def add_splits(self, splits: Any) -> None:
        self.at |= {split.split_id: split.state for split in splits}

    def poll(self) -> Any:
        if not self.at:
            return None
        self.turn += 1
        name = "fast" if "fast" in self.at else "slow"
        if name == "fast" and self.turn % 3 == 0 and "slow" in self.at and self.at["slow"] < 20:
            name = "slow"
        self.polled = name
        begin = self.at[name]
        end = min(begin + (100 if name == "fast" or "fast" not in self.at else 1), self.ROWS)
        if end == self.ROWS:
            del self.at[name]
            self.ended.append(name)
        else:
            self.at[name] = end
        return [(n % KEYS, n) for n in range(begin, end)]

    def snapshot(self) -> Any:
        ended, self.ended = self.ended, []
        return {**dict.fromkeys(ended), **self.at}

    @property
    def has_splits(self) -> bool:
        return bool(self.at)

    @property
    def polled_split(self) -> str:
        return self.polled


def test_the_watermark_follows_the_slowest_partition(tmp_path: Path) -> None:
    found = Rows()
    program = RealTimeProgram()
    rows = program.source("rows", TwoPartitions(), "key bigint, n bigint", is_bounded=True)
    strategy = WatermarkStrategy.for_monotonous_timestamps().per_partition()
    timed = rows.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(lambda row, before: row.n))
    windows = timed.uid("times").key_by("key").window(TumblingEventTimeWindows.of(Time.milliseconds(50)))
    sums = windows.reduce(lambda one, other: (one[0], one[1] + other[1])).uid("sums")
    sums.for_each_epoch(found.write).uid("out")
    assert program.run(tmp_path) is JobStatus.FINISHED
    assert sum(row["n"] for row in found) == 2 * sum(range(1000)), "an element of the slow partition was late"


SEPARATES: set[bool] = set()


class _Asked(_InTurns):
    """Remembers whether the task wants the elements of splits apart."""

    def poll(self) -> Any:
        SEPARATES.add(self.separates_splits)
        return super().poll()


class AskedPartitions(TwoPartitions):
    def create_reader(self, task: int) -> SourceReader:
        return _Asked()


@pytest.mark.parametrize("is_per_partition", [True, False])
def test_splits_are_read_apart_only_if_watermarks_follow_each(tmp_path: Path, is_per_partition: bool) -> None:
    SEPARATES.clear()
    program = RealTimeProgram()
    rows = program.source("rows", AskedPartitions(), "key bigint, n bigint", is_bounded=True)
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    strategy = strategy.per_partition() if is_per_partition else strategy
    timed = rows.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(lambda row, before: row.n))
    timed.uid("times").for_each_epoch(Rows().write).uid("out")
    assert program.run(tmp_path) is JobStatus.FINISHED
    assert {is_per_partition} == SEPARATES


class _OneAfterTheOther(_InTurns):
    """Reads the slow partition when the fast one has given half of its rows, one at a time."""

    ROWS = 200

    def poll(self) -> Any:
        time.sleep(0.002)
        self.polled = name = (
            "slow" if self.at.get("fast", self.ROWS) >= self.ROWS // 2 and "slow" in self.at else "fast"
        )
        if name not in self.at:
            return None
        begin = self.at[name]
        if begin + 1 == self.ROWS:
            del self.at[name]
            self.ended.append(name)
        else:
            self.at[name] = begin + 1
        return [(-1 if name == "slow" else begin % KEYS, begin)]


class LateSlowPartition(TwoPartitions):
    def create_reader(self, task: int) -> SourceReader:
        return _OneAfterTheOther()


WATERMARKS: list[tuple[int, int, int]] = []


class Watching(Count):
    """Remembers each element with the watermark that it sees."""

    def process_element(self, row: Any, ctx: Any) -> Any:
        WATERMARKS.append((row.key, row.n, ctx.timer_service().current_watermark()))
        yield from super().process_element(row, ctx)


def test_after_a_rescale_the_watermark_waits_for_all_partitions(tmp_path: Path) -> None:
    WATERMARKS.clear()
    program = RealTimeProgram()
    rows = program.source("rows", LateSlowPartition(), "key bigint, n bigint", is_bounded=True)
    strategy = WatermarkStrategy.for_monotonous_timestamps().per_partition()
    timed = rows.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(lambda row, before: row.n))
    counts = timed.uid("times").key_by("key").process(Watching(), "key bigint, count bigint").uid("count")
    counts.for_each_epoch(lambda frame, epoch: None).uid("out")
    client = JobClient(program.master(tmp_path, {"execution.checkpointing.interval": "20 ms"}, source_tasks=1))
    until(lambda: len(WATERMARKS) > 50)
    client.rescale(3).result(60)
    client.await_termination()
    slow = next(at for at, (key, _, _) in enumerate(WATERMARKS) if key < 0)
    assert len({n for _, n, _ in WATERMARKS[:slow]}) < slow, "some were read again after the rescale"
    assert {watermark for _, _, watermark in WATERMARKS[:slow]} == {MIN_WATERMARK}
    assert all(watermark < n for _, n, watermark in WATERMARKS)
