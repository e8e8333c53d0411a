"""Functions of two streams of which one is broadcast: rules for the elements of the other, say.

Every subtask gets every broadcast element, in an epoch before all others, and puts it into broadcast state, which is
therefore the same everywhere; the side of the other stream only reads it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.runtime.function.user_function import Function, OutputTag, TimeDomain, TimerService
from holdfast.state.declaration.api import BroadcastState, ReadOnlyBroadcastState


class _BaseContext(ABC):
    @abstractmethod
    def timestamp(self) -> int | None:
        """Event time of the element in milliseconds; None if the stream has none."""

    @abstractmethod
    def output(self, tag: OutputTag, value: Any) -> None:
        """Sends `value` to a side output."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """The epoch's processing time in milliseconds since 1970."""

    @abstractmethod
    def current_watermark(self) -> int:
        """The event-time watermark; the smallest 64-bit number before there is one."""


class BaseBroadcastProcessFunction(Function):
    """What both kinds have in common: their contexts."""

    class Context(_BaseContext):
        """What is known beside a broadcast element; valid during the call only."""

        @abstractmethod
        def get_broadcast_state(self, state_descriptor: Any) -> BroadcastState[Any, Any]:
            """The state that was declared in `broadcast()`, to be changed."""

    class ReadOnlyContext(_BaseContext):
        """What is known beside an element of the other stream; valid during the call only."""

        @abstractmethod
        def get_broadcast_state(self, state_descriptor: Any) -> ReadOnlyBroadcastState[Any, Any]:
            """The state that was declared in `broadcast()`, to be read."""


class BroadcastProcessFunction(BaseBroadcastProcessFunction, ABC):
    """For a stream without keys."""

    @abstractmethod
    def process_element(self, value: Any, ctx: BaseBroadcastProcessFunction.ReadOnlyContext) -> Iterable[Any] | None:
        """Yields what is to be emitted for an element of the stream that is not broadcast."""

    @abstractmethod
    def process_broadcast_element(self, value: Any, ctx: BaseBroadcastProcessFunction.Context) -> Iterable[Any] | None:
        """Yields what is to be emitted for a broadcast element, on each subtask; must do the same on all of them."""


class KeyedBroadcastProcessFunction(BaseBroadcastProcessFunction, ABC):
    """For a keyed stream: with state and timers for each key on its side."""

    class Context(BaseBroadcastProcessFunction.Context):
        """The context of a broadcast element, which has no key."""

        @abstractmethod
        def apply_to_keyed_state(self, state_descriptor: Any, function: Callable[[Any, Any], None]) -> None:
            """Calls `function(key, state)` for each key of this subtask that has something in a keyed state."""

    class ReadOnlyContext(BaseBroadcastProcessFunction.ReadOnlyContext):
        """The context of an element of the keyed stream."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """The key of the element."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Time, and the timers of the current key."""

    class OnTimerContext(ReadOnlyContext):
        """The context of a timer that fires."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Which clock fired the timer."""

    @abstractmethod
    def process_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> Iterable[Any] | None:
        """Yields what is to be emitted for an element of the keyed stream."""

    @abstractmethod
    def process_broadcast_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.Context) -> Iterable[Any] | None:
        """Yields what is to be emitted for a broadcast element, on each subtask; must do the same on all of them."""

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        """Yields what is to be emitted when a timer of the current key fires; timers fire at the end of an epoch."""
        return None
