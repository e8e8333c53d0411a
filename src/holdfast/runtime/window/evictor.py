"""Evictors: which elements are taken out of a window before or after it is evaluated; as in Flink's Java API."""

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
    """An element with its event time in milliseconds; None if it has none."""

    value: T
    timestamp: int | None

    def get_value(self) -> T:
        """The element."""
        return self.value

    def get_timestamp(self) -> int | None:
        """Its event time."""
        return self.timestamp

    def has_timestamp(self) -> bool:
        """Whether it has an event time."""
        return self.timestamp is not None


class Evictor(ABC, Generic[T, W]):
    """Takes elements out of a window; with one, all elements are kept until the window is purged or expires."""

    class EvictorContext(ABC):
        """The times."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """The epoch's processing time in milliseconds since 1970."""

        @abstractmethod
        def get_current_watermark(self) -> int:
            """The event-time watermark; the smallest 64-bit number before there is one."""

    @abstractmethod
    def evict_before(
        self, elements: list[TimestampedValue[T]], size: int, window: W, evictor_context: EvictorContext
    ) -> None:
        """Takes elements out of the list before the window function sees it.

        Args:
            elements: Those of the window, in order of arrival; delete from it.
            size: How many they are.
            window: The window.
            evictor_context: The times.
        """

    @abstractmethod
    def evict_after(
        self, elements: list[TimestampedValue[T]], size: int, window: W, evictor_context: EvictorContext
    ) -> None:
        """Takes elements out of the list after the window function has seen it; see `evict_before`."""


class _OnceEvictor(Evictor[T, W]):
    """Evicts either before or after."""

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
        """Take out what is not to stay."""


class CountEvictor(_OnceEvictor[T, W]):
    """Keeps the last elements, so many at most."""

    def __init__(self, max_count: int, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        if isinstance(max_count, bool) or not isinstance(max_count, int) or max_count < 0:
            raise ConfigurationError(f"CountEvictor keeps so many elements, a whole number, not {max_count!r}.")
        self._max_count = max_count

    @staticmethod
    def of(max_count: int, do_evict_after: bool = False) -> CountEvictor[Any, Any]:
        """Makes the evictor."""
        return CountEvictor(max_count, do_evict_after)

    def _evict(self, elements: list[TimestampedValue[T]]) -> None:
        del elements[: max(0, len(elements) - self._max_count)]


class TimeEvictor(_OnceEvictor[T, W]):
    """Keeps the elements that are less than a length of time older than the newest one, by event time."""

    def __init__(self, window_size: Any, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        self._window_size = milliseconds(window_size, "the window size of TimeEvictor")

    @staticmethod
    def of(window_size: Any, do_evict_after: bool = False) -> TimeEvictor[Any, Any]:
        """Makes the evictor; `window_size` is a length of time, or milliseconds."""
        return TimeEvictor(window_size, do_evict_after)

    def _evict(self, elements: list[TimestampedValue[T]]) -> None:
        times = [element.timestamp for element in elements if element.timestamp is not None]
        if len(times) < len(elements) or not times:
            return
        cutoff = max(times) - self._window_size
        elements[:] = [element for element, time in zip(elements, times, strict=True) if time > cutoff]


class DeltaEvictor(_OnceEvictor[T, W]):
    """Keeps the elements that differ from the last one by less than a threshold."""

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
        """Makes the evictor.

        Args:
            threshold: From this difference on an element goes.
            delta_function: `(element, last element) -> number`.
            do_evict_after: After the window function, instead of before.
        """
        return DeltaEvictor(threshold, delta_function, do_evict_after)

    def _evict(self, elements: list[TimestampedValue[T]]) -> None:
        if elements:
            last = elements[-1].value
            elements[:] = [element for element in elements if self._delta(element.value, last) < self._threshold]
