"""Sources of a real-time job that wait for each other, judged by calls of their readers and by what sinks have."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from holdfast.common import Duration, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from holdfast.datastream.connectors.base import RealTimeSource, Source
from holdfast.datastream.connectors.datagen import DataGeneratorSource
from holdfast.datastream.connectors.file_system import FileSource, StreamFormat
from holdfast.datastream.connectors.kafka import KafkaSource
from holdfast.datastream.connectors.number_seq import NumberSequenceSource
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.datastream.stream.stream_factory import aligned_source, elements_of
from holdfast.errors import ConfigurationError, JobExecutionError
from holdfast.runtime.function.bounded_sources import SequentialReader
from holdfast.runtime.function.source import BoundedEnumerator, SourceReader, SplitEnumerator
from holdfast.runtime.graph.event_time import WatermarkClock
from holdfast.runtime.job.control import JobStatus
from holdfast.runtime.master.job_client import JobClient
from holdfast.runtime.realtime import task
from holdfast.runtime.realtime.message import IDLE
from holdfast.testing.epoch_runner import EpochProgram
from holdfast.testing.real_time_runner import RealTimeProgram
from holdfast.types.type_information import TypeInformation
from holdfast.types.type_parser import to_type
from tests.unit.runtime.realtime.test_real_time_jobs import RESTARTS, Rows, until

READING = "source string, at bigint"
QUIET = {"execution.checkpointing.interval": "1 h"}
DRIFT = 50
FAR = 1_000_000
ALLOWED: dict[str, int] = {}
"""The number of elements that a source has so far; all of them if it is not here."""
READ: list[tuple[str, int]] = []
"""The elements in the order in which they were read; tasks are threads here."""
SEEN: list[tuple[str, int, int]] = []
"""Elements behind the exchange, with the watermark that their function sees."""


@pytest.fixture(autouse=True)
def nothing_read() -> None:
    ALLOWED.clear()
    READ.clear()
    SEEN.clear()


class Timed(RealTimeSource):
    """Elements with the given times, in one split.

    Args:
        name: The source.
        times: Times of its elements.
        at_once: Elements of a poll.
        pause: Seconds that a poll takes.
        ends: Whether the source is bounded.
        is_partitioned: Whether the watermark follows the slowest partition.
    """

    def __init__(
        self,
        name: str,
        times: Sequence[int],
        *,
        at_once: int = 1,
        pause: float = 0.0,
        ends: bool = True,
        is_partitioned: bool = False,
    ) -> None:
        self.name, self.times, self.most, self.pause = name, list(times), at_once, pause
        self.ends, self.has_partitions = ends, is_partitioned

    def create_enumerator(self, position: Any, tasks: int) -> SplitEnumerator:
        return BoundedEnumerator({self.name: 0} if position is None else position["splits"])

    def create_reader(self, task: int) -> SourceReader:
        return _Reader(self)

    def element_type(self) -> TypeInformation:
        return to_type(READING)

    def is_bounded(self) -> bool:
        return self.ends

    def is_partitioned(self) -> bool:
        return self.has_partitions


class _Reader(SequentialReader):
    polls: ClassVar[dict[str, int]] = defaultdict(int)

    def __init__(self, source: Timed) -> None:
        super().__init__()
        self.source = source

    def poll(self) -> Any:
        _Reader.polls[self.source.name] += 1
        return super().poll() if self.seconds_to_next == 0.0 else None

    def read(self, split_id: str, state: Any) -> tuple[Sequence[Any], Any]:
        source = self.source
        time.sleep(source.pause)
        following = min(state + source.most, ALLOWED.get(source.name, FAR))
        found = [(source.name, at) for at in source.times[state:following]]
        READ.extend(found)
        return found, None if source.ends and following >= len(source.times) else following

    @property
    def seconds_to_next(self) -> float:
        known = min(len(self.source.times), ALLOWED.get(self.source.name, FAR))
        return 0.0 if any(at < known for at in self._open.values()) else 0.02

    @property
    def polled_split(self) -> str:
        return self.source.name


def read_of(name: str) -> list[int]:
    return [at for source, at in list(READ) if source == name]


def alone() -> WatermarkStrategy:
    return WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)


def waiting(drift: int = DRIFT) -> WatermarkStrategy:
    return alone().with_watermark_alignment("all", Duration.of_millis(drift), Duration.of_millis(10))


class Number(KeyedProcessFunction):
    """Numbers the elements of a source; a gap or a repeat shows. Remembers the watermark that each of them sees."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_element(self, row: Any, ctx: Any) -> Iterator[Any]:
        SEEN.append((row.source, row.at, ctx.timer_service().current_watermark()))
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield row.source, count


