"""What functions and sinks see and hear between two barriers, and at the end of a task."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from holdfast.common import Time, WatermarkStrategy
from holdfast.datastream import BroadcastProcessFunction, CoProcessFunction, KeyedProcessFunction, ProcessFunction
from holdfast.datastream.connectors.base import Sink
from holdfast.datastream.connectors.file_system import BucketAssigner, BulkWriterFactory, FileSink
from holdfast.datastream.state import MapStateDescriptor
from holdfast.datastream.window import CountAggregate, TumblingProcessingTimeWindows
from holdfast.errors import CheckpointDeclinedError, JobExecutionError
from holdfast.kernel.clock import SystemClock
from holdfast.runtime.function.sink import SinkWriter
from holdfast.runtime.master.job_client import JobClient
from holdfast.runtime.operator.batch_function import BatchFunction
from holdfast.testing.real_time_runner import RealTimeProgram
from tests.stories.turns import ENGINES, HeldClock, MovedClock, Partitions, start
from tests.unit.runtime.realtime.test_generated_watermarks import FIRED, Alarm, Same
from tests.unit.runtime.realtime.test_real_time_jobs import ONE_OR_TWO, Rows, until
from tests.unit.runtime.realtime.test_watermark_alignment import ALLOWED, QUIET, READING, Timed, alone, stop

NONE = -(2**63)
HOUR = 3_600_000
NO_WATERMARKS: WatermarkStrategy = WatermarkStrategy.no_watermarks()
RULES = MapStateDescriptor("rules", "string", "bigint")
HEARD: list[Any] = []
"""Tasks are threads here."""


@pytest.fixture(autouse=True)
def nothing_heard() -> Iterator[None]:
    for record in (ALLOWED, HEARD, FIRED):
        record.clear()
    yield
    ALLOWED.clear()


class Plain(ProcessFunction):
    def process_element(self, row: Any, ctx: Any) -> Iterator[Any]:
        HEARD.append(("plain", row.at, ctx.timer_service().current_watermark()))
        yield row


class Keyed(KeyedProcessFunction):
    def process_element(self, row: Any, ctx: Any) -> Iterator[Any]:
        HEARD.append(("keyed", row.at, ctx.timer_service().current_watermark()))
        yield row


class Both(CoProcessFunction):
    def process_element1(self, row: Any, ctx: Any) -> Iterator[Any]:
        HEARD.append(("both", row.at, ctx.timer_service().current_watermark()))
        yield row

    def process_element2(self, row: Any, ctx: Any) -> Iterator[Any]:
        return iter(())


class Ruled(BroadcastProcessFunction):
    def process_element(self, row: Any, ctx: Any) -> Iterator[Any]:
        HEARD.append(("ruled", row.at, ctx.current_watermark()))
        yield row

    def process_broadcast_element(self, row: Any, ctx: Any) -> Iterator[Any]:
        return iter(())


@ONE_OR_TWO
@pytest.mark.parametrize("kind", ["plain", "keyed", "both", "ruled"])
def test_the_watermark_goes_on_for_every_function(tmp_path: Path, tasks: int, kind: str) -> None:
    ALLOWED.update(ahead=0, other=4)
    program = RealTimeProgram()
    ahead = program.from_source(Timed("ahead", [100, 200, 300, 400], ends=False), alone(), "ahead").uid("ahead")
    other = program.from_source(Timed("other", [900] * 4, ends=False), alone(), "other").uid("other")
    made = {
        "plain": lambda: ahead.process(Plain(), READING),
        "keyed": lambda: ahead.key_by("source").process(Keyed(), READING),
        "both": lambda: ahead.connect(other).process(Both(), READING),
        "ruled": lambda: ahead.connect(other.broadcast(RULES)).process(Ruled(), READING),
    }
    made[kind]().uid("function").for_each_epoch(Rows().write).uid("out")
    client = JobClient(program.master(tmp_path, QUIET, parallelism=tasks, source_tasks=1))
    client.trigger_checkpoint().result(60)
    for count in range(1, 5):
        ALLOWED["ahead"] = count
        until(lambda count=count: len(HEARD) == count)  # type: ignore[misc]
        time.sleep(0.6)  # its watermark reaches tasks that get no elements within a fifth of a second
    stop(client)
    assert [at for _, at, _ in HEARD] == [100, 200, 300, 400]
    assert [watermark for *_, watermark in HEARD] == [NONE, 99, 199, 299]


class Reminders(BatchFunction):
    """Sets a timer for the first element, and one for all others once it has fired."""

    def process_batch(self, batch: Any, ctx: Any) -> Any:
        HEARD.append(("batch", batch["at"].to_pylist(), ctx.time_domain()))
        ctx.register_processing_time_timers(ctx.current_processing_time() + 1000)
        ctx.keep_timestamps()
        return batch

    def on_timers(self, batch: Any, ctx: Any) -> Any:
        HEARD.append(("timers", batch.num_rows, ctx.time_domain().name))


class Timestamps(ProcessFunction):
    def process_element(self, row: Any, ctx: Any) -> Iterator[Any]:
        HEARD.append(("behind", row.at, ctx.timestamp()))
        yield row


def test_a_batch_behind_timers_that_have_fired_is_a_batch(tmp_path: Path) -> None:
    """Its timers are set, their number is its own, and its output has its timestamps."""
    ALLOWED.update(rows=1)
    program, clock = RealTimeProgram(), HeldClock()
    rows = program.from_source(Timed("rows", [100, 200, 300, 400], ends=False, at_once=3), alone(), "rows").uid("rows")
    batches = rows.key_by("at").process_batches(Reminders(), READING).uid("batches")
    batches.process(Timestamps(), READING).uid("behind").for_each_epoch(Rows().write).uid("out")
    client = JobClient(program.master(tmp_path, QUIET, parallelism=1, source_tasks=1, clock=clock))
    until(lambda: ("behind", 100, 100) in HEARD)
    clock.time += 2000
    until(lambda: ("timers", 1, "PROCESSING_TIME") in HEARD)
    ALLOWED.update(rows=4)
    until(lambda: ("behind", 400, 400) in HEARD)
    clock.time += 2000
    until(lambda: sum(rows for kind, rows, _ in HEARD if kind == "timers") == 4)
    stop(client)
    assert {domain for kind, _, domain in HEARD if kind == "batch"} == {None}
    assert [(at, timestamp) for kind, at, timestamp in HEARD if kind == "behind"] == [
        (at, at) for at in (100, 200, 300, 400)
    ]


class Target:
    """Refuses the first epochs."""

    def __init__(self, first: int = 0) -> None:
        self.first = first

    def open(self, partition_id: int, epoch_id: int) -> bool:
        HEARD.append("opened")
        return epoch_id >= self.first

    def process(self, row: Any) -> None:
        if row.at == 666:
            raise ValueError("this one is bad")
        HEARD.append(row.at)

    def close(self, error: Exception | None) -> None:
        HEARD.append("closed" if error is None else "closed with an error")


def passing(directory: Path, target: Any, *times: int, ends: bool = False) -> JobClient:
    program = RealTimeProgram()
    rows = program.from_source(Timed("rows", list(times), ends=ends), NO_WATERMARKS, "rows").uid("rows")
    rows.for_each(target).uid("out")
    options = {**QUIET, "restart-strategy.type": "none"}
    return JobClient(program.master(directory, options, parallelism=1, source_tasks=1))


@pytest.mark.parametrize("how", ["stop", "stop behind a barrier", "drain", "end"])
def test_a_target_is_closed_once_and_without_an_error(tmp_path: Path, how: str) -> None:
    client = passing(tmp_path / "job", Target(), 1, 2, ends=how == "end")
    until(lambda: 2 in HEARD)
    if how == "stop behind a barrier":
        client.trigger_checkpoint().result(60)
    if how == "drain":
        client.stop_with_savepoint(True, str(tmp_path / "savepoints")).result(60)
    elif how != "end":
        client.stop()
    client.await_termination()
    until(lambda: "closed" in HEARD)
    assert HEARD == ["opened", 1, 2, "closed"]


def test_a_target_hears_of_a_failure_once(tmp_path: Path) -> None:
    with pytest.raises(JobExecutionError, match="this one is bad"):
        passing(tmp_path, Target(), 1, 666).await_termination()
    until(lambda: len(HEARD) > 2)
    assert HEARD == ["opened", 1, "closed with an error"]


def test_a_target_that_refuses_an_epoch_is_asked_again_for_the_next_one(tmp_path: Path) -> None:
    ALLOWED.update(rows=1)
    client = passing(tmp_path, Target(first=3), 1, 2, 3, 4)
    for count in (2, 3, 4):
        client.trigger_checkpoint().result(60)
        ALLOWED.update(rows=count)
    until(lambda: 4 in HEARD)
    stop(client)
    until(lambda: HEARD[-1] == "closed")
    assert [at for at in HEARD if isinstance(at, int)][-2:] == [3, 4]
    assert HEARD.count("opened") == HEARD.count("closed") == 3


class Flushed(Sink):
    """Hears when it is flushed; one that is named `declines` does not let the first barrier pass."""

    declines = True

    def __init__(self, name: str) -> None:
        self.name = name

    def create_writer(self, context: Any) -> SinkWriter:
        return _Writer(self.name)


class _Writer(SinkWriter):
    def __init__(self, name: str) -> None:
        self.name = name

    def write(self, element: Any, context: Any) -> None:
        return

    def flush(self, end_of_input: bool) -> None:
        HEARD.append((self.name, end_of_input))
        if self.name == "declines" and Flushed.declines:
            Flushed.declines = False
            raise CheckpointDeclinedError("not now")


def test_a_sink_hears_of_the_end_also_behind_a_barrier_that_was_declined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Flushed, "declines", True)
    program = RealTimeProgram()
    rows = program.from_source(Timed("rows", [1, 2], ends=False), NO_WATERMARKS, "rows").uid("rows")
    for name in ("takes all", "declines"):
        rows.sink_to(Flushed(name)).uid(name)
    options = {
        "execution.checkpointing.interval": "2 s",
        "execution.checkpointing.tolerable-failed-checkpoints": 99,
    }
    client = JobClient(program.master(tmp_path / "job", options, parallelism=1, source_tasks=1))
    until(lambda: ("declines", False) in HEARD)
    client.stop_with_savepoint(True, str(tmp_path / "savepoints")).result(60)
    client.await_termination()
    assert [end for name, end in HEARD if name == "takes all"] == [False, True]


class Timely(Sink):
    def create_writer(self, context: Any) -> SinkWriter:
        return _TimelyWriter()


class _TimelyWriter(SinkWriter):
    now = 0

    def set_processing_time(self, now: int) -> None:
        self.now = now

    def write(self, element: Any, context: Any) -> None:
        HEARD.append((element.at, self.now))


@ONE_OR_TWO
def test_a_writer_knows_the_time_at_which_elements_come(tmp_path: Path, tasks: int) -> None:
    ALLOWED.update(rows=0)
    program, clock = RealTimeProgram(), HeldClock(0)
    rows = program.from_source(Timed("rows", [1, 2, 3], ends=False), NO_WATERMARKS, "rows").uid("rows")
    rows.key_by("at").process(Keyed(), READING).uid("keyed").sink_to(Timely()).uid("out")
    client = JobClient(program.master(tmp_path, QUIET, parallelism=tasks, source_tasks=1, clock=clock))
    client.trigger_checkpoint().result(60)
    for count in (1, 2, 3):
        clock.time = HOUR * count
        ALLOWED.update(rows=count)
        until(lambda count=count: len(HEARD) == 2 * count)  # type: ignore[misc]
    stop(client)
    assert [heard for heard in HEARD if heard[0] != "keyed"] == [(count, HOUR * count) for count in (1, 2, 3)]


@pytest.mark.parametrize("engine", ENGINES)
def test_event_time_by_partitions_behind_an_exchange_follows_the_tasks(tmp_path: Path, engine: str) -> None:
    def build(stream: Any) -> None:
        same = stream.key_by("source").process(Same(), READING).uid("same")
        timed = same.assign_timestamps_and_watermarks(alone().per_partition())
        timed.key_by("source").process(Alarm(), "bigint").uid("alarms").for_each_epoch(Rows().write).uid("out")

    source = Partitions(f"tasks-{engine}", [[("a", at) for at in (100, 200, 300)]], at_once=1)
    client = start(engine, build, source, READING, tmp_path, parallelism=1, source_tasks=1)
    until(lambda: source.is_read and len(FIRED) >= 2)
    stop(client)
    assert FIRED[:2] == [100, 200]


class SetBack(SystemClock):
    """A wall clock that is some seconds behind; monotonic time goes on."""

    behind = 0

    def now_ms(self) -> int:
        return super().now_ms() - 1000 * self.behind


class Times(KeyedProcessFunction):
    def process_element(self, row: Any, ctx: Any) -> Iterator[Any]:
        HEARD.append(ctx.timer_service().current_processing_time())
        yield row


@pytest.mark.parametrize("engine", ENGINES)
def test_processing_time_goes_on_when_the_wall_clock_is_set_back(tmp_path: Path, engine: str) -> None:
    """Within a job, behind a barrier, and in a job that continues on a host whose clock is behind."""
    clock, options = SetBack(), {"execution.checkpointing.interval": "1 h"}
    source = Partitions(f"times-{engine}", [[("a", at) for at in range(8)]], at_once=1)

    def build(stream: Any) -> None:
        stream.key_by("source").process(Times(), READING).uid("times").for_each_epoch(Rows().write).uid("out")

    def add(count: int) -> None:
        time.sleep(0.05)
        source.allow(count)
        until(lambda: len(HEARD) >= count)

    source.allow(0)
    for first in (0, 4):
        client = start(engine, build, source, READING, tmp_path, options, clock=clock, parallelism=1, source_tasks=1)
        add(first + 1)
        clock.behind += 50
        add(first + 2)
        client.trigger_checkpoint().result(60)
        clock.behind += 50
        add(first + 3)
        add(first + 4)
        stop(client)
        clock.behind += 50
    for of_job in (HEARD[:4], HEARD[4:]):
        assert all(before < after for before, after in pairwise(of_job)), HEARD
    assert HEARD[4] > HEARD[0], "the second job goes on from the checkpoint"


class Waits(KeyedProcessFunction):
    def process_element(self, row: Any, ctx: Any) -> Iterator[Any]:
        now = ctx.timer_service().current_processing_time()
        ctx.timer_service().register_processing_time_timer(now + HOUR)
        yield row


def first(key: Any, window: Any, rows: Any) -> Iterator[Any]:
    yield next(iter(rows))


HOURS = TumblingProcessingTimeWindows.of(Time.hours(1))
WITHOUT_TIMERS: dict[str, Any] = {
    "reduce": lambda keyed: keyed.reduce(lambda a, b: b),
    "a window": lambda keyed: keyed.window(HOURS).apply(first, READING),
    "a window by columns": lambda keyed: keyed.window(HOURS).aggregate_batches(n=CountAggregate()),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("later", WITHOUT_TIMERS)
def test_timers_of_a_function_that_was_replaced_cost_nothing(tmp_path: Path, engine: str, later: str) -> None:
    clock, options = MovedClock(), {"execution.checkpointing.interval": "1 h"}
    source = Partitions(f"left-{engine}-{later}", [[("a", 1), ("a", 2)]])

    def started(operator: Any) -> JobClient:
        def build(stream: Any) -> None:
            operator(stream.key_by("at")).uid("keyed").for_each_epoch(Rows().write).uid("out")

        return start(engine, build, source, READING, tmp_path, options, clock=clock, parallelism=1, source_tasks=1)

    client = started(lambda keyed: keyed.process(Waits(), READING))
    until(lambda: source.is_read)
    client.trigger_checkpoint().result(60)
    stop(client)
    clock.advance(3 * HOUR)
    client = started(WITHOUT_TIMERS[later])
    client.trigger_checkpoint().result(60)
    time.sleep(0.5)
    began = time.process_time()
    time.sleep(2)
    used = time.process_time() - began
    stop(client)
    assert used < 1, "a task without work waits"


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_are_in_the_directory_of_the_minute_in_which_they_came(tmp_path: Path, engine: str) -> None:
    clock, options = HeldClock(0), {"execution.checkpointing.interval": "1 h"}
    source = Partitions(f"minutes-{engine}", [[("a", at) for at in range(4)]], at_once=1)
    source.allow(0)

    def build(stream: Any) -> None:
        sink = FileSink.for_bulk_format(str(tmp_path / "out"), BulkWriterFactory.parquet())
        minutes = BucketAssigner.date_time_bucket_assigner("HH-mm")
        kept = stream.key_by("source").process(Keyed(), READING).uid("keyed")
        kept.sink_to(sink.with_bucket_assigner(minutes).build()).uid("out")

    client = start(engine, build, source, READING, tmp_path / "job", options, clock=clock, parallelism=1)
    for count in range(1, 5):
        clock.time = 60_000 * (count // 2)
        source.allow(count)
        until(lambda count=count: len(HEARD) == count)  # type: ignore[misc]
        time.sleep(0.1)
    client.trigger_checkpoint().result(60)
    stop(client)
    found = {folder.name: pq.read_table(folder).column("at").to_pylist() for folder in (tmp_path / "out").glob("00-*")}
    assert {name: sorted(at) for name, at in found.items()} == {"00-00": [0], "00-01": [1, 2], "00-02": [3]}
