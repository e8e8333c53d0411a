"""Triggers: when windows are evaluated, and when their contents are deleted.

Timers fire at the end of an epoch, in order of time; see `docs/guide/time.md`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from typing import Any, Generic, TypeVar

from holdfast.errors import ConfigurationError
from holdfast.runtime.window.window import MAX_TIMESTAMP, milliseconds
from holdfast.state.descriptor import ReduceFunction, ReducingStateDescriptor, StateDescriptor, ValueStateDescriptor

T = TypeVar("T")
W = TypeVar("W")


class TriggerResult(Enum):
    """The decision of a trigger about a window."""

    CONTINUE = (False, False)
    FIRE_AND_PURGE = (True, True)
    FIRE = (True, False)
    PURGE = (False, True)

    def is_fire(self) -> bool:
        """Return whether the window is evaluated; an empty window is not."""
        return self.value[0]

    def is_purge(self) -> bool:
        """Return whether the contents are deleted, after an evaluation."""
        return self.value[1]


class Trigger(ABC, Generic[T, W]):
    """Decides when the windows of each key are evaluated.

    One object serves all keys and windows, so it must not keep values in fields of `self`: use state of the context.

    >>> class OnMarker(Trigger):
    ...     def on_element(self, element, timestamp, window, ctx):
    ...         return TriggerResult.FIRE if element == "end" else TriggerResult.CONTINUE
    ...
    ...     def on_processing_time(self, time, window, ctx):
    ...         return TriggerResult.CONTINUE
    ...
    ...     def on_event_time(self, time, window, ctx):
    ...         return TriggerResult.CONTINUE
    ...
    ...     def on_merge(self, window, ctx):
    ...         pass
    ...
    ...     def clear(self, window, ctx):
    ...         pass
    >>> OnMarker().on_element("end", 0, None, None)
    <TriggerResult.FIRE: (True, False)>
    """

    class TriggerContext(ABC):
        """Times, timers and state of the current key and window."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """Return the processing time in milliseconds since 1970: of the epoch, or in real time the current one."""

        @abstractmethod
        def get_metric_group(self) -> Any:
            """Return the metrics of the operator."""

        @abstractmethod
        def get_current_watermark(self) -> int:
            """Return the event-time watermark; the smallest 64-bit number before there is one."""

        @abstractmethod
        def register_processing_time_timer(self, time: int) -> None:
            """Register a timer: `on_processing_time` is called when the processing time reaches `time`."""

        @abstractmethod
        def register_event_time_timer(self, time: int) -> None:
            """Register a timer: `on_event_time` is called when the watermark reaches `time`."""

        @abstractmethod
        def delete_processing_time_timer(self, time: int) -> None:
            """Delete a timer; no effect if there is none."""

        @abstractmethod
        def delete_event_time_timer(self, time: int) -> None:
            """Delete a timer; no effect if there is none."""

        @abstractmethod
        def get_partitioned_state(self, state_descriptor: StateDescriptor[Any]) -> Any:
            """Return state of the current key and window."""

    class OnMergeContext(TriggerContext):
        """The context of windows that were merged."""

        @abstractmethod
        def merge_partitioned_state(self, state_descriptor: StateDescriptor[Any]) -> None:
            """Merge the state of the merged windows into that of the resulting window.

            Raises:
                StateError: State of this kind cannot be merged.
            """

    @abstractmethod
    def on_element(self, element: T, timestamp: int, window: W, ctx: TriggerContext) -> TriggerResult:
        """Called when an element was added to a window.

        Args:
            element: The element.
            timestamp: Its event time in milliseconds since 1970; the smallest 64-bit number if it has none.
            window: The window.
            ctx: Times, timers and state.
        """

    @abstractmethod
    def on_processing_time(self, time: int, window: W, ctx: TriggerContext) -> TriggerResult:
        """Called when a processing-time timer of a window fires."""

    @abstractmethod
    def on_event_time(self, time: int, window: W, ctx: TriggerContext) -> TriggerResult:
        """Called when an event-time timer of a window fires."""

    def can_merge(self) -> bool:
        """Return whether it supports windows that merge, by `on_merge`."""
        return False

    @abstractmethod
    def on_merge(self, window: W, ctx: OnMergeContext) -> None:
        """Called when windows were merged into `window`."""

    @abstractmethod
    def clear(self, window: W, ctx: TriggerContext) -> None:
        """Delete the timers and state of a window that expires."""


class QuietTrigger(Trigger[T, W]):
    """A trigger that does nothing; subclasses override what they need."""

    def on_element(self, element: T, timestamp: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_merge(self, window: W, ctx: Trigger.OnMergeContext) -> None:
        return None

    def clear(self, window: W, ctx: Trigger.TriggerContext) -> None:
        return None


class EventTimeTrigger(QuietTrigger[T, W]):
    """Fires when the watermark passes the end of a window, and for each late element after that.

    >>> assigner = TumblingEventTimeWindows.of(Time.minutes(1))
    >>> type(assigner.get_default_trigger(None)).__name__
    'EventTimeTrigger'
    """

    @staticmethod
    def create() -> EventTimeTrigger[Any, Any]:
        """Return the trigger."""
        return EventTimeTrigger()

    def on_element(self, element: T, timestamp: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        ends = window.max_timestamp()
        if ends <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(ends)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, ctx: Trigger.OnMergeContext) -> None:
        ends = window.max_timestamp()
        if ends > ctx.get_current_watermark():
            ctx.register_event_time_timer(ends)

    def clear(self, window: Any, ctx: Trigger.TriggerContext) -> None:
        ctx.delete_event_time_timer(window.max_timestamp())


class ProcessingTimeTrigger(QuietTrigger[T, W]):
    """Fires when the processing time passes the end of a window.

    >>> assigner = TumblingProcessingTimeWindows.of(Time.minutes(1))
    >>> type(assigner.get_default_trigger(None)).__name__
    'ProcessingTimeTrigger'
    """

    @staticmethod
    def create() -> ProcessingTimeTrigger[Any, Any]:
        """Return the trigger."""
        return ProcessingTimeTrigger()

    def on_element(self, element: T, timestamp: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        ctx.register_processing_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, ctx: Trigger.OnMergeContext) -> None:
        ends = window.max_timestamp()
        if ends > ctx.get_current_processing_time():
            ctx.register_processing_time_timer(ends)

    def clear(self, window: Any, ctx: Trigger.TriggerContext) -> None:
        ctx.delete_processing_time_timer(window.max_timestamp())


class Min(ReduceFunction):
    """The minimum of two values."""

    def reduce(self, value1: Any, value2: Any) -> Any:
        return min(value1, value2)


class Sum(ReduceFunction):
    """The sum of two values."""

    def reduce(self, value1: Any, value2: Any) -> Any:
        return value1 + value2


class _Repeating(QuietTrigger[T, W]):
    """A trigger that fires at intervals. The next time is in state, and a timer is set for it."""

    def __init__(self, interval: Any) -> None:
        self.interval = milliseconds(interval, "the interval of a trigger", least=1)
        self.state_desc: ReducingStateDescriptor[int] = ReducingStateDescriptor("fire-time", Min(), "bigint")

    @abstractmethod
    def _set_timer(self, ctx: Trigger.TriggerContext, time: int) -> None: ...

    @abstractmethod
    def _delete_timer(self, ctx: Trigger.TriggerContext, time: int) -> None: ...

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, ctx: Trigger.OnMergeContext) -> None:
        ctx.merge_partitioned_state(self.state_desc)
        fires = ctx.get_partitioned_state(self.state_desc).get()
        if fires is not None:
            self._set_timer(ctx, fires)

    def clear(self, window: Any, ctx: Trigger.TriggerContext) -> None:
        state = ctx.get_partitioned_state(self.state_desc)
        fires = state.get()
        if fires is not None:
            self._delete_timer(ctx, fires)
            state.clear()

    def register_next_fire_timestamp(self, time: int, window: Any, ctx: Trigger.TriggerContext, state: Any) -> None:
        """Set the timer an interval after `time`, but not after the end of the window."""
        fires = min(time + self.interval, window.max_timestamp())
        state.add(fires)
        self._set_timer(ctx, fires)

    def _begin(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Set the timer at the first multiple of the interval after `time`, unless there is one."""
        state = ctx.get_partitioned_state(self.state_desc)
        if state.get() is None:
            self.register_next_fire_timestamp(time - time % self.interval, window, ctx, state)
        return TriggerResult.CONTINUE

    def _fire(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Fire if `time` is the time in state, and set the next timer."""
        state = ctx.get_partitioned_state(self.state_desc)
        if state.get() != time:
            return TriggerResult.CONTINUE
        state.clear()
        if window.max_timestamp() == MAX_TIMESTAMP == ctx.get_current_watermark():
            return TriggerResult.CONTINUE  # event time has ended: the timer at the end of the window fires, once
        self.register_next_fire_timestamp(time, window, ctx, state)
        return TriggerResult.FIRE


class ContinuousEventTimeTrigger(_Repeating[T, W]):
    """Fires when the watermark passes a multiple of an interval, and at the end of a window.

    >>> rows = [("kelp", 3, 1_000), ("kelp", 4, 30_000), ("kelp", 5, 61_000)]
    >>> clock = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)
    >>> stream = env.from_collection(rows, "word string, n bigint, at bigint")
    >>> keyed = stream.assign_timestamps_and_watermarks(clock).key_by("word")
    >>> windows = keyed.window(TumblingEventTimeWindows.of(Time.minutes(1)))
    >>> trigger = ContinuousEventTimeTrigger.of(Time.seconds(30))
    >>> counts = windows.trigger(trigger).process(lambda word, context, rows: [len(list(rows))], "bigint")
    >>> list(counts.execute_and_collect())
    [2, 2, 1, 1]
    """

    @staticmethod
    def of(interval: Any) -> ContinuousEventTimeTrigger[Any, Any]:
        """Return the trigger; `interval` is a length of time, or milliseconds."""
        return ContinuousEventTimeTrigger(interval)

    def on_element(self, element: T, timestamp: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        ends = window.max_timestamp()
        if ends <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(ends)
        return self._begin(timestamp, window, ctx)

    def on_event_time(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp() else self._fire(time, window, ctx)

    def _set_timer(self, ctx: Trigger.TriggerContext, time: int) -> None:
        ctx.register_event_time_timer(time)

    def _delete_timer(self, ctx: Trigger.TriggerContext, time: int) -> None:
        ctx.delete_event_time_timer(time)


class ContinuousProcessingTimeTrigger(_Repeating[T, W]):
    """Fires when the processing time passes a multiple of an interval, and at the end of a window.

    >>> ContinuousProcessingTimeTrigger.of(Time.seconds(10)).interval
    10000
    """

    @staticmethod
    def of(interval: Any) -> ContinuousProcessingTimeTrigger[Any, Any]:
        """Return the trigger; `interval` is a length of time, or milliseconds."""
        return ContinuousProcessingTimeTrigger(interval)

    def on_element(self, element: T, timestamp: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        return self._begin(ctx.get_current_processing_time(), window, ctx)

    def on_processing_time(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        return self._fire(time, window, ctx)

    def _set_timer(self, ctx: Trigger.TriggerContext, time: int) -> None:
        ctx.register_processing_time_timer(time)

    def _delete_timer(self, ctx: Trigger.TriggerContext, time: int) -> None:
        ctx.delete_processing_time_timer(time)


class CountTrigger(QuietTrigger[T, W]):
    """Fires after each `window_size` elements.

    >>> numbers = env.from_collection([1, 2, 3, 4, 5], "bigint")
    >>> windows = numbers.window_all(GlobalWindows.create()).trigger(CountTrigger.of(2))
    >>> list(windows.reduce(lambda one, other: one + other).execute_and_collect())
    [3, 10]

    Raises:
        ConfigurationError: The number is not a whole number from 1.
    """

    def __init__(self, window_size: int) -> None:
        if isinstance(window_size, bool) or not isinstance(window_size, int) or window_size < 1:
            raise ConfigurationError(f"CountTrigger counts to a whole number of at least 1, not {window_size!r}")
        self._window_size = window_size
        self._count: ReducingStateDescriptor[int] = ReducingStateDescriptor("count", Sum(), "bigint")

    @staticmethod
    def of(window_size: int) -> CountTrigger[Any, Any]:
        """Return the trigger."""
        return CountTrigger(window_size)

    def on_element(self, element: T, timestamp: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        count = ctx.get_partitioned_state(self._count)
        count.add(1)
        if count.get() < self._window_size:
            return TriggerResult.CONTINUE
        count.clear()
        return TriggerResult.FIRE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: W, ctx: Trigger.OnMergeContext) -> None:
        ctx.merge_partitioned_state(self._count)

    def clear(self, window: W, ctx: Trigger.TriggerContext) -> None:
        ctx.get_partitioned_state(self._count).clear()


class DeltaTrigger(QuietTrigger[T, W]):
    """Fires when an element differs from the one that fired last by more than a threshold; the first element does not.

    PyFlink has no such trigger; name and arguments are those of Flink's Java API.

    >>> numbers = env.from_collection([1, 2, 8, 9, 20], "bigint")
    >>> trigger = DeltaTrigger.of(5, lambda last, element: abs(element - last), "bigint")
    >>> windows = numbers.window_all(GlobalWindows.create()).trigger(trigger)
    >>> list(windows.reduce(lambda one, other: max(one, other)).execute_and_collect())
    [8, 20]
    """

    def __init__(self, threshold: float, delta_function: Callable[[Any, Any], float], type_info: Any = None) -> None:
        self._threshold = threshold
        self._delta = delta_function
        self._last: ValueStateDescriptor[Any] = ValueStateDescriptor("last-element", type_info)

    @staticmethod
    def of(
        threshold: float, delta_function: Callable[[Any, Any], float], type_info: Any = None
    ) -> DeltaTrigger[Any, Any]:
        """Return the trigger.

        Args:
            threshold: A greater difference fires.
            delta_function: `(last element that fired, element) -> number`.
            type_info: Type of the elements in state; None pickles them.
        """
        return DeltaTrigger(threshold, delta_function, type_info)

    def on_element(self, element: T, timestamp: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        state = ctx.get_partitioned_state(self._last)
        last = state.value()
        if last is None:
            state.update(element)
            return TriggerResult.CONTINUE
        if self._delta(last, element) <= self._threshold:
            return TriggerResult.CONTINUE
        state.update(element)
        return TriggerResult.FIRE

    def clear(self, window: W, ctx: Trigger.TriggerContext) -> None:
        ctx.get_partitioned_state(self._last).clear()


class NeverTrigger(QuietTrigger[T, W]):
    """Never fires; the default of global windows.

    >>> numbers = env.from_collection([1, 2, 3], "bigint")
    >>> windows = numbers.window_all(GlobalWindows.create()).trigger(NeverTrigger())
    >>> list(windows.reduce(lambda one, other: one + other).execute_and_collect())
    []
    """


class PurgingTrigger(Trigger[T, W]):
    """Deletes the contents of a window whenever a nested trigger fires.

    >>> numbers = env.from_collection([1, 2, 3, 4, 5], "bigint")
    >>> windows = numbers.window_all(GlobalWindows.create()).trigger(PurgingTrigger.of(CountTrigger.of(2)))
    >>> list(windows.reduce(lambda one, other: one + other).execute_and_collect())
    [3, 7]
    """

    def __init__(self, nested_trigger: Trigger[T, W]) -> None:
        self.nested_trigger = nested_trigger

    @staticmethod
    def of(nested_trigger: Trigger[Any, Any]) -> PurgingTrigger[Any, Any]:
        """Return the trigger."""
        return PurgingTrigger(nested_trigger)

    def on_element(self, element: T, timestamp: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        return _purging(self.nested_trigger.on_element(element, timestamp, window, ctx))

    def on_processing_time(self, time: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        return _purging(self.nested_trigger.on_processing_time(time, window, ctx))

    def on_event_time(self, time: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        return _purging(self.nested_trigger.on_event_time(time, window, ctx))

    def can_merge(self) -> bool:
        return self.nested_trigger.can_merge()

    def on_merge(self, window: W, ctx: Trigger.OnMergeContext) -> None:
        self.nested_trigger.on_merge(window, ctx)

    def clear(self, window: W, ctx: Trigger.TriggerContext) -> None:
        self.nested_trigger.clear(window, ctx)


def _purging(result: TriggerResult) -> TriggerResult:
    return TriggerResult.FIRE_AND_PURGE if result.is_fire() else result
