"""What an operator of windows is made of; `window_task` runs it.

Operators that are windows over something else, such as a join of two streams in windows, need no operator of their own.
As in Flink they mark each element with the stream that it comes from, make one stream of both (`union`), partition it
by the common key, and put a `WindowOperator` behind it, which collects the marked elements in lists, and whose window
function takes them apart again::

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
"""The state with the elements of a window, or what they were combined into."""

Evaluate = Callable[[Any, Any, Any, Any], Iterable[Any] | None]


class WindowEvaluation(Function):
    """How a window function is called.

    Args:
        function: A function object or a plain callable; None passes the contents of a window on.
        method: Which of its methods is called, with window or with context.
        with_key: Whether it gets the key.
        combine: Makes one value of a list of elements before the function sees them; None if it sees all of them, or
            what state has combined already.
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
        """The functions of the program that it calls."""
        return self.function, self._combine

    def open(self, runtime_context: RuntimeContext) -> None:
        """Open the function."""
        for part in (self.function, self._combine):
            _each(part, "open", runtime_context)

    def close(self) -> None:
        """Close the function."""
        for part in (self.function, self._combine):
            _each(part, "close")

    def evaluate(self, key: Any, window: Any, context: Any, elements: Iterable[Any]) -> Iterable[Any] | None:
        """Call the function; `elements` are those of the window, or the one that they were combined into."""
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
        """A window expires."""
        clear = getattr(self.function, "clear", None)
        if self._method == "process" and callable(clear):
            clear(context)


class WindowCombination(Function):
    """Reduces or aggregates the elements of a window when it is evaluated, where an evictor needs all of them.

    Args:
        descriptor: What would combine them in state.
    """

    def __init__(self, descriptor: ReducingStateDescriptor[Any] | AggregatingStateDescriptor[Any, Any, Any]) -> None:
        self._descriptor = descriptor

    @property
    def program_functions(self) -> tuple[Any, ...]:
        """The functions of the program that it calls."""
        return (combining_function(self._descriptor),)

    def open(self, runtime_context: RuntimeContext) -> None:
        """Open the function that combines."""
        _each(combining_function(self._descriptor), "open", runtime_context)

    def close(self) -> None:
        """Close the function that combines."""
        _each(combining_function(self._descriptor), "close")

    def of(self, elements: Iterable[Any]) -> Iterable[Any]:
        """Return the one result, or nothing of no elements."""
        descriptor, rest = self._descriptor, iter(elements)
        if isinstance(descriptor, ReducingStateDescriptor):
            codec = value_codec_for(descriptor.type_info)
            for result in rest:
                for element in rest:
                    # Functions get what they would read from state: a row, not the tuple that they have made for it.
                    result = codec.expose(codec.adopt(descriptor.reduce(result, element)))
                return (result,)
            return ()
        function = descriptor.agg_function
        accumulator = function.create_accumulator()
        for element in rest:
            accumulator = function.add(element, accumulator)
        return (function.get_result(accumulator),)


