"""Whole jobs with windows: without keys, one behind another, over restarts and rescalings, by the clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Time, Types
from holdfast.datastream import (
    CheckpointedFunction,
    OutputTag,
    ParquetFileSink,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WindowFunction,
)
from holdfast.datastream.window import (
    CountAggregate,
    CountTrigger,
    DeltaTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    SlidingEventTimeWindows,
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from holdfast.errors import ConfigurationError
from holdfast.kernel.clock import ManualClock
from holdfast.runtime.graph.compiler import compile_graph
from holdfast.testing.epoch_runner import LocalEngine
from tests.stories import ledger
from tests.stories.local import Program, epochs, run
from tests.unit.window.stories import READING, RESULT, job, late_by, results, summed

MS = Time.milliseconds
BATCHES = [
    [("a", 1, 1), ("b", 12, 2)],
    [("a", 25, 3), ("b", 3, 4)],
    [],
    [("b", 60, 5), ("a", 58, 6)],
    [("a", 61, 7)],
]


class Greatest(ProcessAllWindowFunction[Any, Any, TimeWindow]):
    """The sensor with the most in a window, and the window's end."""

    def process(self, context: Any, elements: Any) -> Any:
        best = max(elements, key=lambda one: (one.n, one.sensor))
        yield best.sensor, context.window().start, context.window().end, best.n, len(list(elements))


def test_windows_behind_windows_go_by_the_end_of_the_first_ones(place: Path) -> None:
    """The most in each stretch of thirty milliseconds, of the sums of each sensor in ten."""

    def windows(stream: Any) -> Any:
        sums = stream.key_by("sensor").window(TumblingEventTimeWindows.of(MS(10))).apply(summed, RESULT).uid("sums")
        return sums.window_all(TumblingEventTimeWindows.of(MS(30))).process(Greatest(), RESULT)

    found = results(windows, BATCHES, place, bound=30)
    assert found == [("a", 60, 90, 7, 2), ("b", 0, 30, 4, 4)] or found == [
        ("a", 30, 60, 6, 1), ("a", 60, 90, 7, 2), ("b", 0, 30, 4, 4),
    ]  # fmt: skip


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("assigner", [TumblingEventTimeWindows.of(MS(10)), EventTimeSessionWindows.with_gap(MS(10))])
def test_windows_of_event_time_refuse_what_windows_emit_that_no_time_ends(
    place: Path, assigner: Any, by_columns: bool
) -> None:
    program = Program()
    stream = program.source("readings", READING).assign_timestamps_and_watermarks(late_by(0)).key_by("sensor")
    counted = stream.count_window(2).reduce(lambda one, other: other).uid("count").key_by("sensor").window(assigner)
    windows = counted.aggregate_batches(n=CountAggregate()) if by_columns else counted.apply(summed, RESULT)
    windows.uid("windows").sink_to(ParquetFileSink(place / "out")).uid("out")
    with pytest.raises(ConfigurationError, match="the end of time, as count windows"):
        run(program, place / "job", epochs("readings", [[("a", 1, 1), ("a", 2, 1)]]), is_bounded=True)


def test_windows_without_keys_have_one_subtask_whatever_the_job_has(place: Path) -> None:
    def windows(stream: Any) -> Any:
        return stream.window_all(SlidingEventTimeWindows.of(MS(40), MS(20))).apply(
            lambda window, readings: [("all", window.start, window.end, sum(one.n for one in readings), len(readings))],
            RESULT,
        )

    program = job(windows, 30, place)
    plan = compile_graph(program.get_stream_graph(), 4, parallelism={"": 3})
    assert {step.uid: step.parallelism for step in plan.keyed_steps()} == {"windows": 1}
    with pytest.raises(ConfigurationError, match="parallelism 3 of 'windows' is above the max parallelism 1"):
        compile_graph(program.get_stream_graph(), 4, parallelism={"windows": 3})
    run(program, place / "job", epochs("readings", BATCHES), is_bounded=True, parallelism=3)
    assert sorted(ledger.read(place / "out")) == [
        ("all", -20, 20, 7, 3), ("all", 0, 40, 10, 4), ("all", 20, 60, 9, 2), ("all", 40, 80, 18, 3),
        ("all", 60, 100, 12, 2),
    ]  # fmt: skip