class Held(KeyedProcessFunction):
    """Keeps each element until event time is there, and remembers how many it kept at most."""

    now: ClassVar[list[int]] = [0, 0]

    def process_element(self, row: Any, ctx: Any) -> Iterator[Any]:
        ctx.timer_service().register_event_time_timer(row.at)
        Held.now[0] += 1
        Held.now[1] = max(Held.now)
        return iter(())

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        Held.now[0] -= 1
        yield ctx.get_current_key(), timestamp


def joined(program: Any, sources: Mapping[Timed, WatermarkStrategy], found: Rows, function: Any = None) -> None:
    """The elements of all sources go through one function, by source."""
    first, *others = [
        program.from_source(source, strategy, source.name).uid(source.name) for source, strategy in sources.items()
    ]
    rows = first.union(*others).key_by("source")
    rows.process(function or Number(), "source string, n bigint").uid("rows").for_each_epoch(found.write).uid("out")


def running(
    tmp_path: Path, sources: Mapping[Timed, WatermarkStrategy], found: Rows, tasks: int = 2, **options: Any
) -> JobClient:
    program = RealTimeProgram()
    joined(program, sources, found)
    options = {"execution.checkpointing.interval": "20 ms", **options}
    return JobClient(program.master(tmp_path, options, source_tasks=tasks))


def stop(client: JobClient) -> None:
    client.stop()
    client.await_termination()


def each_once(found: Rows, **counts: int) -> None:
    assert sorted((row["source"], row["n"]) for row in found) == sorted(
        (source, n) for source, count in counts.items() for n in range(1, count + 1)
    )


def is_waiting(name: str, seconds: float = 0.2) -> bool:
    """Whether the reader of a source is not called."""
    time.sleep(0.1)
    before = _Reader.polls[name]
    time.sleep(seconds)
    return _Reader.polls[name] == before


def test_a_source_far_ahead_waits_until_the_other_catches_up(tmp_path: Path) -> None:
    behind = Timed("behind", range(0, 3_000, 3), at_once=5, pause=0.005)
    ahead = Timed("ahead", range(100, 3_100, 3), at_once=5)
    ALLOWED.update(behind=1, ahead=1)
    found = Rows()
    client = running(tmp_path, {behind: waiting(), ahead: waiting()}, found)
    until(lambda: len(SEEN) == 2)
    until(lambda: is_waiting("ahead", 0.5))
    ALLOWED.clear()
    client.await_termination()
    each_once(found, behind=1_000, ahead=1_000)
    reached = 0
    for source, at in READ[2:]:
        if source == "behind":
            reached = at
        elif reached < behind.times[-1]:  # at its end it holds nobody
            assert at <= reached + DRIFT + 3 * ahead.most, "it was read although it was too far ahead"


def test_the_rows_that_wait_for_event_time_are_bounded(tmp_path: Path) -> None:
    kept = {}
    for strategy in (alone(), waiting()):
        Held.now[:] = 0, 0
        behind = Timed("behind", range(0, 3_000, 3), at_once=5, pause=0.002)
        ahead = Timed("ahead", range(1, 3_000, 3), at_once=40)
        program = RealTimeProgram()
        joined(program, {behind: strategy, ahead: strategy}, found := Rows(), Held())
        assert program.run(tmp_path / str(len(kept)), QUIET, source_tasks=1) is JobStatus.FINISHED
        assert len(found) == 2_000
        kept[strategy.alignment is not None] = Held.now[1]
    print("rows kept at most without and with alignment:", kept)
    assert kept[True] < kept[False] / 2


