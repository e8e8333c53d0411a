"""Windows (finite parts of a stream), their serializers, and window functions.

A `WindowAssigner` assigns windows to an element, a `Trigger` decides when a window is evaluated, and a window function
evaluates it.
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
"""The end of windows without an end in time."""

_TWO_LONGS: Final = struct.Struct(">qq")
_LONG: Final = struct.Struct(">q")
IN = TypeVar("IN")
OUT = TypeVar("OUT")
KEY = TypeVar("KEY")
W = TypeVar("W")
W2 = TypeVar("W2")


class Window(ABC):
    """A finite part of a stream. Own windows need `__eq__`, `__hash__` and a serializer."""

    @abstractmethod
    def max_timestamp(self) -> int:
        """Return the greatest timestamp that belongs to the window, in milliseconds since 1970."""


class TimeWindow(Window):
    """A window from `start` (inclusive) to `end` (exclusive), in milliseconds since 1970.

    >>> window = TimeWindow(0, 1000)
    >>> window.max_timestamp()
    999
    >>> window.cover(TimeWindow(1000, 1500))
    TimeWindow(start=0, end=1500)
    """

    __slots__ = ("end", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end

    def get_start(self) -> int:
        """Return `start`; Flink's name."""
        return self.start

    def get_end(self) -> int:
        """Return `end`; Flink's name."""
        return self.end

    def max_timestamp(self) -> int:
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Return whether both windows overlap or touch."""
        return self.start <= other.end and self.end >= other.start

    def cover(self, other: TimeWindow) -> TimeWindow:
        """Return the smallest window that covers both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))

    @staticmethod
    def get_window_start_with_offset(timestamp: int, offset: int, window_size: int) -> int:
        """Return the start of the window that contains a timestamp.

        Args:
            timestamp: Milliseconds since 1970.
            offset: Windows start at this time and multiples of the size from it.
            window_size: Size of the windows in milliseconds.
        """
        return timestamp - (timestamp - offset) % window_size

    @staticmethod
    def merge_windows(windows: Iterable[TimeWindow], callback: Any) -> None:
        """Report windows that touch or overlap to a `MergingWindowAssigner.MergeCallback`."""
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
    """A window of a number of elements, identified by its own number; it has no end in time.

    >>> CountWindow(7).id
    7
    """

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
    """The single window of all elements.

    >>> GlobalWindow.get() == GlobalWindow.get()
    True
    """

    __slots__ = ()

    @staticmethod
    def get() -> GlobalWindow:
        """Return the window; all instances are equal."""
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
    """Writes start and end as 64-bit numbers, big endian."""

    def serialize(self, value: TimeWindow) -> bytes:
        return _TWO_LONGS.pack(value.start, value.end)

    def deserialize(self, data: bytes) -> TimeWindow:
        return TimeWindow(*_TWO_LONGS.unpack(data))

    def is_immutable_type(self) -> bool:
        return True


class CountWindowSerializer(TypeSerializer[CountWindow]):
    """Writes the number as 64 bits, big endian."""

    def serialize(self, value: CountWindow) -> bytes:
        return _LONG.pack(value.id)

    def deserialize(self, data: bytes) -> CountWindow:
        return CountWindow(*_LONG.unpack(data))

    def is_immutable_type(self) -> bool:
        return True


class GlobalWindowSerializer(TypeSerializer[GlobalWindow]):
    """Writes the window as one byte."""

    def serialize(self, value: GlobalWindow) -> bytes:
        return b"\0"

    def deserialize(self, data: bytes) -> GlobalWindow:
        return _GLOBAL

    def is_immutable_type(self) -> bool:
        return True


