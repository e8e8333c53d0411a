"""Windows, joins and timers in real time, against the models of the epoch runner's tests.

Results that depend on when a watermark arrives are left out: which elements are late, and what an element finds that
comes beside a timer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.datastream import KeyedProcessFunction, ParquetFileSink
from holdfast.datastream.state import ListStateDescriptor
from tests.examples import examples
from tests.stories import ledger
from tests.stories.local import run
from tests.stories.real_time import RealTime
from tests.unit.runtime import test_interval_join, test_two_inputs, test_window_join
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
