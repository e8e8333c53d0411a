"""Windows without keys, and what users write themselves: triggers that merge, assigners that merge, evictors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.common import Time
from holdfast.datastream import (
    AggregateFunction,
    OutputTag,
    ParquetFileSink,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
)
from holdfast.datastream.functions import AllWindowFunction
from holdfast.datastream.state import ReducingStateDescriptor, ValueStateDescriptor
from holdfast.datastream.window import (
    CountEvictor,
    CountTrigger,
    DeltaEvictor,
    DynamicEventTimeSessionWindows,
    EventTimeSessionWindows,
    EventTimeTrigger,
    Evictor,
    GlobalWindows,
    MergingWindowAssigner,
    NeverTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    SlidingProcessingTimeWindows,
    TimeEvictor,
    TimeWindow,
    TimeWindowSerializer,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
)
from holdfast.testing import EpochProgram, OperatorHarness
from tests.examples import examples
from tests.stories import ledger
from tests.stories.local import Program, epochs, run
from tests.unit.window.stories import READING, late_by
from tests.unit.window.test_window_cases import Gap, harness, numbers, spans

MS = Time.milliseconds
BACKENDS = pytest.mark.parametrize("backend", ["hashmap", "columnar"])
LATE = OutputTag("late", READING)
BATCHES = [
    [("a", 1, 1), ("b", 12, 2)],
    [("a", 4, 3)],
    [("b", 31, 4)],
    [("a", 3, 5), ("a", 33, 6)],
    [("b", 60, 7)],
    [("a", 2, 8)],
]


class Summed(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator + value.n

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a + acc_b


class Bounds(AllWindowFunction[Any, Any, TimeWindow]):
    def apply(self, window: TimeWindow, inputs: Any) -> Any:
        yield window.start, window.end, sum(getattr(one, "n", one) for one in inputs), 0, 0


class Counted(ProcessAllWindowFunction[Any, Any, TimeWindow]):
    """How often a window was evaluated, and how often any; late firings go to a side output, too."""

    again = OutputTag("again", "start bigint")

    def process(self, context: Any, elements: Any) -> Any:
        window = context.window_state().get_state(ValueStateDescriptor("times", "bigint"))
        every = context.global_state().get_state(ValueStateDescriptor("all times", "bigint"))
        for state in (window, every):
            state.update((state.value() or 0) + 1)
        if window.value() > 1:
            context.output(self.again, (context.window().start,))
        total = sum(getattr(one, "n", one) for one in elements)
        yield context.window().start, context.window().end, total, window.value(), every.value()

    def clear(self, context: Any) -> None:
        context.window_state().get_state(ValueStateDescriptor("times", "bigint")).clear()


OF_ALL = "starts bigint, ends bigint, n bigint, of_window bigint, of_all bigint"
WITHOUT_KEYS: dict[str, Callable[[Any], Any]] = {
    "reduce": lambda w: w.reduce(lambda a, b: (a.sensor, a.at, a.n + b.n), Bounds(), OF_ALL),
    "reduce, process": lambda w: w.reduce(lambda a, b: (a.sensor, a.at, a.n + b.n), Counted(), OF_ALL),
    "aggregate": lambda w: w.aggregate(Summed(), Bounds(), "bigint", OF_ALL),
    "aggregate, process": lambda w: w.aggregate(Summed(), Counted(), "bigint", OF_ALL),
    "apply": lambda w: w.apply(Bounds(), OF_ALL),
    "process": lambda w: w.process(Counted(), OF_ALL),
}


@BACKENDS
@pytest.mark.parametrize("form", WITHOUT_KEYS)
def test_windows_without_keys_in_each_form_with_late_elements_and_a_restart(
    form: str, backend: str, tmp_path: Path
) -> None:
    """4 comes when its window has fired and is still allowed, 2 when it has gone; a second run begins in between."""
    for batches in (BATCHES[:3], BATCHES):
        program = Program()
        stream = program.source("readings", READING).assign_timestamps_and_watermarks(late_by(0))
        windowed = stream.window_all(TumblingEventTimeWindows.of(MS(10))).allowed_lateness(MS(40))
        result = WITHOUT_KEYS[form](windowed.side_output_late_data(LATE)).uid("windows")
        result.sink_to(ParquetFileSink(tmp_path / "out")).uid("out")
        result.get_side_output(LATE).sink_to(ParquetFileSink(tmp_path / "late")).uid("late")
        result.get_side_output(Counted.again).sink_to(ParquetFileSink(tmp_path / "again")).uid("again")
        ends = batches is BATCHES
        options = {"state.backend.type": backend}
        run(program, tmp_path / "job", epochs("readings", batches), options, is_bounded=ends, parallelism=2)
    found = ledger.read(tmp_path / "out")
    # The watermark begins anew with the second run, so 3 is on time again: its window fires with the watermark.
    sums = [(0, 10, 1), (0, 10, 4), (10, 20, 2), (0, 10, 9), (30, 40, 10), (60, 70, 7)]
    assert [row[:3] for row in found] == sums
    assert ledger.read(tmp_path / "late") == [("a", 2, 8)]
    if "process" in form:
        assert [row[3:] for row in found] == [(1, 1), (2, 2), (1, 3), (3, 4), (1, 5), (1, 6)]
        assert ledger.read(tmp_path / "again") == [(0,), (0,)]


def test_the_other_built_in_triggers() -> None:
    tumbling = TumblingEventTimeWindows.of(MS(10))
    with harness(tumbling, lambda w: w.trigger(NeverTrigger()).apply(spans)) as never:
        never.process_elements([("a", 1), ("a", 2)], [1, 2])
        assert never.process_watermark(2**63 - 1) == []
    with harness(tumbling, lambda w: w.trigger(ProcessingTimeTrigger.create()).apply(spans)) as by_clock:
        by_clock.set_processing_time(5)
        by_clock.process_element(("a", 1), 1)
        assert by_clock.set_processing_time(8) == []
        assert by_clock.set_processing_time(9) == [(0, 10, [1])]
    purging = PurgingTrigger.of(EventTimeTrigger.create())
    with harness(tumbling, lambda w: w.trigger(purging).allowed_lateness(20).apply(spans)) as purged:
        purged.process_elements([("a", 1), ("a", 2)], [1, 2])
        assert purged.process_watermark(9) == [(0, 10, [1, 2])]
        assert purged.process_element(("a", 3), 3) == [(0, 10, [3])], "what has fired was thrown away"
    merging = PurgingTrigger.of(CountTrigger.of(3))
    with harness(EventTimeSessionWindows.with_gap(MS(10)), lambda w: w.trigger(merging).apply(spans)) as sessions:
        sessions.process_elements([("a", 1), ("a", 2)], [0, 15])
        assert sessions.process_element(("a", 3), 8) == [(0, 25, [1, 2, 3])], "two counts of one and the third element"
    with harness(SlidingProcessingTimeWindows.of(MS(10), MS(5), MS(2))) as sliding:
        sliding.set_processing_time(8)
        sliding.process_element(("a", 1))
        assert sliding.set_processing_time(99) == [(2, 12, [1]), (7, 17, [1])]


class Odd(Evictor[Any, Any]):
    """A user's own: odd numbers are not seen, and after each look only the last element stays."""

    def evict_before(self, elements: Any, size: int, window: Any, evictor_context: Any) -> None:
        assert size == len(elements) and evictor_context.get_current_watermark() < 2**63
        elements[:] = [one for one in elements if one.value[1] % 2 == 0]

    def evict_after(self, elements: Any, size: int, window: Any, evictor_context: Any) -> None:
        assert all(one.has_timestamp() and one.get_value()[1] == one.get_timestamp() for one in elements)
        del elements[:-1]


