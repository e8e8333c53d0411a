"""Windows, joins, timers, asynchronous functions, side outputs and files in real time, against models and by epochs.

Results that depend on when a watermark arrives are left out: which elements are late, and what an element finds that
comes beside a timer.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.common import Duration, Encoder, Time, WatermarkStrategy
from holdfast.datastream import (
    AsyncDataStream,
    AsyncFunction,
    DataStream,
    KeyedProcessFunction,
    OutputTag,
    ParquetFileSink,
    ProcessFunction,
)
from holdfast.datastream.connectors.file_system import (
    BucketAssigner,
    BulkWriterFactory,
    FileSink,
    OutputFileConfig,
    RollingPolicy,
)
from holdfast.datastream.state import ListStateDescriptor
from tests.examples import examples
from tests.stories import ledger
from tests.stories.local import Program, run
from tests.stories.real_time import RealTime
from tests.stories.turns import Partitions, start
from tests.unit.runtime import test_async, test_interval_join, test_two_inputs, test_window_join
from tests.unit.runtime.realtime.test_real_time_jobs import until
from tests.unit.window import test_window_columns
from tests.unit.window.stories import READING, Reading, job, late_by
from tests.unit.window.test_window_failures import FORMS
from tests.unit.window.test_window_model import ASSIGNERS, BOUND, on_time, whole_windows, windows_of

FEW = {"max_examples": examples(12) // 2, "deadline": None, "suppress_health_check": list(HealthCheck)}
"""A job in real time takes tenths of a second."""
shapes = st.fixed_dictionaries({"parallelism": st.integers(1, 3), "source_tasks": st.integers(1, 3)})
fails = st.lists(st.integers(0, 20), max_size=2)


@settings(**FEW)
@given(
    batches=on_time(),
    name=st.sampled_from(sorted(ASSIGNERS)),
    how=st.sampled_from(["apply", "aggregate", "reduce"]),
    shape=shapes,
    fails=fails,
    backend=st.sampled_from(["hashmap", "columnar"]),
)
def test_windows_have_the_elements_of_the_model(
    tmp_path_factory: Any,
    batches: list[list[Reading]],
    name: str,
    how: str,
    shape: dict[str, int],
    fails: list[int],
    backend: str,
) -> None:
    place = tmp_path_factory.mktemp("windows")
    readings = [reading for batch in batches for reading in batch]
    program = job(windows_of(name, how), BOUND, place, program=RealTime(place, {"readings": readings}, fails=fails))
    program.finish(options={"state.backend.type": backend}, **shape)
    assert sorted(ledger.read(place / "out")) == whole_windows(name, readings)


@settings(**FEW)
@given(batches=on_time(), form=st.sampled_from(sorted(FORMS)), parallelism=st.integers(1, 3), fails=fails)
def test_triggers_evictors_and_state_of_windows_are_those_of_an_epoch_job(
    tmp_path_factory: Any, batches: list[list[Reading]], form: str, parallelism: int, fails: list[int]
) -> None:
    """With one source, so that the order of elements is known."""
    place = tmp_path_factory.mktemp("forms")
    readings = [reading for batch in batches for reading in batch]

    def windows(stream: Any) -> Any:
        return FORMS[form](stream.key_by("sensor"))

    run(job(windows, BOUND, place / "epochs"), place / "by-epochs", [{"readings": readings}], is_bounded=True)
    program = job(windows, BOUND, place, program=RealTime(place, {"readings": readings}, fails=fails))
    program.finish(parallelism=parallelism, source_tasks=1)
    assert sorted(ledger.read(place / "out")) == sorted(ledger.read(place / "epochs" / "out"))


@settings(**FEW)
@given(rows=st.lists(test_window_columns.rows, max_size=24), name=st.sampled_from(sorted(ASSIGNERS)), shape=shapes)
def test_windows_by_columns_are_those_by_element(
    tmp_path_factory: Any, rows: list[Any], name: str, shape: dict[str, int]
) -> None:
    place = tmp_path_factory.mktemp("columns")
    program = RealTime(place, {"rows": rows})
    stream = program.source("rows", test_window_columns.ROW).assign_timestamps_and_watermarks(late_by(200))
    test_window_columns.both(stream, ASSIGNERS[name], place)
    program.finish(parallelism=shape["parallelism"], source_tasks=1)  # first and last of a window depend on the order
    assert test_window_columns.written(place / "fast") == test_window_columns.written(place / "slow")
    assert len(test_window_columns.written(place / "fast-late")) == 0


@settings(**FEW)
@given(
    lefts=test_window_join.steps,
    rights=test_window_join.steps,
    kind=st.sampled_from(sorted(test_window_join.KINDS)),
    shape=shapes,
    fails=fails,
)
def test_joined_pairs_are_those_of_the_model(
    tmp_path_factory: Any, lefts: Any, rights: Any, kind: str, shape: dict[str, int], fails: list[int]
) -> None:
    left = [(k, 3 * n + later, n) for n, (k, later) in enumerate(lefts)]
    right = [(m, k, 3 * m + later) for m, (k, later) in enumerate(rights)]
    place = tmp_path_factory.mktemp("joins")
    program = RealTime(place, {"left": left, "right": right}, fails=fails)
    first, second = test_window_join.streams(program, test_window_join.LATENESS)  # type: ignore[arg-type]
    joined, grouped = (
        both.where("k").equal_to("name").window(test_window_join.KINDS[kind])
        for both in (first.join(second), first.co_group(second))
    )
    pairs = joined.apply(test_window_join.Pair(), "k string, n bigint, m bigint").uid("pairs")
    pairs.sink_to(ParquetFileSink(place / "pairs")).uid("pairs-out")
    sums = grouped.apply(test_window_join.Sums(), "k string, n bigint, m bigint").uid("sums")
    sums.sink_to(ParquetFileSink(place / "sums")).uid("sums-out")
    program.finish(**shape)
    windows = test_window_join.met(kind, left, right)
    expected = sorted((key, n, m) for key, ns, ms in windows for n in ns for m in ms)
    assert sorted(ledger.read(place / "pairs")) == expected
    assert sorted(ledger.read(place / "sums")) == sorted((key, sum(ns), sum(ms)) for key, ns, ms in windows)


@settings(**FEW)
@given(
    lefts=test_interval_join.events,
    rights=test_interval_join.events,
    bounds=st.tuples(st.integers(-12, 12), st.integers(0, 12)),
    shape=shapes,
    fails=fails,
)
def test_an_interval_join_finds_each_pair_once(
    tmp_path_factory: Any, lefts: Any, rights: Any, bounds: tuple[int, int], shape: dict[str, int], fails: list[int]
) -> None:
    left, right = test_interval_join.in_order(lefts), test_interval_join.in_order(rights)
    place = tmp_path_factory.mktemp("intervals")
    program = RealTime(place, {"left": left, "right": right}, fails=fails)
    join = test_interval_join.joined(program, bounds[0], sum(bounds))  # type: ignore[arg-type]
    pairs = join.process(test_interval_join.Pair(), test_interval_join.PAIR).uid("join")
    pairs.sink_to(ParquetFileSink(place / "out")).uid("out")
    program.finish(**shape)
    assert sorted(ledger.read(place / "out")) == sorted(
        (k, n, m, max(at, other))
        for k, at, n in left
        for j, other, m in right
        if k == j and bounds[0] <= other - at <= sum(bounds)
    )


@settings(**FEW)
@given(sides=st.lists(test_two_inputs.sides, max_size=4), shape=shapes, fails=fails)
def test_two_inputs_share_the_state_of_a_key(
    tmp_path_factory: Any, sides: list[Any], shape: dict[str, int], fails: list[int]
) -> None:
    place = tmp_path_factory.mktemp("inputs")
    orders, prices = ([row for side in sides for row in side[which]] for which in (0, 1))
    program = RealTime(place, {"orders": orders, "prices": prices}, fails=fails)
    both = test_two_inputs.keyed_both_ways(program, "columns").process(
        test_two_inputs.Balance(), "name string, total bigint"
    )
    both.uid("balance").sink_to(ParquetFileSink(place / "out")).uid("out")
    program.finish(**shape)
    expected: dict[str, int] = defaultdict(int)
    for name, amount in orders:
        expected[name] += amount
    for price, name in prices:
        expected[name] -= int(price)
    assert sorted(ledger.read(place / "out")) == sorted((name, expected[name]) for name in {name for _, name in prices})


class AtTheirTime(KeyedProcessFunction):
    """Emits the readings of a key in the order of their times, each by a timer of its time."""

    def open(self, runtime_context: Any) -> None:
        self.waiting = runtime_context.get_list_state(ListStateDescriptor("waiting", READING))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.waiting.add(value)
        ctx.timer_service().register_event_time_timer(value.at)
        return iter(())

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        assert ctx.timer_service().current_watermark() >= timestamp
        waiting = list(self.waiting.get())
        assert min(reading.at for reading in waiting) == timestamp, "timers fire in order, and each once"
        self.waiting.update([reading for reading in waiting if reading.at > timestamp])
        yield from ((ctx.get_current_key(), timestamp, reading.n) for reading in waiting if reading.at == timestamp)


@settings(**FEW)
@given(batches=on_time(), shape=shapes, fails=fails, backend=st.sampled_from(["hashmap", "columnar"]))
def test_timers_fire_once_and_in_order(
    tmp_path_factory: Any, batches: Sequence[list[Reading]], shape: dict[str, int], fails: list[int], backend: str
) -> None:
    place: Path = tmp_path_factory.mktemp("timers")
    readings = [reading for batch in batches for reading in batch]
    program = RealTime(place, {"readings": readings}, fails=fails)
    timed = program.source("readings", READING).assign_timestamps_and_watermarks(late_by(BOUND))
    emitted = timed.key_by("sensor").process(AtTheirTime(), READING).uid("timers")
    emitted.sink_to(ParquetFileSink(place / "out")).uid("out")
    program.finish(options={"state.backend.type": backend}, **shape)
    assert sorted(ledger.read(place / "out")) == sorted(readings)


NUMBER = "key bigint, n bigint"
numbers = st.integers(0, 30).map(lambda count: [(n % 4, n) for n in range(count)])


def run_both(
    place: Path, rows: Sequence[Any], build: Callable[[DataStream, Path], object], fails: Sequence[int], **shape: int
) -> tuple[Path, Path]:
    """Run a program in real time and by epochs, and return where each has written."""
    real_time = RealTime(place, {"rows": rows}, fails=fails)
    build(real_time.source("rows", NUMBER), place / "real-time")
    real_time.finish(**shape)
    by_epochs = Program()
    build(by_epochs.source("rows", NUMBER), place / "epochs")
    inputs = [{"rows": rows[at : at + 7]} for at in range(0, len(rows), 7)] or [{"rows": []}]
    run(by_epochs, place / "by-epochs", inputs, is_bounded=True, **shape)
    return place / "real-time", place / "epochs"


class Answers(AsyncFunction[Any, Any]):
    """Answers an element so many times as its number says, modulo three; the last elements first."""

    async def async_invoke(self, value: Any) -> list[Any]:
        await asyncio.sleep(0.0005 * (5 - value.n % 5))
        return [(value.key, value.n)] * (value.n % 3)


class Numbered(KeyedProcessFunction):
    """Numbers the elements of a key."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_list_state(ListStateDescriptor("seen", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.count.add(value.n)
        yield value.key, len(list(self.count.get()))


