"""What is evaluated over a window: functions of its elements, of keyed streams and of streams without keys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from holdfast.runtime.function.user_function import Function, OutputTag
from holdfast.state.declaration.api import KeyedStateStore

IN = TypeVar("IN")
OUT = TypeVar("OUT")
KEY = TypeVar("KEY")
W = TypeVar("W")
W2 = TypeVar("W2")


class WindowFunction(Function, ABC, Generic[IN, OUT, KEY, W]):
    """Evaluates a window of a key."""

    @abstractmethod
    def apply(self, key: KEY, window: W, inputs: Iterable[IN]) -> Iterable[OUT] | None:
        """Yields (or returns an iterable of) what is to be emitted for a window.

        Args:
            key: The key.
            window: The window.
            inputs: Its elements; after `reduce` or `aggregate` the one result.
        """


class AllWindowFunction(Function, ABC, Generic[IN, OUT, W]):
    """Evaluates a window of a stream without keys."""

    @abstractmethod
    def apply(self, window: W, inputs: Iterable[IN]) -> Iterable[OUT] | None:
        """Yields (or returns an iterable of) what is to be emitted for a window; see `WindowFunction.apply`."""


class WindowContext(ABC, Generic[W2]):
    """What is known beside the elements of a window; valid during the call only."""

    @abstractmethod
    def window(self) -> W2:
        """The window."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """The epoch's processing time in milliseconds since 1970."""

    @abstractmethod
    def current_watermark(self) -> int:
        """The event-time watermark; the smallest 64-bit number before there is one."""

    @abstractmethod
    def window_state(self) -> KeyedStateStore:
        """State of the key and this window, to be cleared in `clear`; refused for windows that merge.

        Ask for it in every call: a handle of one window stands for another one in the next call.
        """

    @abstractmethod
    def global_state(self) -> KeyedStateStore:
        """State of the key, of all its windows."""

    @abstractmethod
    def output(self, tag: OutputTag, value: Any) -> None:
        """Sends `value` to a side output."""


class ProcessWindowFunction(Function, ABC, Generic[IN, OUT, KEY, W]):
    """Evaluates a window of a key, and knows the times and state of the window and of the key."""

    class Context(WindowContext[W2], ABC, Generic[W2]):
        """What is known beside the elements."""

    @abstractmethod
    def process(self, key: KEY, context: Context[W], elements: Iterable[IN]) -> Iterable[OUT] | None:
        """Yields (or returns an iterable of) what is to be emitted for a window.

        Args:
            key: The key.
            context: Window, times, state.
            elements: Those of the window; after `reduce` or `aggregate` the one result.
        """

    def clear(self, context: Context[W]) -> None:
        """Clears the state of a window that expires: its end and the allowed lateness have passed."""
        return


class ProcessAllWindowFunction(Function, ABC, Generic[IN, OUT, W]):
    """Evaluates a window of a stream without keys, and knows its times and state."""

    class Context(WindowContext[W2], ABC, Generic[W2]):
        """What is known beside the elements."""

    @abstractmethod
    def process(self, context: Context[W], elements: Iterable[IN]) -> Iterable[OUT] | None:
        """Yields (or returns an iterable of) what is to be emitted; see `ProcessWindowFunction.process`."""

    def clear(self, context: Context[W]) -> None:
        """Clears the state of a window that expires."""
        return