class Pair(WindowFunction[Any, Any, str, Any]):
    """As in PyFlink's example: generic, and returns a list."""

    def apply(self, key: str, window: Any, inputs: Any) -> Any:
        return [(key, window.id, window.id, sum(one.n for one in inputs), 2)]


def test_windows_of_so_many_elements_need_no_times(place: Path) -> None:
    found = results(lambda stream: stream.key_by("sensor").count_window(2).apply(Pair(), RESULT), BATCHES, place,
                    stamped=False, source_tasks=1)  # fmt: skip
    assert found == [("a", 0, 0, 4, 2), ("a", 1, 1, 13, 2), ("b", 0, 0, 6, 2)]


def test_processing_time_goes_from_epoch_to_epoch_and_a_timer_due_begins_one(place: Path) -> None:
    clock = ManualClock(1_000)

    class Hourly(LocalEngine):
        def execute(self, epoch: Any, epoch_input: Any) -> Any:
            clock.advance(4)
            return super().execute(epoch, epoch_input)

    program = Program()
    windowed = program.source("readings", READING).key_by("sensor").window(TumblingProcessingTimeWindows.of(MS(10)))
    windowed.apply(summed, RESULT).uid("windows").sink_to(ParquetFileSink(place / "out")).uid("out")
    batches = [[("a", 0, number)] for number in range(1, 7)]
    run(program, place / "job", epochs("readings", batches), clock=clock, engine=Hourly)
    # Epochs at 1000, 1004, 1008, ..., and one of its own for a timer that is due before there is more input.
    found = sorted(ledger.read(place / "out"))
    assert found[0] == ("a", 1000, 1010, 6, 3)
    assert [start for _, start, _, _, _ in found] == [1000, 1010, 1020]
    assert sum(n for *_, n, _ in found) == 21


def test_sessions_go_on_over_a_restart(place: Path) -> None:
    """Three sessions of one sensor, of which the first two are joined by a reading of the second run."""
    windowed: Any = lambda stream: (  # noqa: E731 - it is one expression
        stream.key_by("sensor")
        .window(EventTimeSessionWindows.with_gap(MS(10)))
        .reduce(lambda a, b: (a.sensor, min(a.at, b.at), a.n + b.n))
    )
    first = [[("a", 0, 1), ("a", 15, 2), ("b", 3, 8)], [("a", 40, 4)]]
    second = [*first, [("a", 8, 16)]]
    results(windowed, first, place, bound=100, is_bounded=False, parallelism=3)
    assert results(windowed, second, place, bound=100, parallelism=1) == [("a", 0, 19), ("a", 40, 4), ("b", 3, 8)]


class Saves(WindowFunction[Any, Any, Any, Any], CheckpointedFunction):
    def apply(self, key: Any, window: Any, inputs: Any) -> Any:
        return ()

    def initialize_state(self, context: Any) -> None:
        raise AssertionError

    def snapshot_state(self, context: Any) -> None:
        raise AssertionError