@settings(**FEW)
@given(rows=numbers, is_ordered=st.booleans(), capacity=st.integers(1, 5), shape=shapes, fails=fails)
def test_results_of_asynchronous_functions_count_once(
    tmp_path_factory: Any, rows: Any, is_ordered: bool, capacity: int, shape: dict[str, int], fails: list[int]
) -> None:
    def build(stream: DataStream, out: Path) -> None:
        wait = AsyncDataStream.ordered_wait if is_ordered else AsyncDataStream.unordered_wait
        asked = wait(stream, Answers(), Time.seconds(60), capacity, NUMBER).uid("asked")
        asked.sink_to(ParquetFileSink(out / "answers")).uid("answers")
        asked.key_by("key").process(Numbered(), NUMBER).uid("count").sink_to(ParquetFileSink(out / "counts")).uid("out")

    place = tmp_path_factory.mktemp("async")
    real_time, epochs = run_both(place, rows, build, fails, **shape)
    expected = sorted(row for row in rows for _ in range(row[1] % 3))
    assert sorted(ledger.read(real_time / "answers")) == sorted(ledger.read(epochs / "answers")) == expected
    counts = sorted(ledger.read(real_time / "counts"))
    assert counts == sorted(ledger.read(epochs / "counts"))
    assert len(counts) == len({*counts}) == len(expected)


