"""A user function opened once in a process, and the fresh copies of it that tasks run on.

Opening may be expensive (a model, a connection), so it happens once per worker process and job attempt. What a failed
attempt left in the instance must never show, so each task runs on a copy (`instance_copy`). State handles and the
runtime context are re-bound to the task on the way: they find it in the memo of the copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.kernel.secret import get_logger
from holdfast.runtime.function.metric import TASK_METRICS
from holdfast.runtime.function.user_function import KeySelector
from holdfast.runtime.graph.stream_graph import OperatorSpec
from holdfast.runtime.operator.context import BACKEND, CONTEXT, SubtaskContext, SubtaskInfo
from holdfast.runtime.operator.failure import user_error
from holdfast.runtime.operator.instance_copy import copied_function
from holdfast.state.backend import AbstractKeyedStateBackend

logger = get_logger(__name__)
_GAUGES = "_holdfast_gauges"

_FIRST = {
    "map": "map",
    "flat_map": "flat_map",
    "filter": "filter",
    "process": "process_element",
    "reduce": "reduce",
    "batches": "process_batch",
    "groups": "process_group",
    "async": "invoke_all",
    "window": "evaluate",
    "panes": "results",
}
_OF_TWO = {
    "map": ("map1", "map2"),
    "flat_map": ("flat_map1", "flat_map2"),
    "process": ("process_element1", "process_element2"),
}


class OpenedFunction:
    """A function object as one process has opened it.

    Args:
        function: It must belong to this process alone (a deserialized copy).
        context: Of the subtask on whose behalf it is opened.
        info: That subtask.

    Raises:
        UserFunctionError: `open` raised.
    """

    def __init__(self, function: Any, context: SubtaskContext, info: SubtaskInfo) -> None:
        self.uid = info.uid
        self._function = function
        opener = getattr(function, "open", None)
        if callable(opener):
            try:
                opener(context)
            except HoldfastError:
                raise
            except Exception as error:
                raise user_error(error, info.uid, None, info.epoch, "opening") from error
            if context.metrics.gauges and hasattr(function, "__dict__"):
                # With the function they are copied for each task, and then read what its copy holds.
                vars(function)[_GAUGES] = context.metrics.gauges

    def copied(self, memo: dict[Any, Any]) -> Any:
        """A fresh copy of the function for one task; what its handles and contexts are bound to stands in the memo."""
        return copied_function(self._function, memo)

    def close(self) -> None:
        """Closes the opened instance; an error is logged, because nothing depends on it any more."""
        closer = getattr(self._function, "close", None)
        if callable(closer):
            try:
                closer()
            except Exception:
                logger.exception("close() of operator %r failed", self.uid)


class OperatorInstance(OpenedFunction):
    """The opened instance of one operator's function in this process.

    Args:
        spec: The operator; its function must belong to this process alone (a deserialized copy).
        info: The subtask on whose behalf the function is opened.
        backend: An empty backend that gives out the handles asked for in `open`; None for operators without keys.

    Raises:
        UserFunctionError: `open` raised.
    """

    def __init__(self, spec: OperatorSpec, info: SubtaskInfo, backend: AbstractKeyedStateBackend | None) -> None:
        super().__init__(spec.function, SubtaskContext(info, backend), info)
        self.spec = spec

    def bind(
        self, context: SubtaskContext, backend: AbstractKeyedStateBackend | None
    ) -> tuple[Any, Callable[..., Any]]:
        """A fresh copy of the function for one task, and the method or callable that takes its elements."""
        memo = {CONTEXT: context, BACKEND: backend, TASK_METRICS: context.metrics}
        function = self.copied(memo)
        context.metrics.gauges = dict(getattr(function, _GAUGES, {}))
        if self.spec.second_type is not None:
            return function, method_of_input(function, self.spec.shape, 1)
        return function, method_of(function, self.spec.shape)


class OpenedSelector:
    """What computes keys, as one process has opened it: a method of a `KeySelector`, or a plain callable.

    Args:
        selector: It must belong to this process alone.
        info: The subtask on whose behalf it is opened.

    Raises:
        UserFunctionError: `open` raised.
    """

    def __init__(self, selector: Callable[[Any], Any], info: SubtaskInfo) -> None:
        self._selector = selector
        owner = getattr(selector, "__self__", None)
        self._opened = OpenedFunction(owner, _SelectorContext(info), info) if isinstance(owner, KeySelector) else None

    def bind(self, info: SubtaskInfo) -> Callable[[Any], Any]:
        """What computes the keys in one task: the method of a fresh copy."""
        if self._opened is None:
            return self._selector
        memo = {CONTEXT: _SelectorContext(info), BACKEND: None}
        method: Callable[[Any], Any] = self._opened.copied(memo).get_key
        return method

    def close(self) -> None:
        """Closes the opened instance."""
        if self._opened is not None:
            self._opened.close()


class _SelectorContext(SubtaskContext):
    """The runtime context of a function that is no step: it has no state and no metrics of its own."""

    def __init__(self, info: SubtaskInfo) -> None:
        super().__init__(info, None)

    def get_metrics_group(self) -> NoReturn:
        raise ConfigurationError(
            f"the key selector or partitioner before {self._info.uid!r} asks for metrics, and it is no step that could "
            "show them: count in the operator before it."
        )

    def _state(self, descriptor: Any) -> NoReturn:
        raise ConfigurationError(
            f"the key selector or partitioner before {self._info.uid!r} asks for state {descriptor.get_name()!r}: it "
            "has none, and must return the same for the same element, always."
        )


def method_of(function: Any, shape: str) -> Callable[..., Any]:
    """What is called with each element: the method of the function object, or the plain callable itself.

    Raises:
        ConfigurationError: The object is neither.
    """
    method = getattr(function, _FIRST[shape], None)
    if callable(method):
        return method  # type: ignore[no-any-return]
    if callable(function):
        return function  # type: ignore[no-any-return]
    raise ConfigurationError(f"{type(function).__name__!r} is neither callable nor has a method {_FIRST[shape]}()")


def method_of_input(function: Any, shape: str, number: int) -> Callable[..., Any]:
    """What is called with each element of an input of a function of two, 1 or 2; a map of it emits no None."""
    method: Callable[..., Any] = getattr(function, _OF_TWO[shape][number - 1])
    if shape != "map":
        return method

    def one_or_none(value: Any) -> tuple[Any, ...]:
        mapped = method(value)
        return () if mapped is None else (mapped,)

    return one_or_none