def test_a_source_that_has_ended_holds_nobody(tmp_path: Path) -> None:
    program, found = RealTimeProgram(), Rows()
    sources = {Timed("behind", [0, 1]): waiting(), Timed("ahead", range(0, FAR, 20_000)): waiting()}
    joined(program, sources, found)
    assert program.run(tmp_path) is JobStatus.FINISHED
    each_once(found, behind=2, ahead=50)


def test_a_source_alone_does_not_wait_an_interval_for_its_own_report(tmp_path: Path) -> None:
    program, found = RealTimeProgram(), Rows()
    strategy = alone().with_watermark_alignment("all", Duration.of_millis(DRIFT), Duration.of_hours(1))
    joined(program, {Timed("alone", range(0, FAR, 50_000)): strategy}, found)
    assert program.run(tmp_path) is JobStatus.FINISHED
    each_once(found, alone=20)


def test_a_source_without_elements_holds_nobody(tmp_path: Path) -> None:
    found = Rows()
    ALLOWED["behind"] = 0
    sources = {Timed("behind", [0]): waiting(), Timed("ahead", range(0, FAR, 20_000)): waiting()}
    client = running(tmp_path, sources, found)
    until(lambda: len(found) == 50)
    stop(client)


def test_a_quiet_source_holds_others_until_it_is_idle(tmp_path: Path) -> None:
    for name, strategy in (("never", waiting()), ("soon", waiting().with_idleness(Duration.of_millis(300)))):
        READ.clear()
        found = Rows()
        sources = {Timed("behind", [0], ends=False): strategy, Timed("ahead", [5, 100, FAR, FAR + 1]): waiting()}
        ALLOWED["ahead"] = 2
        client = running(tmp_path / name, sources, found)
        until(lambda: len(READ) == 3)
        if name == "never":
            until(lambda: is_waiting("ahead", 0.5))
        ALLOWED.clear()
        if name == "soon":
            until(lambda: len(read_of("ahead")) == 4)
        else:
            assert is_waiting("ahead", 0.5)
            assert read_of("ahead") == [5, 100]
        stop(client)


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_a_source_that_waits_is_not_idle_and_its_rows_are_not_late(tmp_path: Path, is_partitioned: bool) -> None:
    """Else event time would pass it when the other one jumps."""
    found = Rows()
    behind = Timed("behind", [0, *range(FAR, FAR + 50)])
    ahead = Timed("ahead", [0, 1_000, *range(1_001, 1_050)], is_partitioned=is_partitioned)
    ALLOWED.update(behind=1, ahead=2)
    patient = waiting().with_idleness(Duration.of_millis(300))
    client = running(tmp_path, {behind: waiting(), ahead: patient}, found, tasks=1)
    until(lambda: len(READ) == 3)
    until(lambda: is_waiting("ahead"))
    del ALLOWED["ahead"]
    assert is_waiting("ahead", 1.0)
    assert len(read_of("ahead")) == 2
    ALLOWED.clear()
    client.await_termination()
    each_once(found, behind=51, ahead=51)
    assert [one for one in SEEN if one[1] <= one[2]] == [], "it is late"
    assert max(watermark for _, _, watermark in SEEN) >= 1_000


def test_a_source_that_is_quiet_after_a_wait_becomes_idle(tmp_path: Path) -> None:
    found = Rows()
    behind = Timed("behind", [0, *range(2_000, 2_100)], ends=False)
    ahead = Timed("ahead", [0, 1_000], ends=False)
    ALLOWED["behind"] = 1
    patient = waiting(10_000).with_idleness(Duration.of_millis(100))
    sources = {behind: patient, ahead: waiting(10).with_idleness(Duration.of_millis(100))}
    client = running(tmp_path, sources, found, tasks=1)
    until(lambda: len(READ) == 3)
    ALLOWED["behind"] = 2
    until(lambda: ("behind", 2_000) in READ)
    time.sleep(0.5)
    ALLOWED.clear()
    until(lambda: any(watermark > 1_000 for _, _, watermark in SEEN))
    stop(client)


