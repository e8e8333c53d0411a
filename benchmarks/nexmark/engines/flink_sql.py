"""Flink 2.3 SQL in its own JVM: the published queries, mini-batch and object reuse, state on the heap.

PyFlink's wheel holds all of Flink; no Python runs but what submits the query. What differs from the published text:
times are numbers in the files; the function that counts characters is said in SQL; persons and auctions have a primary
key, as Holdfast's joins know that their ids are unique; and there is no q6, which Flink cannot say, and no q13, whose
static table needs a connector that Flink 2 no longer has.
"""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
from pathlib import Path
from typing import Any, Final

from benchmarks.engines import pyflink
from benchmarks.nexmark.engine import CHECKPOINTS, PARALLELISM, Engine, Settings

LOCK: Final = Path(__file__).resolve().parents[1] / "flink-jars.lock"
_OPTIONS: Final = {
    "parallelism.default": str(PARALLELISM),
    "state.backend.type": "hashmap",
    "restart-strategy.type": "none",
    "execution.checkpointing.interval": CHECKPOINTS,
    "execution.checkpointing.checkpoints-after-tasks-finish.enabled": "false",
    "pipeline.object-reuse": "true",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.distinct-agg.split.enabled": "true",
    "table.local-time-zone": "UTC",
}
TYPES: Final = {
    "person": "id bigint, name string, email_address string, credit_card string, city string, state string, "
    "date_time bigint, extra string",
    "auction": "id bigint, item_name string, description string, initial_bid bigint, reserve bigint, date_time bigint, "
    "expires bigint, seller bigint, category bigint, extra string",
    "bid": "auction bigint, bidder bigint, price bigint, channel string, url string, date_time bigint, extra string",
}
PRIMARY_KEYS: Final = {"person": "id", "auction": "id"}
_DAY: Final = "date_format(ts, 'yyyy-MM-dd')"
_COUNTS: Final = ", ".join(
    f"count({what}){where} as {name}_{of}"
    for of, what in (("bids", "*"), ("bidders", "distinct bidder"), ("auctions", "distinct auction"))
    for name, where in (
        ("total", ""),
        ("rank1", " filter (where price < 10000)"),
        ("rank2", " filter (where price >= 10000 and price < 1000000)"),
        ("rank3", " filter (where price >= 1000000)"),
    )
)
_HOP: Final = (
    "select auction, count(*) as num, window_start, window_end from table(hop(table bid, descriptor(ts), "
    "interval '2' second, interval '10' second)) group by auction, window_start, window_end"
)
_ID: Final = "regexp_extract(url, '(&|^)channel_id=([^&]*)', 2)"
_JOINED: Final = "auction a, bid b where a.id = b.auction and b.date_time between a.date_time and a.expires"
_HOUR: Final = "hour(cast(ts as timestamp(3)))"

