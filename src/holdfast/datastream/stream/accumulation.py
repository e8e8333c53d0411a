"""Sum, least and greatest of elements without a declared type, as PyFlink has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

from holdfast.kernel.watermark import MAX_WATERMARK
from holdfast.runtime.function.user_function import KeyedProcessFunction, RuntimeContext
from holdfast.runtime.operator.vectorised.groups import exact_decimals
from holdfast.state.declaration.descriptor import ValueStateDescriptor
from holdfast.state.declaration.function import ReduceFunction
from holdfast.types.information.type_information import TypeInformation
from holdfast.types.row import field_names_of


def added(before: Any, value: Any) -> Any:
    """Return the sum of two values; decimals keep all their digits."""
    if isinstance(value, Decimal):
        with exact_decimals():
            return before + value
    return before + value


def is_less(value: Any, before: Any) -> bool:
    """Whether a value is less than the one that there is, which NaN is only as long as there is nothing else."""
    return bool(value < before) or (before != before and value == value)


def is_greater(value: Any, before: Any) -> bool:
    """Whether a value is greater than the one that there is, which NaN is only as long as there is nothing else."""
    return bool(value > before) or (before != before and value == value)


def least(before: Any, value: Any) -> Any:
    """Return the lesser of two values."""
    return value if is_less(value, before) else before


def greatest(before: Any, value: Any) -> Any:
    """Return the greater of two values."""
    return value if is_greater(value, before) else before


class AccumulateReduceFunction(ReduceFunction):
    """Replaces one part of each tuple, named tuple or Row by what it and those before it come to.

    None counts for nothing. Other elements are their only part.

    Args:
        name: What is done, for errors.
        position: Of the part; where parts have names, it may be one.
        combine: Makes one of what there is and a new value.
    """

    def __init__(self, name: str, position: int | str, combine: Callable[[Any, Any], Any]) -> None:
        self._name = name
        self._position = position
        self._combine = combine

    def reduce(self, value1: Any, value2: Any) -> Any:
        """Return the new element with the part replaced.

        Raises:
            ValueError: The elements have no such part.
        """
        if not isinstance(value2, tuple):
            if self._position != 0:
                raise self._missing(value2)
            return self._combined(value1, value2)
        at = self._place(value2)
        total = self._combined(value1[self._place(value1)], value2[at])
        parts = [*value2[:at], total, *value2[at + 1 :]]
        return tuple.__new__(type(value2), parts)

    def chosen(self, element: Any) -> Any:
        """Return the part of an element.

        Raises:
            ValueError: It has no such part.
        """
        if not isinstance(element, tuple):
            if self._position != 0:
                raise self._missing(element)
            return element
        return element[self._place(element)]

    def _combined(self, before: Any, value: Any) -> Any:
        if before is None or value is None:
            return value if before is None else before
        return self._combine(before, value)

    def _place(self, element: Any) -> int:
        at, names = self._position, field_names_of(type(element))
        if at in names:
            at = names.index(at)
        if not isinstance(at, int) or not isinstance(element, tuple) or not 0 <= at < len(element):
            raise self._missing(element)
        return at

    def _missing(self, element: Any) -> ValueError:
        return ValueError(f"{self._name}(): {element!r:.200} has no part {self._position!r}.")


class ChooseReduceFunction(AccumulateReduceFunction):
    """Keeps the element whose part is the best so far, and of equal ones the first.

    Args:
        name: What is done, for errors.
        position: Of the part; where parts have names, it may be one.
        is_better: Whether the part of a new element is better than the one that there is. None is never better.
    """

    def __init__(self, name: str, position: int | str, is_better: Callable[[Any, Any], bool]) -> None:
        super().__init__(name, position, is_better)
        self._is_better = is_better

    def reduce(self, value1: Any, value2: Any) -> Any:
        """Return one of the two elements.

        Raises:
            ValueError: The elements have no such part.
        """
        before, new = self.chosen(value1), self.chosen(value2)
        if new is None or (before is not None and not self._is_better(new, before)):
            return value1
        return value2


class FinalReduce(KeyedProcessFunction):
    """Reduces the elements of a key and emits the result when event time ends, with its input."""

    def __init__(self, function: Any, element_type: TypeInformation) -> None:
        self._function = function
        self._type = element_type

    @property
    def program_functions(self) -> tuple[Any, ...]:
        """The functions of the program that it calls."""
        return (self._function,)

    def open(self, runtime_context: RuntimeContext) -> None:
        """Open the function and ask for the state."""
        opener = getattr(self._function, "open", None)
        if callable(opener):
            opener(runtime_context)
        # Not a reducing state, which would call the function that was opened first, and not the copy of this task.
        self._reduced: Any = runtime_context.get_state(ValueStateDescriptor("_final", self._type))

    def close(self) -> None:
        """Close the function."""
        closer = getattr(self._function, "close", None)
        if callable(closer):
            closer()

    def process_element(self, value: Any, ctx: Any) -> None:
        """Add an element."""
        ctx.timer_service().register_event_time_timer(MAX_WATERMARK)
        before = self._reduced.value()
        reduce = getattr(self._function, "reduce", self._function)
        self._reduced.update(value if before is None else reduce(before, value))

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        """Emit what has come of them."""
        yield self._reduced.value()
        self._reduced.clear()
