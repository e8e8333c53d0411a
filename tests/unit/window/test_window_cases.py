"""Each assigner, trigger and evictor once, at its edges; element by element, as its rules say."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest

from holdfast.common import Time
from holdfast.datastream import OutputTag, ProcessWindowFunction
from holdfast.datastream.stream.windowed import WindowedStream
from holdfast.datastream.window import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountEvictor,
    CountTrigger,
    DeltaEvictor,
    DeltaTrigger,
    DynamicEventTimeSessionWindows,
    DynamicProcessingTimeSessionWindows,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    PurgingTrigger,
    SessionWindowTimeGapExtractor,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeEvictor,
    TimeWindow,
    TimeWindowSerializer,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
)
from holdfast.errors import UserFunctionError
from holdfast.state.descriptor import ValueStateDescriptor
from holdfast.testing import EpochProgram, OperatorHarness

MS = Time.milliseconds
Apply = Callable[[WindowedStream], Any]


def spans(key: str, window: Any, elements: Any) -> list[Any]:
    """Start, end and numbers of a window."""
    return [(window.start, window.end, [number for _, number in elements])]


def numbers(key: str, window: Any, elements: Any) -> list[Any]:
    """The numbers of a window."""
    return [[number for _, number in elements]]


def harness(assigner: Any, finish: Apply = lambda windows: windows.apply(spans), **settings: Any) -> OperatorHarness:
    """Runs what a program would run for elements (key, number)."""
    stream = EpochProgram().source("in").key_by(lambda element: element[0]).window(assigner)
    operator = finish(stream)._node.operator.function
    return OperatorHarness(operator, key_by=lambda element: element[0], **settings)


def test_tumbling_and_sliding_windows_of_processing_time_end_when_the_clock_passes_them() -> None:
    with harness(TumblingProcessingTimeWindows.of(MS(10), MS(4))) as tumbling:
        tumbling.set_processing_time(5)
        tumbling.process_element(("a", 1))
        assert tumbling.set_processing_time(12) == []
        tumbling.process_element(("a", 2))
        assert tumbling.set_processing_time(13) == [(4, 14, [1, 2])]
        assert tumbling.set_processing_time(99) == []
    with harness(SlidingProcessingTimeWindows.of(MS(10), MS(5))) as sliding:
        sliding.set_processing_time(7)
        sliding.process_element(("a", 1))
        assert sliding.set_processing_time(50) == [(0, 10, [1]), (5, 15, [1])]


def test_sessions_of_processing_time_and_with_gaps_of_their_own() -> None:
    with harness(ProcessingTimeSessionWindows.with_gap(MS(10))) as sessions:
        for now in (1, 8):
            sessions.set_processing_time(now)
            sessions.process_element(("a", now))
        assert sessions.set_processing_time(16) == []
        assert sessions.set_processing_time(17) == [(1, 18, [1, 8])]
    with harness(ProcessingTimeSessionWindows.with_dynamic_gap(lambda element: element[1])) as dynamic:  # type: ignore[arg-type]
        dynamic.set_processing_time(0)
        dynamic.process_element(("a", 3))
        dynamic.process_element(("b", 7))
        assert dynamic.set_processing_time(5) == [(0, 3, [3])]
        assert dynamic.set_processing_time(6) == [(0, 7, [7])]
    assert isinstance(
        ProcessingTimeSessionWindows.with_dynamic_gap(Gap()),
        DynamicProcessingTimeSessionWindows,
    )


class Gap(SessionWindowTimeGapExtractor):
    def extract(self, element: Any) -> int:
        return element[1]  # type: ignore[no-any-return]


def test_a_session_whose_element_covers_exactly_what_there_is_keeps_its_contents() -> None:
    """Two elements have made one session of [0, 20); a third one is that very window by itself."""
    with harness(EventTimeSessionWindows.with_dynamic_gap(Gap())) as sessions:
        sessions.process_element(("a", 10), 0)
        sessions.process_element(("a", 11), 9)
        sessions.process_element(("a", 20), 0)
        assert sessions.process_watermark(19) == [(0, 20, [10, 11, 20])]
    wrong = harness(DynamicEventTimeSessionWindows.with_dynamic_gap(Gap()))
    with wrong, pytest.raises(UserFunctionError, match="at least 1 ms, not 0"):
        wrong.process_element(("a", 0), 0)


def test_a_late_element_joins_two_sessions_and_brings_them_together_again() -> None:
    with harness(EventTimeSessionWindows.with_gap(MS(10)), lambda w: w.allowed_lateness(50).apply(spans)) as sessions:
        sessions.process_elements([("a", 1), ("a", 2)], [0, 15])
        assert sessions.process_watermark(30) == [(0, 10, [1]), (15, 25, [2])]
        assert sessions.process_element(("a", 3), 8) == [(0, 25, [1, 2, 3])]
        assert sessions.process_watermark(73) == []
        assert sessions.process_element(("a", 4), 8) == [(0, 25, [1, 2, 3, 4])]
        assert sessions.process_watermark(74) == []
        assert sessions.process_element(("a", 5), 8) == []


def test_windows_of_so_many_elements() -> None:
    program = EpochProgram()
    keyed = program.source("in").key_by(lambda element: element[0])
    for windows, expected in (
        (keyed.count_window(2), [[0, 1], [2, 3]]),
        (keyed.count_window(3, 2), [[0, 1, 2], [2, 3, 4]]),
        (keyed.count_window(1, 3), [[0], [3]]),
    ):
        operator = windows.apply(numbers)._node.operator.function  # type: ignore[attr-defined]
        with OperatorHarness(operator, key_by=lambda element: element[0]) as harness_:
            for number in range(5):
                harness_.process_element(("a", number))
                harness_.snapshot(number + 1)
            assert harness_.output == expected


def test_global_windows_fire_by_the_trigger_that_they_are_given() -> None:
    def fired(finish: Apply) -> list[Any]:
        with harness(GlobalWindows.create(), finish) as everything:
            for number in (1, 2, 9, 10, 30):
                everything.process_element(("a", number), number)
            everything.process_watermark(2**63 - 1)
            return list(everything.output)

    delta = DeltaTrigger.of(5, lambda before, now: now[1] - before[1])
    last = DeltaEvictor.of(8, lambda one, last: last[1] - one[1])
    assert fired(lambda w: w.apply(numbers)) == []
    assert fired(lambda w: w.trigger(CountTrigger.of(2)).apply(numbers)) == [[1, 2], [1, 2, 9, 10]]
    assert fired(lambda w: w.trigger(PurgingTrigger.of(CountTrigger.of(2))).apply(numbers)) == [[1, 2], [9, 10]]
    assert fired(lambda w: w.trigger(delta).apply(numbers)) == [[1, 2, 9], [1, 2, 9, 10, 30]]
    each = CountTrigger.of(1)
    assert fired(lambda w: w.trigger(each).evictor(CountEvictor.of(2)).apply(numbers)) == [
        [1], [1, 2], [2, 9], [9, 10], [10, 30],
    ]  # fmt: skip
    assert fired(lambda w: w.trigger(each).evictor(CountEvictor.of(1, True)).apply(numbers)) == [
        [1], [1, 2], [2, 9], [9, 10], [10, 30],
    ]  # fmt: skip
    assert fired(lambda w: w.trigger(each).evictor(TimeEvictor.of(MS(8))).apply(numbers)) == [
        [1], [1, 2], [2, 9], [9, 10], [30],
    ]  # fmt: skip
    assert fired(lambda w: w.trigger(each).evictor(last).apply(numbers)) == [[1], [1, 2], [2, 9], [9, 10], [30]]
    plus: Callable[[Any, Any], Any] = lambda a, b: ("a", a[1] + b[1])  # noqa: E731 - it is one line
    two = CountEvictor.of(2)
    assert fired(lambda w: w.trigger(each).evictor(two).reduce(plus)) == [
        ("a", 1), ("a", 3), ("a", 11), ("a", 19), ("a", 40),
    ]  # fmt: skip


def test_triggers_that_fire_at_intervals() -> None:
    every = ContinuousEventTimeTrigger.of(MS(10))
    with harness(TumblingEventTimeWindows.of(MS(25)), lambda w: w.trigger(every).apply(spans)) as by_event:
        by_event.process_elements([("a", 1), ("a", 2)], [3, 13])
        assert by_event.process_watermark(12) == [(0, 25, [1, 2])]
        by_event.process_element(("a", 3), 20)
        assert by_event.process_watermark(20) == [(0, 25, [1, 2, 3])]
        assert by_event.process_watermark(24) == [(0, 25, [1, 2, 3])]
        assert by_event.process_watermark(90) == []
    clock = ContinuousProcessingTimeTrigger.of(MS(10))
    with harness(TumblingProcessingTimeWindows.of(MS(25)), lambda w: w.trigger(clock).apply(spans)) as by_clock:
        by_clock.set_processing_time(3)
        by_clock.process_element(("a", 1))
        assert by_clock.set_processing_time(10) == [(0, 25, [1])]
        assert by_clock.set_processing_time(19) == []
        assert by_clock.set_processing_time(20) == [(0, 25, [1])]
        assert by_clock.set_processing_time(30) == [(0, 25, [1])]
        assert by_clock.set_processing_time(60) == []
    merged = ContinuousEventTimeTrigger.of(MS(4))
    with harness(EventTimeSessionWindows.with_gap(MS(10)), lambda w: w.trigger(merged).apply(spans)) as sessions:
        sessions.process_elements([("a", 1), ("a", 2)], [0, 6])
        assert sessions.process_watermark(4) == [(0, 16, [1, 2])]
        assert sessions.process_watermark(99) == [(0, 16, [1, 2])] * 3


class EarlyAndLate(Trigger[Any, TimeWindow]):
    """A user's own: at once with the first element, and at the end; counts in state how often."""

    fired = ValueStateDescriptor("fired", "bigint")

    def on_element(self, element: Any, timestamp: int, window: TimeWindow, ctx: Any) -> TriggerResult:
        ctx.register_event_time_timer(window.max_timestamp())
        state = ctx.get_partitioned_state(self.fired)
        if state.value() is None:
            state.update(1)
            return TriggerResult.FIRE
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: TimeWindow, ctx: Any) -> TriggerResult:
        return TriggerResult.FIRE_AND_PURGE

    def on_merge(self, window: TimeWindow, ctx: Any) -> None:
        raise AssertionError("these windows do not merge")

    def clear(self, window: TimeWindow, ctx: Any) -> None:
        ctx.get_partitioned_state(self.fired).clear()
        ctx.delete_event_time_timer(window.max_timestamp())