@BACKENDS
def test_evictors_before_and_after_the_window_is_evaluated(backend: str) -> None:
    def fired(evictor: Any) -> list[Any]:
        finish: Any = lambda w: w.trigger(CountTrigger.of(1)).evictor(evictor).apply(numbers)  # noqa: E731
        with harness(GlobalWindows.create(), finish, backend=backend) as everything:
            for at, number in enumerate((1, 2, 9, 10, 30)):
                everything.process_element(("a", number), number)
                everything.snapshot(at + 1)
            return list(everything.output)

    delta: Any = lambda one, last: last[1] - one[1]  # noqa: E731 - it is one line
    assert fired(CountEvictor.of(0)) == [[], [], [], [], []]
    assert fired(CountEvictor.of(0, True)) == [[1], [2], [9], [10], [30]]
    assert fired(TimeEvictor.of(MS(8), True)) == [[1], [1, 2], [1, 2, 9], [2, 9, 10], [9, 10, 30]]
    assert fired(DeltaEvictor.of(8, delta, True)) == [[1], [1, 2], [1, 2, 9], [2, 9, 10], [9, 10, 30]]
    assert fired(Odd()) == [[], [2], [2], [2, 10], [10, 30]]


class FireAtTen(Trigger[Any, TimeWindow]):
    """A user's own that merges: fires when the numbers of a window are ten together, and at its end."""

    total = ReducingStateDescriptor("total", lambda a, b: a + b, "bigint")

    def on_element(self, element: Any, timestamp: int, window: TimeWindow, ctx: Any) -> TriggerResult:
        ctx.register_event_time_timer(window.max_timestamp())
        state = ctx.get_partitioned_state(self.total)
        state.add(element[1])
        if state.get() < 10:
            return TriggerResult.CONTINUE
        state.clear()
        return TriggerResult.FIRE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: TimeWindow, ctx: Any) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: TimeWindow, ctx: Any) -> None:
        ctx.merge_partitioned_state(self.total)
        ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window: TimeWindow, ctx: Any) -> None:
        ctx.get_partitioned_state(self.total).clear()
        ctx.delete_event_time_timer(window.max_timestamp())


