"""The right answers: the published queries in the SQL of DuckDB, over the same files.

`answers(connection)` expects the views `person`, `auction` and `bid`. A query that leaves a choice among equals (q18:
several bids in the same millisecond; q19: equal prices) is compared by what is not left to choice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import duckdb

from benchmarks.nexmark.events import TYPES

_DAY: Final = "strftime(make_timestamp_ms(date_time), '%Y-%m-%d')"
_RANK: Final = "case when price < 10000 then 1 when price < 1000000 then 2 else 3 end"
_BEST: Final = (
    "select a.id as auction, a.seller, a.category, b.price, b.date_time as made, b.bidder, b.extra as bid_extra, "
    "row_number() over (partition by a.id order by b.price desc, b.date_time) as place "
    "from auction a join bid b on a.id = b.auction and b.date_time between a.date_time and a.expires qualify place = 1"
)
_COUNTS: Final = ", ".join(
    f"count({what}) filter ({where}) as {name}_{of}"
    for of, what in (("bids", "*"), ("bidders", "distinct bidder"), ("auctions", "distinct auction"))
    for name, where in (("total", "true"), ("rank1", "r = 1"), ("rank2", "r = 2"), ("rank3", "r = 3"))
)
_EURO: Final = "cast(cast(0.908 as decimal(4, 3)) * price as decimal(23, 3))"
_ID: Final = "regexp_extract(url, '(&|^)channel_id=([^&]*)', 2)"


def hot_items(size: int = 10_000, slide: int = 2_000) -> str:
    """q5 for windows of a size and slide in milliseconds."""
    starts = f"unnest(range(date_time // {slide} * {slide}, date_time - {size}, -{slide}))"
    counts = f"select auction, starts, count(*) as num from (select auction, {starts} as starts from bid) group by all"
    return f"select auction, num from ({counts}) qualify num = max(num) over (partition by starts)"


def highest_bid(size: int = 10_000) -> str:
    """q7 for windows of a size in milliseconds."""
    return (
        "select auction, bidder, price, date_time, extra from bid "
        f"qualify price = max(price) over (partition by date_time // {size})"
    )


ANSWERS: Final[dict[str, str]] = {
    "q0": "select auction, bidder, price, date_time, extra from bid",
    "q1": f"select auction, bidder, {_EURO} as price, date_time, extra from bid",
    "q2": "select auction, price from bid where auction % 123 = 0",
    "q3": "select p.name, p.city, p.state, a.id from auction a join person p on a.seller = p.id "
    "where a.category = 10 and p.state in ('OR', 'ID', 'CA')",
    "q4": f"select category, sum(price) // count(*) as final from ({_BEST}) group by category",
    "q5": hot_items(),
    "q6": f"select seller, auction, sum(price) over w // count(*) over w as average from ({_BEST}) "
    "window w as (partition by seller order by made, auction rows between 10 preceding and current row)",
    "q7": highest_bid(),
    "q8": "select distinct p.id, p.name, p.date_time // 10000 * 10000 as starts from person p "
    "join auction a on p.id = a.seller and p.date_time // 10000 = a.date_time // 10000",
    "q9": f"select w.auction, a.item_name, a.description, a.initial_bid, a.reserve, a.date_time, a.expires, a.seller, "
    f"a.category, a.extra, w.bidder, w.price, w.made as bid_date_time, w.bid_extra "
    f"from ({_BEST}) w join auction a on a.id = w.auction",
    "q10": f"select auction, bidder, price, date_time, extra, {_DAY} as dt, "
    "strftime(make_timestamp_ms(date_time), '%H:%M') as hm from bid",
    "q11": "select bidder, min(date_time) as window_start, max(date_time) + 10000 as window_end, "
    "count(*) as bid_count from (select *, "
    "sum(is_new) over (partition by bidder order by date_time rows unbounded preceding) as session from ("
    "select *, case when date_time - lag(date_time) over w <= 10000 then 0 else 1 end as is_new from bid "
    "window w as (partition by bidder order by date_time))) group by bidder, session",
    "q12": "select bidder, 0 as window_start, 10000 as window_end, count(*) as bid_count from bid group by bidder",
    "q13": "select auction, bidder, price, date_time, cast(auction % 10000 as varchar) as value from bid",
    "q14": f"select auction, bidder, {_EURO} as price, case when h between 8 and 18 then 'dayTime' "
    "when h <= 6 or h >= 20 then 'nightTime' else 'otherTime' end as bid_time_type, date_time, extra, "
    "length(extra) - length(replace(extra, 'c', '')) as c_counts "
    "from (select *, date_time // 3600000 % 24 as h from bid) "
    "where 0.908 * price > 1000000 and 0.908 * price < 50000000",
    "q15": f"select day, {_COUNTS} from (select *, {_DAY} as day, {_RANK} as r from bid) group by day",
    "q16": f"select channel, day, max(strftime(make_timestamp_ms(date_time), '%H:%M')) as minute, {_COUNTS} "
    f"from (select *, {_DAY} as day, {_RANK} as r from bid) group by channel, day",
    "q17": "select auction, day, count(*) as total_bids, count(*) filter (r = 1) as rank1_bids, "
    "count(*) filter (r = 2) as rank2_bids, count(*) filter (r = 3) as rank3_bids, sum(price) as sum_price, "
    "min(price) as min_price, max(price) as max_price, sum(price) // count(*) as avg_price "
    f"from (select *, {_DAY} as day, {_RANK} as r from bid) group by auction, day",
    "q18": "select auction, bidder, max(date_time) as date_time from bid group by auction, bidder",
    "q19": "select auction, price, row_number() over (partition by auction order by price desc) as rank_number "
    "from bid qualify rank_number <= 10",
    "q20": "select b.auction, b.bidder, b.price, b.channel, b.url, b.date_time as bid_date_time, b.extra as bid_extra, "
    "a.item_name, a.description, a.initial_bid, a.reserve, a.date_time as auction_date_time, a.expires, a.seller, "
    "a.category, a.extra as auction_extra from bid b join auction a on b.auction = a.id where a.category = 10",
    "q21": "select auction, bidder, price, channel, case lower(channel) when 'apple' then '0' when 'google' then '1' "
    f"when 'facebook' then '2' when 'baidu' then '3' else {_ID} end as channel_id from bid "
    f"where lower(channel) in ('apple', 'google', 'facebook', 'baidu') or {_ID} <> ''",
    "q22": "select auction, bidder, price, channel, split_part(url, '/', 4) as dir1, split_part(url, '/', 5) as dir2, "
    "split_part(url, '/', 6) as dir3 from bid",
}
PUBLISHED: Final[dict[str, str]] = {
    "q7": "select b.auction, b.bidder, b.price, b.date_time, b.extra from bid b join (select max(price) as most, "
    "date_time // 10000 * 10000 + 10000 as ends from bid group by all) m on b.price = m.most "
    "where b.date_time between m.ends - 10000 and m.ends"
}
"""Answers to the published text, where it asks for something else: q7 also takes a bid at the end of a window."""
WHOLE_ROWS: Final = ("q18", "q19")
"""Of these the answer has only some columns; each whole row of a result must be a bid."""


def connect(folder: Path) -> Any:
    """DuckDB with the events of a directory, in UTC; see `files.events_on_disk`."""
    connection = duckdb.connect(config={"threads": 2})
    for kind in TYPES:
        connection.execute(f"create view {kind} as from read_parquet('{folder}/epochs/{kind}/*.parquet')")
    return connection


def difference(connection: Any, query: str, keys: tuple[str, ...], expected: str | None = None) -> str | None:
    """What is wrong with a result; None if nothing is.

    Args:
        connection: With the events, and with the result in the view `result`; its columns `epoch_` and `row_` say in
            which order its rows came.
        query: Name of the query.
        keys: Columns of which a later row replaces an earlier one.
        expected: The answer in SQL, if it is not that of `ANSWERS`.
    """
    expected = expected or ANSWERS[query]
    final = "select * from result"
    if keys:
        final += f" qualify row_number() over (partition by {', '.join(keys)} order by epoch_ desc, row_ desc) = 1"
    answer = connection.execute(f"select * from ({expected}) limit 0")
    columns = ", ".join(f'"{column[0]}"' for column in answer.description)
    wrong = 0
    for more, less in ((final, expected), (expected, final)):
        one, other = (f"(select {columns} from ({text}))" for text in (more, less))
        wrong = connection.execute(f"select count(*) from ({one} except all {other})").fetchone()[0]
        if wrong:
            who = "result" if more == final else "answer of DuckDB"
            example = connection.execute(f"{one} except all {other} limit 1").fetchone()
            return f"{query}: {wrong} rows are only in the {who}, such as {example}."
    if query in WHOLE_ROWS:
        names = ", ".join(column.split()[0] for column in TYPES["bid"].split(", "))
        invented = connection.execute(
            f"select count(*) from (select {names} from result) r anti join bid using ({names})"
        )
        wrong = invented.fetchone()[0]
    return f"{query}: {wrong} rows are no bids." if wrong else None
