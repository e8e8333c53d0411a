"""User functions that are opened once in a process, and the copies of them on which tasks run.

Opening may be expensive (a model, a connection), so it happens once per worker process and job attempt. A failed
attempt must leave nothing behind in the instance, so each task runs on a copy (`OperatorInstance.bind`). State handles
and the runtime context are bound to the task during the copy: they find it in the memo.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from holdfast.errors import ConfigurationError, HoldfastError, UserFunctionError
from holdfast.kernel import debugger
from holdfast.kernel.secret import get_logger
from holdfast.runtime.function.metric import TASK_METRICS
from holdfast.runtime.function.user_function import KeySelector
from holdfast.runtime.graph.stream_graph import OperatorSpec
from holdfast.runtime.operator.context import BACKEND, CONTEXT, SubtaskContext, SubtaskInfo
from holdfast.runtime.operator.function_copy import copy_function
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


def user_error(error: Exception, uid: str, key: Any, epoch: int, doing: str) -> UserFunctionError:
    """Return the error for a user function that raised: operator, key and epoch first, the traceback last.

    A debugger that listens gets the error first.
    """
    debugger.post_mortem(error)
    where = "" if key is None else f" for key {key!r}"
    text = "".join(traceback.format_exception(error))
    return UserFunctionError(
        uid,
        key,
        epoch,
        f"the function of operator {uid!r} raised {type(error).__name__} while {doing}{where} in epoch {epoch}; "
        "nothing of this epoch was committed. Fix the function and run the job again: it resumes from its last "
        f"completed checkpoint\n{text}",
    )


class OpenedFunction:
    """A function object that was opened in this process.

    Args:
        function: The function, which this process alone owns (a deserialized copy).
        context: The context of the subtask that opens it.
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
                # In the function, so that they are copied for each task and read the fields of its copy.
                vars(function)[_GAUGES] = context.metrics.gauges

    def copied(self, memo: dict[Any, Any]) -> Any:
        """Return a fresh copy of the function for one task; the memo has what handles and contexts are bound to."""
        return copy_function(self._function, memo)

    def close(self) -> None:
        """Close the function. An error is logged, because nothing depends on it any more."""
        closer = getattr(self._function, "close", None)
        if callable(closer):
            try:
                closer()
            except Exception:
                logger.exception("close() of operator %r failed", self.uid)


class OperatorInstance(OpenedFunction):
    """The opened function of one operator in this process.

    Args:
        spec: The operator, whose function this process alone owns (a deserialized copy).
        info: The subtask that opens it.
        backend: An empty backend that creates the handles of `open`; None for operators without keys.

    Raises:
        UserFunctionError: `open` raised.
    """

    def __init__(self, spec: OperatorSpec, info: SubtaskInfo, backend: AbstractKeyedStateBackend | None) -> None:
        super().__init__(spec.function, SubtaskContext(info, backend), info)
        self.spec = spec

    def bind(
        self, context: SubtaskContext, backend: AbstractKeyedStateBackend | None
    ) -> tuple[Any, Callable[..., Any]]:
        """Return a fresh copy of the function for one task, and the callable that takes its elements."""
        memo = {CONTEXT: context, BACKEND: backend, TASK_METRICS: context.metrics}
        function = self.copied(memo)
        context.metrics.gauges = dict(getattr(function, _GAUGES, {}))
        if self.spec.second_type is not None:
            return function, method_of_input(function, self.spec.shape, 1)
        return function, method_of(function, self.spec.shape)


class OpenedSelector:
    """An opened key selector: a method of a `KeySelector`, or a plain callable.

    Args:
        selector: The selector, which this process alone owns.
        info: The subtask that opens it.

    Raises:
        UserFunctionError: `open` raised.
    """

    def __init__(self, selector: Callable[[Any], Any], info: SubtaskInfo) -> None:
        self._selector = selector
        owner = getattr(selector, "__self__", None)
        self._opened = OpenedFunction(owner, _SelectorContext(info), info) if isinstance(owner, KeySelector) else None

    def bind(self, info: SubtaskInfo) -> Callable[[Any], Any]:
        """Return the key selector of one task: the method of a fresh copy."""
        if self._opened is None:
            return self._selector
        memo = {CONTEXT: _SelectorContext(info), BACKEND: None}
        method: Callable[[Any], Any] = self._opened.copied(memo).get_key
        return method

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


class _SelectorContext(SubtaskContext):
    """The runtime context of a key selector or partitioner, which has no state and no metrics."""

    def __init__(self, info: SubtaskInfo) -> None:
        super().__init__(info, None)

    def get_metrics_group(self) -> NoReturn:
        raise ConfigurationError(
            f"the key selector or partitioner before {self._info.uid!r} requests metrics, but it has none: count in "
            "the operator before it."
        )

    def _state(self, descriptor: Any) -> NoReturn:
        raise ConfigurationError(
            f"the key selector or partitioner before {self._info.uid!r} requests state {descriptor.get_name()!r}, but "
            "it has none: it must always return the same for the same element."
        )


def method_of(function: Any, shape: str) -> Callable[..., Any]:
    """Return the method of the function object that takes elements, or the plain callable itself.

    Raises:
        ConfigurationError: The object has no such method and is not callable.
    """
    method = getattr(function, _FIRST[shape], None)
    if callable(method):
        return method  # type: ignore[no-any-return]
    if callable(function):
        return function  # type: ignore[no-any-return]
    raise ConfigurationError(f"{type(function).__name__!r} is neither callable nor has a method {_FIRST[shape]}()")


def method_of_input(function: Any, shape: str, number: int) -> Callable[..., Any]:
    """Return the method for elements of input 1 or 2 of a function of two; a map that returns None emits nothing."""
    method: Callable[..., Any] = getattr(function, _OF_TWO[shape][number - 1])
    if shape != "map":
        return method

    def one_or_none(value: Any) -> tuple[Any, ...]:
        mapped = method(value)
        return () if mapped is None else (mapped,)

    return one_or_none
