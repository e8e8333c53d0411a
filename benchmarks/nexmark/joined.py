"""Queries that join, by columns: q3, q4, q6, q9, q20. An auction or a person is there once, what refers to it often."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.nexmark.query import Computed, Query, of
from holdfast.datastream import BatchFunction, DataStream, KeyedProcessFunction
from holdfast.datastream.functions import BatchContext, RuntimeContext
from holdfast.datastream.state import MapStateDescriptor, ValueStateDescriptor
from holdfast.runtime.operator.batch_function import Groups

Rows = npt.NDArray[np.int64]


class Pairs(NamedTuple):
    """What has met; texts are long and most pairs lead to nothing, so only what is asked for is copied.

    Attributes:
        rows: For each pair a row of the batch that has its key.
        one: Columns of what is there once a key.
        at_one: For each pair where it is in `one`.
        many: Columns of what refers to it.
        at_many: For each pair where it is in `many`.
    """

    rows: Rows
    one: pa.StructArray
    at_one: Rows
    many: pa.StructArray
    at_many: Rows

    def of_one(self, name: str) -> pa.Array:
        """A column of what is there once, by pair."""
        return self.one.field(name).take(pa.array(self.at_one))

    def of_many(self, name: str) -> pa.Array:
        """A column of what refers to it, by pair."""
        return self.many.field(name).take(pa.array(self.at_many))

    def only(self, chosen: Any) -> Pairs:
        """Some of the pairs."""
        return self._replace(rows=self.rows[chosen], at_one=self.at_one[chosen], at_many=self.at_many[chosen])

    def columns(self) -> tuple[list[pa.Array], list[pa.Array]]:
        """All columns of both, by pair."""
        one, many = self.one.take(pa.array(self.at_one)), self.many.take(pa.array(self.at_many))
        return one.flatten(), many.flatten()


class OneToMany(BatchFunction):
    """Joins rows of two kinds by key, one of which comes once a key, whichever comes first.

    Rows with `is_one` are those that come once. What refers to one that is not there yet waits in state.

    Args:
        one: Columns of what is there once, as DDL.
        many: Columns of what refers to it.
    """

    def __init__(self, one: str, many: str) -> None:
        self._one, self._many = one, many

    def open(self, runtime_context: RuntimeContext) -> None:
        self._one_state = runtime_context.get_state(ValueStateDescriptor("one", f"struct<{_fields(self._one)}>"))
        waiting = ValueStateDescriptor("waiting", f"array<struct<{_fields(self._many)}>>")
        self._waiting_state = runtime_context.get_state(waiting)

    def pairs(self, batch: pa.RecordBatch, ctx: BatchContext) -> Pairs:
        """Take a batch into state, and return what meets."""
        one_state, waiting_state = ctx.columns(self._one_state), ctx.columns(self._waiting_state)
        is_one = batch.column("is_one").to_numpy(zero_copy_only=False)
        ones, others = np.flatnonzero(is_one), np.flatnonzero(~is_one)
        values = _struct_of(batch, self._one, ones)
        known_ones, many = [values], [_struct_of(batch, self._many)]
        met: list[tuple[Rows, Rows, Rows]] = []
        if len(ones):
            one_state.put_at(ones, values)
            waiting = waiting_state.get_at(ones)
            if waiting.null_count < len(waiting):
                parents = pc.list_parent_indices(waiting).to_numpy()
                met.append((ones[parents], parents, len(batch) + np.arange(len(parents))))
                many.append(waiting.flatten())
                waiting_state.put_at(ones, pa.nulls(len(ones), waiting.type))
        if len(others) or not met:
            groups = Groups(ctx.slots_at(others))
            known = one_state.get_at(others[groups.first_rows])
            number = groups.in_rows(groups.group)
            is_known = known.is_valid().to_numpy(zero_copy_only=False)[number]
            met.append((others[is_known], len(values) + number[is_known], others[is_known]))
            known_ones.append(known)
            if not is_known.all():
                self._keep(batch, others[~is_known], number[~is_known], waiting_state)
        rows, at_one, at_many = (np.concatenate(parts) for parts in zip(*met, strict=True))
        return Pairs(rows, _together(known_ones), at_one, _together(many), at_many)

    def _keep(self, batch: pa.RecordBatch, rows: Rows, number: Rows, waiting_state: Any) -> None:
        """Let rows wait; there are few, because what they refer to comes soon."""
        groups = Groups(number)
        rows = rows[groups.order]
        before = waiting_state.get_at(rows[groups.starts])
        new = _struct_of(batch, self._many, rows).to_pylist()
        ends = groups.ends + 1
        lists = [
            [*(old or ()), *new[start:end]]
            for old, start, end in zip(before.to_pylist(), groups.starts.tolist(), ends.tolist(), strict=True)
        ]
        waiting_state.put_at(rows[groups.starts], pa.array(lists, before.type))


class LocalItems(OneToMany):
    """q3: who sells in some states; emits each auction with its seller."""

    def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
        one, many = self.pairs(batch, ctx).columns()
        return pa.table([*one, *many], names=["name", "city", "state", "id"])


class WithAuction(OneToMany):
    """q20: bids with their auction, of one category; auctions of others are known, but without their columns."""

    def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
        pairs = self.pairs(batch, ctx)
        pairs = pairs.only(pairs.of_one("category").to_numpy() == 10)
        one, many = pairs.columns()
        columns = [batch.column("auction").take(pa.array(pairs.rows)), *many, *one]
        return pa.table(columns, names=["auction", *_names(self._many), *_names(self._one)])


class WinningBids(OneToMany):
    """q4, q6, q9: the best bid of each auction that was made while it was open.

    Emits an auction whenever it has a better bid: its columns, those of the bid, and the price before.
    """

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        self._price = runtime_context.get_state(ValueStateDescriptor("price", "bigint"))
        self._time = runtime_context.get_state(ValueStateDescriptor("time", "bigint"))

    def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
        pairs = self.pairs(batch, ctx)
        times = pairs.of_many("bid_date_time").to_numpy()
        opens, expires = pairs.of_one("date_time").to_numpy(), pairs.of_one("expires").to_numpy()
        in_time = np.flatnonzero((opens <= times) & (times <= expires))
        if not len(in_time):
            return None
        pairs, times = pairs.only(in_time), times[in_time]
        groups = Groups(ctx.slots_at(pairs.rows))
        prices = pairs.of_many("price").to_numpy()
        # Of the rows of an auction the one with the greatest price, of these the one with the least time.
        best = np.lexsort((times, -prices, groups.in_rows(groups.group)))[groups.starts]
        pairs, prices, times = pairs.only(best), prices[best], times[best]
        price_state, time_state = ctx.columns(self._price), ctx.columns(self._time)
        old = price_state.get_at(pairs.rows)
        old_prices = old.fill_null(-1).to_numpy()
        old_times = time_state.get_at(pairs.rows).fill_null(0).to_numpy()
        better = (prices > old_prices) | ((prices == old_prices) & (times < old_times))
        pairs = pairs.only(better)
        price_state.put_at(pairs.rows, prices[better])
        time_state.put_at(pairs.rows, times[better])
        one, many = pairs.columns()
        auction = batch.column("auction").take(pa.array(pairs.rows))
        found = pa.table(
            [auction, *one, *many, old.filter(pa.array(better))],
            names=["auction", *_names(self._one), *_names(self._many), "old"],
        )
        return self.emitted(found)

    def emitted(self, found: pa.Table) -> pa.Table:
        """What is emitted of it."""
        return found.drop_columns(["old"])


class ByCategory(WinningBids):
    """q4: by how much the sum of the best prices of a category has grown, and by how many auctions."""

    def emitted(self, found: pa.Table) -> pa.Table:
        growth = pc.subtract(found["price"], pc.fill_null(found["old"], 0))
        new = pc.cast(pc.is_null(found["old"]), pa.int64())
        table = pa.table({"category": found["category"], "growth": growth, "new": new})
        summed = table.group_by("category", use_threads=False).aggregate([("growth", "sum"), ("new", "sum")])
        return summed.rename_columns({"growth_sum": "growth", "new_sum": "new"})


def average(batch: pa.RecordBatch, state: Any) -> pa.Table:
    """q4: the average of the best prices of each category."""
    table = (
        pa.table(batch)
        .group_by("category", use_threads=False)
        .aggregate([("growth", "sum"), ("new", "sum")])
        .combine_chunks()
    )
    keys = table["category"].combine_chunks()
    totals = pc.add(table["growth_sum"].combine_chunks(), state["total"].get(keys).fill_null(0))
    counts = pc.add(table["new_sum"].combine_chunks(), state["auctions"].get(keys).fill_null(0))
    state["total"].put(keys, totals)
    state["auctions"].put(keys, counts)
    return pa.table({"category": keys, "final": pc.divide(totals, counts)})


class SellersAverage(KeyedProcessFunction):
    """q6: the average of an auction's best price and those of the ten before it of the same seller.

    They are in the order of the best bids, so a better one changes the averages of up to eleven auctions.
    """

    def open(self, runtime_context: RuntimeContext) -> None:
        self._best = runtime_context.get_map_state(
            MapStateDescriptor("best", "bigint", "struct<at: bigint, price: bigint>")
        )

    def process_element(self, row: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        old = self._best.get(row.auction)
        self._best.put(row.auction, (row.bid_date_time, row.price))
        ordered = sorted((best.at, auction, best.price) for auction, best in self._best.items())
        changed = [at for at, (_, auction, _) in enumerate(ordered) if auction == row.auction]
        if old is not None:
            changed.append(sum(1 for at, auction, _ in ordered if (at, auction) < (old.at, row.auction)))
        touched = {at for first in changed for at in range(first, min(first + 11, len(ordered)))}
        for at in sorted(touched):
            prices = [price for _, _, price in ordered[max(0, at - 10) : at + 1]]
            yield row.seller, ordered[at][1], sum(prices) // len(prices)


def _fields(ddl: str) -> str:
    return ", ".join(": ".join(column.split()) for column in ddl.split(", "))


def _names(ddl: str) -> list[str]:
    return [column.split()[0] for column in ddl.split(", ")]


def _struct_of(batch: pa.RecordBatch, ddl: str, rows: Rows | None = None) -> pa.StructArray:
    """Columns of a batch, of some rows or of all, which costs nothing."""
    chosen = batch.select(_names(ddl))
    return (chosen if rows is None else chosen.take(pa.array(rows))).to_struct_array()


def _together(parts: list[pa.Array]) -> pa.Array:
    """The parts one after the other, without a copy if only one has anything."""
    filled = [part for part in parts if len(part)] or parts[:1]
    return filled[0] if len(filled) == 1 else pa.concat_arrays(filled)


def _both(key: str, one: str, many: str, sides: tuple[str, str], **sources: tuple[Any, Any]) -> Mapping[str, Any]:
    """Inputs for `OneToMany`: both kinds with all columns, those of the other null.

    Args:
        key: The column by which they meet, the same name in both.
        one: Columns of what comes once.
        many: Columns of what refers to it.
        sides: The kinds of event.
        **sources: Of columns, for the kind that has it.
    """
    columns = f"{key} bigint, is_one boolean, {one}, {many}"
    nothing_of_one, nothing_of_many = dict.fromkeys(_names(one)), dict.fromkeys(_names(many))
    of_one, of_many = ({name: of[at] for name, of in sources.items() if of[at] is not None} for at in (0, 1))
    return {
        sides[0]: of(sides[0], columns, **{**nothing_of_many, "is_one": True, **of_one}),
        sides[1]: of(sides[1], columns, **{**nothing_of_one, "is_one": False, **of_many}),
    }


_BID: Final = {"bid_date_time": (None, "date_time"), "bid_extra": (None, "extra"), "auction": ("id", None)}
_ITEM: Final = "item_name string, description string, initial_bid bigint, reserve bigint"


def _union(streams: Mapping[str, DataStream], one: str, many: str) -> DataStream:
    """Both streams; that what comes once is read first saves waiting, and nothing depends on it."""
    return streams[one].union(streams[many])


def _if_of_category(category: pa.Array, values: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(category, 10), values, None)


_Q3: Final = ("name string, city string, state string", "id bigint")
_Q4: Final = ("date_time bigint, expires bigint, category bigint", "bid_date_time bigint, price bigint")
_Q6: Final = ("date_time bigint, expires bigint, seller bigint", "bid_date_time bigint, price bigint")
_Q9: Final = (
    f"{_ITEM}, date_time bigint, expires bigint, seller bigint, category bigint, extra string",
    "bidder bigint, price bigint, bid_date_time bigint, bid_extra string",
)
_Q20: Final = (
    f"{_ITEM}, auction_date_time bigint, expires bigint, seller bigint, category bigint, auction_extra string",
    "bidder bigint, price bigint, channel string, url string, bid_date_time bigint, bid_extra string",
)
_OF_CATEGORY: Final = {
    name: (Computed(_if_of_category, ("category", name.removeprefix("auction_"))), None)
    for name in [*_names(_ITEM), "auction_date_time", "expires", "seller", "auction_extra"]
}


def local_items(streams: Mapping[str, DataStream]) -> DataStream:
    """q3: auctions of a category by persons of some states."""
    output = "name string, city string, state string, id bigint"
    both = _union(streams, "person", "auction").key_by("person")
    return both.process_batches(LocalItems(*_Q3), output).uid("join")


def average_price(streams: Mapping[str, DataStream]) -> DataStream:
    """q4: the average of the winning bids of each category."""
    output = "category bigint, growth bigint, new bigint"
    grown = _union(streams, "auction", "bid").key_by("auction").process_batches(ByCategory(*_Q4), output).uid("best")
    averaged = grown.key_by("category").process_batches(
        average, "category bigint, final bigint", state={"total": "bigint", "auctions": "bigint"}
    )
    return averaged.uid("average")


def average_of_seller(streams: Mapping[str, DataStream]) -> DataStream:
    """q6: the average of the last winning bids of each seller."""
    best = _union(streams, "auction", "bid").key_by("auction")
    won = best.process_batches(WinningBids(*_Q6), f"auction bigint, {_Q6[0]}, {_Q6[1]}").uid("best")
    return (
        won.key_by("seller").process(SellersAverage(), "seller bigint, auction bigint, average bigint").uid("average")
    )


def winning_bids(streams: Mapping[str, DataStream]) -> DataStream:
    """q9: each auction with its best bid."""
    output = f"auction bigint, {_Q9[0]}, {_Q9[1]}"
    return _union(streams, "auction", "bid").key_by("auction").process_batches(WinningBids(*_Q9), output).uid("best")


def bids_with_auction(streams: Mapping[str, DataStream]) -> DataStream:
    """q20: the bids for auctions of a category, with all that is known of them."""
    output = f"auction bigint, {_Q20[1]}, {_Q20[0]}"
    return _union(streams, "auction", "bid").key_by("auction").process_batches(WithAuction(*_Q20), output).uid("join")


def _q3_inputs() -> Mapping[str, Any]:
    columns = f"person bigint, is_one boolean, {_Q3[0]}, {_Q3[1]}"
    states = Computed(lambda state: pc.is_in(state, pa.array(["OR", "ID", "CA"])), ("state",))
    category = Computed(lambda category: pc.equal(category, 10), ("category",))
    nothing = dict.fromkeys(["name", "city", "state"])
    return {
        "person": of("person", columns, states, person="id", is_one=True, id=None),
        "auction": of("auction", columns, category, person="seller", is_one=False, **nothing),
    }


_AUCTIONS_AND_BIDS: Final = ("auction", "bid")

JOINS: Final = [
    Query("q3", _q3_inputs(), local_items),
    Query("q4", _both("auction", *_Q4, _AUCTIONS_AND_BIDS, **_BID), average_price, keys=("category",)),
    Query(
        "q6", _both("auction", *_Q6, _AUCTIONS_AND_BIDS, **_BID), average_of_seller, keys=("auction",), by_columns=False
    ),
    Query("q9", _both("auction", *_Q9, _AUCTIONS_AND_BIDS, **_BID), winning_bids, keys=("auction",)),
    Query("q20", _both("auction", *_Q20, _AUCTIONS_AND_BIDS, **_BID, **_OF_CATEGORY), bids_with_auction),
]