@BACKENDS
def test_a_trigger_of_ones_own_keeps_its_state_where_windows_merge(backend: str) -> None:
    finish: Any = lambda w: w.trigger(FireAtTen()).apply(spans)  # noqa: E731 - it is one line
    with harness(EventTimeSessionWindows.with_gap(MS(10)), finish, backend=backend, amnesia=True) as sessions:
        sessions.process_elements([("a", 4), ("a", 5)], [0, 15])
        sessions.snapshot(1)
        assert sessions.process_element(("a", 1), 8) == [(0, 25, [4, 5, 1])], "4, 5 and 1 of two sessions and the third"
        sessions.snapshot(2)
        assert sessions.process_element(("a", 9), 20) == []
        assert sessions.process_watermark(29) == [(0, 30, [4, 5, 1, 9])]
        assert sessions.process_watermark(99) == []


class Adjacent(MergingWindowAssigner[Any, TimeWindow]):
    """A user's own: tens that touch are one window."""

    def assign_windows(self, element: Any, timestamp: int, context: Any) -> Collection[TimeWindow]:
        start = TimeWindow.get_window_start_with_offset(timestamp, 0, 10)
        return [TimeWindow(start, start + 10)]

    def merge_windows(self, windows: Any, callback: Any) -> None:
        ordered = sorted(windows, key=lambda window: window.start)
        group = ordered[:1]
        for window in ordered[1:]:
            if window.start <= group[-1].end:
                group.append(window)
                continue
            self._merged(group, callback)
            group = [window]
        self._merged(group, callback)

    @staticmethod
    def _merged(group: list[TimeWindow], callback: Any) -> None:
        if len(group) > 1:
            callback.merge(group, TimeWindow(group[0].start, group[-1].end))

    def get_default_trigger(self, env: Any) -> Trigger[Any, TimeWindow]:
        return EventTimeTrigger.create()

    def get_window_serializer(self) -> TimeWindowSerializer:
        return TimeWindowSerializer()

    def is_event_time(self) -> bool:
        return True


def test_an_assigner_of_ones_own_may_merge_windows() -> None:
    with harness(Adjacent()) as own:
        own.process_elements([("a", 1), ("a", 2), ("b", 3), ("a", 4)], [1, 25, 5, 47])
        assert own.process_element(("a", 5), 12) == []
        assert own.process_watermark(29) == [(0, 10, [3]), (0, 30, [1, 2, 5])]
        assert own.process_watermark(49) == [(40, 50, [4])]


class OfKeyAndWindow(ProcessWindowFunction[Any, Any, str, Any]):
    def process(self, key: str, context: Any, elements: Any) -> Any:
        state = context.global_state().get_state(ValueStateDescriptor("windows", "bigint"))
        state.update((state.value() or 0) + 1)
        yield key, context.window().max_timestamp(), len(list(elements)), state.value()


def test_count_and_global_windows_with_process_have_state_of_their_key() -> None:
    keyed = EpochProgram().source("in").key_by(lambda element: element[0])
    operator: Any = keyed.count_window(2).process(OfKeyAndWindow())._node.operator.function  # type: ignore[attr-defined]
    with OperatorHarness(operator, key_by=lambda element: element[0]) as counted:
        for number in range(5):
            counted.process_element(("a", number))
            counted.snapshot(number + 1)
        counted.process_elements([("b", 0), ("b", 1)])
        assert [(key, size, nth) for key, _, size, nth in counted.output] == [("a", 2, 1), ("a", 2, 2), ("b", 2, 1)]


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    elements=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 12), st.integers(0, 80)), max_size=25),
    cuts=st.lists(st.integers(0, 25), max_size=5),
    backend=st.sampled_from(["hashmap", "columnar"]),
)
def test_sessions_whose_elements_have_gaps_of_their_own_do_not_depend_on_epochs(
    elements: list[tuple[str, int, int]], cuts: list[int], backend: str
) -> None:
    """In any order, before the watermark; two spans that only touch are one session, as in Flink."""
    with harness(DynamicEventTimeSessionWindows.with_dynamic_gap(Gap()), backend=backend) as sessions:
        bounds = [0, *sorted(min(cut, len(elements)) for cut in cuts), len(elements)]
        for number, (start, end) in enumerate(itertools.pairwise(bounds)):
            for key, gap, at in elements[start:end]:
                sessions.process_element((key, gap), at)
            sessions.snapshot(number + 1)
        sessions.process_watermark(2**63 - 1)
        found = sorted((start, end, sorted(gaps)) for start, end, gaps in sessions.output)
    expected: list[tuple[int, int, list[int]]] = []
    for key in "ab":
        whole: list[tuple[int, int, list[int]]] = []
        for at, gap in sorted((at, gap) for who, gap, at in elements if who == key):
            if whole and at <= whole[-1][1]:
                start, end, gaps = whole[-1]
                whole[-1] = (start, max(end, at + gap), sorted([*gaps, gap]))
            else:
                whole.append((at, at + gap, [gap]))
        expected += whole
    assert found == sorted(expected)
