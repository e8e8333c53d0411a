"""Windows in PyFlink's DataStream: q5, q7, q8, q11, q12. Each is a program and the names of its columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from pyflink.common import Duration, Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream.functions import AggregateFunction, ProcessAllWindowFunction, ProcessWindowFunction
from pyflink.datastream.window import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)

Events = Callable[[str], Any]

PARTS: Final = 64
"""Of the bids of q7: many more than subtasks, so that each of them has some."""
TEN_SECONDS, TWO_SECONDS = Time.milliseconds(10_000), Time.milliseconds(2_000)
LONG, TEXT = Types.LONG(), Types.STRING()
COUNTED: Final = Types.TUPLE([LONG] * 4)
BEST_BID: Final = Types.TUPLE([LONG, LONG, LONG, LONG, TEXT])


class FieldAssigner(TimestampAssigner):
    """Takes the event time from a field."""

    def __init__(self, field: int) -> None:
        self._field = field

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[self._field])


def timed(stream: Any, field: int) -> Any:
    """The stream with event time, out of order by four seconds at most."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(4))
    return stream.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(FieldAssigner(field)))


class Count(AggregateFunction):
    """How many rows there are."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, a: int, b: int) -> int:
        return a + b


class WithWindow(ProcessWindowFunction):
    """The key, what was aggregated, and the ends of the window."""

    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        yield key, next(iter(elements)), context.window().start, context.window().end


class Greatest(AggregateFunction):
    """The greatest value of a field, and all rows that have it."""

    def __init__(self, field: int) -> None:
        self._field = field

    def create_accumulator(self) -> tuple[int, list[Any]]:
        return -1, []

    def add(self, value: Any, accumulator: tuple[int, list[Any]]) -> tuple[int, list[Any]]:
        return self.merge(accumulator, (value[self._field], [value]))

    def get_result(self, accumulator: tuple[int, list[Any]]) -> list[Any]:
        return accumulator[1]

    def merge(self, a: tuple[int, list[Any]], b: tuple[int, list[Any]]) -> tuple[int, list[Any]]:
        if a[0] == b[0]:
            return a[0], a[1] + b[1]
        return a if a[0] > b[0] else b


class Each(ProcessWindowFunction):
    """The rows that an aggregate has kept."""

    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        yield from next(iter(elements))


class EachOfAll(ProcessAllWindowFunction):
    """The same for a window of all keys."""

    def process(self, context: Any, elements: Any) -> Iterator[Any]:
        yield from next(iter(elements))


class Met(AggregateFunction):
    """The name of a person who is new, and whether the person sells."""

    def create_accumulator(self) -> tuple[str, bool]:
        return "", False

    def add(self, value: Any, accumulator: tuple[str, bool]) -> tuple[str, bool]:
        return self.merge(accumulator, (value[1], not value[1]))

    def get_result(self, accumulator: tuple[str, bool]) -> tuple[str, bool]:
        return accumulator

    def merge(self, a: tuple[str, bool], b: tuple[str, bool]) -> tuple[str, bool]:
        return a[0] or b[0], a[1] or b[1]


class WhoHasMet(ProcessWindowFunction):
    """Persons who are new and sell in a window."""

    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        name, sells = next(iter(elements))
        if name and sells:
            yield key, name, context.window().start


def _counted(stream: Any, field: int, assigner: Any) -> Any:
    """How many rows there are by key and window."""
    windows = stream.key_by(lambda row: row[field], key_type=LONG).window(assigner)
    # The type of an accumulator is pickled, so it must not be one that Java has seen.
    return windows.aggregate(Count(), WithWindow(), Types.LONG(), COUNTED)


def hot_items(events: Events) -> Any:
    """q5: counts by auction and window, then the greatest of each window."""
    counts = _counted(timed(events("bid"), 5), 0, SlidingEventTimeWindows.of(TEN_SECONDS, TWO_SECONDS))
    of_window = counts.key_by(lambda count: count[3], key_type=LONG).window(TumblingEventTimeWindows.of(TWO_SECONDS))
    return of_window.aggregate(Greatest(1), Each(), Types.PICKLED_BYTE_ARRAY(), COUNTED)


def highest_bid(events: Events) -> Any:
    """q7: the highest bids of ten seconds, first in parts, then of all."""
    ten = TumblingEventTimeWindows.of(TEN_SECONDS)
    bids = timed(events("bid"), 5).map(lambda bid: (bid[0], bid[1], bid[2], bid[5], bid[6]), BEST_BID)
    parts = bids.key_by(lambda bid: bid[2] % PARTS, key_type=LONG).window(ten)
    best = parts.aggregate(Greatest(2), Each(), Types.PICKLED_BYTE_ARRAY(), BEST_BID)
    return best.window_all(ten).aggregate(Greatest(2), EachOfAll(), Types.PICKLED_BYTE_ARRAY(), BEST_BID)


def new_sellers(events: Events) -> Any:
    """q8: there is no join of windows, so both kinds come as one, and what has no name is an auction."""
    kind = Types.TUPLE([LONG, TEXT, LONG])
    persons = events("person").map(lambda person: (person[0], person[1], person[6]), kind)
    sellers = events("auction").map(lambda auction: (auction[7], "", auction[5]), kind)
    keyed = timed(persons.union(sellers), 2).key_by(lambda row: row[0], key_type=LONG)
    windows = keyed.window(TumblingEventTimeWindows.of(TEN_SECONDS))
    return windows.aggregate(Met(), WhoHasMet(), Types.PICKLED_BYTE_ARRAY(), kind)


def user_sessions(events: Events) -> Any:
    """q11."""
    return _counted(timed(events("bid"), 5), 1, EventTimeSessionWindows.with_gap(TEN_SECONDS))


def processing_time(events: Events) -> Any:
    """q12."""
    return _counted(events("bid"), 1, TumblingProcessingTimeWindows.of(TEN_SECONDS))


PROGRAMS: Final[dict[str, tuple[Callable[[Events], Any], str]]] = {
    "q5": (hot_items, "auction, num, window_start, window_end"),
    "q7": (highest_bid, "auction, bidder, price, date_time, extra"),
    "q8": (new_sellers, "id, name, starts"),
    "q11": (user_sessions, "bidder, bid_count, window_start, window_end"),
    "q12": (processing_time, "bidder, bid_count, window_start, window_end"),
}
