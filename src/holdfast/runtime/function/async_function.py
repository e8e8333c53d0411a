"""Functions that wait for something outside: many elements are under way at once, each in a coroutine.

A program hands one to `AsyncDataStream`. All results of an element are there before the barrier of its epoch, so
nothing is under way when a checkpoint is taken, and what is asked of the outside may be asked again when an epoch runs
again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from holdfast.errors import ConfigurationError
from holdfast.runtime.function.user_function import Function

IN = TypeVar("IN")
OUT = TypeVar("OUT")

ResultPredicate = Callable[[list[Any]], bool]
ExceptionPredicate = Callable[[Exception], bool]


class AsyncFunction(Function, ABC, Generic[IN, OUT]):
    """Asks something outside for each element, without blocking the others."""

    @abstractmethod
    async def async_invoke(self, value: IN) -> list[OUT]:
        """Returns what takes the place of `value`, a list, when it is known; what it raises fails the task."""

    def timeout(self, value: IN) -> list[OUT]:
        """Returns what takes the place of an element that took too long; raises, unless it is overridden.

        Raises:
            TimeoutError: Always.
        """
        raise TimeoutError(f"the asynchronous call for {value!r:.200} took longer than its timeout")


class AsyncRetryPredicate(ABC):
    """Says which outcomes of a call are no reason to give up."""

    @abstractmethod
    def result_predicate(self) -> ResultPredicate | None:
        """A function of the results that is true if the call is to be made again; None if none is."""

    @abstractmethod
    def exception_predicate(self) -> ExceptionPredicate | None:
        """A function of what the call raised that is true if it is to be made again; None if none is."""


class AsyncRetryStrategy(ABC):
    """Says whether and when a call is made again."""

    @abstractmethod
    def can_retry(self, current_attempts: int) -> bool:
        """Whether there is another attempt after so many."""

    @abstractmethod
    def get_backoff_time_millis(self, current_attempts: int) -> int:
        """How long to wait before it, in milliseconds."""

    @abstractmethod
    def get_retry_predicate(self) -> AsyncRetryPredicate:
        """Which outcomes are tried again."""

    @staticmethod
    def no_restart() -> AsyncRetryStrategy:
        """One attempt."""
        return NoRetryStrategy()

    @staticmethod
    def fixed_delay(
        max_attempts: int,
        backoff_time_millis: int,
        result_predicate: ResultPredicate | None = None,
        exception_predicate: ExceptionPredicate | None = None,
    ) -> AsyncRetryStrategy:
        """Up to so many attempts, with the same pause between each two."""
        return FixedDelayRetryStrategy(max_attempts, backoff_time_millis, result_predicate, exception_predicate)

    @staticmethod
    def exponential_backoff(
        max_attempts: int,
        initial_delay: int,
        max_retry_delay: int,
        multiplier: float,
        result_predicate: ResultPredicate | None = None,
        exception_predicate: ExceptionPredicate | None = None,
    ) -> AsyncRetryStrategy:
        """Up to so many attempts, with pauses that grow by a factor up to a greatest one; milliseconds."""
        return ExponentialBackoffDelayRetryStrategy(
            max_attempts, initial_delay, max_retry_delay, multiplier, result_predicate, exception_predicate
        )


class RetryPredicate(AsyncRetryPredicate):
    """Two functions, each of which may be missing."""

    def __init__(
        self, result_predicate: ResultPredicate | None = None, exception_predicate: ExceptionPredicate | None = None
    ) -> None:
        self._of_result = result_predicate
        self._of_exception = exception_predicate

    def result_predicate(self) -> ResultPredicate | None:
        """The function of the results."""
        return self._of_result

    def exception_predicate(self) -> ExceptionPredicate | None:
        """The function of the exception."""
        return self._of_exception


class NoRetryStrategy(AsyncRetryStrategy):
    """One attempt."""

    def can_retry(self, current_attempts: int) -> bool:
        """False."""
        return False

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        """-1: there is no other attempt."""
        return -1

    def get_retry_predicate(self) -> AsyncRetryPredicate:
        """None of the outcomes."""
        return RetryPredicate()


class ExponentialBackoffDelayRetryStrategy(AsyncRetryStrategy):
    """Attempts with growing pauses; see `AsyncRetryStrategy.exponential_backoff`.

    Raises:
        ConfigurationError: A number makes no sense.
    """

    def __init__(
        self,
        max_attempts: int,
        initial_delay: int,
        max_retry_delay: int,
        multiplier: float,
        result_predicate: ResultPredicate | None = None,
        exception_predicate: ExceptionPredicate | None = None,
    ) -> None:
        if max_attempts < 1 or initial_delay < 0 or max_retry_delay < initial_delay or multiplier < 1:
            raise ConfigurationError(
                "a retry strategy makes at least one attempt, its pauses are not negative, and they do not shrink; not "
                f"{max_attempts!r} attempts with {initial_delay!r} to {max_retry_delay!r} ms by {multiplier!r}."
            )
        self._most = max_attempts
        self._initial = initial_delay
        self._longest = max_retry_delay
        self._multiplier = multiplier
        self._predicate = RetryPredicate(result_predicate, exception_predicate)

    def can_retry(self, current_attempts: int) -> bool:
        """Whether fewer attempts than the most were made."""
        return current_attempts < self._most

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        """The pause after so many attempts."""
        return round(min(self._initial * self._multiplier ** min(current_attempts - 1, 1000), self._longest))

    def get_retry_predicate(self) -> AsyncRetryPredicate:
        """The predicates that were given."""
        return self._predicate


class FixedDelayRetryStrategy(ExponentialBackoffDelayRetryStrategy):
    """Attempts with the same pause between each two; see `AsyncRetryStrategy.fixed_delay`."""

    def __init__(
        self,
        max_attempts: int,
        backoff_time_millis: int,
        result_predicate: ResultPredicate | None = None,
        exception_predicate: ExceptionPredicate | None = None,
    ) -> None:
        pause = backoff_time_millis
        super().__init__(max_attempts, pause, pause, 1.0, result_predicate, exception_predicate)


def empty_result_predicate(result: list[Any]) -> bool:
    """Whether a call returned nothing."""
    return len(result) == 0


def has_exception_predicate(error: Exception) -> bool:
    """True: any exception is tried again."""
    return True


def exception_type_predicate(error: Exception, expected_error_type: type[Exception]) -> bool:
    """Whether the exception is of a class; bind the class with `functools.partial`."""
    return isinstance(error, expected_error_type)
