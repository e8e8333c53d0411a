"""The events of Nexmark by the published rules (nexmark/nexmark and Apache Beam), a chunk at a time, without a loop.

Of 50 events in a row one is a new person, three are new auctions and 46 are bids, in this order. What an event says is
drawn at random, with a fixed seed for each chunk; which persons and auctions there are follows from its number. Two
things differ from the Java program: the random numbers are numpy's, and a bidder is a person (there the first id is
added twice, so that its bidders are a thousand higher than their persons).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers = npt.NDArray[np.int64]

PERSON: Final = (
    "id bigint, name string, email_address string, credit_card string, city string, state string, date_time bigint, "
    "extra string"
)
AUCTION: Final = (
    "id bigint, item_name string, description string, initial_bid bigint, reserve bigint, date_time bigint, "
    "expires bigint, seller bigint, category bigint, extra string"
)
BID: Final = "auction bigint, bidder bigint, price bigint, channel string, url string, date_time bigint, extra string"
TYPES: Final = {"person": PERSON, "auction": AUCTION, "bid": BID}
"""The columns of each kind of event; times are milliseconds since 1970."""

PERSONS, AUCTIONS, BIDS = 1, 3, 46
TOTAL: Final = PERSONS + AUCTIONS + BIDS
FIRST_ID: Final = 1000
FIRST_CATEGORY, CATEGORIES = 10, 5
HOT_SELLER = HOT_BIDDER = HOT_AUCTION = 100
"""Of so many persons or auctions in a row one is hot."""
COLD_SELLERS, COLD_BIDDERS, COLD_AUCTIONS, COLD_CHANNELS = 4, 4, 2, 2
"""One of so many draws is not for a hot one."""
LEAD: Final = 10
"""So many persons and auctions are named before they are there."""
ACTIVE_PEOPLE: Final = 1000
IN_FLIGHT: Final = 100
CHANNELS: Final = 10_000
PERSON_BYTES, AUCTION_BYTES, BID_BYTES = 200, 500, 100
BASE_TIME: Final = 1_436_918_400_000  # 2015-07-15
STATES: Final = ["AZ", "CA", "ID", "OR", "WA", "WY"]
CITIES: Final = [
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland"),
    *("Bend", "Redmond", "Seattle", "Kent", "Cheyenne"),
]
FIRST_NAMES: Final = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
LAST_NAMES: Final = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
HOT_CHANNELS: Final = ["Google", "Facebook", "Baidu", "Apple"]
_POOL: Final = 1 << 20
_LEAST_LENGTH: Final = 3


@dataclass(frozen=True)
class Rules:
    """What a stream of events depends on.

    Attributes:
        seed: Of everything random.
        rate: Events a second of event time.
        shuffled: So many events in a row come in another order than that of their times; 1 for none.
        chunk: Events that are made at once; each chunk has random numbers of its own.
    """

    seed: int = 7
    rate: int = 10_000
    shuffled: int = 1
    chunk: int = field(default=1_000_000)

    def time_of(self, events: Numbers) -> Numbers:
        """Event time by number of the event, in milliseconds since 1970."""
        return BASE_TIME + events * 1_000_000 // self.rate // 1000


def chunk_of_events(rules: Rules, number: int) -> dict[str, pa.Table]:
    """Make a chunk: the events by their kind, those of each kind in the order in which they come."""
    random = np.random.default_rng([rules.seed, number])
    came = np.arange(number * rules.chunk, (number + 1) * rules.chunk)
    group = rules.shuffled
    events = came // group * group + came * 953 % group
    kind = events % TOTAL
    persons = events[kind < PERSONS]
    auctions = events[(kind >= PERSONS) & (kind < PERSONS + AUCTIONS)]
    bids = events[kind >= PERSONS + AUCTIONS]
    return {
        "person": _persons(rules, random, persons),
        "auction": _auctions(rules, random, auctions),
        "bid": _bids(rules, random, bids),
    }


def last_person(events: Numbers) -> Numbers:
    """The number of the last person at each event."""
    return events // TOTAL * PERSONS + np.minimum(events % TOTAL, PERSONS - 1)


def last_auction(events: Numbers) -> Numbers:
    """The number of the last auction at each event; -1 before the first."""
    offset = events % TOTAL - PERSONS
    return np.where(
        offset < 0,
        (events // TOTAL - 1) * AUCTIONS + AUCTIONS - 1,
        events // TOTAL * AUCTIONS + np.minimum(offset, AUCTIONS - 1),
    )


def _persons(rules: Rules, random: np.random.Generator, events: Numbers) -> pa.Table:
    count = len(events)
    full_names = pa.array([f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES])
    cards = [_four_digits().take(pa.array(random.integers(0, 10_000, count))) for _ in range(4)]
    columns: dict[str, Any] = {
        "id": last_person(events) + FIRST_ID,
        "name": _drawn(random, full_names, count),
        "email_address": pc.binary_join_element_wise(
            _words(random, count, 7), "@", _words(random, count, 5), ".com", ""
        ),
        "credit_card": pc.binary_join_element_wise(*cards, " "),
        "city": _drawn(random, pa.array(CITIES), count),
        "state": _drawn(random, pa.array(STATES), count),
        "date_time": rules.time_of(events),
    }
    size = 8 + sum(_lengths(columns[name]) for name in ("name", "email_address", "credit_card", "city", "state"))
    columns["extra"] = _extra(random, size, PERSON_BYTES)
    return pa.table(columns)


def _auctions(rules: Rules, random: np.random.Generator, events: Numbers) -> pa.Table:
    count, times = len(events), rules.time_of(events)
    hot = last_person(events) // HOT_SELLER * HOT_SELLER
    seller = np.where(random.integers(0, COLD_SELLERS, count) > 0, hot, _some_person(random, events))
    horizon = rules.time_of(events + IN_FLIGHT * TOTAL // AUCTIONS) - times
    initial_bid = _prices(random, count)
    columns: dict[str, Any] = {
        "id": last_auction(events) + FIRST_ID,
        "item_name": _words(random, count, 20),
        "description": _words(random, count, 100),
        "initial_bid": initial_bid,
        "reserve": initial_bid + _prices(random, count),
        "date_time": times,
        "expires": times + 1 + random.integers(0, np.maximum(horizon * 2, 1)),
        "seller": seller + FIRST_ID,
        "category": FIRST_CATEGORY + random.integers(0, CATEGORIES, count),
    }
    size = 8 + _lengths(columns["item_name"]) + _lengths(columns["description"]) + 5 * 8
    columns["extra"] = _extra(random, size, AUCTION_BYTES)
    return pa.table(columns)


def _bids(rules: Rules, random: np.random.Generator, events: Numbers) -> pa.Table:
    count, newest = len(events), last_auction(events)
    oldest = np.maximum(newest - IN_FLIGHT, 0)
    some_auction = oldest + random.integers(0, newest - oldest + 1 + LEAD)
    is_hot = random.integers(0, COLD_AUCTIONS, count) > 0
    hot_bidder = last_person(events) // HOT_BIDDER * HOT_BIDDER + 1
    bidder = np.where(random.integers(0, COLD_BIDDERS, count) > 0, hot_bidder, _some_person(random, events))
    names, urls = _channels(rules.seed)
    channel = np.where(
        random.integers(0, COLD_CHANNELS, count) > 0,
        random.integers(0, len(HOT_CHANNELS), count),
        len(HOT_CHANNELS) + random.integers(0, CHANNELS, count),
    )
    return pa.table(
        {
            "auction": np.where(is_hot, newest // HOT_AUCTION * HOT_AUCTION, some_auction) + FIRST_ID,
            "bidder": bidder + FIRST_ID,
            "price": _prices(random, count),
            "channel": names.take(pa.array(channel)),
            "url": urls.take(pa.array(channel)),
            "date_time": rules.time_of(events),
            "extra": _extra(random, np.full(count, 4 * 8), BID_BYTES),
        }
    )


def _some_person(random: np.random.Generator, events: Numbers) -> Numbers:
    """One of those that are active, or come soon."""
    people = last_person(events) + 1
    active = np.minimum(people, ACTIVE_PEOPLE)
    return people - active + random.integers(0, active + LEAD)


def _prices(random: np.random.Generator, count: int) -> Numbers:
    return np.rint(np.power(10.0, random.random(count) * 6.0) * 100.0).astype(np.int64)


def _drawn(random: np.random.Generator, choices: pa.Array, count: int) -> pa.Array:
    return choices.take(pa.array(random.integers(0, len(choices), count)))


def _lengths(texts: pa.Array) -> Numbers:
    return pc.binary_length(texts).to_numpy().astype(np.int64)


def _extra(random: np.random.Generator, size: Numbers, wanted: int) -> pa.Array:
    """Filling, so that an event has about so many bytes; none where it is larger already."""
    missing = np.maximum(wanted - size, 0)
    delta = np.rint(missing * 0.2).astype(np.int64)
    lengths = missing - delta + random.integers(0, np.maximum(2 * delta, 1))
    return _cut(random, lengths, _pool(0))


def _words(random: np.random.Generator, count: int, most: int, special: str = " ") -> pa.Array:
    """Letters and a few special characters; spaces at the ends are trimmed, other special characters stay."""
    return pc.utf8_trim_whitespace(_cut(random, random.integers(_LEAST_LENGTH, most, count), _pool(ord(special))))


def _cut(random: np.random.Generator, lengths: Numbers, pool: npt.NDArray[np.uint8]) -> pa.Array:
    """Texts of these lengths out of a pool."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    starts = random.integers(0, len(pool) - int(lengths.max(initial=0)), len(lengths))
    data = pool[np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])]
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(data))


