"""Event time from the data, on the epoch runner, against a model in plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.common import Duration, Time, TimestampAssigner, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, OutputTag, ParquetFileSink, ProcessFunction, Sink, SinkWriter
from holdfast.datastream.stream.data_stream import DataStream
from holdfast.datastream.window import CountAggregate, EventTimeSessionWindows, TumblingEventTimeWindows
from holdfast.errors import ConfigurationError, EngineError, JobExecutionError
from holdfast.kernel.clock import ManualClock
from holdfast.runtime.job.control import JobStatus
from holdfast.state.descriptor import MapStateDescriptor
from holdfast.testing.epoch_runner import LocalEngine
from tests.examples import examples
from tests.stories import ledger
from tests.stories.local import RESTARTING, Program, epochs, run
from tests.unit.runtime.test_transforms import transformed

MIN = -(2**63)
READING = "sensor string, at bigint, n bigint"
SUM = "sensor string, ends bigint, n bigint, seen bigint"
Reading = tuple[str, int, int]


class At(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        assert record_timestamp == MIN
        return value.at  # type: ignore[no-any-return]


def late_by(milliseconds: int, *, of_column: bool = False) -> WatermarkStrategy:
    bounded = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(milliseconds))
    return bounded.with_timestamp_column("at") if of_column else bounded.with_timestamp_assigner(At())


class Windows(KeyedProcessFunction):
    """Sums of ten milliseconds of event time; emitted when the watermark reaches their end, and late ones at once."""

    def open(self, runtime_context: Any) -> None:
        self.sums = runtime_context.get_map_state(MapStateDescriptor("sums", "bigint", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        assert ctx.timestamp() == value.at
        ends = value.at // 10 * 10 + 9
        watermark = ctx.timer_service().current_watermark()
        if ends <= watermark:
            yield value.sensor, ends, -value.n, watermark
            return
        self.sums.put(ends, (self.sums.get(ends) or 0) + value.n)
        ctx.timer_service().register_event_time_timer(ends)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        assert ctx.timestamp() == timestamp
        yield ctx.get_current_key(), timestamp, self.sums.get(timestamp), ctx.timer_service().current_watermark()
        self.sums.remove(timestamp)


def model(
    batches: Sequence[Sequence[Reading]], bound: int, *, ends: bool = False, per_partition: bool = False
) -> list[tuple[str, int, int, int]]:
    """What `Windows` must emit. Each half of an epoch is what one partition has."""
    watermark, greatest = MIN, None
    sums: dict[tuple[str, int], int] = {}
    out = []
    for number, batch in enumerate(batches):
        for sensor, at, n in batch:
            end = at // 10 * 10 + 9
            if end <= watermark:
                out.append((sensor, end, -n, watermark))
            else:
                sums[sensor, end] = sums.get((sensor, end), 0) + n
            greatest = at if greatest is None else max(greatest, at)
        if per_partition:
            half = -(-len(batch) // 2)
            least = [max(at for _, at, _ in part) for part in (batch[:half], batch[half:]) if part]
            greatest = min(least, default=None)
        if greatest is not None:
            watermark = max(watermark, greatest - bound - 1)
        if ends and number == len(batches) - 1:
            watermark = 2**63 - 1
        due = [window for window in sums if window[1] <= watermark]
        out += [(*window, sums.pop(window), watermark) for window in due]
    return sorted(out)


def windows(stream: DataStream, place: Path, name: str = "windows") -> None:
    summed = stream.key_by("sensor").process(Windows(), SUM).uid(name)
    summed.sink_to(ParquetFileSink(place / name)).uid(f"{name}-out")


readings = st.tuples(st.sampled_from("abc"), st.integers(-40, 200), st.integers(1, 5))


@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(st.lists(readings, max_size=6), min_size=1, max_size=5),
    bound=st.sampled_from([0, 7, 30]),
    of_column=st.booleans(),
)
def test_windows_of_event_time_are_as_in_the_model(
    tmp_path_factory: Any, batches: list[list[Reading]], bound: int, of_column: bool
) -> None:
    """Also without rows in an epoch, with late rows, and with a bounded input, whose end is the end of event time."""
    place = tmp_path_factory.mktemp("event-time")
    for ends in (False, True):
        program = Program()
        strategy = late_by(bound, of_column=of_column)
        windows(program.source("readings", READING).assign_timestamps_and_watermarks(strategy), place / str(ends))
        run(program, place / str(ends) / "job", epochs("readings", batches), is_bounded=ends)
        assert sorted(ledger.read(place / str(ends) / "windows")) == model(batches, bound, ends=ends)


@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(st.lists(readings, max_size=6), min_size=1, max_size=6), bound=st.sampled_from([0, 7]))
def test_event_time_per_partition_follows_the_one_that_lags(
    tmp_path_factory: Any, batches: list[list[Reading]], bound: int
) -> None:
    place = tmp_path_factory.mktemp("partitions")
    program = Program()
    stream = program.source("readings", READING).assign_timestamps_and_watermarks(late_by(bound).per_partition())
    windows(stream, place)
    run(program, place / "job", epochs("readings", batches))
    expected = model(batches, bound, per_partition=True)
    assert sorted(ledger.read(place / "windows")) == expected


def test_event_time_of_idle_partitions_is_kept(place: Path) -> None:
    program = Program()
    lagging = program.source("lagging", READING).assign_timestamps_and_watermarks(late_by(0).per_partition())
    other = program.source("other", READING).assign_timestamps_and_watermarks(late_by(0))
    windows(lagging.union(other), place)
    inputs: list[dict[str, list[Any]]] = [
        {"lagging": [("a", 35, 1), ("a", 90, 2)], "other": [("b", 5, 3)]},
        {"lagging": [], "other": [("b", 60, 4)]},  # 35 was reached by both halves
        {"lagging": [("a", 36, 5)], "other": []},  # goes back, and event time does not
    ]
    run(program, place / "job", inputs)
    assert sorted(ledger.read(place / "windows")) == [("b", 9, 3, 34)]


BATCHES: list[list[Reading]] = [
    [("a", 1, 1), ("b", 12, 2)],
    [("a", 25, 3), ("a", 3, 4)],
    [],
    [("b", 60, 5), ("b", 18, 6)],
    [("a", 61, 7)],
]


def test_event_time_is_right_though_a_task_fails(place: Path) -> None:
    """The second task of the second epoch's last stage; nothing of that epoch was late against the one before."""
    struck = iter([False] * 7 + [True] + [False] * 30)

    def strike(stage: int, partition: int) -> None:
        if next(struck):
            raise EngineError("struck")

    program = Program()
    windows(program.source("readings", READING).assign_timestamps_and_watermarks(late_by(5)), place)
    run(program, place / "job", epochs("readings", BATCHES), RESTARTING, interceptor=strike)
    assert sorted(ledger.read(place / "windows")) == model(BATCHES, 5)


