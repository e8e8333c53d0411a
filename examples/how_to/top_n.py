"""Rank the two best-selling items of each shop and hour."""

from datetime import UTC, datetime

from holdfast.common import Duration, Time, WatermarkStrategy
from holdfast.datastream import ProcessWindowFunction, StreamExecutionEnvironment
from holdfast.datastream.window import SumAggregate, TumblingEventTimeWindows

SALES = [
    ("oslo", "kelp", 3, "09:10"),
    ("oslo", "sand", 2, "09:15"),
    ("rome", "rock", 1, "09:20"),
    ("oslo", "rock", 9, "09:30"),
    ("oslo", "sand", 2, "09:45"),
    ("oslo", "kelp", 1, "10:05"),
]


class Best(ProcessWindowFunction):
    def process(self, shop, context, items):
        hour = datetime.fromtimestamp(context.window().start / 1000, UTC)
        ranked = sorted(items, key=lambda item: (-item.pieces, item.item))
        for rank, item in enumerate(ranked[:2], 1):
            yield shop, hour, rank, item.item, item.pieces


env = StreamExecutionEnvironment.get_execution_environment()
rows = [(*sale, datetime.fromisoformat(f"2026-11-30T{time}Z")) for *sale, time in SALES]
sales = env.from_collection(rows, "shop string, item string, pieces bigint, at timestamp").uid("sales")
times = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_minutes(5)).with_timestamp_column("at")
hours = TumblingEventTimeWindows.of(Time.hours(1))

sold = sales.assign_timestamps_and_watermarks(times).key_by(["shop", "item"]).window(hours)
sold = sold.aggregate_batches(pieces=SumAggregate("pieces")).uid("sold")
best = sold.key_by("shop").window(hours).process(Best(), "shop string, hour timestamp, rank int, item string, n bigint")

for row in sorted(best.uid("best").execute_and_collect()):
    print(f"{row.shop} {row.hour:%H:%M}  {row.rank}. {row.item} {row.n}")
