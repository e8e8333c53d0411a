"""Windows of event time against plain models: whatever epochs, orders, failures and rescalings there are."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.common import Time
from holdfast.datastream import AggregateFunction, OutputTag, ParquetFileSink, ProcessWindowFunction
from holdfast.datastream.stream.data_stream import DataStream
from holdfast.datastream.window import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowAssigner,
)
from holdfast.errors import EngineError
from tests.examples import examples
from tests.stories import ledger
from tests.stories.local import RESTARTING, Program, epochs, run
from tests.unit.window.stories import READING, RESULT, Reading, job, late_by, summed

Span = tuple[int, int]
BOUND = 15


class Total(AggregateFunction):
    """Sum and number of readings."""

    def create_accumulator(self) -> Any:
        return (0, 0)

    def add(self, value: Any, accumulator: Any) -> Any:
        return (accumulator[0] + value.n, accumulator[1] + 1)

    def get_result(self, accumulator: Any) -> Any:
        return tuple(accumulator)

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return (acc_a[0] + acc_b[0], acc_a[1] + acc_b[1])


class WithWindow(ProcessWindowFunction[Any, Any, str, Any]):
    """Adds key and window to the one result."""

    def process(self, key: str, context: Any, elements: Any) -> Any:
        (result,) = elements
        yield key, context.window().start, context.window().end, *result


ASSIGNERS: dict[str, WindowAssigner[Any, Any]] = {
    "tumbling": TumblingEventTimeWindows.of(Time.milliseconds(10), Time.milliseconds(3)),
    "sliding": SlidingEventTimeWindows.of(Time.milliseconds(20), Time.milliseconds(8), Time.milliseconds(-2)),
    "gaps": SlidingEventTimeWindows.of(Time.milliseconds(4), Time.milliseconds(10)),
    "sessions": EventTimeSessionWindows.with_gap(Time.milliseconds(9)),
}


def spans_of(name: str, at: int) -> list[Span]:
    """The windows of a time, found by trying all of them."""
    size, slide, offset = {"tumbling": (10, 10, 3), "sliding": (20, 8, -2), "gaps": (4, 10, 0)}[name]
    starts = [start for start in range(-400, 800) if (start - offset) % slide == 0]
    return [(start, start + size) for start in starts if start <= at < start + size]


def whole_windows(name: str, readings: Sequence[Reading]) -> list[tuple[Any, ...]]:
    """All windows of readings that all are on time."""
    found: dict[tuple[str, Span], list[int]] = defaultdict(list)
    if name == "sessions":
        for sensor in "abc":
            times = sorted((at, n) for who, at, n in readings if who == sensor)
            session: list[tuple[int, int]] = []
            for at, n in times:
                if session and at > session[-1][0] + 9:
                    found[sensor, (session[0][0], session[-1][0] + 9)] = [n for _, n in session]
                    session = []
                session.append((at, n))
            if session:
                found[sensor, (session[0][0], session[-1][0] + 9)] = [n for _, n in session]
    else:
        for sensor, at, n in readings:
            for span in spans_of(name, at):
                found[sensor, span].append(n)
    return sorted((sensor, *span, sum(all_n), len(all_n)) for (sensor, span), all_n in found.items())


def windows_of(name: str, how: str) -> Callable[[DataStream], DataStream]:
    """The same windows, computed in three ways."""

    def windows(stream: DataStream) -> DataStream:
        windowed = stream.key_by("sensor").window(ASSIGNERS[name])
        if how == "apply":
            return windowed.apply(summed, RESULT)
        if how == "aggregate":
            return windowed.aggregate(Total(), WithWindow(), "sum bigint, count bigint", RESULT)
        plus = stream.map(lambda one: (one.sensor, one.n, 1), "sensor string, n bigint, count bigint")
        return (
            plus.key_by("sensor")
            .window(ASSIGNERS[name])
            .reduce(lambda a, b: (a.sensor, a.n + b.n, a.count + b.count), Unpacked(), RESULT)
        )

    return windows


class Unpacked(ProcessWindowFunction[Any, Any, str, Any]):
    """Adds the window to the one reading."""

    def process(self, key: str, context: Any, elements: Any) -> Any:
        (one,) = elements
        yield key, context.window().start, context.window().end, one.n, one.count


@st.composite
def on_time(draw: st.DrawFn) -> list[list[Reading]]:
    """Readings out of order by less than `BOUND`, cut into epochs anywhere; no two are exactly a gap apart."""
    drawn = draw(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 100), st.integers(1, 5), st.integers(0, BOUND)))
    )
    readings = [(sensor, 2 * at, n) for sensor, at, n, _ in sorted(drawn, key=lambda one: 2 * one[1] + one[3])]
    cuts = sorted(draw(st.lists(st.integers(0, len(readings)), max_size=6)))
    return [readings[start:end] for start, end in itertools.pairwise([0, *cuts, len(readings)])]


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=on_time(),
    name=st.sampled_from(sorted(ASSIGNERS)),
    how=st.sampled_from(["apply", "aggregate", "reduce"]),
    fails=st.sets(st.integers(0, 30), max_size=3),
    stops=st.integers(0, 6),
    parallelism=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    backend=st.sampled_from(["hashmap", "columnar"]),
)
def test_windows_do_not_depend_on_epochs_orders_failures_and_rescalings(
    tmp_path_factory: Any,
    batches: list[list[Reading]],
    name: str,
    how: str,
    fails: set[int],
    stops: int,
    parallelism: tuple[int, int],
    backend: str,
) -> None:
    """The job is stopped after some epochs and goes on with another parallelism; tasks die on the way."""
    place = tmp_path_factory.mktemp("windows")
    tasks = itertools.count()

    def strike(stage: int, partition: int) -> None:
        if next(tasks) in fails:
            raise EngineError("struck")

    options = {**RESTARTING, "state.backend.type": backend}
    inputs = epochs("readings", batches)
    for before_end, subtasks in zip((True, False), parallelism, strict=True):
        program = job(windows_of(name, how), BOUND, place)
        run(
            program,
            place / "job",
            inputs[: min(stops, len(inputs) - 1)] if before_end else inputs,
            options,
            parallelism=subtasks,
            is_bounded=not before_end,
            interceptor=strike,
        )
    assert sorted(ledger.read(place / "out")) == whole_windows(name, [one for batch in batches for one in batch])


LATE = OutputTag("late", READING)


class Model:
    """Windows of event time with late elements, epoch by epoch: a plain dict of lists."""

    def __init__(self, name: str, lateness: int) -> None:
        self.name, self.lateness = name, lateness
        self.watermark = -(2**63)
        self.windows: dict[tuple[str, Span], list[int]] = {}
        self.fired: list[tuple[Any, ...]] = []
        self.late: list[Reading] = []

    def add(self, reading: Reading) -> None:
        """One reading."""
        sensor, at, n = reading
        taken = False
        spans = [(at, at + 9)] if self.name == "sessions" else spans_of(self.name, at)
        for span in spans:
            merged = self._merged(sensor, span)
            if merged[1] - 1 + self.lateness <= self.watermark:
                self.windows.pop((sensor, merged), None)
                continue
            taken = True
            self.windows.setdefault((sensor, merged), []).append(n)
            if merged[1] - 1 <= self.watermark:
                self._fire(sensor, merged)
        if not taken and at + self.lateness <= self.watermark:
            self.late.append(reading)

    def _merged(self, sensor: str, span: Span) -> Span:
        if self.name != "sessions":
            return span
        touching = [
            other for who, other in self.windows if who == sensor and span[0] <= other[1] and other[0] <= span[1]
        ]
        whole = min([span, *touching])[0], max(end for _, end in [span, *touching])
        contents = [n for other in touching for n in self.windows.pop((sensor, other))]
        if contents:
            self.windows[sensor, whole] = contents
        return whole

    def _fire(self, sensor: str, span: Span) -> None:
        contents = self.windows[sensor, span]
        self.fired.append((sensor, *span, sum(contents), len(contents)))

    def advance(self, watermark: int) -> None:
        """The end of an epoch."""
        before, self.watermark = self.watermark, max(self.watermark, watermark)
        for sensor, span in sorted(self.windows, key=lambda window: window[1][1]):
            if before < span[1] - 1 <= self.watermark:
                self._fire(sensor, span)
            if span[1] - 1 + self.lateness <= self.watermark:
                del self.windows[sensor, span]


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(
        st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60), st.integers(1, 5)), max_size=6),
        min_size=1,
        max_size=6,
    ),
    name=st.sampled_from(sorted(ASSIGNERS)),
    bound=st.sampled_from([0, 5]),
    lateness=st.sampled_from([0, 6, 25]),
)
def test_late_elements_are_fired_again_or_go_aside_as_in_the_model(
    tmp_path_factory: Any, batches: list[list[Reading]], name: str, bound: int, lateness: int
) -> None:
    """What is late is judged by the watermark that the epoch before has left; one source task, so order is known."""
    place = tmp_path_factory.mktemp("late")
    program = Program()
    stream = program.source("readings", READING).assign_timestamps_and_watermarks(late_by(bound))
    windowed = stream.key_by("sensor").window(ASSIGNERS[name]).allowed_lateness(lateness).side_output_late_data(LATE)
    fired = windowed.apply(summed, RESULT).uid("windows")
    fired.sink_to(ParquetFileSink(place / "out")).uid("out")
    fired.get_side_output(LATE).sink_to(ParquetFileSink(place / "late")).uid("late")
    run(program, place / "job", epochs("readings", batches), source_tasks=1)
    model = Model(name, lateness)
    greatest = None
    for batch in batches:
        for reading in batch:
            model.add(reading)
            greatest = reading[1] if greatest is None else max(greatest, reading[1])
        if greatest is not None:
            model.advance(greatest - bound - 1)
    assert sorted(ledger.read(place / "out")) == sorted(model.fired)
    assert sorted(ledger.read(place / "late")) == sorted(model.late)