def test_the_watermark_is_not_restored_and_the_timers_are(place: Path) -> None:
    def job() -> Program:
        program = Program()
        windows(program.source("readings", READING).assign_timestamps_and_watermarks(late_by(0)), place)
        return program

    first = [[("a", 5, 1)], [("b", 33, 2)]]
    assert run(job(), place / "job", epochs("readings", first)) is JobStatus.SUSPENDED
    assert sorted(ledger.read(place / "windows")) == [("a", 9, 1, 32)]
    # In the second run nothing is late before the first watermark, and b's timer of the first run fires.
    second = [*first, [("a", 6, 4)], [("c", 50, 3)]]
    assert run(job(), place / "job", epochs("readings", second)) is JobStatus.SUSPENDED
    assert sorted(ledger.read(place / "windows")) == [("a", 9, 1, 32), ("a", 9, 4, 49), ("b", 39, 2, 49)]


def test_a_union_waits_for_the_slowest_and_not_for_one_that_is_idle(place: Path) -> None:
    clock = ManualClock(1_000)

    class Hourly(LocalEngine):
        def execute(self, epoch: Any, epoch_input: Any) -> Any:
            clock.advance(1_000)
            return super().execute(epoch, epoch_input)

    program = Program()
    fast = program.source("fast", READING).assign_timestamps_and_watermarks(late_by(0))
    slow = program.source("slow", READING).assign_timestamps_and_watermarks(
        late_by(0).with_idleness(Duration.of_millis(2_500))
    )
    windows(fast.union(slow), place)
    inputs = [
        {"fast": [("a", 20, 1)]},  # nothing of the slow one yet: no watermark
        {"slow": [("b", 12, 2)]},  # 11
        {"fast": [("a", 40, 3)]},  # 11
        {"fast": [("a", 60, 4)]},  # 11
        {"fast": [("a", 70, 5)]},  # idle since: 69
        {"slow": [("b", 13, 6)]},  # late, and the watermark stays
    ]
    run(program, place / "job", inputs, clock=clock, engine=Hourly)
    assert sorted(ledger.read(place / "windows")) == [
        ("a", 29, 1, 69), ("a", 49, 3, 69), ("a", 69, 4, 69), ("b", 19, -6, 69), ("b", 19, 2, 69),
    ]  # fmt: skip


