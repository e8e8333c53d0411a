"""Functions of two connected streams: one method for the elements of each, one instance, and so one state, for both.

In which order the elements of the two come is not said, within an epoch or else; what must not depend on it is put into
state and waits there for the other side.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from holdfast.runtime.function.user_function import (
    Function,
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
    RichFunction,
)


class CoMapFunction(Function, ABC):
    """One element in, from either stream, and one out; None is none, as in PyFlink."""

    @abstractmethod
    def map1(self, value: Any) -> Any:
        """Returns what takes the place of an element of the first stream."""

    @abstractmethod
    def map2(self, value: Any) -> Any:
        """Returns what takes the place of an element of the second stream."""


class RichCoMapFunction(CoMapFunction, RichFunction):
    """A co-map function with `open` and `close`; on keyed streams it may have state."""


class CoFlatMapFunction(Function, ABC):
    """One element in, from either stream, and any number out."""

    @abstractmethod
    def flat_map1(self, value: Any) -> Iterable[Any] | None:
        """Yields what takes the place of an element of the first stream."""

    @abstractmethod
    def flat_map2(self, value: Any) -> Iterable[Any] | None:
        """Yields what takes the place of an element of the second stream."""


class RichCoFlatMapFunction(CoFlatMapFunction, RichFunction):
    """A co-flat-map function with `open` and `close`; on keyed streams it may have state."""


class CoProcessFunction(Function, ABC):
    """Sees each element of both streams with its context, and emits any number of elements, also to side outputs."""

    Context = ProcessFunction.Context

    @abstractmethod
    def process_element1(self, value: Any, ctx: ProcessFunction.Context) -> Iterable[Any] | None:
        """Yields what is to be emitted for an element of the first stream."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: ProcessFunction.Context) -> Iterable[Any] | None:
        """Yields what is to be emitted for an element of the second stream."""


class KeyedCoProcessFunction(Function, ABC):
    """A process function of two keyed streams: state and timers of a key are those of both."""

    Context = KeyedProcessFunction.Context
    OnTimerContext = KeyedProcessFunction.OnTimerContext

    @abstractmethod
    def process_element1(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        """Yields what is to be emitted for an element of the first stream."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        """Yields what is to be emitted for an element of the second stream."""

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        """Yields what is to be emitted when a timer of the current key fires; timers fire at the end of an epoch."""
        return None


class ProcessJoinFunction(Function, ABC):
    """Sees each pair of elements that an interval join finds; what it emits has the later of their two times."""

    class Context(ABC):
        """What is known beside the pair; valid during the call only. Times are milliseconds since 1970."""

        @abstractmethod
        def get_left_timestamp(self) -> int:
            """Event time of the element of the first stream."""

        @abstractmethod
        def get_right_timestamp(self) -> int:
            """Event time of the element of the second stream."""

        @abstractmethod
        def get_timestamp(self) -> int:
            """Event time of the pair: the later of the two."""

        @abstractmethod
        def output(self, tag: OutputTag, value: Any) -> None:
            """Sends `value` to a side output."""

    @abstractmethod
    def process_element(self, left: Any, right: Any, ctx: ProcessJoinFunction.Context) -> Iterable[Any] | None:
        """Yields what is to be emitted for a pair."""


class JoinFunction(Function, ABC):
    """Makes one element of each pair of elements of a key and a window."""

    @abstractmethod
    def join(self, first: Any, second: Any) -> Any:
        """Returns what is to be emitted for a pair."""


class CoGroupFunction(Function, ABC):
    """Sees all elements of a key and a window, those of each stream by themselves; one of the two may have none."""

    @abstractmethod
    def co_group(self, first: list[Any], second: list[Any]) -> Iterable[Any] | None:
        """Yields what is to be emitted for a key and a window."""
