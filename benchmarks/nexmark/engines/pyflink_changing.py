"""Answers that change with each bid in PyFlink's DataStream: q15 to q19, and q1, which has no state.

Each is a program and the names of its columns.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

from pyflink.common import Types
from pyflink.datastream import KeyedProcessFunction, RuntimeContext
from pyflink.datastream.state import MapStateDescriptor, ValueStateDescriptor

Events = Callable[[str], Any]

DAY, MINUTE = 86_400_000, 60_000
LONG, TEXT = Types.LONG(), Types.STRING()
BID: Final = Types.TUPLE([LONG, LONG, LONG, TEXT, TEXT, LONG, TEXT])
COUNTS: Final = [
    f"{rank}_{what}" for what in ("bids", "bidders", "auctions") for rank in ("total", "rank1", "rank2", "rank3")
]


def rank_of(price: int) -> int:
    """1 to 3."""
    return 1 if price < 10_000 else 2 if price < 1_000_000 else 3


@cache
def day_text(day: int) -> str:
    """A day since 1970 as text."""
    return datetime.fromtimestamp(day * DAY / 1000, UTC).strftime("%Y-%m-%d")


class Counts(KeyedProcessFunction):
    """q15: bids, bidders and auctions of a day, in all and by rank of the price."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._totals = runtime_context.get_state(ValueStateDescriptor("totals", Types.TUPLE([LONG] * len(COUNTS))))
        # Of each bidder and auction a bit for every rank that has been seen.
        self._bidders = runtime_context.get_map_state(MapStateDescriptor("bidders", LONG, LONG))
        self._auctions = runtime_context.get_map_state(MapStateDescriptor("auctions", LONG, LONG))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        yield day_text(value[5] // DAY), *self.counted(value)

    def counted(self, bid: Any) -> list[int]:
        """The counts with a bid."""
        totals = list(self._totals.value() or [0] * len(COUNTS))
        rank = rank_of(bid[2])
        totals[0] += 1
        totals[rank] += 1
        for at, state, who in ((4, self._bidders, bid[1]), (8, self._auctions, bid[0])):
            seen = state.get(who) or 0
            if not seen >> rank & 1:
                totals[at] += not seen
                totals[at + rank] += 1
                state.put(who, seen | 1 << rank)
        self._totals.update(tuple(totals))
        return totals


class CountsOfChannel(Counts):
    """q16: the same for a channel and day, and the last minute of a bid."""

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        self._minute = runtime_context.get_state(ValueStateDescriptor("minute", LONG))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        before, now = self._minute.value(), value[5] % DAY // MINUTE
        minute = now if before is None else max(before, now)
        if minute != before:
            self._minute.update(minute)
        text = f"{minute // 60:02}:{minute % 60:02}"
        yield value[3], day_text(value[5] // DAY), text, *self.counted(value)


class Statistics(KeyedProcessFunction):
    """q17: counts by rank, and least, greatest, mean and sum of the prices of an auction and day."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._state = runtime_context.get_state(ValueStateDescriptor("statistics", Types.TUPLE([LONG] * 7)))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        price = value[2]
        bids, low, middle, high, least, most, total = self._state.value() or (0, 0, 0, 0, price, price, 0)
        rank = rank_of(price)
        low, middle, high = low + (rank == 1), middle + (rank == 2), high + (rank == 3)
        bids, least, most, total = bids + 1, min(least, price), max(most, price), total + price
        self._state.update((bids, low, middle, high, least, most, total))
        yield value[0], day_text(value[5] // DAY), bids, low, middle, high, least, most, total // bids, total


class LastBids(KeyedProcessFunction):
    """q18: the last bid of a bidder for an auction."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._time = runtime_context.get_state(ValueStateDescriptor("time", LONG))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        if value[5] >= (self._time.value() or 0):
            self._time.update(value[5])
            yield tuple(value)


class HighestBids(KeyedProcessFunction):
    """q19: the ten highest bids of an auction; emits each place that is taken by another bid."""

    MOST: Final = 10

    def open(self, runtime_context: RuntimeContext) -> None:
        self._best = runtime_context.get_state(ValueStateDescriptor("best", Types.PICKLED_BYTE_ARRAY()))
        self._least = runtime_context.get_state(ValueStateDescriptor("least", LONG))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        if value[2] <= (self._least.value() or 0):
            return
        best = self._best.value() or []
        place = bisect_right(best, -value[2], key=lambda bid: -bid[2])
        best.insert(place, tuple(value))
        del best[self.MOST :]
        self._best.update(best)
        if len(best) == self.MOST:
            self._least.update(best[-1][2])
        for at in range(place, len(best)):
            yield *best[at], at + 1


def euro(events: Events) -> Any:
    """q1."""
    kind = Types.TUPLE([LONG, LONG, Types.DOUBLE(), LONG, TEXT])
    return events("bid").map(lambda bid: (bid[0], bid[1], 908 * bid[2] / 1000, bid[5], bid[6]), output_type=kind)


def bidding_statistics(events: Events) -> Any:
    """q15."""
    keyed = events("bid").key_by(lambda bid: bid[5] // DAY, key_type=LONG)
    return keyed.process(Counts(), output_type=Types.TUPLE([TEXT] + [LONG] * len(COUNTS)))


def channel_statistics(events: Events) -> Any:
    """q16."""
    keyed = events("bid").key_by(lambda bid: (bid[3], bid[5] // DAY), key_type=Types.TUPLE([TEXT, LONG]))
    return keyed.process(CountsOfChannel(), output_type=Types.TUPLE([TEXT] * 3 + [LONG] * len(COUNTS)))


def auction_statistics(events: Events) -> Any:
    """q17."""
    keyed = events("bid").key_by(lambda bid: (bid[0], bid[5] // DAY), key_type=Types.TUPLE([LONG, LONG]))
    return keyed.process(Statistics(), output_type=Types.TUPLE([LONG, TEXT] + [LONG] * 8))


def last_bids(events: Events) -> Any:
    """q18."""
    keyed = events("bid").key_by(lambda bid: (bid[1], bid[0]), key_type=Types.TUPLE([LONG, LONG]))
    return keyed.process(LastBids(), output_type=BID)


def highest_bids(events: Events) -> Any:
    """q19."""
    keyed = events("bid").key_by(lambda bid: bid[0], key_type=LONG)
    return keyed.process(HighestBids(), output_type=Types.TUPLE([LONG, LONG, LONG, TEXT, TEXT, LONG, TEXT, LONG]))


_BID: Final = "auction, bidder, price, channel, url, date_time, extra"
PROGRAMS: Final[dict[str, tuple[Callable[[Events], Any], str]]] = {
    "q1": (euro, "auction, bidder, price, date_time, extra"),
    "q15": (bidding_statistics, ", ".join(["day", *COUNTS])),
    "q16": (channel_statistics, ", ".join(["channel", "day", "minute", *COUNTS])),
    "q17": (
        auction_statistics,
        "auction, day, total_bids, rank1_bids, rank2_bids, rank3_bids, min_price, max_price, avg_price, sum_price",
    ),
    "q18": (last_bids, _BID),
    "q19": (highest_bids, f"{_BID}, rank_number"),
}
