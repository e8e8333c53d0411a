"""Queries whose answer changes with each bid, by columns: q15 to q19. A later row of a key replaces an earlier one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.nexmark.events import BID
from benchmarks.nexmark.query import DAY, Computed, Query, of
from holdfast.datastream import BatchFunction, DataStream
from holdfast.datastream.functions import BatchContext, RuntimeContext
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.runtime.operator.batch_function import Groups

RANKS: Final = 3
RANK: Final = Computed(lambda price: pa.array(np.searchsorted([10_000, 1_000_000], price, side="right")), ("price",))
BIDDER, AUCTION = 0, 1
COUNTS: Final = [
    f"{rank}_{what}" for what in ("bids", "bidders", "auctions") for rank in ("total", "rank1", "rank2", "rank3")
]
"""The columns of q15 and q16."""

Numbers = npt.NDArray[np.int64]


class NewOnes(BatchFunction):
    """Which bidders and auctions of a group and day are new, in all and for each rank of prices.

    The key is the group, the day, and the bidder or auction; state is a bit for each rank. Emits by how much each count
    of the group and day has grown.
    """

    def __init__(self, group: list[str], *, with_minute: bool = False) -> None:
        self._group, self._with_minute = group, with_minute

    def open(self, runtime_context: RuntimeContext) -> None:
        self._seen = runtime_context.get_state(ValueStateDescriptor("seen", "tinyint"))

    def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
        state = ctx.columns(self._seen)
        groups = Groups(ctx.slots)
        first = groups.first_rows
        bits = np.left_shift(1, batch.column("rank").to_numpy().astype(np.int64))
        before = state.get_at(first).fill_null(0).to_numpy().astype(np.int64)
        after = before | np.bitwise_or.reduceat(bits[groups.order], groups.starts)
        changed = after != before
        state.put_at(first[changed], after[changed].astype(np.int8))
        is_bidder = batch.column("kind").to_numpy() == BIDDER
        bids = np.flatnonzero(is_bidder)
        grown = [_columns(is_bidder[bids], bits[bids], np.zeros(len(bids), np.int64), 0)]
        rows = [bids]
        for kind in (BIDDER, AUCTION):
            chosen = changed & (is_bidder[first] == (kind == BIDDER))
            grown.append(_columns(before[chosen] == 0, after[chosen], before[chosen], kind + 1))
            rows.append(first[chosen])
        return self._by_group(batch, np.concatenate(rows), np.concatenate(grown, axis=1))

    def _by_group(self, batch: pa.RecordBatch, rows: Numbers, grown: Numbers) -> pa.Table:
        taken = pa.array(rows)
        table = {name: batch.column(name).take(taken) for name in self._group}
        table |= {name: pa.array(column) for name, column in zip(COUNTS, grown, strict=True)}
        aggregates = [(name, "sum") for name in COUNTS]
        if self._with_minute:
            table["minute"] = batch.column("minute").take(taken)
            aggregates.append(("minute", "max"))
        names = {f"{name}_{how}": name for name, how in aggregates}
        return (
            pa.table(table)
            .group_by(self._group, use_threads=False)
            .aggregate(aggregates)
            .rename_columns({name: names.get(name, name) for name in [*self._group, *names]})
        )


def _columns(is_new: npt.NDArray[np.bool_], after: Numbers, before: Numbers, at: int) -> Numbers:
    """What rows add to all counts: to those of one kind, that of all and those of the ranks."""
    result = np.zeros((len(COUNTS), len(after)), np.int64)
    result[at * 4] = is_new
    for rank in range(RANKS):
        result[at * 4 + 1 + rank] = ((after & ~before) >> rank) & 1
    return result


class Totals(BatchFunction):
    """The counts of each group and day so far; emits those that have grown."""

    def __init__(self, group: list[str], *, with_minute: bool = False) -> None:
        self._group, self._with_minute = group, with_minute

    def open(self, runtime_context: RuntimeContext) -> None:
        names = [*COUNTS, "minute"] if self._with_minute else COUNTS
        self._totals = {name: runtime_context.get_state(ValueStateDescriptor(name, "bigint")) for name in names}

    def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
        groups = Groups(ctx.slots)
        first = groups.first_rows
        columns: dict[str, pa.Array] = {}
        for name, handle in self._totals.items():
            state = ctx.columns(handle)
            add, nothing = (np.maximum, -1) if name == "minute" else (np.add, 0)
            new = add.reduceat(batch.column(name).to_numpy()[groups.order], groups.starts)
            total = add(new, state.get_at(first).fill_null(nothing).to_numpy())
            state.put_at(first, total)
            columns[name] = pa.array(total)
        taken = pa.array(first)
        of_group = {name: batch.column(name).take(taken) for name in self._group}
        of_group["day"] = day_text(of_group["day"])
        if self._with_minute:
            of_group["minute"] = minute_text(columns.pop("minute"))
        return pa.table(of_group | columns)


def day_text(days: pa.Array) -> pa.Array:
    """Days since 1970 as text."""
    return pa.array(days.to_numpy().astype("datetime64[D]").astype(str), pa.string())


def minute_text(minutes: pa.Array) -> pa.Array:
    """Minutes of a day as text."""
    return pc.strftime(pc.multiply(minutes, 60).cast(pa.timestamp("s")), "%H:%M")


class PriceStatistics(BatchFunction):
    """q17: counts, and least, greatest, mean and sum of the prices of each auction and day."""

    _ADD: Final[Mapping[str, np.ufunc]] = {
        **dict.fromkeys(("total_bids", "rank1_bids", "rank2_bids", "rank3_bids", "sum_price"), np.add),
        "min_price": np.minimum,
        "max_price": np.maximum,
    }

    def open(self, runtime_context: RuntimeContext) -> None:
        self._states = {name: runtime_context.get_state(ValueStateDescriptor(name, "bigint")) for name in self._ADD}

    def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
        groups = Groups(ctx.slots)
        first = groups.first_rows
        prices = batch.column("price").to_numpy()[groups.order]
        ones = np.ones(len(prices), np.int64)
        of_rank = {f"rank{rank + 1}_bids": low <= prices for rank, low in enumerate((0, 10_000, 1_000_000))}
        of_rank["rank1_bids"] &= prices < 10_000
        of_rank["rank2_bids"] &= prices < 1_000_000
        values = {"total_bids": ones, "sum_price": prices, "min_price": prices, "max_price": prices, **of_rank}
        found: dict[str, Any] = {}
        for name, add in self._ADD.items():
            state = ctx.columns(self._states[name])
            new = add.reduceat(values[name].astype(np.int64, copy=False), groups.starts)
            before = state.get_at(first)
            is_new = before.is_null().to_numpy(zero_copy_only=False)
            found[name] = np.where(is_new, new, add(new, before.fill_null(0).to_numpy()))
            state.put_at(first, found[name])
        taken = pa.array(first)
        return pa.table(
            {
                "auction": batch.column("auction").take(taken),
                "day": day_text(batch.column("day").take(taken)),
                **found,
                "avg_price": found["sum_price"] // found["total_bids"],
            }
        )


class LastBids(BatchFunction):
    """q18: the last bid of each bidder for each auction; state is its time."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._time = runtime_context.get_state(ValueStateDescriptor("time", "bigint"))

    def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
        state = ctx.columns(self._time)
        groups = Groups(ctx.slots)
        times = batch.column("date_time").to_numpy()
        ordered = times[groups.order]
        # Of those with the last time the one that came last.
        is_last = ordered == np.maximum.reduceat(ordered, groups.starts)[groups.group]
        at = np.maximum.reduceat(np.where(is_last, np.arange(len(ordered)), -1), groups.starts)
        rows = groups.order[at]
        rows = rows[times[rows] >= state.get_at(rows).fill_null(-1).to_numpy()]
        state.put_at(rows, times[rows])
        return batch.take(pa.array(rows))