def test_event_time_does_not_advance_where_an_input_has_none(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    program = Program()
    stamped = program.source("stamped", READING).assign_timestamps_and_watermarks(late_by(0))
    plain = program.source("plain", READING).filter(lambda row: True).name("bare")
    never = program.source("never", READING).assign_timestamps_and_watermarks(
        WatermarkStrategy.no_watermarks().with_timestamp_assigner(lambda row, before: row.at)
    )
    windows(stamped.union(plain.filter(lambda row: False)), place, "mixed")
    windows(never, place, "none")
    run(program, place / "job", [{"stamped": [("a", 5, 1)], "never": [("a", 5, 1)]}, {"stamped": [("a", 50, 1)]}])
    assert ledger.read(place / "mixed") == ledger.read(place / "none") == []
    assert "event time stands still for 'union'" in caplog.text


class Stamp(ProcessFunction):
    """The time of each element, and of what is sent beside."""

    tag = OutputTag("beside", "n bigint")

    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.output(self.tag, (value.n,))
        yield value.n, ctx.timestamp()


class Noted(KeyedProcessFunction):
    """An element twice, and once more by a timer of its time plus five."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 5)
        yield value
        yield value

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), 0, timestamp * 1000


class TimesSink(Sink):
    """Collects what a writer is told of time; in this process."""

    seen: list[tuple[int, int | None]] = []  # noqa: RUF012 - that is what is wanted here

    def create_writer(self, context: Any) -> SinkWriter:
        return _TimesWriter()


class _TimesWriter(SinkWriter):
    def write(self, element: Any, context: Any) -> None:
        TimesSink.seen.append((element.n, context.timestamp()))


def test_output_has_the_timestamp_of_its_input(place: Path) -> None:
    """Through narrow operators, two exchanges, timers, a side output and a reduce, to the sink."""
    TimesSink.seen.clear()
    program = Program()
    stamped = program.source("readings", READING).assign_timestamps_and_watermarks(late_by(0))
    mapped = stamped.filter(lambda row: row.n > 0).map(lambda row: (row.sensor, 0, row.n), READING)
    noted = mapped.key_by("sensor").process(Noted(), READING).uid("noted")
    again = noted.key_by(lambda row: row.n % 2, "bigint").map(lambda row: row, READING).uid("again")
    times = again.process(Stamp(), "n bigint, time bigint")
    times.sink_to(ParquetFileSink(place / "times")).uid("out")
    beside = times.get_side_output(Stamp.tag).process(Stamp(), "n bigint, time bigint")
    beside.sink_to(ParquetFileSink(place / "beside")).uid("beside")
    summed = mapped.key_by("sensor").reduce(lambda old, new: (old.sensor, 0, old.n + new.n)).uid("sums")
    summed.sink_to(TimesSink()).uid("times")
    run(program, place / "job", epochs("readings", [[("a", 10, 1), ("b", 20, 2), ("b", 0, -1)], [("a", 40, 3)]]))
    expected = sorted([(1, 10), (1, 10), (2, 20), (2, 20), (3, 40), (3, 40), (15_000, 15), (25_000, 25)])
    assert sorted(ledger.read(place / "times")) == expected
    assert sorted(ledger.read(place / "beside")) == expected
    assert sorted(TimesSink.seen) == [(1, 10), (2, 20), (4, 40)]


class Several(ProcessFunction):
    """As many elements as the row says; those of one in two are sent beside, in the way that its name says."""

    tag = OutputTag("several", READING)

    def process_element(self, value: Any, ctx: Any) -> Any:
        for number in range(value.n):
            if number % 2 == 0:
                yield value
            elif value.sensor == "a":
                yield self.tag, value
            else:
                ctx.output(self.tag, value)


@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.integers(0, 4)), max_size=12))
def test_several_elements_or_none_have_the_time_of_their_row(tmp_path_factory: Any, rows: list[Reading]) -> None:
    place = tmp_path_factory.mktemp("several")
    program = Program()
    stamped = program.source("readings", READING).assign_timestamps_and_watermarks(late_by(0, of_column=True))
    beside: list[Any] = []
    expected = [row for row in rows for number in range(row[2]) if number % 2 == 0]
    for name, stream in (("narrow", stamped), ("keyed", stamped.key_by("sensor"))):
        several = stream.process(Several(), READING).uid(name)
        times = "sensor string, time bigint, right boolean"
        for kind, emitted in ((name, several), (f"{name}-beside", several.get_side_output(Several.tag))):
            seen = emitted.process(_Right(), times).uid(f"seen-{kind}")
            seen.sink_to(ParquetFileSink(place / kind)).uid(f"out-{kind}")
            beside.append(kind)
    run(program, place / "job", epochs("readings", [rows]))
    sent = [row for row in rows for number in range(row[2]) if number % 2]
    for kind in beside:
        wanted = sent if kind.endswith("beside") else expected
        assert sorted(ledger.read(place / kind)) == sorted((sensor, at, True) for sensor, at, _ in wanted)


class _Right(ProcessFunction):
    """Whether the time of an element is that of the row which it is."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value.sensor, ctx.timestamp(), ctx.timestamp() == value.at


def test_output_of_a_processing_time_timer_has_no_timestamp(place: Path) -> None:
    class Both(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Any:
            ctx.timer_service().register_event_time_timer(value.at)
            ctx.timer_service().register_processing_time_timer(7)
            return ()

        def on_timer(self, timestamp: int, ctx: Any) -> Any:
            ctx.output(Several.tag, (ctx.time_domain().name, timestamp, 0))
            yield ctx.time_domain().name, timestamp, 0

    class Time(ProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Any:
            yield value.sensor, value.at, -1 if ctx.timestamp() is None else ctx.timestamp()

    program = Program()
    stamped = program.source("readings", READING).assign_timestamps_and_watermarks(late_by(0))
    both = stamped.key_by("sensor").process(Both(), READING).uid("both")
    for name, stream in (("main", both), ("beside", both.get_side_output(Several.tag))):
        stream.process(Time(), READING).uid(name).sink_to(ParquetFileSink(place / name)).uid(f"{name}-out")
    run(program, place / "job", epochs("readings", [[("a", 5, 1), ("a", 50, 1)]]), clock=ManualClock(100))
    for name in ("main", "beside"):
        assert sorted(ledger.read(place / name)) == [("EVENT_TIME", 5, 5), ("PROCESSING_TIME", 7, -1)]


def test_event_time_passes_a_transform_and_timestamps_pass_beside_it(place: Path) -> None:
    program = Program()
    stamped = program.source("readings", READING).assign_timestamps_and_watermarks(late_by(0))
    moved = transformed(stamped, lambda table: table.set_column(2, "n", pa.array([100] * table.num_rows)), READING)
    assigned = moved.assign_timestamps_and_watermarks(late_by(0))
    windows(assigned.union(stamped), place)

    class Plain(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Any:
            assert ctx.timestamp() is None
            ctx.timer_service().register_event_time_timer(value.at)
            return ()

        def on_timer(self, timestamp: int, ctx: Any) -> Any:
            yield ctx.get_current_key(), timestamp, 0

    moved.key_by("sensor").process(Plain(), READING).uid("plain").sink_to(ParquetFileSink(place / "plain"))
    run(program, place / "job", epochs("readings", [[("a", 5, 1)], [("a", 7, 2), ("a", 21, 3)]]))
    assert ledger.read(place / "windows") == [("a", 9, 203, 20)]
    assert sorted(ledger.read(place / "plain")) == [("a", 5, 0), ("a", 7, 0)]


def test_a_strategy_without_an_assigner_goes_by_the_timestamps_that_there_are(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = Program()
    source = program.source("readings", READING)
    stamped = source.assign_timestamps_and_watermarks(WatermarkStrategy.no_watermarks().with_timestamp_assigner(At()))
    assert caplog.text == ""
    moved = stamped.assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps())
    assert caplog.text == ""
    windows(moved.uid("clock"), place)
    run(program, place / "job", epochs("readings", [[("a", 5, 1)], [("a", 21, 3)]]))
    assert ledger.read(place / "windows") == [("a", 9, 1, 20)]
    source.assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps())
    assert "the elements of 'readings' have no timestamps" in caplog.text


def test_an_assigner_that_hands_on_the_timestamp_of_elements_without_one_gives_them_none(place: Path) -> None:
    handed_on = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, before: before)
    program = Program()
    stream = program.source("readings", READING).assign_timestamps_and_watermarks(handed_on)
    told = stream.process(lambda row, ctx: [(row.sensor, ctx.timestamp())], "sensor string, at bigint").uid("told")
    told.sink_to(ParquetFileSink(place / "out")).uid("out")
    run(program, place / "job", epochs("readings", [[("a", 1, 1)]]))
    assert ledger.read(place / "out") == [("a", None)]

    sessions, tens = EventTimeSessionWindows.with_gap(Time.milliseconds(5)), TumblingEventTimeWindows.of(10)
    for number, assigner in enumerate((tens, sessions)):
        of_columns = Program()
        stream = of_columns.source("readings", READING).assign_timestamps_and_watermarks(handed_on)
        windows = stream.key_by("sensor").window(assigner).aggregate_batches(n=CountAggregate())
        windows.uid("windows").sink_to(ParquetFileSink(place / "none")).uid("out")
        with pytest.raises(ConfigurationError, match="an element has none"):
            run(of_columns, place / str(number), epochs("readings", [[("a", 1, 1)]]), is_bounded=True)


def test_an_invalid_timestamp_or_strategy_is_rejected(place: Path) -> None:
    program = Program()
    source = program.source("readings", READING)
    with pytest.raises(ConfigurationError, match="takes a WatermarkStrategy"):
        source.assign_timestamps_and_watermarks(7)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="is a Duration"):
        WatermarkStrategy.for_bounded_out_of_orderness(5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="at least 1 ms"):
        WatermarkStrategy.no_watermarks().with_idleness(Duration.of_millis(0))
    with pytest.raises(ConfigurationError, match="takes the name of a column"):
        WatermarkStrategy.no_watermarks().with_timestamp_column(7)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="no column 'when'"):
        source.assign_timestamps_and_watermarks(WatermarkStrategy.no_watermarks().with_timestamp_column("when"))
    with pytest.raises(ConfigurationError, match="takes a TimestampAssigner"):
        WatermarkStrategy.no_watermarks().with_timestamp_assigner(At)  # type: ignore[arg-type]
    wrong_type = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, before: 1.5)  # type: ignore[arg-type,return-value]
    windows(source.assign_timestamps_and_watermarks(wrong_type).uid("clock"), place)
    with pytest.raises(JobExecutionError, match=r"(?s)'clock'.*assigning a timestamp.*not 1\.5"):
        run(program, place / "job", epochs("readings", [[("a", 1, 1)]]))