def test_checkpoints_and_a_stop_go_through_while_a_source_waits(tmp_path: Path) -> None:
    found = Rows()
    sources = {
        Timed("behind", range(0, 3_000, 10), ends=False): waiting(),
        Timed("ahead", range(0, 3_000, 10), ends=False): waiting(),
    }
    ALLOWED["behind"] = 3
    client = running(tmp_path, sources, found, **QUIET)
    until(lambda: len(read_of("behind")) == 3)
    until(lambda: is_waiting("ahead"))
    before = time.process_time()
    assert is_waiting("ahead", 1.0)
    assert time.process_time() - before < 0.7, "a task with nothing but a source that waits was busy"
    for _ in range(3):
        client.trigger_checkpoint().result(30)
    waited = len(read_of("ahead"))
    assert waited < 300
    assert len(found) == 3 + waited
    stop(client)
    ALLOWED.clear()
    client = running(tmp_path, sources, found)
    until(lambda: len(found) >= 600)
    stop(client)
    each_once(found, behind=300, ahead=300)
    assert len(READ) == 600, "nothing was read again"


class _FailsOnce:
    """Fails at an element of the source that is behind, and remembers what the other one had read."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __call__(self, row: Any) -> Any:
        if (row.source, row.at) == ("behind", 20) and not self.place.exists():
            self.place.write_text(str(len(read_of("ahead"))))
            raise RuntimeError("the element 20 fails once")
        return row


def test_nothing_is_lost_if_a_task_fails_while_a_source_waits(tmp_path: Path) -> None:
    program, found = RealTimeProgram(), Rows()
    behind, ahead = (
        program.from_source(Timed(name, range(0, 3_000, 10), ends=False), waiting(), name).uid(name)
        for name in ("behind", "ahead")
    )
    failing = behind.map(_FailsOnce(tmp_path / "failed"), READING).uid("failing")
    rows = failing.union(ahead).key_by("source")
    rows.process(Number(), "source string, n bigint").uid("rows").for_each_epoch(found.write).uid("out")
    ALLOWED["behind"] = 2
    client = JobClient(program.master(tmp_path / "job", {**RESTARTS, "execution.checkpointing.interval": "20 ms"}))
    until(lambda: len(read_of("behind")) == 2)
    until(lambda: is_waiting("ahead"))
    ALLOWED.clear()
    until(lambda: len(found) >= 600)
    stop(client)
    each_once(found, behind=300, ahead=300)
    assert int((tmp_path / "failed").read_text()) < 300, "the other source had not to wait"


def test_tasks_of_one_source_wait_for_each_other(tmp_path: Path) -> None:
    """Each task reads a range of the numbers, so the second one begins far ahead."""
    program, found = RealTimeProgram(), Rows()
    source, strategy = NumberSequenceSource(0, 59_999), alone_with(lambda n, _: n)
    source, aligned = aligned_source(source, strategy, is_real_time=True)  # type: ignore[assignment]
    numbers = program.source("numbers", source.split_source(), source.element_type(), is_bounded=True)
    timed = elements_of(source, numbers, strategy, None, aligned=aligned)
    timed.map(_see, READING).uid("seen").for_each_epoch(found.write).uid("out")
    assert program.run(tmp_path) is JobStatus.FINISHED
    assert sorted(row["at"] for row in found) == list(range(60_000))
    early = [source for source, _ in READ[: len(READ) // 2]]
    assert early.count("first") > 2 * early.count("second")


def alone_with(assigner: Any) -> WatermarkStrategy:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(assigner)
    return strategy.with_watermark_alignment("all", Duration.of_millis(100), Duration.of_millis(10))


def _see(n: int) -> Any:
    if n % 100 == 0:
        time.sleep(0.002)
    READ.append(("first" if n < 30_000 else "second", n))
    return READ[-1]


REFUSED_BY_EPOCHS = [
    NumberSequenceSource(1, 3),
    DataGeneratorSource(repr, count=3),
    DataGeneratorSource(repr, rows_per_second=3),
    FileSource.for_record_stream_format(StreamFormat.text_line_format(), "/in").build(),
    FileSource.for_record_stream_format(StreamFormat.text_line_format(), "/in")
    .monitor_continuously(Duration.of_seconds(1))
    .build(),
    KafkaSource.builder().set_bootstrap_servers("localhost:1").set_topics("words").build(),
]


@pytest.mark.parametrize("source", REFUSED_BY_EPOCHS, ids=lambda source: type(source).__name__)
def test_sources_that_epochs_refuse_can_wait_in_real_time(source: Source) -> None:
    found, aligned = aligned_source(source, waiting(), is_real_time=True)
    assert found is source
    assert aligned is not None and aligned.gate is None
    with pytest.raises(ConfigurationError, match=r"with_watermark_alignment\(\)"):
        aligned_source(source, waiting())


class Begun(Exception):
    """The source was accepted."""


class Unpausable(Source):
    def create_frame(self, session: Any) -> Any:
        raise Begun


def test_the_configured_trigger_says_which_sources_can_wait() -> None:
    session: Any = object()
    env = StreamExecutionEnvironment.get_execution_environment({"execution.trigger": "Real-Time"}, spark=session)
    with pytest.raises(Begun):
        env.from_source(Unpausable(), waiting(), "in")
    env.configure({"execution.trigger": "continuous"})
    with pytest.raises(ConfigurationError, match="Unpausable cannot wait"):
        env.from_source(Unpausable(), waiting(), "in")


def test_a_source_without_a_gate_is_refused_by_epochs_when_the_trigger_was_changed(tmp_path: Path) -> None:
    program = EpochProgram()
    strategy = waiting()
    source, aligned = aligned_source(NumberSequenceSource(1, 3), strategy, is_real_time=True)
    rows = elements_of(source, program.source("in", READING), strategy, None, aligned=aligned)
    rows.key_by("source").process(Number(), "source string, n bigint").uid("rows")
    rows.for_each_epoch(lambda frame, epoch: None).uid("out")
    with pytest.raises(
        (ConfigurationError, JobExecutionError), match=r"changed after from_source\(\)\. Set it to real"
    ):
        program.run(tmp_path, [{"in": [("in", 1)]}])


def test_a_source_that_epochs_can_pause_keeps_its_gate_in_real_time() -> None:
    builder = KafkaSource.builder().set_bootstrap_servers("localhost:1").set_topics("words")
    _, aligned = aligned_source(builder.set_max_rows_per_epoch(9).build(), waiting(), is_real_time=True)
    assert aligned is not None and aligned.gate is not None


class Observed:
    """Stands for the executor of a clock."""

    records_in = 0
    latest: int | None = None


def observe(clock: Any, executor: Observed, partition: str, at: int, now: int) -> None:
    clock.begin()
    executor.latest, executor.records_in = at, executor.records_in + 1
    clock.observe(("in", partition), now)


def test_idle_timeouts_of_partitions_stop_while_their_source_waits() -> None:
    clock, executor = task._OwnClock(WatermarkClock(0, 100, True), frozenset({"in"})), Observed()
    clock.follow(cast("Any", executor))
    clock.begin_partitions("in", ["slow", "fast", "quiet"], 0)
    observe(clock, executor, "slow", 1_000, 100)
    observe(clock, executor, "fast", 5_000, 150)
    assert clock.watermark(150) == 999, "the quiet partition is idle"
    clock.set_paused(True, 160)
    for now in (205, 220, 1_000):
        assert clock.watermark(now) == clock.progress(now) == 999, (
            "the slow partition would be idle before the fast one"
        )
    clock.set_paused(True, 1_000)
    clock.set_paused(False, 1_160)
    assert clock.watermark(1_160) == 999, "the quiet partition is still idle, and the others are not"
    assert clock.watermark(1_199) == 999
    assert clock.watermark(1_205) == 4_999
    assert clock.watermark(1_259) == 4_999
    assert clock.watermark(1_260) == IDLE, "the timeout of the source began anew"
    clock.set_paused(True, 2_000)
    assert clock.watermark(2_000) == 4_999, "a source that waits is not idle"