class PerKey(WindowAssigner[Any, TimeWindow]):
    """A user's own: windows as long as the key says."""

    def assign_windows(self, element: Any, timestamp: int, context: Any) -> Collection[TimeWindow]:
        size = 10 if element[0] == "a" else 30
        start = TimeWindow.get_window_start_with_offset(timestamp, 0, size)
        return [TimeWindow(start, start + size)]

    def get_default_trigger(self, env: Any) -> Trigger[Any, TimeWindow]:
        return EventTimeTrigger.create()

    def get_window_serializer(self) -> TimeWindowSerializer:
        return TimeWindowSerializer()

    def is_event_time(self) -> bool:
        return True


@pytest.mark.parametrize("backend", ["hashmap", "columnar"])
def test_assigners_and_triggers_of_ones_own(backend: str) -> None:
    with harness(PerKey(), backend=backend) as own:
        own.process_elements([("a", 1), ("b", 2)], [11, 12])
        own.snapshot(1)
        assert own.process_watermark(19) == [(10, 20, [1])]
        assert own.process_watermark(29) == [(0, 30, [2])]
    with harness(PerKey(), lambda w: w.trigger(EarlyAndLate()).apply(spans), backend=backend) as early:
        assert early.process_elements([("a", 1), ("a", 2)], [11, 12]) == [(10, 20, [1])]
        early.snapshot(1)
        assert early.process_element(("a", 3), 13) == []
        assert early.process_watermark(19) == [(10, 20, [1, 2, 3])]