class WindowOperator(Function):
    """An operator of windows, as a program defined it; its shape is "window".

    Args:
        assigner: Which windows an element belongs to.
        trigger: When a window is evaluated.
        contents: State of a window: reducing or aggregating, or a list of all elements; with an evictor a list of
            tuples of element and timestamp.
        evaluation: What is called with the contents.
        allowed_lateness: For how many milliseconds after its end a window of event time still takes elements.
        late_data_tag: Where elements go that come later; None drops them.
        evictor: Takes elements out of the contents before or after they are evaluated.

    Attributes:
        window_format: What a checkpoint says of its open windows. Each has its own contents, so new ones may be others.
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
        """The functions of the program that it calls."""
        return combining_function(self.contents), self.evaluation

    def open(self, runtime_context: RuntimeContext) -> None:
        """Open the functions."""
        _each(combining_function(self.contents), "open", runtime_context)
        self.evaluation.open(runtime_context)

    def close(self) -> None:
        """Close the functions."""
        _each(combining_function(self.contents), "close")
        self.evaluation.close()

    def evaluate(self, key: Any, window: Any, context: Any, elements: Iterable[Any]) -> Iterable[Any] | None:
        """Call the window function."""
        return self.evaluation.evaluate(key, window, context, elements)


def combining_function(descriptor: StateDescriptor[Any]) -> Any:
    """The reduce or aggregate function of a state, None of one that keeps its elements."""
    if isinstance(descriptor, ReducingStateDescriptor):
        return descriptor.reduce_function
    return descriptor.agg_function if isinstance(descriptor, AggregatingStateDescriptor) else None


def _each(function: Any, method: str, *arguments: Any) -> None:
    call = getattr(function, method, None)
    if callable(call):
        call(*arguments)


# What triggers, assigners, evictors and window functions see of the task that they run in.


class WindowAssignerTaskContext(WindowAssigner.WindowAssignerContext):
    """Time, and state of the current key."""

    def __init__(self, timers: InternalTimerService, runtime_context: RuntimeContext) -> None:
        self._timers = timers
        self._runtime_context = runtime_context

    def get_current_processing_time(self) -> int:
        return self._timers.current_processing_time()

    def get_runtime_context(self) -> RuntimeContext:
        return self._runtime_context


class TriggerTaskContext(Trigger.OnMergeContext, Evictor.EvictorContext):
    """Times, and timers and state of a window of the current key.

    Attributes:
        window: The window at hand.
        merged: Those that it was made of, while it is merged.
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
            raise ConfigurationError("There are no metrics of operators: leave get_metric_group() out of the trigger.")
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
    """Window, times, state and side outputs.

    Attributes:
        current: The window at hand.
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
        backend: Has it.
        serializer: Of windows; None for those that merge, which have no state of their own.

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
            f"State {descriptor.name!r} is asked for of a window, and windows that merge have none of their own: use "
            "global_state()."
        )


# The windows of a key that may merge, and where the contents of each are.
#
# Contents are not moved when a window grows: it keeps the namespace in which it began, its *state window*. Only when
# windows that both have contents become one, the contents of all but one are moved.

MERGING_WINDOWS: Final[MapStateDescriptor[bytes, bytes]] = MapStateDescriptor("merging-window-set", "binary", "binary")

Merge = Callable[[Any, list[Any], Any, list[Any]], None]
"""Is called with the window that others have become, these, its state window, and those whose contents move there."""


class _Results(MergingWindowAssigner.MergeCallback[Any]):
    def __init__(self) -> None:
        self.found: list[tuple[Any, set[Any]]] = []

    def merge(self, to_be_merged: Any, merge_result: Any) -> None:
        self.found.append((merge_result, set(to_be_merged)))


class MergingWindowSet:
    """The windows of the current key.

    Args:
        assigner: Knows which windows merge.
        serializer: Of windows.
        state: Where the state window of each window is kept.
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
        # In the order of their bytes, so that what merges does not depend on which window was read first.
        self._stored = {window: of_state for window, of_state in sorted(state.items()) if of_state is not None}
        read = serializer.deserialize
        self._windows = {read(window): read(of_state) for window, of_state in self._stored.items()}

    def state_window(self, window: Any) -> Any:
        """Return where the contents of a window are, None if there is no such window."""
        return self._windows.get(window)

    def add(self, new: Any, merge: Merge) -> Any:
        """Add a window and return what it has become.

        Raises:
            ConfigurationError: The assigner merges windows that are not there.
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
                    f"{self._assigner!r} makes {result!r} of {parts!r}, which are no windows here."
                )
            of_state = [self._windows.pop(window) for window in merged]
            self._windows[result] = of_state[0]
            if merged != [result]:
                merge(result, merged, of_state[0], of_state[1:])
        if became not in self._windows:
            self._windows[became] = became
        return became

    def retire(self, window: Any) -> None:
        """Forget a window.

        Raises:
            StateError: There is no such window.
        """
        if window not in self._windows:
            raise StateError(f"The window {window!r} is none of those of the key.")
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
    """What is raised if windows become one that is over already."""
    return StateError(f"Windows were merged into {window!r}, which ends before the {what}, {reached}.")


# The operator of windows in one task: elements into windows, timers out of them. The rules are Flink's.
#
# - An element is added to each of its windows that is not over; a window of event time is over when the watermark has
#   reached its last millisecond plus the allowed lateness.
# - An element that was added to no window, and whose own time is past the watermark by more than the allowed
#   lateness, is
#   late: it goes to the side output for late data, or is dropped and counted.
# - The trigger is asked with each element, and with each of its timers. *Fire* evaluates what the window has, *purge*
#   throws it away.
# - When a window is over, its contents, the state of its trigger and what the window function clears are removed.
#
# Within an epoch the watermark stands where the epoch before has left it. So what is late does not depend on the order
# within an epoch; timers fire when all elements of the epoch are in their windows, in the order of their times.

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
