"""Functions with state that several stories use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.runtime.function.user_function import KeyedProcessFunction
from holdfast.state.descriptor import ValueStateDescriptor


class Numbering(KeyedProcessFunction):
    """Numbers the elements of each key.

    Args:
        form: `(element, number) -> emitted element`; without it the pair of both.
    """

    def __init__(self, form: Callable[[Any, int], Any] | None = None) -> None:
        self._form = form or (lambda element, number: (element, number))

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        number = (self.count.value() or 0) + 1
        self.count.update(number)
        yield self._form(value, number)
