"""Window assigners: the windows of an element."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from typing import Any, ClassVar, Final, Generic, TypeVar

from holdfast.errors import ConfigurationError
from holdfast.runtime.function.user_function import RuntimeContext
from holdfast.runtime.window.trigger import (
    CountTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    Trigger,
)
from holdfast.runtime.window.window import (
    MAX_TIMESTAMP,
    CountWindow,
    CountWindowSerializer,
    GlobalWindow,
    GlobalWindowSerializer,
    TimeWindow,
    TimeWindowSerializer,
    milliseconds,
)
from holdfast.state.descriptor import ValueStateDescriptor
from holdfast.types.serializer import TypeSerializer

T = TypeVar("T")
W = TypeVar("W")
W2 = TypeVar("W2")
NO_TIMESTAMP: Final = -(2**63)
"""The timestamp of an element that has none."""


class WindowAssigner(ABC, Generic[T, W]):
    """Assigns any number of windows to each element; for windows that may grow see `MergingWindowAssigner`.

    >>> TumblingEventTimeWindows.of(1000).assign_windows("kelp", 2500, None)
    (TimeWindow(start=2000, end=3000),)
    """

    class WindowAssignerContext(ABC):
        """The processing time, and state of the current key."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """Return the processing time in milliseconds since 1970: of the epoch, or in real time the current one."""

        @abstractmethod
        def get_runtime_context(self) -> RuntimeContext:
            """Return the context of the subtask; its state is that of the element's key."""

    @abstractmethod
    def assign_windows(self, element: T, timestamp: int, context: WindowAssignerContext) -> Collection[W]:
        """Return the windows of an element.

        Args:
            element: The element.
            timestamp: Its event time in milliseconds since 1970; the smallest 64-bit number if it has none.
            context: Processing time and state.
        """

    @abstractmethod
    def get_default_trigger(self, env: Any) -> Trigger[T, W]:
        """Return the trigger of a program that sets none; `env` is the environment of the program."""

    @abstractmethod
    def get_window_serializer(self) -> TypeSerializer[W]:
        """Return the serializer of windows; equal windows must have equal bytes, which are not empty."""

    @abstractmethod
    def is_event_time(self) -> bool:
        """Return whether the windows end by event time."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class MergingWindowAssigner(WindowAssigner[T, W]):
    """Assigns windows that may be merged, such as sessions.

    >>> sessions = EventTimeSessionWindows.with_gap(Time.seconds(10))
    >>> isinstance(sessions, MergingWindowAssigner)
    True
    """

    class MergeCallback(ABC, Generic[W2]):
        """Receives the windows to be merged."""

        @abstractmethod
        def merge(self, to_be_merged: Iterable[W2], merge_result: W2) -> None:
            """Merge two or more windows into one."""

    @abstractmethod
    def merge_windows(self, windows: Iterable[W], callback: MergeCallback[W]) -> None:
        """Report the windows of a key that are to be merged; all others stay."""


class GlobalWindows(WindowAssigner[T, GlobalWindow]):
    """Assigns the global window to all elements. It never fires without another trigger.

    >>> numbers = env.from_collection([1, 2, 3, 4], "bigint")
    >>> windows = numbers.window_all(GlobalWindows.create()).trigger(CountTrigger.of(3))
    >>> list(windows.reduce(lambda one, other: one + other).execute_and_collect())
    [6]
    """

    @staticmethod
    def create() -> GlobalWindows[Any]:
        """Return the assigner."""
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
    """The base class of count windows, which number the elements of a key."""

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
    """Assigns windows of `window_size` elements of a key, one after the other.

    >>> numbers = env.from_collection([1, 2, 3, 4, 5], "bigint")
    >>> windows = numbers.window_all(CountTumblingWindowAssigner.of(2))
    >>> list(windows.reduce(lambda one, other: one + other).execute_and_collect())
    [3, 7]

    Raises:
        ConfigurationError: The size is not a whole number from 1.
    """

    _COUNT = ValueStateDescriptor("tumble-count-assigner", "bigint")

    def __init__(self, window_size: int) -> None:
        self._window_size = _number_of(window_size, "the size of a count window")

    @staticmethod
    def of(window_size: int) -> CountTumblingWindowAssigner[Any]:
        """Return the assigner."""
        return CountTumblingWindowAssigner(window_size)

    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[CountWindow]:
        return (CountWindow(self._number(context) // self._window_size),)

    def get_default_trigger(self, env: Any) -> Trigger[T, CountWindow]:
        # A full window gets no more elements, so its contents can be deleted.
        return PurgingTrigger(CountTrigger(self._window_size))

    def __repr__(self) -> str:
        return f"CountTumblingWindowAssigner({self._window_size})"


class CountSlidingWindowAssigner(CountWindowAssigner[T]):
    """Assigns windows of `window_size` elements of a key, a new one with every `window_slide`-th element.

    >>> numbers = env.from_collection([1, 2, 3, 4, 5], "bigint")
    >>> windows = numbers.window_all(CountSlidingWindowAssigner.of(3, 1))
    >>> list(windows.reduce(lambda one, other: one + other).execute_and_collect())
    [6, 9, 12]

    Raises:
        ConfigurationError: Size or slide is not a whole number from 1.
    """

    _COUNT = ValueStateDescriptor("slide-count-assigner", "bigint")

    def __init__(self, window_size: int, window_slide: int) -> None:
        self._window_size = _number_of(window_size, "the size of a count window")
        self._window_slide = _number_of(window_slide, "the slide of a count window")

    @staticmethod
    def of(window_size: int, window_slide: int) -> CountSlidingWindowAssigner[Any]:
        """Return the assigner."""
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


class TimeWindowAssigner(WindowAssigner[T, TimeWindow]):
    """The base class of time windows.

    Attributes:
        EVENT_TIME: Whether windows are assigned by event time, or by processing time.
    """

    EVENT_TIME: ClassVar[bool]
    _event_times: tuple[int, int] = (NO_TIMESTAMP + 1, MAX_TIMESTAMP - 1)

    def get_default_trigger(self, env: Any) -> Trigger[T, TimeWindow]:
        return EventTimeTrigger() if self.EVENT_TIME else ProcessingTimeTrigger()

    def get_window_serializer(self) -> TypeSerializer[TimeWindow]:
        return TimeWindowSerializer()

    def is_event_time(self) -> bool:
        return self.EVENT_TIME

    def _time(self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext) -> int:
        if not self.EVENT_TIME:
            return context.get_current_processing_time()
        first, last = self._event_times
        if not first <= timestamp <= last:
            raise unfit_event_time(repr(self), timestamp, element)
        return timestamp

    def fixed(self) -> tuple[int, int, int] | None:
        """Return size, slide and offset in milliseconds, None for windows of different sizes."""
        return None


def event_times_of(size: int, slide: int = 0, offset: int = 0) -> tuple[int, int]:
    """Return the least and the greatest event time whose windows fit 64 bits, whatever is computed on the way."""
    margin = size + slide + abs(offset)
    return NO_TIMESTAMP + margin, MAX_TIMESTAMP - margin


def unfit_event_time(who: str, timestamp: int, element: Any) -> ConfigurationError:
    """Return the error for an element whose event time has no window."""
    if timestamp == NO_TIMESTAMP:
        return without_timestamp(who)
    if timestamp == MAX_TIMESTAMP:
        return without_end(who)
    return ConfigurationError(
        f"{who} assigns windows by event time, and an element has the event time {timestamp}, whose windows do not fit "
        f"64 bits of milliseconds: correct the timestamp, or filter out such elements before window(). The element is "
        f"{element!r:.200}."
    )


def without_timestamp(who: str) -> ConfigurationError:
    """Return the error for an element without an event time."""
    return ConfigurationError(
        f"{who} assigns windows by event time, and an element has none: call assign_timestamps_and_watermarks() before "
        "window(), or use windows of processing time."
    )


def without_end(who: str) -> ConfigurationError:
    """Return the error for an element with the timestamp of a window that has no end."""
    return ConfigurationError(
        f"{who} assigns windows by event time, and the event time of an element is the end of time, as count windows, "
        "global windows and reductions in batch mode emit it: call assign_timestamps_and_watermarks() after these, or "
        "use windows of processing time."
    )


class _Tumbling(TimeWindowAssigner[T]):
    def __init__(self, size: Any, offset: Any = 0) -> None:
        self._size = milliseconds(size, f"the size of {type(self).__name__}", least=1)
        self._offset = milliseconds(offset, f"the offset of {type(self).__name__}")
        if abs(self._offset) >= self._size:
            raise ConfigurationError(
                f"{type(self).__name__}: the offset must be less than the size, and {self._offset} ms is not less than "
                f"{self._size} ms."
            )
        self._event_times = event_times_of(self._size, self._size, self._offset)

    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[TimeWindow]:
        time = self._time(element, timestamp, context)
        start = time - (time - self._offset) % self._size
        return (TimeWindow(start, start + self._size),)

    def fixed(self) -> tuple[int, int, int] | None:
        return self._size, self._size, self._offset

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._size}, {self._offset})"


class TumblingEventTimeWindows(_Tumbling[T]):
    """Assigns windows of one size by event time, one after the other.

    >>> rows = [("kelp", 3, 1_000), ("kelp", 4, 30_000), ("kelp", 5, 61_000)]
    >>> clock = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)
    >>> stream = env.from_collection(rows, "word string, n bigint, at bigint")
    >>> keyed = stream.assign_timestamps_and_watermarks(clock).key_by("word")
    >>> windows = keyed.window(TumblingEventTimeWindows.of(Time.minutes(1)))
    >>> sums = windows.process(lambda word, context, rows: [sum(row.n for row in rows)], "bigint")
    >>> list(sums.execute_and_collect())
    [7, 5]
    """

    EVENT_TIME = True

    @staticmethod
    def of(size: Any, offset: Any = None) -> TumblingEventTimeWindows[Any]:
        """Return the assigner.

        Args:
            size: Size of a window, a length of time or milliseconds.
            offset: Shift of the starts from multiples of the size since 1970, for instance `Time.hours(-8)` for days in
                China.

        Raises:
            ConfigurationError: Size or offset is no length of time, or the offset is not less than the size.
        """
        return TumblingEventTimeWindows(size, offset or 0)


class TumblingProcessingTimeWindows(_Tumbling[T]):
    """Assigns windows of one size by processing time, one after the other.

    >>> TumblingProcessingTimeWindows.of(Time.minutes(1))
    TumblingProcessingTimeWindows(60000, 0)
    """

    EVENT_TIME = False

    @staticmethod
    def of(size: Any, offset: Any = None) -> TumblingProcessingTimeWindows[Any]:
        """Return the assigner; see `TumblingEventTimeWindows.of`."""
        return TumblingProcessingTimeWindows(size, offset or 0)


class _Sliding(TimeWindowAssigner[T]):
    def __init__(self, size: Any, slide: Any, offset: Any = 0) -> None:
        self._size = milliseconds(size, f"the size of {type(self).__name__}", least=1)
        self._slide = milliseconds(slide, f"the slide of {type(self).__name__}", least=1)
        self._offset = milliseconds(offset, f"the offset of {type(self).__name__}")
        if abs(self._offset) >= self._slide:
            raise ConfigurationError(
                f"{type(self).__name__}: the offset must be less than the slide, and {self._offset} ms is not less "
                f"than {self._slide} ms."
            )
        self._event_times = event_times_of(self._size, self._slide, self._offset)

    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[TimeWindow]:
        time, size = self._time(element, timestamp, context), self._size
        last = time - (time - self._offset) % self._slide
        return [TimeWindow(start, start + size) for start in range(last, time - size, -self._slide)]

    def fixed(self) -> tuple[int, int, int] | None:
        return self._size, self._slide, self._offset

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._size}, {self._slide}, {self._offset})"


class SlidingEventTimeWindows(_Sliding[T]):
    """Assigns overlapping windows of one size by event time; one starts with every slide.

    >>> SlidingEventTimeWindows.of(1000, 500).assign_windows("kelp", 700, None)
    [TimeWindow(start=500, end=1500), TimeWindow(start=0, end=1000)]
    """

    EVENT_TIME = True

    @staticmethod
    def of(size: Any, slide: Any, offset: Any = None) -> SlidingEventTimeWindows[Any]:
        """Return the assigner.

        Args:
            size: Size of a window, a length of time or milliseconds.
            slide: Time between the starts of two windows. If it is greater than the size, elements between two windows
                are in none.
            offset: Shift of the starts from multiples of the slide since 1970.

        Raises:
            ConfigurationError: A value is no length of time, or the offset is not less than the slide.
        """
        return SlidingEventTimeWindows(size, slide, offset or 0)


class SlidingProcessingTimeWindows(_Sliding[T]):
    """Assigns overlapping windows of one size by processing time; one starts with every slide.

    >>> SlidingProcessingTimeWindows.of(Time.minutes(1), Time.seconds(10))
    SlidingProcessingTimeWindows(60000, 10000, 0)
    """

    EVENT_TIME = False

    @staticmethod
    def of(size: Any, slide: Any, offset: Any = None) -> SlidingProcessingTimeWindows[Any]:
        """Return the assigner; see `SlidingEventTimeWindows.of`."""
        return SlidingProcessingTimeWindows(size, slide, offset or 0)


class SessionWindowTimeGapExtractor(ABC):
    """Returns for each element how long its session lasts without another element.

    >>> class LongForKelp(SessionWindowTimeGapExtractor):
    ...     def extract(self, element):
    ...         return 60_000 if element == "kelp" else 1_000
    >>> EventTimeSessionWindows.with_dynamic_gap(LongForKelp()).assign_windows("kelp", 5_000, None)
    (TimeWindow(start=5000, end=65000),)
    """

    @abstractmethod
    def extract(self, element: Any) -> int:
        """Return the gap in milliseconds, at least 1."""


class _Sessions(TimeWindowAssigner[T], MergingWindowAssigner[T, TimeWindow]):
    def merge_windows(
        self, windows: Iterable[TimeWindow], callback: MergingWindowAssigner.MergeCallback[TimeWindow]
    ) -> None:
        TimeWindow.merge_windows(windows, callback)


class _SessionsOfOneGap(_Sessions[T]):
    def __init__(self, session_gap: Any) -> None:
        self._session_gap = milliseconds(session_gap, f"the gap of {type(self).__name__}", least=1)
        self._event_times = event_times_of(self._session_gap)

    @property
    def gap(self) -> int:
        """Milliseconds without an element that end a session."""
        return self._session_gap

    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[TimeWindow]:
        time = self._time(element, timestamp, context)
        return (TimeWindow(time, time + self._session_gap),)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._session_gap})"


class _SessionsOfOwnGaps(_Sessions[T]):
    def __init__(self, session_window_time_gap_extractor: SessionWindowTimeGapExtractor | Callable[[Any], int]) -> None:
        extractor: Any = session_window_time_gap_extractor
        self._extractor = extractor
        if not callable(getattr(extractor, "extract", extractor)) or isinstance(extractor, type):
            raise ConfigurationError(
                f"{type(self).__name__} takes an instance of SessionWindowTimeGapExtractor, or a function element -> "
                f"milliseconds, not {extractor!r}."
            )

    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[TimeWindow]:
        extract = getattr(self._extractor, "extract", self._extractor)
        time, gap = self._time(element, timestamp, context), extract(element)
        if isinstance(gap, bool) or not isinstance(gap, int) or gap < 1:
            raise ValueError(f"the gap of a session is a whole number of at least 1 ms, not {gap!r}")
        if time + gap > MAX_TIMESTAMP:
            raise unfit_event_time(f"{self!r}, with a gap of {gap} ms,", time, element)
        return (TimeWindow(time, time + gap),)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self._extractor).__name__})"


class DynamicEventTimeSessionWindows(_SessionsOfOwnGaps[T]):
    """Assigns sessions by event time, with a gap for each element.

    >>> sessions = DynamicEventTimeSessionWindows.with_dynamic_gap(lambda element: 1_000 * len(element))
    >>> sessions.assign_windows("kelp", 5_000, None)
    (TimeWindow(start=5000, end=9000),)
    """

    EVENT_TIME = True

    @staticmethod
    def with_dynamic_gap(extractor: SessionWindowTimeGapExtractor) -> DynamicEventTimeSessionWindows[Any]:
        """Return the assigner."""
        return DynamicEventTimeSessionWindows(extractor)


class DynamicProcessingTimeSessionWindows(_SessionsOfOwnGaps[T]):
    """Assigns sessions by processing time, with a gap for each element.

    >>> DynamicProcessingTimeSessionWindows.with_dynamic_gap(lambda element: 1_000 * len(element))
    DynamicProcessingTimeSessionWindows(function)
    """

    EVENT_TIME = False

    @staticmethod
    def with_dynamic_gap(extractor: SessionWindowTimeGapExtractor) -> DynamicProcessingTimeSessionWindows[Any]:
        """Return the assigner."""
        return DynamicProcessingTimeSessionWindows(extractor)


class EventTimeSessionWindows(_SessionsOfOneGap[T]):
    """Assigns sessions by event time: elements of a key whose times differ by the gap or less are in one session.

    >>> rows = [("kelp", 3, 1_000), ("kelp", 4, 30_000), ("kelp", 5, 61_000)]
    >>> clock = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)
    >>> stream = env.from_collection(rows, "word string, n bigint, at bigint")
    >>> keyed = stream.assign_timestamps_and_watermarks(clock).key_by("word")
    >>> windows = keyed.window(EventTimeSessionWindows.with_gap(Time.seconds(30)))
    >>> sums = windows.process(lambda word, context, rows: [sum(row.n for row in rows)], "bigint")
    >>> list(sums.execute_and_collect())
    [7, 5]
    """

    EVENT_TIME = True

    @staticmethod
    def with_gap(size: Any) -> EventTimeSessionWindows[Any]:
        """Return the assigner; `size` is the length of the gap that ends a session."""
        return EventTimeSessionWindows(size)

    @staticmethod
    def with_dynamic_gap(extractor: SessionWindowTimeGapExtractor) -> DynamicEventTimeSessionWindows[Any]:
        """Return an assigner of sessions with a gap for each element."""
        return DynamicEventTimeSessionWindows(extractor)


class ProcessingTimeSessionWindows(_SessionsOfOneGap[T]):
    """Assigns sessions by processing time; see `EventTimeSessionWindows`.

    >>> ProcessingTimeSessionWindows.with_gap(Time.seconds(30))
    ProcessingTimeSessionWindows(30000)
    """

    EVENT_TIME = False

    @staticmethod
    def with_gap(size: Any) -> ProcessingTimeSessionWindows[Any]:
        """Return the assigner; `size` is the length of the gap that ends a session."""
        return ProcessingTimeSessionWindows(size)

    @staticmethod
    def with_dynamic_gap(extractor: SessionWindowTimeGapExtractor) -> DynamicProcessingTimeSessionWindows[Any]:
        """Return an assigner of sessions with a gap for each element."""
        return DynamicProcessingTimeSessionWindows(extractor)


FIXED_WINDOWS: Final = (
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
)
"""Assigners of windows of one size; their subclasses may assign others."""
