"""The operator of windows in one task: elements into windows, timers out of them. The rules are Flink's.

- An element is added to each of its windows that is not over; a window of event time is over when the watermark has
  reached its last millisecond plus the allowed lateness.
- An element that was added to no window, and whose own time is past the watermark by more than the allowed lateness, is
  late: it goes to the side output for late data, or is dropped and counted.
- The trigger is asked with each element, and with each of its timers. *Fire* evaluates what the window has, *purge*
  throws it away.
- When a window is over, its contents, the state of its trigger and what the window function clears are removed.

Within an epoch the watermark stands where the epoch before has left it. So what is late does not depend on the order
within an epoch; timers fire when all elements of the epoch are in their windows, in the order of their times.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Protocol

from holdfast.runtime.function.user_function import OutputTag, RuntimeContext
from holdfast.runtime.operator.context import ElementContext
from holdfast.runtime.window.evictor import TimestampedValue
from holdfast.runtime.window.time_window_assigner import NO_TIMESTAMP
from holdfast.runtime.window.trigger import TriggerResult
from holdfast.runtime.window.window import MAX_TIMESTAMP
from holdfast.runtime.window.window_assigner import MergingWindowAssigner
from holdfast.runtime.window_operator.merging_window_set import MERGING_WINDOWS, MergingWindowSet, merged_too_late
from holdfast.runtime.window_operator.window_context import (
    TriggerTaskContext,
    WindowAssignerTaskContext,
    WindowStateStore,
    WindowTaskContext,
)
from holdfast.runtime.window_operator.window_operator import WindowOperator
from holdfast.state.backend import AbstractKeyedStateBackend
from holdfast.state.timer.timer_service import InternalTimer, InternalTimerService

WINDOW_TIMERS: Final = "window-timers"
"""The timers of windows, beside which an operator of windows has none."""


class WindowOutput(Protocol):
    """Where results and late elements go."""

    def emit(self, emitted: Iterable[Any], timestamp: int) -> None:
        """Take what a window function has emitted."""

    def emit_late(self, tag: OutputTag, element: Any, timestamp: int) -> None:
        """Take an element that is late."""

    def drop_late(self) -> None:
        """Count an element that is late and that nobody wants."""


class WindowTask:
    """A window operator at work on the state of one subtask, in one epoch.

    Args:
        operator: The task's own copy.
        runtime_context: Of the task.
        backend: Its state.
        element_context: Takes side outputs.
        output: Takes results.
        watermark: At which the epoch begins.
    """

    def __init__(
        self,
        operator: WindowOperator,
        runtime_context: RuntimeContext,
        backend: AbstractKeyedStateBackend,
        element_context: ElementContext,
        output: WindowOutput,
        watermark: int,
    ) -> None:
        self._operator = operator
        self._backend = backend
        self._output = output
        self._assigner, self._trigger = operator.assigner, operator.trigger
        self._is_event_time = self._assigner.is_event_time()
        self._serializer = self._assigner.get_window_serializer()
        self._merging = self._assigner if isinstance(self._assigner, MergingWindowAssigner) else None
        self.timers: InternalTimerService = backend.get_internal_timer_service(WINDOW_TIMERS, self._serializer)
        self.timers.watermark = watermark
        self._assigner_context = WindowAssignerTaskContext(self.timers, runtime_context)
        self._trigger_context = TriggerTaskContext(self.timers, runtime_context, backend, self._serializer)
        own = WindowStateStore(backend, None if self._merging else self._serializer)
        self._context = WindowTaskContext(self.timers, runtime_context, own, element_context)
        self._state: Any = None

    def process_element(self, element: Any, timestamp: int | None) -> None:
        """Put an element of the current key into its windows."""
        time = NO_TIMESTAMP if timestamp is None else timestamp
        windows = self._assigner.assign_windows(element, time, self._assigner_context)
        kept = element if self._operator.evictor is None else (element, timestamp)
        if self._merging is None:
            is_late = True
            for window in windows:
                if not self._is_over(window):
                    is_late = False
                    self._add(window, window, element, kept, time)
        else:
            is_late = self._add_merging(windows, element, kept, time)
        if is_late and self._is_late(time):
            tag = self._operator.late_data_tag
            if tag is None:
                self._output.drop_late()
            else:
                self._output.emit_late(tag, element, time)

    def _add_merging(self, windows: Iterable[Any], element: Any, kept: Any, time: int) -> bool:
        """Add an element to windows that may merge; return whether it was added to none."""
        known = self._known_windows()
        is_late = True
        for window in windows:
            actual = known.add(window, self._merge)
            if self._is_over(actual):
                known.retire(actual)
                continue
            is_late = False
            self._add(actual, known.state_window(actual), element, kept, time)
        known.persist()
        return is_late

    def _add(self, window: Any, of_state: Any, element: Any, kept: Any, time: int) -> None:
        state = self._contents(of_state)
        state.add(kept)
        context = self._trigger_context
        context.window = window
        result = self._trigger.on_element(element, time, window, context)
        if result is not TriggerResult.CONTINUE:
            if result.is_fire() and not self._fire(window, state):
                return
            if result.is_purge():
                state.clear()
        self._register_cleanup(window)

    def on_timer(self, timer: InternalTimer, *, event_time: bool) -> None:
        """A timer of the current key has fired."""
        window = timer.namespace
        context = self._trigger_context
        context.window = window
        known = None
        of_state = window
        if self._merging is not None:
            known = self._known_windows()
            of_state = known.state_window(window)
            if of_state is None:
                return  # a trigger has left a timer of a window that has gone
        state = self._contents(of_state)
        on_time = self._trigger.on_event_time if event_time else self._trigger.on_processing_time
        result = on_time(timer.timestamp, window, context)
        if result.is_fire():
            self._fire(window, state)
        if result.is_purge():
            state.clear()
        if event_time is self._is_event_time and timer.timestamp == self._cleanup_time(window):
            self._clear(window, state, known)

    def _fire(self, window: Any, state: Any) -> bool:
        """Evaluate a window; return whether it had anything."""
        contents = state.get()
        if not self._operator.keeps_elements:
            if contents is None:
                return False
            self._evaluate(window, (contents,))
        elif not contents:
            return False
        elif self._operator.evictor is None:
            self._evaluate(window, contents)
        else:
            self._evict_and_evaluate(window, state, contents)
        return True

    def _evict_and_evaluate(self, window: Any, state: Any, contents: list[Any]) -> None:
        evictor, context = self._operator.evictor, self._trigger_context
        assert evictor is not None
        elements = [TimestampedValue(value, timestamp) for value, timestamp in contents]
        evictor.evict_before(elements, len(elements), window, context)
        self._evaluate(window, [element.value for element in elements])
        evictor.evict_after(elements, len(elements), window, context)
        if len(elements) < len(contents):
            state.update([(element.value, element.timestamp) for element in elements])

    def _evaluate(self, window: Any, elements: Iterable[Any]) -> None:
        self._context.current = window
        emitted = self._operator.evaluate(self._backend.get_current_key(), window, self._context, elements)
        self._output.emit(() if emitted is None else emitted, window.max_timestamp())

    def _clear(self, window: Any, state: Any, known: MergingWindowSet | None) -> None:
        """A window is over."""
        state.clear()
        self._trigger_context.window = window
        self._trigger.clear(window, self._trigger_context)
        self._context.current = window
        self._operator.evaluation.clear(self._context)
        self._output.emit((), window.max_timestamp())  # what it has sent to side outputs has that time
        if known is not None:
            known.retire(window)
            known.persist()

    def _merge(self, window: Any, merged: list[Any], of_state: Any, moved: list[Any]) -> None:
        """Windows have become one."""
        self._check_merged(window)
        context = self._trigger_context
        gone = [other for other in merged if other != window]
        context.window, context.merged = window, gone
        self._trigger.on_merge(window, context)
        context.merged = ()
        for other in gone:
            context.window = other
            self._trigger.clear(other, context)
            self._delete_cleanup(other)
        self._contents(of_state).merge_namespaces(of_state, moved)

    def _check_merged(self, window: Any) -> None:
        if self._is_event_time:
            if self._is_over(window):
                raise merged_too_late(window, self.timers.watermark, "watermark")
            return
        now = self.timers.current_processing_time()
        if window.max_timestamp() <= now:
            raise merged_too_late(window, now, "processing time")

    def _known_windows(self) -> MergingWindowSet:
        assert self._merging is not None
        state = self._backend.get_partitioned_state(None, None, MERGING_WINDOWS)
        return MergingWindowSet(self._merging, self._serializer, state)

    def _contents(self, window: Any) -> Any:
        """Return the state of a window of the current key; it is the same object for all windows."""
        if self._state is None:
            self._state = self._backend.get_partitioned_state(window, self._serializer, self._operator.contents)
        else:
            self._state.set_current_namespace(window)
        return self._state

    def _is_over(self, window: Any) -> bool:
        return self._is_event_time and self._cleanup_time(window) <= self.timers.watermark

    def _is_late(self, time: int) -> bool:
        return self._is_event_time and time + self._operator.allowed_lateness <= self.timers.watermark

    def _cleanup_time(self, window: Any) -> int:
        ends: int = window.max_timestamp()
        return min(ends + self._operator.allowed_lateness, MAX_TIMESTAMP) if self._is_event_time else ends

    def _register_cleanup(self, window: Any) -> None:
        time = self._cleanup_time(window)
        if time == MAX_TIMESTAMP:
            return  # it is never over
        if self._is_event_time:
            self.timers.register_event_time_timer(window, time)
        else:
            self.timers.register_processing_time_timer(window, time)

    def _delete_cleanup(self, window: Any) -> None:
        time = self._cleanup_time(window)
        if time == MAX_TIMESTAMP:
            return
        if self._is_event_time:
            self.timers.delete_event_time_timer(window, time)
        else:
            self.timers.delete_processing_time_timer(window, time)
