"""User functions that are opened once in a process, and the copies of them on which tasks run.

Opening may be expensive (a model, a connection), so it happens once per worker process and job attempt. A failed
attempt must leave nothing behind in the instance, so each task runs on a copy (`OperatorInstance.bind`). State handles
and the runtime context are bound to the task during the copy: they find it in the memo.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from itertools import takewhile
from operator import length_hint
from typing import Any, Final, NoReturn

from holdfast.errors import ConfigurationError, HoldfastError, UserFunctionError
from holdfast.kernel import debugger
from holdfast.kernel.secret import get_logger
from holdfast.kernel.user_traceback import ends_in_holdfast, is_of_holdfast, one_line, short_repr, user_traceback
from holdfast.runtime.function.metric import TASK_METRICS
from holdfast.runtime.function.user_function import KeySelector
from holdfast.runtime.graph.stream_graph import OperatorSpec
from holdfast.runtime.operator.context import BACKEND, CONTEXT, SubtaskContext, SubtaskInfo
from holdfast.runtime.operator.function_copy import copy_function
from holdfast.state.backend import AbstractKeyedStateBackend

logger = get_logger(__name__)
_GAUGES = "_holdfast_gauges"

_WRONG_CODE: Final = (NameError, TypeError)
"""Errors of Python that the same function raises again for the same element."""

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


def user_error(error: Exception, uid: str, key: Any, epoch: int | None, doing: str) -> UserFunctionError:
    """Return the error for a user function that raised: operator, key and epoch first, the traceback last.

    A debugger that listens gets the error first.
    """
    debugger.post_mortem(error)
    where = "" if key is None else f" for key {short_repr(key)}"
    when = "" if epoch is None else f" in epoch {epoch}"
    local = _locals_of_caller(error)
    wrong = isinstance(error, TypeError) and "emitted" in local and ends_in_holdfast(error)
    reason = _wrong_return(local) if wrong else one_line(error)
    element = _element_of(local)
    return UserFunctionError(
        uid,
        key,
        epoch,
        f"operator {uid!r} failed while {doing}{where}{when}: {reason}",
        details=("" if element is None else f"  element: {element}\n") + user_traceback(error),
        is_final=wrong or _is_final(error),
    )


def _is_final(error: Exception) -> bool:
    """Return whether the function raises the error again for the same element.

    A None may be the answer of a service that was away, and so may be any error that was handled meanwhile.
    """
    return (
        isinstance(error, _WRONG_CODE)
        and "NoneType" not in one_line(error)
        and error.__cause__ is None
        and error.__context__ is None
    )


def _locals_of_caller(error: Exception) -> Mapping[str, Any]:
    """Return the variables of the loop over elements or timers that called the function; empty if there was none."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = list(takewhile(lambda frame: is_of_holdfast(frame.f_code), frames))
    loops = [frame.f_locals for frame in ours if not {"element", "source", "emitted"}.isdisjoint(frame.f_locals)]
    return loops[-1] if loops else {}


def _element_of(local: Mapping[str, Any]) -> str | None:
    """Return the element of the loop as a short text; None if it is unknown."""
    if "element" in local:
        return short_repr(local["element"])
    elements = local.get("elements")
    if "source" in local and isinstance(elements, list) and elements:
        return short_repr(elements[len(elements) - length_hint(local["source"]) - 1])
    return None


def _wrong_return(local: Mapping[str, Any]) -> str:
    return (
        f"the function returned {short_repr(local['emitted'])}, which is no collection of elements: write `yield` "
        "in place of `return`, or return a list"
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
