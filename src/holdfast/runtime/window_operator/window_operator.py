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

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

from holdfast.runtime.function.user_function import Function, OutputTag, RuntimeContext
from holdfast.runtime.window.evictor import Evictor
from holdfast.runtime.window.trigger import Trigger
from holdfast.runtime.window.window_assigner import WindowAssigner
from holdfast.state.declaration.descriptor import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
)
from holdfast.state.layout.value_codec import value_codec_for

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
        kept_as: What a checkpoint says of its open windows. Each has its own contents, so new ones may be others.
    """

    kept_as: Final = {"form": "elements"}

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
