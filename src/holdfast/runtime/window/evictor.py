"""Evictors: remove elements from a window before or after its evaluation, as in Flink's Java API."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from holdfast.errors import ConfigurationError
from holdfast.runtime.window.window import milliseconds

T = TypeVar("T")
W = TypeVar("W")


@dataclass(frozen=True)
class TimestampedValue(Generic[T]):
    """An element with its event time in milliseconds since 1970, None if it has none.

    >>> TimestampedValue("kelp", 1_000).has_timestamp()
    True
    """

    value: T
    timestamp: int | None

    def get_value(self) -> T:
        """Return `value`; Flink's name."""
        return self.value

    def get_timestamp(self) -> int | None:
        """Return `timestamp`; Flink's name."""
        return self.timestamp

    def has_timestamp(self) -> bool:
        """Return whether the element has an event time."""
        return self.timestamp is not None


class Evictor(ABC, Generic[T, W]):
    """Removes elements from a window. With an evictor, a window keeps all elements until it is purged or expires.

    >>> class DropFirst(Evictor):
    ...     def evict_before(self, elements, size, window, evictor_context):
    ...         del elements[:1]
    ...
    ...     def evict_after(self, elements, size, window, evictor_context):
    ...         pass
    >>> elements = [TimestampedValue("kelp", 1), TimestampedValue("cod", 2)]
    >>> DropFirst().evict_before(elements, 2, None, None)
    >>> elements
    [TimestampedValue(value='cod', timestamp=2)]
    """

    class EvictorContext(ABC):
        """The current times."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """Return the processing time in milliseconds since 1970: of the epoch, or in real time the current one."""

        @abstractmethod
        def get_current_watermark(self) -> int:
            """Return the event-time watermark; the smallest 64-bit number before there is one."""

    @abstractmethod
    def evict_before(
        self, elements: list[TimestampedValue[T]], size: int, window: W, evictor_context: EvictorContext
    ) -> None:
        """Remove elements before the window function gets them.

        Args:
            elements: The elements of the window in order of arrival; delete from this list.
            size: The number of elements.
            window: The window.
            evictor_context: The current times.
        """

    @abstractmethod
    def evict_after(
        self, elements: list[TimestampedValue[T]], size: int, window: W, evictor_context: EvictorContext
    ) -> None:
        """Remove elements after the window function got them; see `evict_before`."""


class _OnceEvictor(Evictor[T, W]):
    """An evictor that evicts either before or after the window function."""

    def __init__(self, do_evict_after: bool) -> None:
        self._do_evict_after = do_evict_after

    def evict_before(
        self, elements: list[TimestampedValue[T]], size: int, window: W, evictor_context: Evictor.EvictorContext
    ) -> None:
        if not self._do_evict_after:
            self._evict(elements)

    def evict_after(
        self, elements: list[TimestampedValue[T]], size: int, window: W, evictor_context: Evictor.EvictorContext
    ) -> None:
        if self._do_evict_after:
            self._evict(elements)

    @abstractmethod
    def _evict(self, elements: list[TimestampedValue[T]]) -> None:
        """Remove elements."""


class CountEvictor(_OnceEvictor[T, W]):
    """Keeps the last `max_count` elements.

    >>> windows = env.from_collection([1, 2, 3, 4], "bigint").count_window_all(4).evictor(CountEvictor.of(2))
    >>> list(windows.apply(lambda window, elements: [list(elements)]).execute_and_collect())
    [[3, 4]]

    Raises:
        ConfigurationError: The count is not a whole number from 0.
    """

    def __init__(self, max_count: int, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        if isinstance(max_count, bool) or not isinstance(max_count, int) or max_count < 0:
            raise ConfigurationError(f"CountEvictor keeps a whole number of elements from 0, not {max_count!r}.")
        self._max_count = max_count

    @staticmethod
    def of(max_count: int, do_evict_after: bool = False) -> CountEvictor[Any, Any]:
        """Return the evictor.

        Args:
            max_count: Number of elements that stay.
            do_evict_after: Whether it evicts after the window function, instead of before.
        """
        return CountEvictor(max_count, do_evict_after)

    def _evict(self, elements: list[TimestampedValue[T]]) -> None:
        del elements[: max(0, len(elements) - self._max_count)]


class TimeEvictor(_OnceEvictor[T, W]):
    """Keeps the elements whose event time is less than a length of time before that of the newest one.

    >>> elements = [TimestampedValue("kelp", 1_000), TimestampedValue("cod", 9_000)]
    >>> TimeEvictor.of(Time.seconds(5)).evict_before(elements, 2, None, None)
    >>> elements
    [TimestampedValue(value='cod', timestamp=9000)]
    """

    def __init__(self, window_size: Any, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        self._window_size = milliseconds(window_size, "the window size of TimeEvictor")

    @staticmethod
    def of(window_size: Any, do_evict_after: bool = False) -> TimeEvictor[Any, Any]:
        """Return the evictor.

        Args:
            window_size: A length of time, or milliseconds.
            do_evict_after: Whether it evicts after the window function, instead of before.
        """
        return TimeEvictor(window_size, do_evict_after)

    def _evict(self, elements: list[TimestampedValue[T]]) -> None:
        times = [element.timestamp for element in elements if element.timestamp is not None]
        if len(times) < len(elements) or not times:
            return
        cutoff = max(times) - self._window_size
        elements[:] = [element for element, time in zip(elements, times, strict=True) if time > cutoff]


class DeltaEvictor(_OnceEvictor[T, W]):
    """Keeps the elements whose difference from the last one is less than a threshold.

    >>> evictor = DeltaEvictor.of(3, lambda element, last: abs(element - last))
    >>> windows = env.from_collection([1, 8, 9], "bigint").count_window_all(3).evictor(evictor)
    >>> list(windows.apply(lambda window, elements: [list(elements)]).execute_and_collect())
    [[8, 9]]
    """

    def __init__(
        self, threshold: float, delta_function: Callable[[Any, Any], float], do_evict_after: bool = False
    ) -> None:
        super().__init__(do_evict_after)
        self._threshold = threshold
        self._delta = delta_function

    @staticmethod
    def of(
        threshold: float, delta_function: Callable[[Any, Any], float], do_evict_after: bool = False
    ) -> DeltaEvictor[Any, Any]:
        """Return the evictor.

        Args:
            threshold: Elements with this difference or a greater one are removed.
            delta_function: `(element, last element) -> number`.
            do_evict_after: Whether it evicts after the window function, instead of before.
        """
        return DeltaEvictor(threshold, delta_function, do_evict_after)

    def _evict(self, elements: list[TimestampedValue[T]]) -> None:
        if elements:
            last = elements[-1].value
            elements[:] = [element for element in elements if self._delta(element.value, last) < self._threshold]