def milliseconds(length: Any, what: str, *, least: int | None = None) -> int:
    """Convert a length of time to whole milliseconds.

    Args:
        length: `Time.seconds(5)`, a `timedelta`, or a number of milliseconds.
        what: Name of the length, for the message.
        least: The least valid length; None for any.

    Raises:
        ConfigurationError: It is no length of time, or too small.
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


class WindowFunction(Function, ABC, Generic[IN, OUT, KEY, W]):
    """Evaluates a window of a key.

    >>> class Total(WindowFunction):
    ...     def apply(self, key, window, inputs):
    ...         yield key, window.end, sum(inputs)
    >>> list(Total().apply("kelp", TimeWindow(0, 1000), [1, 2]))
    [('kelp', 1000, 3)]
    """

    @abstractmethod
    def apply(self, key: KEY, window: W, inputs: Iterable[IN]) -> Iterable[OUT] | None:
        """Yield, or return an iterable of, the output of a window.

        Args:
            key: The key.
            window: The window.
            inputs: Its elements; after `reduce` or `aggregate` the single result.
        """


class AllWindowFunction(Function, ABC, Generic[IN, OUT, W]):
    """Evaluates a window of a stream without keys; see `WindowFunction`.

    >>> class Total(AllWindowFunction):
    ...     def apply(self, window, inputs):
    ...         yield sum(inputs)
    >>> windows = env.from_collection([1, 2, 3, 4], "bigint").count_window_all(2)
    >>> list(windows.apply(Total(), "bigint").execute_and_collect())
    [3, 7]
    """

    @abstractmethod
    def apply(self, window: W, inputs: Iterable[IN]) -> Iterable[OUT] | None:
        """Yield, or return an iterable of, the output of a window; see `WindowFunction.apply`."""


class WindowContext(ABC, Generic[W2]):
    """The context of a window; valid during the call only."""

    @abstractmethod
    def window(self) -> W2:
        """Return the window."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """Return the processing time in milliseconds since 1970: of the epoch, or in real time the current one."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Return the event-time watermark; the smallest 64-bit number before there is one."""

    @abstractmethod
    def window_state(self) -> KeyedStateStore:
        """Return the state of the key and this window; delete it in `clear`.

        Get the state handle in every call: a handle of one window stands for another one in the next call.

        Raises:
            StateError: State of a window that merges with others is requested.
        """

    @abstractmethod
    def global_state(self) -> KeyedStateStore:
        """Return the state of the key, which all its windows share."""

    @abstractmethod
    def output(self, tag: OutputTag, value: Any) -> None:
        """Emit `value` to a side output."""


class ProcessWindowFunction(Function, ABC, Generic[IN, OUT, KEY, W]):
    """Evaluates a window of a key, with access to times and state.

    >>> class Count(ProcessWindowFunction):
    ...     def process(self, key, context, elements):
    ...         yield key, len(list(elements))
    >>> list(Count().process("kelp", None, [1, 2]))
    [('kelp', 2)]
    """

    class Context(WindowContext[W2], ABC, Generic[W2]):
        """The context of a window; valid during the call only."""

    @abstractmethod
    def process(self, key: KEY, context: Context[W], elements: Iterable[IN]) -> Iterable[OUT] | None:
        """Yield, or return an iterable of, the output of a window.

        Args:
            key: The key.
            context: The window, times, state and side outputs.
            elements: The elements of the window; after `reduce` or `aggregate` the single result.
        """

    def clear(self, context: Context[W]) -> None:
        """Delete the state of a window that expires: its end and the allowed lateness have passed."""
        return


class ProcessAllWindowFunction(Function, ABC, Generic[IN, OUT, W]):
    """Evaluates a window of a stream without keys, with access to times and state; see `ProcessWindowFunction`.

    >>> class Total(ProcessAllWindowFunction):
    ...     def process(self, context, elements):
    ...         yield sum(elements)
    >>> windows = env.from_collection([1, 2, 3, 4], "bigint").count_window_all(2)
    >>> list(windows.process(Total(), "bigint").execute_and_collect())
    [3, 7]
    """

    class Context(WindowContext[W2], ABC, Generic[W2]):
        """The context of a window; valid during the call only."""

    @abstractmethod
    def process(self, context: Context[W], elements: Iterable[IN]) -> Iterable[OUT] | None:
        """Yield, or return an iterable of, the output of a window; see `ProcessWindowFunction.process`."""

    def clear(self, context: Context[W]) -> None:
        """Delete the state of a window that expires."""
        return
