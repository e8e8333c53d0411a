"""Window assigners: which windows an element belongs to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from typing import Any, Generic, TypeVar

from holdfast.errors import ConfigurationError
from holdfast.runtime.function.user_function import RuntimeContext
from holdfast.runtime.window.built_in_trigger import CountTrigger, NeverTrigger, PurgingTrigger
from holdfast.runtime.window.trigger import Trigger
from holdfast.runtime.window.window import CountWindow, CountWindowSerializer, GlobalWindow, GlobalWindowSerializer
from holdfast.state.declaration.descriptor import ValueStateDescriptor
from holdfast.types.serializer import TypeSerializer

T = TypeVar("T")
W = TypeVar("W")
W2 = TypeVar("W2")


class WindowAssigner(ABC, Generic[T, W]):
    """Assigns any number of windows to each element; for windows that may grow see `MergingWindowAssigner`."""

    class WindowAssignerContext(ABC):
        """The time, and state of the key at hand."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """The epoch's processing time in milliseconds since 1970."""

        @abstractmethod
        def get_runtime_context(self) -> RuntimeContext:
            """The task; its state is that of the element's key."""

    @abstractmethod
    def assign_windows(self, element: T, timestamp: int, context: WindowAssignerContext) -> Collection[W]:
        """The windows of an element.

        Args:
            element: The element.
            timestamp: Its event time in milliseconds; the smallest 64-bit number if it has none.
            context: Time and state.
        """

    @abstractmethod
    def get_default_trigger(self, env: Any) -> Trigger[T, W]:
        """The trigger of its windows where a program sets none; `env` is the program's environment."""

    @abstractmethod
    def get_window_serializer(self) -> TypeSerializer[W]:
        """What writes a window as the namespace of state; equal windows must have equal bytes, and not none."""

    @abstractmethod
    def is_event_time(self) -> bool:
        """Whether its windows end by event time."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class MergingWindowAssigner(WindowAssigner[T, W]):
    """Assigns windows that may become one, such as sessions."""

    class MergeCallback(ABC, Generic[W2]):
        """Is told what becomes one."""

        @abstractmethod
        def merge(self, to_be_merged: Iterable[W2], merge_result: W2) -> None:
            """Some windows, at least two, become one."""

    @abstractmethod
    def merge_windows(self, windows: Iterable[W], callback: MergeCallback[W]) -> None:
        """Tells the callback which of the windows of a key become one; those that are not mentioned stay."""


class GlobalWindows(WindowAssigner[T, GlobalWindow]):
    """One window of everything; without a trigger of one's own it never fires."""

    @staticmethod
    def create() -> GlobalWindows[Any]:
        """Makes the assigner."""
        return GlobalWindows()

    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[GlobalWindow]:
        return (GlobalWindow.get(),)

    def get_default_trigger(self, env: Any) -> Trigger[T, GlobalWindow]:
        return NeverTrigger()

    def get_window_serializer(self) -> TypeSerializer[GlobalWindow]:
        return GlobalWindowSerializer()

    def is_event_time(self) -> bool:
        return False


class CountWindowAssigner(WindowAssigner[T, CountWindow]):
    """What both kinds of count windows have in common: the elements of a key are numbered."""

    _COUNT: ValueStateDescriptor[int]

    def _number(self, context: WindowAssigner.WindowAssignerContext) -> int:
        """Return the number of an element among those of its key, from 0."""
        state = context.get_runtime_context().get_state(self._COUNT)
        number: int = state.value() or 0
        state.update(number + 1)
        return number

    def get_window_serializer(self) -> TypeSerializer[CountWindow]:
        return CountWindowSerializer()

    def is_event_time(self) -> bool:
        return False


class CountTumblingWindowAssigner(CountWindowAssigner[T]):
    """Windows of so many elements of a key, one after the other."""

    _COUNT = ValueStateDescriptor("tumble-count-assigner", "bigint")

    def __init__(self, window_size: int) -> None:
        self._window_size = _number_of(window_size, "the size of a count window")

    @staticmethod
    def of(window_size: int) -> CountTumblingWindowAssigner[Any]:
        """Makes the assigner."""
        return CountTumblingWindowAssigner(window_size)

    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[CountWindow]:
        return (CountWindow(self._number(context) // self._window_size),)

    def get_default_trigger(self, env: Any) -> Trigger[T, CountWindow]:
        # A full window gets no other element, so nothing of it needs to stay.
        return PurgingTrigger(CountTrigger(self._window_size))

    def __repr__(self) -> str:
        return f"CountTumblingWindowAssigner({self._window_size})"


class CountSlidingWindowAssigner(CountWindowAssigner[T]):
    """Windows of so many elements of a key, of which one begins with every `window_slide`-th element."""

    _COUNT = ValueStateDescriptor("slide-count-assigner", "bigint")

    def __init__(self, window_size: int, window_slide: int) -> None:
        self._window_size = _number_of(window_size, "the size of a count window")
        self._window_slide = _number_of(window_slide, "the slide of a count window")

    @staticmethod
    def of(window_size: int, window_slide: int) -> CountSlidingWindowAssigner[Any]:
        """Makes the assigner."""
        return CountSlidingWindowAssigner(window_size, window_slide)

    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[CountWindow]:
        number, slide = self._number(context), self._window_slide
        last = number // slide
        # Window i has the elements from i * slide on.
        first = max(0, -((self._window_size - number - 1) // slide))
        return [CountWindow(id) for id in range(last, first - 1, -1)]

    def get_default_trigger(self, env: Any) -> Trigger[T, CountWindow]:
        return PurgingTrigger(CountTrigger(self._window_size))

    def __repr__(self) -> str:
        return f"CountSlidingWindowAssigner({self._window_size}, {self._window_slide})"


def _number_of(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{what} is a whole number of at least 1, not {value!r}.")
    return value