@cache
def _pool(special: int) -> npt.NDArray[np.uint8]:
    """Random letters, of which one in 13 is special if that is asked for."""
    random = np.random.default_rng(special)
    letters = random.integers(ord("a"), ord("z") + 1, _POOL).astype(np.uint8)
    if special:
        letters[random.integers(0, 13, _POOL) == 0] = special
    return letters


@cache
def _four_digits() -> pa.Array:
    return pa.array([f"{number:04d}" for number in range(10_000)])


@cache
def _channels(seed: int) -> tuple[pa.Array, pa.Array]:
    """The names of all channels, the hot ones first, and the address of each; one in ten has no number there."""
    random = np.random.default_rng(seed)
    count = len(HOT_CHANNELS) + CHANNELS
    folders = [_words(random, count, 5, "_") for _ in range(3)]
    urls = pc.binary_join_element_wise("https://www.nexmark.com", *folders, "item.htm?query=1", "/").to_pylist()
    for number in np.flatnonzero(random.integers(0, 10, CHANNELS) > 0).tolist():
        urls[len(HOT_CHANNELS) + number] += f"&channel_id={_reversed_bits(number)}"
    return pa.array([*HOT_CHANNELS, *(f"channel-{number}" for number in range(CHANNELS))]), pa.array(urls)


def _reversed_bits(number: int) -> int:
    """The bits of a 32-bit number in the other order, without its sign, as Java reckons."""
    turned = int(f"{number:032b}"[::-1], 2)
    return abs(turned - (1 << 32) if turned >> 31 else turned)
