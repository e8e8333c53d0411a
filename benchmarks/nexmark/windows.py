"""Queries over windows, by columns: q5, q7, q8, q11, q12."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.nexmark.query import Computed, Query, of, timed
from holdfast.common import Time
from holdfast.datastream import DataStream
from holdfast.datastream.window import (
    BatchAggregateFunction,
    CountAggregate,
    EventTimeSessionWindows,
    FirstAggregate,
    SlidingEventTimeWindows,
    SumAggregate,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from holdfast.types import TypeInformation, Types

TEN_SECONDS, TWO_SECONDS = Time.seconds(10), Time.seconds(2)
PARTS: Final = 64
"""Of the bids of q7, a power of two: many more than subtasks, so that each of them has some."""


class GreatestRows(BatchAggregateFunction):
    """All rows that have the greatest value of a column, as a list.

    Args:
        column: Whose greatest value; never null.
        kept: Columns of the rows in the list.
    """

    def __init__(self, column: str, kept: Sequence[str]) -> None:
        self._column, self._kept = column, list(kept)

    def accumulator_types(self, input_type: Any) -> Sequence[TypeInformation]:
        return [Types.LONG(), self.result_type(input_type)]

    def result_type(self, input_type: Any) -> TypeInformation:
        types = dict(zip(input_type.names, input_type.types, strict=True))
        return Types.LIST(Types.ROW_NAMED(self._kept, [types[name] for name in self._kept]))

    def accumulate(self, batch: pa.RecordBatch, groups: Any, arrival: Any) -> Sequence[pa.Array]:
        values = batch.column(self._column).to_numpy()[groups.order]
        greatest = np.maximum.reduceat(values, groups.starts)
        is_greatest = values == greatest[groups.group]
        rows = pa.array(groups.order[is_greatest])
        columns = [batch.column(name).take(rows) for name in self._kept]
        return [pa.array(greatest), _lists(groups.group[is_greatest], len(groups), _struct(columns, self._kept))]

    def merge(self, accumulators: Sequence[pa.Array], groups: Any) -> Sequence[pa.Array]:
        values = accumulators[0].to_numpy()[groups.order]
        greatest = np.maximum.reduceat(values, groups.starts)
        is_greatest = values == greatest[groups.group]
        lists = accumulators[1].take(pa.array(groups.order[is_greatest]))
        owners = groups.group[is_greatest][pc.list_parent_indices(lists).to_numpy()]
        return [pa.array(greatest), _lists(owners, len(groups), lists.flatten())]

    def result(self, accumulators: Sequence[pa.Array]) -> pa.Array:
        return accumulators[1]


def _struct(columns: Sequence[pa.Array], names: Sequence[str]) -> pa.StructArray:
    return pa.StructArray.from_arrays(columns, list(names))


def _lists(owners: Any, count: int, values: pa.Array) -> pa.ListArray:
    """Lists of values, of which each belongs to the list of its owner; owners are in order."""
    ends = np.searchsorted(owners, np.arange(count + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), values)


def each(row: Any) -> Iterator[Any]:
    """The rows of a list."""
    yield from row.best


def hot_items(
    streams: Mapping[str, DataStream], size: timedelta = TEN_SECONDS, slide: timedelta = TWO_SECONDS
) -> DataStream:
    """q5: the auctions with the most bids of the last ten seconds, every two seconds."""
    counted = (
        timed(streams["bid"])
        .key_by("auction")
        .window(SlidingEventTimeWindows.of(size, slide))
        .aggregate_batches(num=CountAggregate())
        .uid("counts")
    )
    # A result has the last millisecond of its window as its time, so this window has the results of exactly one.
    most = counted.window_all(TumblingEventTimeWindows.of(slide))
    best = most.aggregate_batches(best=GreatestRows("num", ["auction", "num"])).uid("most")
    return best.flat_map(each, "auction bigint, num bigint")


def highest_bid(streams: Mapping[str, DataStream], size: timedelta = TEN_SECONDS) -> DataStream:
    """q7: the highest bid of every ten seconds, first in parts, then of all."""
    columns = ["auction", "bidder", "price", "date_time", "extra"]
    tumbling = TumblingEventTimeWindows.of(size)
    in_parts = (
        timed(streams["bid"])
        .key_by("part")
        .window(tumbling)
        .aggregate_batches(best=GreatestRows("price", columns))
        .uid("parts")
        .flat_map(each, "auction bigint, bidder bigint, price bigint, date_time bigint, extra string")
    )
    best = in_parts.window_all(tumbling).aggregate_batches(best=GreatestRows("price", columns)).uid("all")
    return best.flat_map(each, "auction bigint, bidder bigint, price bigint, date_time bigint, extra string")


def new_sellers(streams: Mapping[str, DataStream]) -> DataStream:
    """q8: persons who are new and open an auction within the same ten seconds."""
    both = streams["person"].union(streams["auction"])
    windows = timed(both).key_by("id").window(TumblingEventTimeWindows.of(TEN_SECONDS))
    met = windows.aggregate_batches(name=FirstAggregate("name"), auctions=SumAggregate("auctions")).uid("met")
    found = met.filter(lambda row: row.name is not None and row.auctions > 0)
    return found.map(lambda row: (row.id, row.name, row.window_start), "id bigint, name string, starts bigint")


def user_sessions(streams: Mapping[str, DataStream]) -> DataStream:
    """q11: how many bids a bidder makes in a session, which ends after ten seconds without one."""
    sessions = timed(streams["bid"]).key_by("bidder").window(EventTimeSessionWindows.with_gap(TEN_SECONDS))
    return sessions.aggregate_batches(bid_count=CountAggregate()).uid("sessions")


def processing_time(streams: Mapping[str, DataStream]) -> DataStream:
    """q12: how many bids a bidder makes in ten seconds of processing time."""
    windows = streams["bid"].key_by("bidder").window(TumblingProcessingTimeWindows.of(TEN_SECONDS))
    return windows.aggregate_batches(bid_count=CountAggregate()).uid("counts")


WINDOWS: Final = [
    Query("q5", {"bid": of("bid", "auction bigint, date_time bigint")}, hot_items, has_event_time=True),
    Query(
        "q7",
        {
            "bid": of(
                "bid",
                "auction bigint, bidder bigint, price bigint, date_time bigint, extra string, part bigint",
                part=Computed(lambda price: pc.bit_wise_and(price, PARTS - 1), ("price",)),
            )
        },
        highest_bid,
        has_event_time=True,
    ),
    Query(
        "q8",
        {
            "person": of("person", "id bigint, name string, auctions bigint, date_time bigint", auctions=0),
            "auction": of(
                "auction",
                "id bigint, name string, auctions bigint, date_time bigint",
                id="seller",
                name=None,
                auctions=1,
            ),
        },
        new_sellers,
        has_event_time=True,
    ),
    Query("q11", {"bid": of("bid", "bidder bigint, date_time bigint")}, user_sessions, has_event_time=True),
    Query("q12", {"bid": of("bid", "bidder bigint")}, processing_time),
]