SQL: Final[dict[str, str]] = {
    "q0": "select auction, bidder, price, ts, extra from bid",
    "q1": "select auction, bidder, 0.908 * price as price, ts, extra from bid",
    "q2": "select auction, price from bid where mod(auction, 123) = 0",
    "q3": "select p.name, p.city, p.state, a.id from auction a join person p on a.seller = p.id "
    "where a.category = 10 and (p.state = 'OR' or p.state = 'ID' or p.state = 'CA')",
    "q4": f"select category, avg(final) as final from (select max(b.price) as final, a.category from {_JOINED} "
    "group by a.id, a.category) group by category",
    "q5": f"select a.auction, a.num from ({_HOP}) a join "
    f"(select max(num) as most, window_start, window_end from ({_HOP}) "
    "group by window_start, window_end) m on a.window_start = m.window_start and a.window_end = m.window_end "
    "and a.num >= m.most",
    "q7": "select b.auction, b.price, b.bidder, b.ts, b.extra from bid b join (select max(price) as most, window_end "
    "from table(tumble(table bid, descriptor(ts), interval '10' second)) group by window_start, window_end) m "
    "on b.price = m.most where b.ts between m.window_end - interval '10' second and m.window_end",
    "q8": "select p.id, p.name, p.window_start from (select id, name, window_start, window_end from "
    "table(tumble(table person, descriptor(ts), interval '10' second)) group by id, name, window_start, window_end) p "
    "join (select seller, window_start, window_end from table(tumble(table auction, descriptor(ts), "
    "interval '10' second)) group by seller, window_start, window_end) a "
    "on p.id = a.seller and p.window_start = a.window_start and p.window_end = a.window_end",
    "q9": "select id, item_name, description, initial_bid, reserve, date_time, expires, seller, category, extra, "
    "auction, bidder, price, bid_date_time, bid_extra from (select a.*, b.auction, b.bidder, b.price, "
    "b.date_time as bid_date_time, b.extra as bid_extra, row_number() over (partition by a.id order by b.price desc, "
    f"b.date_time asc) as place from {_JOINED}) where place <= 1",
    "q10": f"select auction, bidder, price, date_time, extra, {_DAY} as dt, date_format(ts, 'HH:mm') as hm from bid",
    "q11": "select bidder, count(*) as bid_count, session_start(ts, interval '10' second) as window_start, "
    "session_end(ts, interval '10' second) as window_end from bid group by bidder, session(ts, interval '10' second)",
    "q12": "select bidder, count(*) as bid_count, window_start, window_end from table(tumble(table bid_now, "
    "descriptor(now_ts), interval '10' second)) group by bidder, window_start, window_end",
    "q14": f"select auction, bidder, 0.908 * price as price, case when {_HOUR} >= 8 and {_HOUR} <= 18 then 'dayTime' "
    f"when {_HOUR} <= 6 or {_HOUR} >= 20 then 'nightTime' else 'otherTime' end as bid_time_type, ts, extra, "
    "char_length(extra) - char_length(replace(extra, 'c', '')) as c_counts from bid "
    "where 0.908 * price > 1000000 and 0.908 * price < 50000000",
    "q15": f"select {_DAY} as `day`, {_COUNTS} from bid group by {_DAY}",
    "q16": f"select channel, {_DAY} as `day`, max(date_format(ts, 'HH:mm')) as `minute`, {_COUNTS} "
    f"from bid group by channel, {_DAY}",
    "q17": f"select auction, {_DAY} as `day`, count(*) as total_bids, "
    "count(*) filter (where price < 10000) as rank1_bids, "
    "count(*) filter (where price >= 10000 and price < 1000000) as rank2_bids, "
    "count(*) filter (where price >= 1000000) as rank3_bids, min(price) as min_price, max(price) as max_price, "
    f"avg(price) as avg_price, sum(price) as sum_price from bid group by auction, {_DAY}",
    "q18": "select auction, bidder, price, channel, url, ts, extra from (select *, row_number() over "
    "(partition by bidder, auction order by ts desc) as place from bid) where place <= 1",
    "q19": "select auction, bidder, price, channel, url, ts, extra, place from (select *, row_number() over "
    "(partition by auction order by price desc) as place from bid) where place <= 10",
    "q20": "select auction, bidder, price, channel, url, b.date_time as bid_date_time, b.extra as bid_extra, "
    "item_name, description, initial_bid, reserve, a.date_time as auction_date_time, expires, seller, category, "
    "a.extra as auction_extra from bid b join auction a on b.auction = a.id "
    "where a.category = 10",
    "q21": "select auction, bidder, price, channel, case when lower(channel) = 'apple' then '0' "
    "when lower(channel) = 'google' then '1' when lower(channel) = 'facebook' then '2' "
    f"when lower(channel) = 'baidu' then '3' else {_ID} end as channel_id from bid "
    f"where {_ID} is not null or lower(channel) in ('apple', 'google', 'facebook', 'baidu')",
    "q22": "select auction, bidder, price, channel, split_index(url, '/', 3) as dir1, "
    "split_index(url, '/', 4) as dir2, split_index(url, '/', 5) as dir3 from bid",
}
QUERIES: Final = list(SQL)
CHANGING: Final = ("q4", "q9", "q15", "q16", "q17", "q18", "q19")
"""Queries whose result changes; the others only add rows."""
_DECORATION: Final = re.compile(r" \*(ROWTIME|PROCTIME)\*| NOT NULL")