class HighestBids(BatchFunction):
    """q19: the ten highest bids of each auction; emits each place that is taken by another bid."""

    MOST: Final = 10
    KEPT: Final = ("bidder", "price", "channel", "url", "date_time", "extra")

    def open(self, runtime_context: RuntimeContext) -> None:
        kept = "bidder: bigint, price: bigint, channel: string, url: string, date_time: bigint, extra: string"
        self._best = runtime_context.get_state(ValueStateDescriptor("best", f"array<struct<{kept}>>"))
        self._least = runtime_context.get_state(ValueStateDescriptor("least", "bigint"))

    def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
        best_state, least_state = ctx.columns(self._best), ctx.columns(self._least)
        prices = batch.column("price").to_numpy()
        # What is not above the tenth of its auction needs no further look.
        rows = np.flatnonzero(prices > least_state.get_at(np.arange(len(prices))).fill_null(-1).to_numpy())
        if not len(rows):
            return None
        groups = Groups(ctx.slots_at(rows))
        first = rows[groups.first_rows]
        before = best_state.get_at(first)
        stored, owners = before.flatten(), pc.list_parent_indices(before).to_numpy()
        taken = pa.array(rows)
        new = pa.StructArray.from_arrays([batch.column(name).take(taken) for name in self.KEPT], list(self.KEPT))
        values = pa.concat_arrays([stored, new.cast(stored.type)])
        owners = np.concatenate([owners, groups.in_rows(groups.group)])
        order = np.lexsort((np.arange(len(owners)), -values.field("price").to_numpy(), owners))
        owners = owners[order]
        place = np.arange(len(owners)) - np.searchsorted(owners, owners)
        kept = place < self.MOST
        order, owners, place = order[kept], owners[kept], place[kept]
        lists = values.take(pa.array(order))
        ends = np.searchsorted(owners, np.arange(len(first) + 1)).astype(np.int32)
        best_state.put_at(first, pa.ListArray.from_arrays(pa.array(ends), lists))
        is_full = np.diff(ends) == self.MOST
        least = lists.field("price").to_numpy()[ends[1:] - 1]
        least_state.put_at(first[is_full], least[is_full])
        # A place has changed unless it has the bid that stood there before.
        starts_before = before.offsets.to_numpy()[:-1] - before.offsets[0].as_py()
        changed = (order >= len(stored)) | (order != starts_before[owners] + place)
        columns = [batch.column("auction").take(pa.array(first[owners[changed]]))]
        columns += lists.filter(pa.array(changed)).flatten()
        return pa.table([*columns, pa.array(place[changed] + 1)], names=["auction", *self.KEPT, "rank_number"])


