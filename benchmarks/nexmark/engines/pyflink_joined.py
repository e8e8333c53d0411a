"""Joins of auctions and bids in PyFlink's DataStream: q4, q9, q20. Each is a program and the names of its columns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from pyflink.common import Types
from pyflink.datastream import KeyedCoProcessFunction, KeyedProcessFunction, RuntimeContext
from pyflink.datastream.state import ListStateDescriptor, ValueStateDescriptor

Events = Callable[[str], Any]

LONG, TEXT = Types.LONG(), Types.STRING()
AUCTION: Final = (LONG, TEXT, TEXT, LONG, LONG, LONG, LONG, LONG, LONG, TEXT)
BID: Final = (LONG, LONG, LONG, TEXT, TEXT, LONG, TEXT)


class WithAuction(KeyedCoProcessFunction):
    """Lets an auction and its bids meet, whichever comes first; an auction comes once, so bids only wait for it.

    Args:
        fields: Of an auction, which are kept.
    """

    def __init__(self, fields: Sequence[int]) -> None:
        self._fields = fields

    def open(self, runtime_context: RuntimeContext) -> None:
        kept = Types.TUPLE([AUCTION[field] for field in self._fields])
        self._auction = runtime_context.get_state(ValueStateDescriptor("auction", kept))
        self._waiting = runtime_context.get_list_state(ListStateDescriptor("waiting", Types.TUPLE(list(BID))))

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Any]:
        auction = tuple(value[field] for field in self._fields)
        self._auction.update(auction)
        for bid in list(self._waiting.get() or ()):
            yield from self.met(auction, bid)
        self._waiting.clear()

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Any]:
        auction = self._auction.value()
        if auction is None:
            self._waiting.add(tuple(value))
        else:
            yield from self.met(auction, value)

    @abstractmethod
    def met(self, auction: Any, bid: Any) -> Iterator[Any]:
        """What a bid for an auction leads to."""


class OfCategory(WithAuction):
    """q20: the bids for auctions of a category, which is the first field that is kept."""

    def met(self, auction: Any, bid: Any) -> Iterator[Any]:
        if auction[0] == 10:
            yield *bid, *auction


class WinningBids(WithAuction):
    """q9: an auction whenever it has a better bid of the time when it was open, which is in the first two fields."""

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        self._best = runtime_context.get_state(ValueStateDescriptor("best", Types.TUPLE([LONG, LONG])))

    def met(self, auction: Any, bid: Any) -> Iterator[Any]:
        price, time = bid[2], bid[5]
        if not auction[0] <= time <= auction[1]:
            return
        best = self._best.value()
        if best is None or price > best[0] or (price == best[0] and time < best[1]):
            self._best.update((price, time))
            yield from self.won(auction, bid, best)

    def won(self, auction: Any, bid: Any, best: Any) -> Iterator[Any]:
        """What a better bid leads to; `best` has the price and time of the one before."""
        yield *auction, bid[1], bid[2], bid[5], bid[6]


class GrowthOfCategory(WinningBids):
    """q4: by how much the sum of the best prices of a category has grown, and by how many auctions."""

    def won(self, auction: Any, bid: Any, best: Any) -> Iterator[Any]:
        yield auction[2], bid[2] - (best[0] if best else 0), int(best is None)


class Average(KeyedProcessFunction):
    """q4: the average of the best prices of a category."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._totals = runtime_context.get_state(ValueStateDescriptor("totals", Types.TUPLE([LONG, LONG])))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        total, auctions = self._totals.value() or (0, 0)
        total, auctions = total + value[1], auctions + value[2]
        self._totals.update((total, auctions))
        yield value[0], total // auctions


def _joined(events: Events, function: WithAuction, kind: Sequence[Any]) -> Any:
    auctions = events("auction").key_by(lambda auction: auction[0], key_type=LONG)
    bids = events("bid").key_by(lambda bid: bid[0], key_type=LONG)
    return auctions.connect(bids).process(function, output_type=Types.TUPLE(list(kind)))


def average_price(events: Events) -> Any:
    """q4."""
    grown = _joined(events, GrowthOfCategory([5, 6, 8]), [LONG] * 3)
    return grown.key_by(lambda row: row[0], key_type=LONG).process(Average(), output_type=Types.TUPLE([LONG, LONG]))


def winning_bids(events: Events) -> Any:
    """q9."""
    fields = [5, 6, 0, 1, 2, 3, 4, 7, 8, 9]
    kind = [*(AUCTION[field] for field in fields), LONG, LONG, LONG, TEXT]
    return _joined(events, WinningBids(fields), kind)


def bids_with_auction(events: Events) -> Any:
    """q20."""
    fields = [8, 1, 2, 3, 4, 5, 6, 7, 9]
    return _joined(events, OfCategory(fields), [*BID, *(AUCTION[field] for field in fields)])


_ITEM: Final = "item_name, description, initial_bid, reserve"
_Q20_BID: Final = "auction, bidder, price, channel, url, bid_date_time, bid_extra"
PROGRAMS: Final[dict[str, tuple[Callable[[Events], Any], str]]] = {
    "q4": (average_price, "category, final"),
    "q9": (
        winning_bids,
        f"date_time, expires, auction, {_ITEM}, seller, category, extra, bidder, price, bid_date_time, bid_extra",
    ),
    "q20": (
        bids_with_auction,
        f"{_Q20_BID}, category, {_ITEM}, auction_date_time, expires, seller, auction_extra",
    ),
}
