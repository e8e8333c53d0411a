"""Event time of whole batches: timestamps and timers as columns are what they are element by element."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast.common import Duration, Time, WatermarkStrategy
from holdfast.datastream import BatchFunction, KeyedProcessFunction, ParquetFileSink, ProcessFunction
from holdfast.datastream.functions import BatchContext, TimeDomain
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.datastream.stream.data_stream import DataStream
from holdfast.datastream.window import CountAggregate, TumblingEventTimeWindows
from holdfast.errors import ConfigurationError, EngineError, JobExecutionError
from holdfast.kernel.clock import ManualClock
from tests.examples import examples
from tests.stories import ledger
from tests.stories.local import RESTARTING, Program, epochs, run

READING = "sensor string, place int, at bigint, n bigint"
COUNTED = "sensor string, place int, at bigint, n bigint, watermark bigint"
Reading = tuple[str, int, int, int]


def late_by(milliseconds: int) -> WatermarkStrategy:
    return WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(milliseconds)).with_timestamp_column("at")


class ByElement(KeyedProcessFunction):
    """Counts the rows of a key, but passes on only those with an `n`. Each row sets a timer, or deletes one without.

    A timer passes on the count. One at a full ten sets another one, three milliseconds later.
    """

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        ends = -(-ctx.timestamp() // 10) * 10
        if value.n:
            ctx.timer_service().register_event_time_timer(ends)
            yield value.sensor, value.place, ctx.timestamp(), count, ctx.timer_service().current_watermark()
        else:
            ctx.timer_service().delete_event_time_timer(ends)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        sensor, place = ctx.get_current_key()
        if timestamp % 10 == 0:
            ctx.timer_service().register_event_time_timer(timestamp + 3)
        yield sensor, place, timestamp, -self.count.value(), ctx.timer_service().current_watermark()


class ByBatch(BatchFunction):
    """The same."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
        assert ctx.timestamps is not None
        state = ctx.columns(self.count)
        keys = list(zip(batch["sensor"].to_pylist(), batch["place"].to_pylist(), strict=True))
        counts: list[int] = []
        seen: dict[Any, int] = {}
        for key, before in zip(keys, state.get().to_pylist(), strict=True):
            seen[key] = seen.get(key, before or 0) + 1
            counts.append(seen[key])
        state.put(None, counts)
        ends = -(-ctx.timestamps.to_numpy() // 10) * 10
        is_set = batch["n"].to_numpy() > 0
        last = {(keys[row], ends[row]): row for row in range(len(keys))}
        decides = np.isin(np.arange(len(keys)), list(last.values()))
        ctx.register_event_time_timers(ends[is_set & decides], is_set & decides)
        rows = np.flatnonzero(~is_set & decides)
        ctx.delete_event_time_timers(pa.array(ends[rows]), rows)
        kept = np.flatnonzero(is_set)
        ctx.keep_timestamps(kept)
        return self.counted(batch.take(kept), ctx.timestamps.take(kept), pa.array(counts, pa.int64()).take(kept), ctx)

    def on_timers(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
        assert ctx.time_domain() is TimeDomain.EVENT_TIME
        assert batch.schema.names == ["sensor", "place"]
        times = ctx.timestamps
        ctx.register_event_time_timers(times.to_numpy()[again := times.to_numpy() % 10 == 0] + 3, again)
        ctx.keep_timestamps()
        return self.counted(batch, times, pc.negate(ctx.columns(self.count).get()), ctx)

    def counted(self, keys: Any, times: Any, counts: Any, ctx: BatchContext) -> pa.RecordBatch:
        watermark = pa.array([ctx.current_watermark()] * len(times), pa.int64())
        columns = [keys["sensor"], keys["place"], times, counts, watermark]
        return pa.RecordBatch.from_arrays(columns, names=["sensor", "place", "at", "n", "watermark"])


class WithTime(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value.sensor, value.place, value.at, value.n, value.watermark, ctx.timestamp()


def job(place: Path, strategy: WatermarkStrategy, *, by_batch: bool) -> Program:
    """Rows that were counted, with their times; each once more, counted a window; and counted in batches of that."""
    program = Program()
    keyed = program.source("readings", READING).assign_timestamps_and_watermarks(strategy).key_by(["sensor", "place"])
    counted = keyed.process_batches(ByBatch(), COUNTED) if by_batch else keyed.process(ByElement(), COUNTED)
    counted.uid("counted").process(WithTime(), f"{COUNTED}, time bigint").uid("timed").sink_to(
        ParquetFileSink(place / "rows")
    ).uid("rows")
    again = counted.key_by("sensor").count("rows").uid("again")
    windows = again.key_by("sensor").window(TumblingEventTimeWindows.of(Time.milliseconds(20)))
    windows.aggregate_batches(rows=CountAggregate()).uid("windows").sink_to(ParquetFileSink(place / "windows")).uid(
        "windows-out"
    )
    return program


readings = st.tuples(st.sampled_from("abc"), st.sampled_from([1, 2]), st.integers(-25, 120), st.integers(0, 2))


@settings(max_examples=examples(36), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(st.lists(readings, max_size=8), min_size=1, max_size=5),
    bound=st.sampled_from([0, 9, 40]),
    fails=st.sets(st.integers(0, 40), max_size=3),
    stops=st.integers(0, 5),
    parallelism=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    backend=st.sampled_from(["hashmap", "columnar"]),
    packed=st.sampled_from(["true", "false"]),
)
@example(  # a timer is due together with one that would set it, had it come before
    batches=[[("a", 1, 111, 0), ("a", 1, 101, 1)], [("a", 1, 101, 1)]],
    bound=0,
    fails=set(),
    stops=0,
    parallelism=(1, 1),
    backend="hashmap",
    packed="true",
)
def test_batches_and_elements_have_the_same_times_and_timers(
    tmp_path_factory: Any,
    batches: list[list[Reading]],
    bound: int,
    fails: set[int],
    stops: int,
    parallelism: tuple[int, int],
    backend: str,
    packed: str,
) -> None:
    """However rows are cut into epochs; tasks die, and the job goes on after some epochs with another parallelism."""
    place = tmp_path_factory.mktemp("batch-timers")
    options = {**RESTARTING, "state.backend.type": backend, "execution.exchange.packed": packed}
    inputs = epochs("readings", batches)
    found = []
    for by_batch in (False, True):
        own, tasks = place / str(by_batch), itertools.count()

        def strike(stage: int, partition: int, tasks: Any = tasks) -> None:
            if next(tasks) in fails:
                raise EngineError("struck")

        for before_end, subtasks in zip((True, False), parallelism, strict=True):
            program = job(own, late_by(bound), by_batch=by_batch)
            given = inputs[: min(stops, len(inputs) - 1)] if before_end else inputs
            settings = {"parallelism": subtasks, "is_bounded": not before_end, "interceptor": strike}
            run(program, own / "job", given, options, **settings)
        found.append((sorted(ledger.read(own / "rows")), sorted(ledger.read(own / "windows"))))
    assert found[1] == found[0]
    assert all(row[-1] == row[2] for row in found[0][0])


def test_timers_of_processing_time_come_with_keys_of_any_kind(place: Path) -> None:
    """Also keys that are made by a function; a function that sets timers and says nothing of them lets them go."""

    class Later(BatchFunction):
        def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
            assert ctx.timestamps is None
            ctx.register_processing_time_timers(ctx.current_processing_time() + 5)
            ctx.register_processing_time_timers([7_000] * batch.num_rows)
            ctx.delete_processing_time_timers(7_000)
            ctx.register_event_time_timers(-5)

        def on_timers(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
            assert ctx.time_domain() is TimeDomain.PROCESSING_TIME
            ctx.keep_timestamps()
            return pa.table([batch["key"].cast(pa.string()), ctx.timestamps], names=["key", "time"])

    class Silent(BatchFunction):
        def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
            ctx.register_processing_time_timers(1)
            return batch

    program = Program()
    source = program.source("readings", READING)
    keyed = source.key_by(lambda row: row.n % 2, "bigint")
    later = keyed.process_batches(Later(), "key string, time bigint").uid("later")
    later.sink_to(ParquetFileSink(place / "later")).uid("out")
    keyed.process_batches(Silent()).uid("silent").sink_to(ParquetFileSink(place / "silent")).uid("silent-out")
    clock = ManualClock(1_000)
    inputs = epochs("readings", [[("a", 1, 1, 2), ("a", 1, 1, 4), ("b", 1, 1, 3)]])
    run(program, place / "job", inputs, clock=clock)
    assert ledger.read(place / "later") == []
    clock.advance(10_000)
    run(program, place / "job", [*inputs, {"readings": []}], clock=clock)
    assert sorted(ledger.read(place / "later")) == [("0", 1_005), ("1", 1_005)]
    assert len(ledger.read(place / "silent")) == 3


class AgainByElement(KeyedProcessFunction):
    """Each timer sets itself again, the next one, and now and then one for the current time; odd ones think better."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_processing_time_timer(value.at)
        return ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        timers = ctx.timer_service()
        for time in (timestamp, timestamp + 4):
            timers.register_processing_time_timer(time)
        if timestamp % 5 == 0:
            timers.register_processing_time_timer(timers.current_processing_time())
        if timestamp % 2:
            timers.delete_processing_time_timer(timestamp)
        yield ctx.get_current_key(), timestamp, timers.current_processing_time()


class AgainByBatch(BatchFunction):
    """The same."""

    def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
        ctx.register_processing_time_timers(batch["at"])

    def on_timers(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
        assert ctx.timestamps is not None
        times, now = ctx.timestamps.to_numpy(), ctx.current_processing_time()
        ctx.register_processing_time_timers(times)
        ctx.register_processing_time_timers(times + 4)
        ctx.register_processing_time_timers(now, times % 5 == 0)
        ctx.delete_processing_time_timers(times[times % 2 == 1], times % 2 == 1)
        return pa.table([batch["key"], times, [now] * len(times)], names=["key", "time", "now"])


def test_timers_that_are_set_again_for_a_time_that_has_come_fire_in_the_next_epoch_as_by_element(place: Path) -> None:
    found = []
    for function in (AgainByElement(), AgainByBatch()):
        own, clock = place / type(function).__name__, ManualClock(1_000)
        program = Program()
        keyed = program.source("readings", READING).key_by(lambda row: row.sensor, "string")
        process = keyed.process if isinstance(function, AgainByElement) else keyed.process_batches
        process(function, "key string, time bigint, now bigint").uid("again").sink_to(ParquetFileSink(own / "out")).uid(
            "out"
        )
        inputs = epochs("readings", [[("a", 1, 984, 1), ("b", 1, 993, 1), ("c", 1, 1_008, 1)], [], []])
        for number in range(len(inputs)):
            run(program, own / "job", inputs[: number + 1], clock=clock, parallelism=1 + number % 2)
            clock.advance(11)
        found.append(sorted(ledger.read(own / "out")))
    by_element, by_batch = found
    assert by_batch == by_element
    first = [(key, time) for key, time, now in by_element if now == 1_000]
    assert first == [("a", time) for time in range(984, 1_001, 4)] + [("b", 993), ("b", 997)]
    assert len([row for row in by_element if row[:2] == ("a", 984)]) == len({now for _, _, now in by_element}) > 3


def timed(program: Program, function: BatchFunction, key: Any = "sensor") -> DataStream:
    stream = program.source("readings", READING).assign_timestamps_and_watermarks(late_by(0)).key_by(key)
    return stream.process_batches(function, READING)


def test_rows_without_timestamps_end_no_window(place: Path) -> None:
    """Rows of a function that does not say which times they have, and those that it gives itself."""

    class Given(BatchFunction):
        def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
            ctx.give_timestamps(pc.add(ctx.timestamps, 100))
            return batch

    class Silent(BatchFunction):
        def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
            return batch

    for name, function in (("given", Given()), ("silent", Silent())):
        program = Program()
        windows = (
            timed(program, function)
            .uid(name)
            .key_by("sensor")
            .window(TumblingEventTimeWindows.of(Time.milliseconds(100)))
        )
        counted = windows.aggregate_batches(n=CountAggregate()).uid("windows")
        counted.sink_to(ParquetFileSink(place / name)).uid("out")
        inputs = epochs("readings", [[("a", 1, 5, 1)], [("a", 1, 260, 1)]])
        if name == "given":
            run(program, place / f"{name}-job", inputs)
            assert ledger.read(place / name) == [("a", 100, 200, 1)]
        else:
            with pytest.raises(ConfigurationError, match="an element has none"):
                run(program, place / f"{name}-job", inputs)


@pytest.mark.parametrize("time", [np.int64(20), np.int32(20), pa.scalar(20), 20])
def test_one_time_for_all_rows_may_be_a_number_of_numpy_or_arrow(place: Path, time: Any) -> None:
    class Once(BatchFunction):
        def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
            ctx.register_event_time_timers(time)

        def on_timers(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
            assert ctx.timestamps is not None and ctx.timestamps.to_pylist() == [20] * batch.num_rows
            return batch

    program = Program()
    stream = program.source("readings", READING).assign_timestamps_and_watermarks(late_by(0)).key_by("sensor")
    stream.process_batches(Once(), "sensor string").uid("once").sink_to(ParquetFileSink(place / "out")).uid("out")
    run(program, place / "job", epochs("readings", [[("a", 1, 5, 1), ("b", 1, 6, 1)]]), is_bounded=True)
    assert sorted(ledger.read(place / "out")) == [("a",), ("b",)]


def test_wrong_times_and_unknown_keys_are_refused(place: Path) -> None:
    class Wrong(ByBatch):
        def __init__(self, do: Any) -> None:
            self.do = do

        def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
            self.do(batch, ctx)
            return batch

    cases = {
        "1 rows and 2 timestamps": lambda batch, ctx: ctx.give_timestamps([1, 2]),
        "64-bit integers of milliseconds": lambda batch, ctx: ctx.register_event_time_timers([1.5] * batch.num_rows),
        "pass one time per key": lambda batch, ctx: ctx.register_event_time_timers([1, 2, 3]),
    }
    for number, (message, do) in enumerate(cases.items()):
        program = Program()
        timed(program, Wrong(do)).uid("wrong").sink_to(ParquetFileSink(place / "out")).uid("out")
        with pytest.raises(JobExecutionError, match=message):
            run(program, place / str(number), epochs("readings", [[("a", 1, 5, 1)]]), parallelism=1)

    class Fails(Wrong):
        def on_timers(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
            raise ValueError("no")

    program = Program()
    fails = timed(program, Fails(lambda batch, ctx: ctx.register_event_time_timers(ctx.timestamps))).uid("fails")
    fails.sink_to(ParquetFileSink(place / "out")).uid("out")
    with pytest.raises(JobExecutionError, match="failed while firing timers in epoch 2: ValueError: no"):
        run(program, place / "fails", epochs("readings", [[("a", 1, 5, 1)], [("b", 1, 50, 1)]]))
    with pytest.raises(ConfigurationError, match=r"ByBatch\.on_timers\(\) gets keys as columns"):
        timed(Program(), ByBatch(), lambda row: row.sensor)
