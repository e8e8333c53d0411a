"""Spark's own Structured Streaming, where it can say a query: one file an epoch, state in RocksDB, results dropped.

It cannot say those that need a chain of changing aggregates or a rank (q4, q6, q9, q15, q16, q18, q19), nor windows of
processing time.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.nexmark.engine import Engine, Settings
from benchmarks.nexmark.engines.holdfast import session
from benchmarks.nexmark.events import TYPES
from benchmarks.nexmark.queries import QUERIES as ALL

Frames = dict[str, Any]


def _timed(frame: Any) -> Any:
    from pyspark.sql import functions as F

    return frame.withColumn("ts", F.timestamp_millis("date_time")).withWatermark("ts", "4 seconds")


def _hot_items(frames: Frames) -> Any:
    """The counts of q5; Spark's second aggregation gives the greatest, and joining both is left out."""
    from pyspark.sql import functions as F

    counts = _timed(frames["bid"]).groupBy(F.window("ts", "10 seconds", "2 seconds"), "auction").count()
    return counts.groupBy(F.window("window", "2 seconds")).agg(F.max_by("auction", "count"), F.max("count"))


def _highest_bid(frames: Frames) -> Any:
    """q7, with one bid where several have the greatest price."""
    from pyspark.sql import functions as F

    columns = F.struct("auction", "bidder", "price", "date_time", "extra")
    return _timed(frames["bid"]).groupBy(F.window("ts", "10 seconds")).agg(F.max_by(columns, "price"))


def _new_sellers(frames: Frames) -> Any:
    from pyspark.sql import functions as F

    window = F.window("ts", "10 seconds").alias("w")
    persons = _timed(frames["person"]).groupBy("id", "name", window).count().drop("count")
    sellers = _timed(frames["auction"]).groupBy("seller", window).count().drop("count")
    return persons.join(sellers.withColumnRenamed("w", "v"), F.expr("id = seller and w = v"))


def _sessions(frames: Frames) -> Any:
    from pyspark.sql import functions as F

    return _timed(frames["bid"]).groupBy("bidder", F.session_window("ts", "10 seconds")).count()


def _statistics(frames: Frames) -> Any:
    from pyspark.sql import functions as F

    day = F.to_date(F.timestamp_millis("date_time")).alias("day")
    ranks = ("price < 10000", "price >= 10000 and price < 1000000", "price >= 1000000")
    counted = [F.expr(f"count(*) filter (where {rank})").alias(f"rank{at + 1}_bids") for at, rank in enumerate(ranks)]
    prices = [F.min("price"), F.max("price"), F.avg("price"), F.sum("price")]
    return frames["bid"].groupBy("auction", day).agg(F.count("*"), *counted, *prices)


def _local_items(frames: Frames) -> Any:
    persons = frames["person"].where("state in ('OR', 'ID', 'CA')").selectExpr("id as pid", "name", "city", "state")
    auctions = frames["auction"].where("category = 10").select("id", "seller")
    return auctions.join(persons, auctions.seller == persons.pid)


def _with_auction(frames: Frames) -> Any:
    auctions = frames["auction"].where("category = 10")
    renamed = auctions.withColumnsRenamed({"date_time": "auction_date_time", "extra": "auction_extra"})
    return frames["bid"].join(renamed, frames["bid"].auction == renamed.id)


PLANS: Final[dict[str, Callable[[Frames], Any]]] = {
    "q3": _local_items,
    "q5": _hot_items,
    "q7": _highest_bid,
    "q8": _new_sellers,
    "q11": _sessions,
    "q17": _statistics,
    "q20": _with_auction,
}
CHANGING: Final = ("q17",)
QUERIES: Final = [name for name, query in ALL.items() if name in PLANS or (query.needs_spark and name != "q10")]


class Transformable:
    """A frame with the one method of a stream that queries without state use."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame

    def transform(self, function: Callable[[Any], Any]) -> Any:
        return function(self._frame)


class SparkSqlEngine:
    """Each run is a new query in one session."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._session = session("nexmark-spark")
        self._runs = 0

    def run(self, query: str) -> None:
        self._runs += 1
        frames = {
            kind: self._session.readStream.schema(ddl)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(Path(self._settings.folder, "epochs", kind)))
            for kind, ddl in TYPES.items()
        }
        stateless: Any = {"bid": Transformable(frames["bid"])}
        frame: Any = PLANS[query](frames) if query in PLANS else ALL[query].build(stateless)
        place = Path(self._settings.workspace, f"run-{self._runs}")
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(place))
        mode = "update" if query in CHANGING else "append"
        writer.outputMode(mode).trigger(availableNow=True).start().awaitTermination()
        shutil.rmtree(place)

    def close(self) -> None:
        self._session.stop()


def make_engine(settings: Settings) -> Engine:
    return SparkSqlEngine(settings)