def test_what_a_window_sends_aside_when_it_goes_has_its_time(place: Path) -> None:
    gone = OutputTag("gone", "sensor string, starts bigint")

    class Saying(ProcessWindowFunction[Any, Any, Any, Any]):
        def process(self, key: Any, context: Any, elements: Any) -> Any:
            yield (key, context.window().start)

        def clear(self, context: Any) -> None:
            context.output(gone, ("gone", context.window().start))

    program = Program()
    stream = program.source("readings", READING).assign_timestamps_and_watermarks(late_by(0)).key_by("sensor")
    tens = TumblingEventTimeWindows.of(Time.milliseconds(10))
    aside = stream.window(tens).process(Saying(), "sensor string, starts bigint").uid("windows").get_side_output(gone)
    counted = (
        aside.key_by("sensor")
        .window(tens)
        .apply(
            lambda sensor, window, rows: [(window.start, sorted(row.starts for row in rows))],
            "starts bigint, of array<bigint>",
        )
    )
    counted.uid("again").sink_to(ParquetFileSink(place / "out")).uid("out")
    batches = [[("a", 1, 1), ("b", 2, 1)], [("a", 12, 1)], [("a", 40, 1)]]
    run(program, place / "job", epochs("readings", batches), is_bounded=True)
    assert ledger.read(place / "out") == [(0, [0, 0]), (10, [10]), (40, [40])]


def test_what_does_not_go_together_is_refused_where_it_is_written() -> None:
    stream = Program().source("readings", READING).assign_timestamps_and_watermarks(late_by(0))
    keyed = stream.key_by("sensor")
    tumbling = TumblingEventTimeWindows.of(MS(10))
    wrong: list[tuple[Any, str]] = [
        (lambda: keyed.window(TumblingEventTimeWindows), "an instance of WindowAssigner"),
        (lambda: TumblingEventTimeWindows.of(MS(0)), "at least 1 ms, not 0 ms"),
        (lambda: TumblingEventTimeWindows.of("10 s"), r"Time.seconds\(10\).*not '10 s'"),
        (lambda: TumblingEventTimeWindows.of(MS(5), MS(-5)), "offset must be less than the size"),
        (lambda: SlidingEventTimeWindows.of(MS(5), MS(2), MS(2)), "offset must be less than the slide"),
        (lambda: EventTimeSessionWindows.with_gap(MS(-1)), "at least 1 ms"),
        (lambda: keyed.count_window(0), "at least 1, not 0"),
        (lambda: CountTrigger.of(0), "at least 1, not 0"),
        (lambda: keyed.window(tumbling).trigger(CountTrigger), "an instance of Trigger"),
        (lambda: keyed.window(tumbling).evictor(3), "an instance of Evictor"),
        (
            lambda: keyed.window(EventTimeSessionWindows.with_gap(1)).trigger(DeltaTrigger.of(1, lambda a, b: 1)),
            r"can_merge\(\) is false",
        ),
        (lambda: keyed.window(tumbling).allowed_lateness(-1), "at least 0 ms"),
        (lambda: keyed.window(GlobalWindows.create()).allowed_lateness(1), "nothing is late for them"),
        (lambda: keyed.window(tumbling).side_output_late_data("late"), "takes an OutputTag"),
        (lambda: keyed.window(tumbling).apply(Greatest()), "instance of WindowFunction"),
        (lambda: keyed.window(tumbling).process(Pair()), "instance of ProcessWindowFunction"),
        (lambda: keyed.window(tumbling).apply(Pair), "instance of WindowFunction"),
        (lambda: stream.window_all(tumbling).apply(Pair()), "instance of AllWindowFunction"),
        (lambda: keyed.window(tumbling).reduce(lambda a: a), "called with 2 arguments"),
        (lambda: keyed.window(tumbling).reduce(lambda a, b: a, lambda key, window, one: one), "instance of WindowFun"),
        (lambda: keyed.window(tumbling).aggregate(lambda a, b: a), "needs an AggregateFunction"),
        (lambda: keyed.window(tumbling).apply(Saves()), "instead of CheckpointedFunction"),
        (lambda: keyed.window(tumbling).apply(Pair()).get_side_output(OutputTag("a")).get_side_output(OutputTag("b")),
         r"process\(\) and windows"),
    ]  # fmt: skip
    for make, message in wrong:
        with pytest.raises(ConfigurationError, match=message):
            make()
    assert keyed.window(tumbling).get_input_type() == stream.get_type()
    assert keyed.window(tumbling).apply(Pair(), Types.STRING()).get_name() == "TumblingEventTimeWindows"