@pytest.mark.parametrize("is_ordered", [True, False])
def test_results_of_asynchronous_functions_have_the_requested_order(tmp_path: Path, is_ordered: bool) -> None:
    """The last of five elements is answered first."""
    wait = AsyncDataStream.ordered_wait if is_ordered else AsyncDataStream.unordered_wait
    found: dict[str, list[str]] = {"real-time": [], "epochs": []}

    def build(stream: DataStream, answers: list[str]) -> None:
        asked = wait(stream, test_async.Backwards(5), Time.seconds(60), 5, "string").uid("asked")
        asked.for_each_epoch(lambda frame, epoch: answers.extend(frame.column(0).to_pylist())).uid("out")

    real_time, by_epochs = RealTime(tmp_path, {"rows": range(15)}, at_once=5), Program()
    build(real_time.source("rows", "bigint"), found["real-time"])
    real_time.finish(source_tasks=1)
    build(by_epochs.source("rows", "bigint"), found["epochs"])
    inputs = [{"rows": range(at, at + 5)} for at in range(0, 15, 5)]
    run(by_epochs, tmp_path / "by-epochs", inputs, is_bounded=True, source_tasks=1)
    order = range(15) if is_ordered else [n for at in range(0, 15, 5) for n in reversed(range(at, at + 5))]
    assert found["real-time"] == found["epochs"] == [text for n in order for text in (f"{n}", f"{n}!")]


