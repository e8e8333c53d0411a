"""Asynchronous functions: many elements wait for an external system at once, each in a coroutine.

`AsyncDataStream` takes them. All results of an epoch arrive before its barrier, so no call is in flight when a
checkpoint is taken. A call may be repeated when an epoch runs again.
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
    """Requests results for each element from an external system, without blocking other elements.

    >>> import asyncio
    >>> class Lookup(AsyncFunction):
    ...     async def async_invoke(self, value):
    ...         await asyncio.sleep(0)
    ...         return [(value, len(value))]
    >>> asyncio.run(Lookup().async_invoke("kelp"))
    [('kelp', 4)]
    """

    @abstractmethod
    async def async_invoke(self, value: IN) -> list[OUT]:
        """Return the elements that replace `value`.

        Raises:
            Exception: Any exception fails the task, unless the retry strategy retries it.
        """

    def timeout(self, value: IN) -> list[OUT]:
        """Return the elements that replace an element whose call timed out.

        Raises:
            TimeoutError: Always, unless it is overridden.
        """
        raise TimeoutError(f"the asynchronous call for {value!r:.200} took longer than its timeout")


class AsyncRetryPredicate(ABC):
    """Decides which outcomes of a call are retried.

    >>> predicate = RetryPredicate(empty_result_predicate, has_exception_predicate)
    >>> predicate.result_predicate()([])
    True
    """

    @abstractmethod
    def result_predicate(self) -> ResultPredicate | None:
        """Return a function of the results that is true if the call is retried; None never retries."""

    @abstractmethod
    def exception_predicate(self) -> ExceptionPredicate | None:
        """Return a function of the exception that is true if the call is retried; None never retries."""


class AsyncRetryStrategy(ABC):
    """Decides whether and when a call is retried.

    >>> strategy = AsyncRetryStrategy.fixed_delay(3, 100, exception_predicate=has_exception_predicate)
    >>> strategy.can_retry(2), strategy.can_retry(3)
    (True, False)
    >>> strategy.get_backoff_time_millis(1)
    100
    """

    @abstractmethod
    def can_retry(self, current_attempts: int) -> bool:
        """Return whether another attempt follows after `current_attempts` attempts."""

    @abstractmethod
    def get_backoff_time_millis(self, current_attempts: int) -> int:
        """Return the delay before the next attempt, in milliseconds."""

    @abstractmethod
    def get_retry_predicate(self) -> AsyncRetryPredicate:
        """Return the predicate of outcomes that are retried."""

    @staticmethod
    def no_restart() -> AsyncRetryStrategy:
        """Return a strategy without retries."""
        return NoRetryStrategy()

    @staticmethod
    def fixed_delay(
        max_attempts: int,
        backoff_time_millis: int,
        result_predicate: ResultPredicate | None = None,
        exception_predicate: ExceptionPredicate | None = None,
    ) -> AsyncRetryStrategy:
        """Return a strategy with a fixed delay between attempts.

        Args:
            max_attempts: The greatest number of attempts, the first one included.
            backoff_time_millis: The delay in milliseconds.
            result_predicate: Which results are retried; None for no results.
            exception_predicate: Which exceptions are retried; None for no exceptions.

        Raises:
            ConfigurationError: A number is out of range.
        """
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
        """Return a strategy with growing delays between attempts.

        Args:
            max_attempts: The greatest number of attempts, the first one included.
            initial_delay: The first delay in milliseconds.
            max_retry_delay: The greatest delay in milliseconds.
            multiplier: The factor between two delays, at least 1.
            result_predicate: Which results are retried; None for no results.
            exception_predicate: Which exceptions are retried; None for no exceptions.

        Raises:
            ConfigurationError: A number is out of range.
        """
        return ExponentialBackoffDelayRetryStrategy(
            max_attempts, initial_delay, max_retry_delay, multiplier, result_predicate, exception_predicate
        )


class RetryPredicate(AsyncRetryPredicate):
    """A predicate of two optional functions.

    >>> RetryPredicate(empty_result_predicate).result_predicate()(["kelp"])
    False
    """

    def __init__(
        self, result_predicate: ResultPredicate | None = None, exception_predicate: ExceptionPredicate | None = None
    ) -> None:
        self._of_result = result_predicate
        self._of_exception = exception_predicate

    def result_predicate(self) -> ResultPredicate | None:
        return self._of_result

    def exception_predicate(self) -> ExceptionPredicate | None:
        return self._of_exception


class NoRetryStrategy(AsyncRetryStrategy):
    """A strategy without retries.

    >>> NoRetryStrategy().can_retry(1)
    False
    """

    def can_retry(self, current_attempts: int) -> bool:
        return False

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        return -1

    def get_retry_predicate(self) -> AsyncRetryPredicate:
        return RetryPredicate()


class ExponentialBackoffDelayRetryStrategy(AsyncRetryStrategy):
    """A strategy with growing delays; see `AsyncRetryStrategy.exponential_backoff`.

    >>> strategy = ExponentialBackoffDelayRetryStrategy(4, 100, 1_000, 2.0, None, has_exception_predicate)
    >>> [strategy.get_backoff_time_millis(attempt) for attempt in (1, 2, 3)]
    [100, 200, 400]

    Raises:
        ConfigurationError: A number is out of range.
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
                "A retry strategy has at least one attempt, and delays that are not negative and do not shrink; not "
                f"{max_attempts!r} attempts with {initial_delay!r} to {max_retry_delay!r} ms by {multiplier!r}."
            )
        self._most = max_attempts
        self._initial = initial_delay
        self._longest = max_retry_delay
        self._multiplier = multiplier
        self._predicate = RetryPredicate(result_predicate, exception_predicate)

    def can_retry(self, current_attempts: int) -> bool:
        return current_attempts < self._most

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        return round(min(self._initial * self._multiplier ** min(current_attempts - 1, 1000), self._longest))

    def get_retry_predicate(self) -> AsyncRetryPredicate:
        return self._predicate


class FixedDelayRetryStrategy(ExponentialBackoffDelayRetryStrategy):
    """A strategy with a fixed delay; see `AsyncRetryStrategy.fixed_delay`.

    >>> strategy = FixedDelayRetryStrategy(3, 100, exception_predicate=has_exception_predicate)
    >>> [strategy.get_backoff_time_millis(attempt) for attempt in (1, 2)]
    [100, 100]
    """

    def __init__(
        self,
        max_attempts: int,
        backoff_time_millis: int,
        result_predicate: ResultPredicate | None = None,
        exception_predicate: ExceptionPredicate | None = None,
    ) -> None:
        delay = backoff_time_millis
        super().__init__(max_attempts, delay, delay, 1.0, result_predicate, exception_predicate)


def empty_result_predicate(result: list[Any]) -> bool:
    """Return whether a call returned no results.

    >>> empty_result_predicate([])
    True
    """
    return len(result) == 0


def has_exception_predicate(error: Exception) -> bool:
    """Return True: every exception is retried.

    >>> has_exception_predicate(OSError())
    True
    """
    return True


def exception_type_predicate(error: Exception, expected_error_type: type[Exception]) -> bool:
    """Return whether the exception is of a class; bind the class with `functools.partial`.

    >>> from functools import partial
    >>> is_retried = partial(exception_type_predicate, expected_error_type=OSError)
    >>> is_retried(ConnectionError()), is_retried(ValueError())
    (True, False)
    """
    return isinstance(error, expected_error_type)