class Remembers(ProcessWindowFunction[Any, Any, str, TimeWindow]):
    """How often a window and a key were evaluated; from `open` it has state of the key, too."""

    times = ValueStateDescriptor("times", "bigint")
    late = OutputTag("again")

    def open(self, runtime_context: Any) -> None:
        self.opened = runtime_context.get_state(ValueStateDescriptor("opened", "bigint"))

    def process(self, key: str, context: Any, elements: Any) -> Any:
        of_window = context.window_state().get_state(self.times)
        of_key = context.global_state().get_state(ValueStateDescriptor("of key", "bigint"))
        for state in (of_window, of_key, self.opened):
            state.update((state.value() or 0) + 1)
        if of_window.value() > 1:
            yield self.late, (key, of_window.value())
        yield (
            context.window().start,
            of_window.value(),
            of_key.value(),
            self.opened.value(),
            context.current_watermark(),
            context.current_processing_time(),
        )

    def clear(self, context: Any) -> None:
        state = context.window_state().get_state(self.times)
        assert state.value() is not None
        state.clear()


@pytest.mark.parametrize("backend", ["hashmap", "columnar"])
def test_state_of_a_window_and_of_its_key(backend: str) -> None:
    finish: Apply = lambda w: w.allowed_lateness(MS(5)).process(Remembers())  # noqa: E731 - it is one line
    with harness(TumblingEventTimeWindows.of(MS(10)), finish, backend=backend, amnesia=True) as windows:
        windows.process_elements([("a", 1), ("a", 2)], [1, 11])
        windows.snapshot(1)
        assert windows.process_watermark(9) == [(0, 1, 1, 1, 9, 0)]
        windows.snapshot(2)
        assert windows.process_element(("a", 3), 2) == [(0, 2, 2, 2, 9, 0)]
        assert windows.side_output(Remembers.late) == [("a", 2)]
        windows.snapshot(3)
        assert windows.process_watermark(19) == [(10, 1, 3, 3, 19, 0)]
        assert windows.process_element(("a", 4), 3) == []  # the window has gone, and its state with it