def interpreter(cache: Path) -> str:
    """The Python of PyFlink's environment, with the jars beside Flink's own."""
    from scripts.jars import CENTRAL, bring

    python = pyflink.interpreter(cache)
    [library] = Path(python).parents[1].glob("lib/python*/site-packages/pyflink/lib")
    for line in LOCK.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        coordinate, digest = line.split(" sha256:")
        group, artifact, version = coordinate.split(":")
        name = f"{artifact}-{version}.jar"
        problem = bring(f"{CENTRAL}/{group.replace('.', '/')}/{artifact}/{version}/{name}", library / name, digest)
        if problem:
            raise SystemExit(f"Flink's SQL cannot read Parquet: {problem}")
    return python


def table_environment(settings: Settings, options: dict[str, str] | None = None, *, has_keys: bool = True) -> Any:
    """An environment with the events as tables, whose ids are primary keys if `has_keys`."""
    from pyflink.common import Configuration
    from pyflink.datastream import StreamExecutionEnvironment
    from pyflink.table import StreamTableEnvironment

    configuration = Configuration()
    checkpoints = Path(settings.workspace, "checkpoints").resolve().as_uri()
    for name, text in {**_OPTIONS, "execution.checkpointing.dir": checkpoints, **(options or {})}.items():
        configuration.set_string(name, text)
    environment = StreamExecutionEnvironment.get_execution_environment(configuration)
    tables = StreamTableEnvironment.create(environment)
    for kind, columns in TYPES.items():
        key = f", primary key ({PRIMARY_KEYS[kind]}) not enforced" if has_keys and kind in PRIMARY_KEYS else ""
        tables.execute_sql(
            f"create temporary table {kind} ({columns}, ts as to_timestamp_ltz(date_time, 3), "
            f"watermark for ts as ts - interval '4' second{key}) with ('connector' = 'filesystem', "
            f"'path' = '{Path(settings.folder, 'whole', kind).resolve().as_uri()}', 'format' = 'parquet')"
        )
    tables.execute_sql("create temporary view bid_now as select *, proctime() as now_ts from bid")
    return tables


class FlinkSqlEngine:
    """One job a run, in a JVM that stays."""

    def __init__(self, settings: Settings, *, has_keys: bool = True) -> None:
        self._settings = settings
        self._tables = table_environment(settings, has_keys=has_keys)
        self._runs = 0

    def run(self, query: str) -> None:
        self._runs += 1
        found, sink = self._tables.sql_query(SQL[query]), f"sink_{self._runs}"
        if self._settings.results is not None:
            self._keep(query, found, sink)
            return
        if query != "q10":
            into_nowhere(self._tables, found, sink)
            return
        place = Path(self._settings.workspace, sink)
        options = f"'connector' = 'filesystem', 'path' = '{place.resolve().as_uri()}', 'format' = 'parquet'"
        into(self._tables, found, sink, options, "partitioned by (dt, hm)")
        shutil.rmtree(place)

    def _keep(self, query: str, found: Any, sink: str) -> None:
        """Write what a query finds; of a result that changes all its changes, with their kind in the column `op`."""
        assert self._settings.results is not None
        if query in CHANGING:
            self._tables.create_temporary_view(f"changes_of_{sink}", found)
            found = self._tables.sql_query(f"select * from to_changelog(input => table changes_of_{sink})")
        place = Path(self._settings.results, query).resolve().as_uri()
        into(self._tables, found, sink, f"'connector' = 'filesystem', 'path' = '{place}', 'format' = 'parquet'")

    def close(self) -> None:
        pass


def into_nowhere(tables: Any, found: Any, sink: str) -> None:
    """Compute a table and drop its rows; blocks until the job has ended."""
    into(tables, found, sink, "'connector' = 'blackhole'")


def into(tables: Any, found: Any, sink: str, options: str, partitions: str = "") -> None:
    """Write a table into a new one; blocks until the job has ended."""
    schema = found.get_resolved_schema()
    names = schema.get_column_names()
    types = [_DECORATION.sub("", str(kind)) for kind in schema._j_resolved_schema.getColumnDataTypes()]
    columns = ", ".join(f"`{name}` {kind}" for name, kind in zip(names, types, strict=True))
    tables.execute_sql(f"create temporary table {sink} ({columns}) {partitions} with ({options})")
    found.execute_insert(sink).wait()


def show_environment() -> None:
    """Tell the interpreter inside Flink's JVM, which knows nothing of virtual environments, where packages are."""
    path = [os.environ.get("PYTHONPATH", ""), sysconfig.get_path("purelib")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))


def make_engine(settings: Settings) -> Engine:
    return FlinkSqlEngine(settings)
