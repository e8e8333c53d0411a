"""Interval joins: each element of a keyed stream with those of another that lie in an interval of event time around it.

Both sides wait in map state under their timestamps until the watermark has passed the last moment at which a partner
may come; then a timer removes them. So the state is as large as the interval, and the pairs do not depend on where
epochs are cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Self

from holdfast.datastream.stream.connected import ConnectedStreams
from holdfast.errors import ConfigurationError
from holdfast.kernel.watermark import MAX_WATERMARK, MIN_WATERMARK
from holdfast.runtime.function.user_function import (
    KeyedCoProcessFunction,
    OutputTag,
    ProcessJoinFunction,
    RuntimeContext,
)
from holdfast.state.descriptor import MapStateDescriptor
from holdfast.types.type_information import TypeInformation
from holdfast.types.types import Types

if TYPE_CHECKING:
    from holdfast.datastream.stream.data_stream import DataStream


class IntervalJoin:
    """Two keyed streams that are joined by time; `KeyedStream.interval_join` makes it and has an example."""

    def __init__(self, left: Any, right: Any) -> None:
        self._connected = ConnectedStreams(left, right)

    def between(self, lower_bound: timedelta, upper_bound: timedelta) -> IntervalJoined:
        """Pair each left element at time t with the right ones from `t + lower_bound` to `t + upper_bound`.

        Args:
            lower_bound: A Duration; negative for right elements that are older.
            upper_bound: A Duration, not below the lower bound. Both bounds are included unless set otherwise.

        Raises:
            ConfigurationError: A bound is no Duration, or the lower one is above the upper one.
        """
        return IntervalJoined(self._connected, _milliseconds(lower_bound), _milliseconds(upper_bound))


class IntervalJoined:
    """Two keyed streams and an interval; `process` sets the function of their pairs."""

    def __init__(self, connected: ConnectedStreams, lower: int, upper: int) -> None:
        if lower > upper:
            raise ConfigurationError(f"between(): the lower bound, {lower} ms, is above the upper one, {upper} ms.")
        self._connected = connected
        self._lower = lower
        self._upper = upper
        self._exclusive = [False, False]
        self._late: list[OutputTag | None] = [None, None]

    def lower_bound_exclusive(self) -> Self:
        """Leave out pairs that are apart by exactly the lower bound."""
        self._exclusive[0] = True
        return self

    def upper_bound_exclusive(self) -> Self:
        """Leave out pairs that are apart by exactly the upper bound."""
        self._exclusive[1] = True
        return self

    def side_output_left_late_data(self, output_tag: OutputTag) -> Self:
        """Send left elements behind the watermark to a side output, instead of dropping them."""
        self._late[0] = output_tag
        return self

    def side_output_right_late_data(self, output_tag: OutputTag) -> Self:
        """Send right elements behind the watermark to a side output, instead of dropping them."""
        self._late[1] = output_tag
        return self

    def process(self, process_join_function: ProcessJoinFunction, output_type: Any = None) -> DataStream:
        """Call a function with each pair, once; what it emits has the later time of the two.

        Args:
            process_join_function: The function.
            output_type: Type of the results, as in `DataStream.map`.

        Raises:
            ConfigurationError: It is no `ProcessJoinFunction`, or the bounds leave nothing.
        """
        function = process_join_function
        if not isinstance(function, ProcessJoinFunction):
            raise ConfigurationError(
                f"process() of an interval join takes an instance of ProcessJoinFunction, not {function!r}."
            )
        lower, upper = self._lower + self._exclusive[0], self._upper - self._exclusive[1]
        if lower > upper:
            raise ConfigurationError(
                f"The bounds of the interval join, {self._lower} ms and {self._upper} ms, leave nothing between them."
            )
        connected = self._connected
        types = connected.stream1.get_type(), connected.stream2.get_type()
        join = IntervalJoinFunction(function, lower, upper, types, (self._late[0], self._late[1]))
        kinds = (KeyedCoProcessFunction,)
        return connected._apply("process", join, kinds, output_type, emits_timestamps=True).name("interval_join")


class _PairContext(ProcessJoinFunction.Context):
    """One object a task, whose times change with each pair."""

    def __init__(self) -> None:
        self.left = self.right = 0
        self.outer: Any = None

    def get_left_timestamp(self) -> int:
        return self.left

    def get_right_timestamp(self) -> int:
        return self.right

    def get_timestamp(self) -> int:
        return max(self.left, self.right)

    def output(self, tag: OutputTag, value: Any) -> None:
        self.outer.output(tag, value)


class IntervalJoinFunction(KeyedCoProcessFunction):
    """Keeps elements while a partner may come, and emits pairs of a time and what the user's function emitted."""

    NAME_IN_UIDS: ClassVar = "_Join"

    def __init__(
        self,
        function: ProcessJoinFunction,
        lower: int,
        upper: int,
        types: tuple[TypeInformation, TypeInformation],
        late: tuple[OutputTag | None, OutputTag | None],
    ) -> None:
        self._function = function
        self._types = types
        self._late = late
        self._bounds = lower, upper
        # For how long after its own time an element of each side is waited for.
        self._kept = max(upper, 0), max(-lower, 0)
        self._pair = _PairContext()

    @property
    def program_functions(self) -> tuple[Any, ...]:
        return (self._function,)

    def open(self, runtime_context: RuntimeContext) -> None:
        self._function.open(runtime_context)
        self._left: Any = self._waiting(runtime_context, "left", self._types[0])
        self._right: Any = self._waiting(runtime_context, "right", self._types[1])

    def close(self) -> None:
        self._function.close()

    def process_element1(self, value: Any, ctx: Any) -> Iterable[Any]:
        lower, upper = self._bounds
        at = self._admitted(value, ctx, 0)
        if at is None:
            return
        self._keep(self._left, value, at, self._kept[0], ctx)
        for other, partners in self._within(self._right, at + lower, at + upper):
            for partner in partners:
                yield from self._joined(value, at, partner, other, ctx)

    def process_element2(self, value: Any, ctx: Any) -> Iterable[Any]:
        lower, upper = self._bounds
        at = self._admitted(value, ctx, 1)
        if at is None:
            return
        self._keep(self._right, value, at, self._kept[1], ctx)
        for other, partners in self._within(self._left, at - upper, at - lower):
            for partner in partners:
                yield from self._joined(partner, other, value, at, ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> None:
        self._left.remove(timestamp - self._kept[0])
        self._right.remove(timestamp - self._kept[1])

    def _waiting(self, runtime_context: RuntimeContext, side: str, element_type: TypeInformation) -> Any:
        """Return the map state of a side, from times to elements."""
        descriptor: MapStateDescriptor[int, Any] = MapStateDescriptor(
            f"_join_{side}", Types.LONG(), Types.LIST(element_type)
        )
        return runtime_context.get_map_state(descriptor)

    def _admitted(self, value: Any, ctx: Any, side: int) -> int | None:
        """Return the time of an element; None if it is late."""
        at: int | None = ctx.timestamp()
        if at is None:
            raise ConfigurationError(
                "An interval join goes by event time, and an element of its "
                f"{'second' if side else 'first'} input has none: call assign_timestamps_and_watermarks() before it."
            )
        watermark = ctx.timer_service().current_watermark()
        if watermark == MIN_WATERMARK or at >= watermark:
            return at
        tag = self._late[side]
        if tag is not None:
            ctx.output(tag, value)
        return None

    def _keep(self, side: Any, value: Any, at: int, kept: int, ctx: Any) -> None:
        side.put(at, [*(side.get(at) or ()), value])
        ctx.timer_service().register_event_time_timer(min(at + kept, MAX_WATERMARK))

    def _within(self, side: Any, first: int, last: int) -> Iterator[tuple[int, list[Any]]]:
        times = sorted(time for time in side.keys() if first <= time <= last)  # noqa: SIM118 - a state is no dict
        return ((time, side.get(time)) for time in times)

    def _joined(self, left: Any, left_at: int, right: Any, right_at: int, ctx: Any) -> Iterator[tuple[int, Any]]:
        pair = self._pair
        pair.left, pair.right, pair.outer = left_at, right_at, ctx
        at = max(left_at, right_at)
        for emitted in self._function.process_element(left, right, pair) or ():
            yield at, emitted


def _milliseconds(bound: timedelta) -> int:
    if not isinstance(bound, timedelta):
        raise ConfigurationError(f"between() takes two Durations, for instance Duration.of_seconds(5), not {bound!r}.")
    return bound // timedelta(milliseconds=1)