def _counted(streams: Mapping[str, DataStream], group: list[str], *, with_minute: bool, types: str) -> DataStream:
    """q15 and q16 in two steps: what is new by bidder and auction, and what that makes by group."""
    counts = ", ".join(f"{name} bigint" for name in COUNTS)
    both = streams["bidders"].union(streams["auctions"]).key_by([*group, "kind", "id"])
    minute = ", minute bigint" if with_minute else ""
    new = both.process_batches(NewOnes(group, with_minute=with_minute), f"{types}, {counts}{minute}").uid("new")
    minute = ", minute string" if with_minute else ""
    output = f"{types.replace('day bigint', 'day string')}{minute}, {counts}"
    return new.key_by(group).process_batches(Totals(group, with_minute=with_minute), output).uid("totals")


def bidding_statistics(streams: Mapping[str, DataStream]) -> DataStream:
    """q15: bids, bidders and auctions of each day."""
    return _counted(streams, ["day"], with_minute=False, types="day bigint")


def channel_statistics(streams: Mapping[str, DataStream]) -> DataStream:
    """q16: the same for each channel, and the last minute of a bid."""
    return _counted(streams, ["channel", "day"], with_minute=True, types="channel string, day bigint")


def auction_statistics(streams: Mapping[str, DataStream]) -> DataStream:
    """q17."""
    names = ["total_bids", "rank1_bids", "rank2_bids", "rank3_bids", "sum_price", "min_price", "max_price", "avg_price"]
    output = "auction bigint, day string, " + ", ".join(f"{name} bigint" for name in names)
    return streams["bid"].key_by(["auction", "day"]).process_batches(PriceStatistics(), output).uid("statistics")


def last_bids(streams: Mapping[str, DataStream]) -> DataStream:
    """q18."""
    return streams["bid"].key_by(["bidder", "auction"]).process_batches(LastBids()).uid("last")


def highest_bids(streams: Mapping[str, DataStream]) -> DataStream:
    """q19."""
    output = (
        "auction bigint, bidder bigint, price bigint, channel string, url string, date_time bigint, extra string, "
        "rank_number bigint"
    )
    return streams["bid"].key_by("auction").process_batches(HighestBids(), output).uid("highest")


def _by_kind(columns: str, **sources: Any) -> Mapping[str, Any]:
    """Each bid twice: for its bidder and for its auction."""
    return {
        f"{name}s": of("bid", columns, kind=kind, id=name, rank=RANK, **sources)
        for kind, name in ((BIDDER, "bidder"), (AUCTION, "auction"))
    }


_MINUTE: Final = Computed(lambda time: pa.array(time.to_numpy() // 60_000 % 1440), ("date_time",))

CHANGING: Final = [
    Query("q15", _by_kind("day bigint, kind tinyint, id bigint, rank tinyint", day=DAY), bidding_statistics, ("day",)),
    Query(
        "q16",
        _by_kind(
            "channel string, day bigint, minute bigint, kind tinyint, id bigint, rank tinyint", day=DAY, minute=_MINUTE
        ),
        channel_statistics,
        ("channel", "day"),
    ),
    Query(
        "q17",
        {"bid": of("bid", "auction bigint, day bigint, price bigint", day=DAY)},
        auction_statistics,
        ("auction", "day"),
    ),
    Query("q18", {"bid": of("bid", BID)}, last_bids, ("bidder", "auction")),
    Query("q19", {"bid": of("bid", BID)}, highest_bids, ("auction", "rank_number")),
]