TIMED = "key bigint, at bigint, n bigint"
ODD, SIDE = OutputTag("odd", NUMBER), OutputTag("side", TIMED)


class Parted(ProcessFunction):
    """Emits even numbers, and odd ones to the side."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield (ODD, (value.key, value.n)) if value.n % 2 else (value.key, value.n)


class ToTheSide(AtTheirTime):
    """Emits by timers, and to the side what is divisible by three; each element to the side when it comes."""

    def open(self, runtime_context: Any) -> None:
        self.waiting = runtime_context.get_list_state(ListStateDescriptor("waiting", TIMED))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        ctx.output(SIDE, (value.key, -1, value.n))
        self.waiting.add((value.key, value.n, value.n))
        ctx.timer_service().register_event_time_timer(value.n)
        return iter(())

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        for row in super().on_timer(timestamp, ctx):
            yield row if timestamp % 3 else (SIDE, row)


@settings(**FEW)
@given(rows=numbers, shape=shapes, fails=fails)
def test_side_outputs_have_what_functions_and_timers_put_there(
    tmp_path_factory: Any, rows: Any, shape: dict[str, int], fails: list[int]
) -> None:
    def build(stream: DataStream, out: Path) -> None:
        parted = stream.process(Parted(), NUMBER).uid("parted")
        odd = parted.get_side_output(ODD)
        odd.sink_to(ParquetFileSink(out / "odd")).uid("odd")
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(10))
        strategy = strategy.with_timestamp_assigner(lambda row, _: row.n)
        timed = odd.union(parted).assign_timestamps_and_watermarks(strategy).uid("times")
        fired = timed.key_by("key").process(ToTheSide(), TIMED).uid("fired")
        fired.sink_to(ParquetFileSink(out / "fired")).uid("fired-out")
        fired.get_side_output(SIDE).sink_to(ParquetFileSink(out / "side")).uid("side-out")

    place = tmp_path_factory.mktemp("sides")
    real_time, epochs = run_both(place, rows, build, fails, **shape)
    expected = {
        "odd": [row for row in rows if row[1] % 2],
        "fired": [(key, n, n) for key, n in rows if n % 3],
        "side": [*((key, -1, n) for key, n in rows), *((key, n, n) for key, n in rows if n % 3 == 0)],
    }
    for name, wanted in expected.items():
        assert sorted(ledger.read(real_time / name)) == sorted(ledger.read(epochs / name)) == sorted(wanted), name


def lines_of(out: Path) -> list[list[dict[str, Any]]]:
    """Return the lines of each file that readers see."""
    files = [file for file in sorted(out.glob("**/*.json")) if ".holdfast" not in file.parts]
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


@settings(**FEW)
@given(rows=numbers, shape=shapes, fails=fails)
def test_files_have_each_row_once(tmp_path_factory: Any, rows: Any, shape: dict[str, int], fails: list[int]) -> None:
    flat = BucketAssigner.base_path_bucket_assigner()
    json_files = OutputFileConfig("part", ".json")

    def build(stream: DataStream, out: Path) -> None:
        counted = stream.key_by("key").process(Numbered(), NUMBER).uid("count")
        lines = FileSink.for_row_format(out / "lines", Encoder.json_encoder()).with_bucket_assigner(flat)
        counted.sink_to(lines.with_output_file_config(json_files).build()).uid("lines")
        rolled = FileSink.for_row_format(out / "rolled", Encoder.json_encoder()).with_bucket_assigner(flat)
        rolled.with_rolling_policy(RollingPolicy.default_rolling_policy(part_size=1))
        counted.sink_to(rolled.with_output_file_config(json_files).build()).uid("rolled")
        columns = FileSink.for_bulk_format(out / "columns", BulkWriterFactory.parquet())
        columns.with_bucket_assigner(BucketAssigner.column_bucket_assigner(["key"]))
        counted.sink_to(columns.with_output_file_config(OutputFileConfig("part", ".parquet")).build()).uid("columns")

    place = tmp_path_factory.mktemp("files")
    real_time, epochs = run_both(place, rows, build, fails, **shape)
    counts: dict[int, int] = defaultdict(int)
    expected = []
    for key, _ in rows:
        counts[key] += 1
        expected.append((key, counts[key]))
    for out in (real_time, epochs):
        for name in ("lines", "rolled"):
            found = [(line["key"], line["n"]) for lines in lines_of(out / name) for line in lines]
            assert sorted(found) == sorted(expected), (out.name, name)
        buckets = [
            (int(file.parent.name.removeprefix("key=")), n)
            for file in (out / "columns").glob("*/*.parquet")
            for n in pq.read_table(file, partitioning=None).column("n").to_pylist()
        ]
        assert sorted(buckets) == sorted(expected)


def test_a_file_ends_when_it_is_large_enough_long_before_the_checkpoint(tmp_path: Path) -> None:
    def build(stream: DataStream) -> None:
        for name, size in (("small", 1), ("large", 1_000_000)):
            sink = FileSink.for_row_format(tmp_path / name, Encoder.json_encoder())
            sink.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
            sink.with_output_file_config(OutputFileConfig("part", ".json"))
            stream.sink_to(sink.with_rolling_policy(RollingPolicy.default_rolling_policy(size)).build()).uid(name)

    rows = [(n % 4, n) for n in range(30)]
    source = Partitions(str(tmp_path), [rows])
    client = start("real-time", build, source, NUMBER, tmp_path / "job", {"execution.checkpointing.interval": "1 h"})
    until(lambda: source.is_read)
    client.trigger_checkpoint().result(60)
    client.stop()
    client.await_termination()
    small, large = lines_of(tmp_path / "small"), lines_of(tmp_path / "large")
    for files in (small, large):
        assert sorted((line["key"], line["n"]) for lines in files for line in lines) == sorted(rows)
    assert len(large) == 1
    assert len(small) > 3
