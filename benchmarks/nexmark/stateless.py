"""Queries without state, which Spark's expressions say best: q0 to q2, q10, q13, q14, q21, q22."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from benchmarks.nexmark.events import BID
from benchmarks.nexmark.query import Query, of
from holdfast.datastream import DataStream

_EURO: Final = "cast(0.908 * price as decimal(23, 3)) as price"
_HOUR: Final = "floor(date_time / 3600000) % 24"
_CHANNEL_ID: Final = "regexp_extract(url, '(&|^)channel_id=([^&]*)', 2)"
_KNOWN: Final = "lower(channel) in ('apple', 'google', 'facebook', 'baidu')"


def _selected(*expressions: str, where: str = "true") -> Callable[[Mapping[str, DataStream]], DataStream]:
    return lambda streams: streams["bid"].transform(lambda frame: frame.where(where).selectExpr(*expressions))


def _with_side_input(streams: Mapping[str, DataStream]) -> DataStream:
    """Each bid with what a static table says about its auction; the table is small and goes to every task."""
    from pyspark.sql import functions as F

    def joined(frame: Any) -> Any:
        side = frame.sparkSession.range(10_000).selectExpr("id as key", "cast(id as string) as value")
        found = frame.join(F.broadcast(side), F.col("auction") % 10_000 == F.col("key"))
        return found.select("auction", "bidder", "price", "date_time", "value")

    return streams["bid"].transform(joined)


def _stateless(name: str, build: Callable[[Mapping[str, DataStream]], DataStream]) -> Query:
    return Query(name, {"bid": of("bid", BID)}, build, needs_spark=True)


STATELESS: Final = [
    _stateless("q0", _selected("auction", "bidder", "price", "date_time", "extra")),
    _stateless("q1", _selected("auction", "bidder", _EURO, "date_time", "extra")),
    _stateless("q2", _selected("auction", "price", where="auction % 123 = 0")),
    _stateless(
        "q10",
        _selected(
            *("auction", "bidder", "price", "date_time", "extra"),
            "date_format(timestamp_millis(date_time), 'yyyy-MM-dd') as dt",
            "date_format(timestamp_millis(date_time), 'HH:mm') as hm",
        ),
    ),
    _stateless("q13", _with_side_input),
    _stateless(
        "q14",
        _selected(
            *("auction", "bidder", _EURO),
            f"case when {_HOUR} between 8 and 18 then 'dayTime' when {_HOUR} <= 6 or {_HOUR} >= 20 then 'nightTime' "
            "else 'otherTime' end as bid_time_type",
            *("date_time", "extra"),
            "cast(length(extra) - length(replace(extra, 'c', '')) as bigint) as c_counts",
            where="0.908 * price > 1000000 and 0.908 * price < 50000000",
        ),
    ),
    _stateless(
        "q21",
        _selected(
            *("auction", "bidder", "price", "channel"),
            "case lower(channel) when 'apple' then '0' when 'google' then '1' when 'facebook' then '2' "
            f"when 'baidu' then '3' else {_CHANNEL_ID} end as channel_id",
            where=f"{_KNOWN} or {_CHANNEL_ID} <> ''",
        ),
    ),
    _stateless(
        "q22",
        _selected(
            *("auction", "bidder", "price", "channel"),
            *(f"split(url, '/')[{at}] as dir{at - 2}" for at in (3, 4, 5)),
        ),
    ),
]
