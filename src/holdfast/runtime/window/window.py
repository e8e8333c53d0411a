"""Windows: finite parts of a stream, and how each kind of them is written as the namespace of state.

Which windows an element belongs to is said by a `WindowAssigner` (`window_assigner`), when their contents are evaluated
by a `Trigger` (`trigger`), and with what by a window function (`window_function`).
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar

from holdfast.errors import ConfigurationError
from holdfast.runtime.function.user_function import Function, OutputTag
from holdfast.state.api import KeyedStateStore
from holdfast.types.serializer import TypeSerializer

MAX_TIMESTAMP: Final = 2**63 - 1
"""Of windows that no time ends."""

_TWO_LONGS: Final = struct.Struct(">qq")
_LONG: Final = struct.Struct(">q")


class Window(ABC):
    """A finite part of a stream; windows of one's own need `__eq__`, `__hash__` and a serializer."""

    @abstractmethod
    def max_timestamp(self) -> int:
        """The greatest timestamp that still belongs to the window, in milliseconds since 1970."""


class TimeWindow(Window):
    """A stretch of time, from `start` to just before `end`, in milliseconds since 1970."""

    __slots__ = ("end", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end

    def get_start(self) -> int:
        """The first millisecond."""
        return self.start

    def get_end(self) -> int:
        """The first millisecond after it."""
        return self.end

    def max_timestamp(self) -> int:
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Whether both have a common millisecond, or one begins where the other ends."""
        return self.start <= other.end and self.end >= other.start

    def cover(self, other: TimeWindow) -> TimeWindow:
        """The smallest window that has both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))

    @staticmethod
    def get_window_start_with_offset(timestamp: int, offset: int, window_size: int) -> int:
        """The start of the window of this size that has a timestamp; windows start at `offset` and multiples of it."""
        return timestamp - (timestamp - offset) % window_size

    @staticmethod
    def merge_windows(windows: Iterable[TimeWindow], callback: Any) -> None:
        """Tells a `MergingWindowAssigner.MergeCallback` which windows touch or overlap, and what they become."""
        merged: list[tuple[TimeWindow, set[TimeWindow]]] = []
        for candidate in sorted(windows):
            if merged and merged[-1][0].intersects(candidate):
                whole, parts = merged[-1]
                parts.add(candidate)
                merged[-1] = whole.cover(candidate), parts
            else:
                merged.append((candidate, {candidate}))
        for whole, parts in merged:
            if len(parts) > 1:
                callback.merge(parts, whole)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.start == other.start and self.end == other.end

    def __hash__(self) -> int:
        return hash((self.start, self.end))

    def __lt__(self, other: TimeWindow) -> bool:
        return (self.start, self.end) < (other.start, other.end)

    def __le__(self, other: TimeWindow) -> bool:
        return (self.start, self.end) <= (other.start, other.end)

    def __repr__(self) -> str:
        return f"TimeWindow(start={self.start}, end={self.end})"


class CountWindow(Window):
    """The window of a number: of so many elements, which no time ends."""

    __slots__ = ("id",)

    def __init__(self, id: int) -> None:
        self.id = id

    def max_timestamp(self) -> int:
        return MAX_TIMESTAMP

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.id == other.id

    def __hash__(self) -> int:
        return hash((CountWindow, self.id))

    def __repr__(self) -> str:
        return f"CountWindow(id={self.id})"


class GlobalWindow(Window):
    """The one window of everything."""

    __slots__ = ()

    @staticmethod
    def get() -> GlobalWindow:
        """The window; all of them are equal."""
        return _GLOBAL

    def max_timestamp(self) -> int:
        return MAX_TIMESTAMP

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "GlobalWindow"


_GLOBAL: Final = GlobalWindow()


class TimeWindowSerializer(TypeSerializer[TimeWindow]):
    """Writes start and end as 64-bit numbers, the most significant byte first."""

    def serialize(self, value: TimeWindow) -> bytes:
        return _TWO_LONGS.pack(value.start, value.end)

    def deserialize(self, data: bytes) -> TimeWindow:
        return TimeWindow(*_TWO_LONGS.unpack(data))

    def is_immutable_type(self) -> bool:
        return True


class CountWindowSerializer(TypeSerializer[CountWindow]):
    """Writes the number as 64 bits, the most significant byte first."""

    def serialize(self, value: CountWindow) -> bytes:
        return _LONG.pack(value.id)

    def deserialize(self, data: bytes) -> CountWindow:
        return CountWindow(*_LONG.unpack(data))

    def is_immutable_type(self) -> bool:
        return True


class GlobalWindowSerializer(TypeSerializer[GlobalWindow]):
    """Writes the one window as one byte."""

    def serialize(self, value: GlobalWindow) -> bytes:
        return b"\0"

    def deserialize(self, data: bytes) -> GlobalWindow:
        return _GLOBAL

    def is_immutable_type(self) -> bool:
        return True


# Lengths of time, as programs give them to windows.


def milliseconds(length: Any, what: str, *, least: int | None = None) -> int:
    """Whole milliseconds of a length of time.

    Args:
        length: `Time.seconds(5)`, a `timedelta`, or a number of milliseconds.
        what: Whose length it is, for the message.
        least: The least that it can be; None for any.

    Raises:
        ConfigurationError: It is no length of time, or less.
    """
    found: Any = length
    if isinstance(length, timedelta):
        found = length // timedelta(milliseconds=1)
    elif hasattr(length, "to_milliseconds"):
        found = length.to_milliseconds()
    if isinstance(found, bool) or not isinstance(found, int):
        raise ConfigurationError(
            f"{what} is a length of time, for instance Time.seconds(10), or whole milliseconds, not {length!r}."
        )
    if least is not None and found < least:
        raise ConfigurationError(f"{what} is at least {least} ms, not {found} ms.")
    return found


# What is evaluated over a window: functions of its elements, of keyed streams and of streams without keys.

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
