"""Functions that states apply by themselves: reduce, aggregate, fold.

Wherever one of them is taken, a plain callable or any object with the same methods does as well.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from holdfast.errors import ConfigurationError


class _Opened:
    """What a function may do before its first call and after its last one; states themselves call neither."""

    def open(self, runtime_context: Any) -> None:
        """Prepares the function."""

    def close(self) -> None:
        """Releases what `open` took."""


class ReduceFunction(_Opened, ABC):
    """Combines two elements into one of the same type."""

    @abstractmethod
    def reduce(self, value1: Any, value2: Any) -> Any:
        """Returns the combination of what there is (`value1`) with a new element (`value2`)."""


class AggregateFunction(_Opened, ABC):
    """Collects elements in an accumulator, from which a result of another type may be taken at any time."""

    @abstractmethod
    def create_accumulator(self) -> Any:
        """Returns an accumulator that has seen nothing."""

    @abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any:
        """Returns the accumulator with one more element; it may change and return the one given."""

    @abstractmethod
    def get_result(self, accumulator: Any) -> Any:
        """Returns the result of what the accumulator has seen, without changing it."""

    @abstractmethod
    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        """Returns an accumulator that has seen what both have."""


class FoldFunction(ABC):
    """Adds elements to an accumulator that starts from a given value."""

    @abstractmethod
    def fold(self, accumulator: Any, value: Any) -> Any:
        """Returns the accumulator with one more element."""


def method_or_callable(function: Any, method: str, what: str) -> Callable[..., Any]:
    """Return the method of a function object, or the plain callable itself.

    Raises:
        ConfigurationError: It is neither.
    """
    bound = getattr(function, method, None)
    if callable(bound):
        return bound  # type: ignore[no-any-return]
    if callable(function) and not isinstance(function, type):
        return function  # type: ignore[no-any-return]
    raise ConfigurationError(f"{what} needs an object with a method {method}(), or a callable, not {function!r}.")