def test_windows_that_merge_have_no_state_of_their_own() -> None:
    with harness(EventTimeSessionWindows.with_gap(MS(10)), lambda w: w.process(Remembers())) as sessions:
        sessions.process_element(("a", 1), 1)
        with pytest.raises(Exception, match=r"windows that merge have none of their own: use global_state\(\)"):
            sessions.process_watermark(99)


def test_an_element_without_a_time_is_refused_by_windows_of_event_time() -> None:
    for assigner in (
        TumblingEventTimeWindows.of(MS(10)),
        SlidingEventTimeWindows.of(MS(10), MS(5)),
        EventTimeSessionWindows.with_gap(MS(10)),
    ):
        with (
            harness(assigner) as windows,
            pytest.raises(Exception, match=r"call assign_timestamps_and_watermarks\(\) before window\(\)"),
        ):
            windows.process_element(("a", 1))


@pytest.mark.parametrize("backend", ["hashmap", "columnar"])
def test_of_windows_that_have_gone_nothing_stays(backend: str) -> None:
    """Of one key, whose cells would pile up otherwise."""
    with harness(TumblingEventTimeWindows.of(MS(10)), backend=backend) as windows:
        for number in range(30):
            first = number * 1000
            windows.process_elements([("a", n) for n in range(100)], [first + 10 * n for n in range(100)])
            windows.process_watermark(first + 995)
            windows.snapshot(number + 1)
        assert len(windows.output) == 3000 - 1
        windows.process_element(("a", 0), 29_996)
        backend_: Any = windows._backend
        assert len(backend_._loaded.columns["window-contents"].values) < 1500
        assert backend_.num_key_value_state_entries() == 1
