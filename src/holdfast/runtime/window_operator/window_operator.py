"""The operator of windows, and how a task runs it (`WindowTask`).

Other operators on windows, such as a join of two streams, need no operator of their own. As in Flink they mark each
element with its stream, `union` both streams, partition by the common key, and add a `WindowOperator`, whose window
function separates the elements again::

    contents = ListStateDescriptor(WINDOW_CONTENTS, type_of_marked_elements)
    operator = WindowOperator(assigner, trigger, contents, WindowEvaluation(function, "apply"))
    OperatorSpec(operator, "window", True, type_of_marked_elements, output_type)

`WindowedStream` does the same for `marked.key_by(selector).window(assigner).apply(function)`, with trigger, evictor and
lateness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, NoReturn, Protocol

from holdfast.errors import ConfigurationError, StateError
from holdfast.runtime.function.user_function import Function, OutputTag, RuntimeContext
from holdfast.runtime.operator.context import ElementContext
from holdfast.runtime.window.evictor import Evictor, TimestampedValue
from holdfast.runtime.window.trigger import Trigger, TriggerResult
from holdfast.runtime.window.window import MAX_TIMESTAMP, ProcessAllWindowFunction, ProcessWindowFunction
from holdfast.runtime.window.window_assigner import NO_TIMESTAMP, MergingWindowAssigner, WindowAssigner
from holdfast.state.api import DescriptorStateStore, KeyedStateStore, MapState
from holdfast.state.backend import AbstractKeyedStateBackend
from holdfast.state.descriptor import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
)
from holdfast.state.layout import value_codec_for
from holdfast.state.timer_service import InternalTimer, InternalTimerService
from holdfast.types.serializer import TypeSerializer

WINDOW_CONTENTS: Final = "window-contents"
"""The state with the elements of a window, or their combined value."""

Evaluate = Callable[[Any, Any, Any, Any], Iterable[Any] | None]
Merge = Callable[[Any, list[Any], Any, list[Any]], None]
"""Called with the merged window, the windows it was merged from, its state window, and those that move there."""
WINDOW_TIMERS: Final = "window-timers"
"""Timers of windows; a window operator has no others."""


class WindowEvaluation(Function):
    """Calls a window function.

    Args:
        function: A function object or a plain callable; None emits the contents of a window.
        method: The method that is called: with the window (`apply`) or with a context (`process`).
        with_key: Whether it gets the key.
        combine: Combines the elements before the function gets them; None if it gets all of them, or what state has
            combined already.
    """

    def __init__(
        self,
        function: Any,
        method: Literal["apply", "process"] = "apply",
        *,
        with_key: bool = True,
        combine: WindowCombination | None = None,
    ) -> None:
        self.function = function
        self._method = method
        self._with_key = with_key
        self._combine = combine

    @property
    def program_functions(self) -> tuple[Any, ...]:
        """Functions of the program that it calls."""
        return self.function, self._combine

    def open(self, runtime_context: RuntimeContext) -> None:
        for part in (self.function, self._combine):
            _each(part, "open", runtime_context)

    def close(self) -> None:
        for part in (self.function, self._combine):
            _each(part, "close")

    def evaluate(self, key: Any, window: Any, context: Any, elements: Iterable[Any]) -> Iterable[Any] | None:
        """Call the function; `elements` are those of the window, or the combined value."""
        if self._combine is not None:
            elements = self._combine.of(elements)
        if self.function is None:
            return elements
        call: Callable[..., Iterable[Any] | None] = getattr(self.function, self._method, self.function)
        given = window if self._method == "apply" else context
        if not self._with_key:
            return call(given, elements)
        return call(key, given, elements) if self._method == "apply" else call(key, context, elements)

    def clear(self, context: Any) -> None:
        """Call `clear` of the function, for a window that expires."""
        clear = getattr(self.function, "clear", None)
        if self._method == "process" and callable(clear):
            clear(context)


class WindowCombination(Function):
    """Reduces or aggregates the elements of a window when it is evaluated, where an evictor needs all of them.

    Args:
        descriptor: The state that would combine them otherwise.
    """

    def __init__(self, descriptor: ReducingStateDescriptor[Any] | AggregatingStateDescriptor[Any, Any, Any]) -> None:
        self._descriptor = descriptor

    @property
    def program_functions(self) -> tuple[Any, ...]:
        """Functions of the program that it calls."""
        return (combining_function(self._descriptor),)

    def open(self, runtime_context: RuntimeContext) -> None:
        _each(combining_function(self._descriptor), "open", runtime_context)

    def close(self) -> None:
        _each(combining_function(self._descriptor), "close")

    def of(self, elements: Iterable[Any]) -> Iterable[Any]:
        """Return the single result, or nothing for no elements."""
        descriptor, rest = self._descriptor, iter(elements)
        if isinstance(descriptor, ReducingStateDescriptor):
            codec = value_codec_for(descriptor.type_info)
            for result in rest:
                for element in rest:  # the same iterator: the first element begins the result
                    # Functions get what they would read from state: a row, not the tuple that they returned.
                    result = codec.expose(codec.adopt(descriptor.reduce(result, element)))  # noqa: PLW2901 - so far
                return (result,)
            return ()
        function = descriptor.agg_function
        accumulator = function.create_accumulator()
        for element in rest:
            accumulator = function.add(element, accumulator)
        return (function.get_result(accumulator),)


class WindowOperator(Function):
    """A window operator as the program defines it; its shape is "window".

    Args:
        assigner: Assigns windows to elements.
        trigger: Decides when a window is evaluated.
        contents: State of a window: reducing or aggregating, or a list of all elements; with an evictor a list of
            tuples of element and timestamp.
        evaluation: Called with the contents.
        allowed_lateness: Milliseconds after its end in which a window of event time still accepts elements.
        late_data_tag: Side output of elements that are later; None drops them.
        evictor: Removes elements before or after the evaluation.

    Attributes:
        window_format: The format of open windows in a checkpoint. Each has its own contents, so new ones may differ.
    """

    window_format: Final = {"form": "elements"}

    def __init__(
        self,
        assigner: WindowAssigner[Any, Any],
        trigger: Trigger[Any, Any],
        contents: StateDescriptor[Any],
        evaluation: WindowEvaluation,
        *,
        allowed_lateness: int = 0,
        late_data_tag: OutputTag | None = None,
        evictor: Evictor[Any, Any] | None = None,
    ) -> None:
        self.assigner = assigner
        self.trigger = trigger
        self.contents = contents
        self.evaluation = evaluation
        self.allowed_lateness = allowed_lateness
        self.late_data_tag = late_data_tag
        self.evictor = evictor

    @property
    def keeps_elements(self) -> bool:
        """Whether a window keeps all of its elements."""
        return isinstance(self.contents, ListStateDescriptor)

    @property
    def descriptors(self) -> list[StateDescriptor[Any]]:
        """The states of each window that the operator itself has."""
        return [self.contents]

    @property
    def program_functions(self) -> tuple[Any, ...]:
        """Functions of the program that it calls."""
        return combining_function(self.contents), self.evaluation

    def open(self, runtime_context: RuntimeContext) -> None:
        _each(combining_function(self.contents), "open", runtime_context)
        self.evaluation.open(runtime_context)

    def close(self) -> None:
        _each(combining_function(self.contents), "close")
        self.evaluation.close()

    def evaluate(self, key: Any, window: Any, context: Any, elements: Iterable[Any]) -> Iterable[Any] | None:
        return self.evaluation.evaluate(key, window, context, elements)


def combining_function(descriptor: StateDescriptor[Any]) -> Any:
    """Return the reduce or aggregate function of a state, None for one that keeps its elements."""
    if isinstance(descriptor, ReducingStateDescriptor):
        return descriptor.reduce_function
    return descriptor.agg_function if isinstance(descriptor, AggregatingStateDescriptor) else None


def _each(function: Any, method: str, *arguments: Any) -> None:
    call = getattr(function, method, None)
    if callable(call):
        call(*arguments)


class WindowAssignerTaskContext(WindowAssigner.WindowAssignerContext):
    """The context of an assigner: processing time, and state of the current key."""

    def __init__(self, timers: InternalTimerService, runtime_context: RuntimeContext) -> None:
        self._timers = timers
        self._runtime_context = runtime_context

    def get_current_processing_time(self) -> int:
        return self._timers.current_processing_time()

    def get_runtime_context(self) -> RuntimeContext:
        return self._runtime_context


class TriggerTaskContext(Trigger.OnMergeContext, Evictor.EvictorContext):
    """The context of triggers and evictors: times, and timers and state of a window of the current key.

    Attributes:
        window: The current window.
        merged: The windows that it was merged from, during a merge.
    """

    def __init__(
        self,
        timers: InternalTimerService,
        runtime_context: RuntimeContext,
        backend: AbstractKeyedStateBackend,
        serializer: TypeSerializer[Any],
    ) -> None:
        self._timers = timers
        self._runtime_context = runtime_context
        self._backend = backend
        self._serializer = serializer
        self.window: Any = None
        self.merged: Sequence[Any] = ()

    def get_current_processing_time(self) -> int:
        return self._timers.current_processing_time()

    def get_current_watermark(self) -> int:
        return self._timers.watermark

    def get_metric_group(self) -> Any:
        found = getattr(self._runtime_context, "get_metrics_group", None)
        if found is None:
            raise ConfigurationError("This task has no metrics: do not call get_metric_group() in the trigger.")
        return found()

    def register_processing_time_timer(self, time: int) -> None:
        self._timers.register_processing_time_timer(self.window, time)

    def register_event_time_timer(self, time: int) -> None:
        self._timers.register_event_time_timer(self.window, time)

    def delete_processing_time_timer(self, time: int) -> None:
        self._timers.delete_processing_time_timer(self.window, time)

    def delete_event_time_timer(self, time: int) -> None:
        self._timers.delete_event_time_timer(self.window, time)

    def get_partitioned_state(self, state_descriptor: Any) -> Any:
        return self._backend.get_partitioned_state(self.window, self._serializer, state_descriptor)

    def merge_partitioned_state(self, state_descriptor: Any) -> None:
        if self.merged:
            self.get_partitioned_state(state_descriptor).merge_namespaces(self.window, self.merged)


class WindowTaskContext(ProcessWindowFunction.Context[Any], ProcessAllWindowFunction.Context[Any]):
    """The context of a window function: window, times, state and side outputs.

    Attributes:
        current: The current window.
    """

    def __init__(
        self,
        timers: InternalTimerService,
        runtime_context: RuntimeContext,
        window_state: WindowStateStore,
        element_context: ElementContext,
    ) -> None:
        self._timers = timers
        self._runtime_context = runtime_context
        self._window_state = window_state
        self._element_context = element_context
        self.current: Any = None

    def window(self) -> Any:
        return self.current

    def current_processing_time(self) -> int:
        return self._timers.current_processing_time()

    def current_watermark(self) -> int:
        return self._timers.watermark

    def window_state(self) -> KeyedStateStore:
        self._window_state.window = self.current
        return self._window_state

    def global_state(self) -> KeyedStateStore:
        return self._runtime_context

    def output(self, tag: OutputTag, value: Any) -> None:
        self._element_context.output(tag, value)


class WindowStateStore(DescriptorStateStore):
    """State of a window of the current key.

    Args:
        backend: The keyed state backend.
        serializer: Serializer of windows; None for those that merge, which have no state of their own.

    Attributes:
        window: The window.
    """

    def __init__(self, backend: AbstractKeyedStateBackend, serializer: TypeSerializer[Any] | None) -> None:
        self._backend = backend
        self._serializer = serializer
        self.window: Any = None

    def _state(self, descriptor: Any) -> Any:
        if self._serializer is None:
            self._refuse(descriptor)
        return self._backend.get_partitioned_state(self.window, self._serializer, descriptor)

    def _refuse(self, descriptor: Any) -> NoReturn:
        raise StateError(
            f"State {descriptor.name!r} of a window was requested, and windows that merge have none of their own: use "
            "global_state()."
        )


MERGING_WINDOWS: Final[MapStateDescriptor[bytes, bytes]] = MapStateDescriptor("merging-window-set", "binary", "binary")


class _Results(MergingWindowAssigner.MergeCallback[Any]):
    def __init__(self) -> None:
        self.found: list[tuple[Any, set[Any]]] = []

    def merge(self, to_be_merged: Any, merge_result: Any) -> None:
        self.found.append((merge_result, set(to_be_merged)))


class MergingWindowSet:
    """The windows of the current key that may merge, and the namespace in which the contents of each are.

    Contents are not moved when a window grows: it keeps the namespace in which it began, its *state window*. Only when
    windows that both have contents become one, the contents of all but one are moved.

    Args:
        assigner: Decides which windows merge.
        serializer: Serializer of windows.
        state: The state window of each window.
    """

    def __init__(
        self,
        assigner: MergingWindowAssigner[Any, Any],
        serializer: TypeSerializer[Any],
        state: MapState[bytes, bytes],
    ) -> None:
        self._assigner = assigner
        self._serializer = serializer
        self._state = state
        # Sorted, so that merging does not depend on the order in which windows are read.
        self._stored = {window: of_state for window, of_state in sorted(state.items()) if of_state is not None}
        read = serializer.deserialize
        self._windows = {read(window): read(of_state) for window, of_state in self._stored.items()}

    def state_window(self, window: Any) -> Any:
        """Return the state window of a window, None if there is no such window."""
        return self._windows.get(window)

    def add(self, new: Any, merge: Merge) -> Any:
        """Add a window, and return the window that it was merged into, or itself.

        Raises:
            ConfigurationError: The assigner merges windows that do not exist.
        """
        if new in self._windows:
            return new
        results = _Results()
        self._assigner.merge_windows([*self._windows, new], results)
        became = new
        for result, parts in results.found:
            if new in parts:
                became = result
            merged = [window for window in self._windows if window in parts]
            if not merged:
                raise ConfigurationError(
                    f"{self._assigner!r} merges {parts!r} into {result!r}, but the key has no such windows."
                )
            of_state = [self._windows.pop(window) for window in merged]
            self._windows[result] = of_state[0]
            if merged != [result]:
                merge(result, merged, of_state[0], of_state[1:])
        if became not in self._windows:
            self._windows[became] = became
        return became

    def retire(self, window: Any) -> None:
        """Delete a window.

        Raises:
            StateError: There is no such window.
        """
        if window not in self._windows:
            raise StateError(f"The key has no window {window!r}.")
        del self._windows[window]

    def persist(self) -> None:
        """Write what has changed."""
        write = self._serializer.serialize
        windows = {write(window): write(of_state) for window, of_state in self._windows.items()}
        for gone in self._stored.keys() - windows.keys():
            self._state.remove(gone)
        for window, of_state in windows.items():
            if self._stored.get(window) != of_state:
                self._state.put(window, of_state)
        self._stored = windows

    def __len__(self) -> int:
        return len(self._windows)


def merged_too_late(window: Any, reached: int, what: str) -> StateError:
    """Return the error for windows that were merged into one that has ended."""
    return StateError(f"Windows were merged into {window!r}, which ends before the {what}, {reached}.")


class WindowOutput(Protocol):
    """Receives results and late elements."""

    def emit(self, emitted: Iterable[Any], timestamp: int) -> None:
        """Receive the output of a window function."""

    def emit_late(self, tag: OutputTag, element: Any, timestamp: int) -> None:
        """Receive a late element for a side output."""

    def drop_late(self) -> None:
        """Count a late element without a side output."""


class WindowTask:
    """A window operator on the state of one subtask, in one epoch. The rules are Flink's.

    - An element is added to each of its windows that has not expired; a window of event time expires when the watermark
      reaches its last millisecond plus the allowed lateness.
    - An element that was added to no window, and whose timestamp plus the allowed lateness is not after the watermark,
      is late: it goes to the side output for late data, or is dropped and counted.
    - The trigger is called for each element, and for each of its timers. *Fire* evaluates the contents of a window,
      *purge* deletes them.
    - When a window expires, its contents, the state of its trigger and the state that the window function clears are
      deleted.

    The watermark is constant within an epoch, so which elements are late does not depend on the order within it. Timers
    fire when all elements of the epoch are in their windows, in order of time.

    Args:
        operator: The task's own copy.
        runtime_context: The context of the subtask.
        backend: Its keyed state.
        element_context: Receives side outputs.
        output: Receives results.
        watermark: The watermark at the beginning of the epoch.
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
        """Add an element of the current key to its windows."""
        time = NO_TIMESTAMP if timestamp is None else timestamp
        windows = self._assigner.assign_windows(element, time, self._assigner_context)
        kept = element if self._operator.evictor is None else (element, timestamp)
        if self._merging is None:
            is_late = True
            for window in windows:
                if not self._has_expired(window):
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
            if self._has_expired(actual):
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
        """Called when a timer of the current key fires."""
        window = timer.namespace
        context = self._trigger_context
        context.window = window
        known = None
        of_state = window
        if self._merging is not None:
            known = self._known_windows()
            of_state = known.state_window(window)
            if of_state is None:
                return  # a trigger did not delete its timer of an expired window
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
        """Evaluate a window; return whether it had contents."""
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
        """Delete an expired window."""
        state.clear()
        self._trigger_context.window = window
        self._trigger.clear(window, self._trigger_context)
        self._context.current = window
        self._operator.evaluation.clear(self._context)
        self._output.emit((), window.max_timestamp())  # for the timestamps of its side outputs
        if known is not None:
            known.retire(window)
            known.persist()

    def _merge(self, window: Any, merged: list[Any], of_state: Any, moved: list[Any]) -> None:
        """Merge the triggers and contents of windows."""
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
            if self._has_expired(window):
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
        """Return the contents of a window of the current key; the handle is the same object for all windows."""
        if self._state is None:
            self._state = self._backend.get_partitioned_state(window, self._serializer, self._operator.contents)
        else:
            self._state.set_current_namespace(window)
        return self._state

    def _has_expired(self, window: Any) -> bool:
        return self._is_event_time and self._cleanup_time(window) <= self.timers.watermark

    def _is_late(self, time: int) -> bool:
        return self._is_event_time and time + self._operator.allowed_lateness <= self.timers.watermark

    def _cleanup_time(self, window: Any) -> int:
        ends: int = window.max_timestamp()
        return min(ends + self._operator.allowed_lateness, MAX_TIMESTAMP) if self._is_event_time else ends

    def _register_cleanup(self, window: Any) -> None:
        time = self._cleanup_time(window)
        if time == MAX_TIMESTAMP:
            return  # it never expires
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
