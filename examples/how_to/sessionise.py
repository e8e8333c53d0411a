"""Group the clicks of each visitor into sessions, which end after 30 minutes without a click."""

from datetime import datetime

from holdfast.common import Duration, Time, WatermarkStrategy
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.datastream.window import CountAggregate, EventTimeSessionWindows, MaxAggregate, MinAggregate

CLICKS = [
    ("ada", "09:00"),
    ("bob", "09:05"),
    ("ada", "09:25"),
    ("ada", "10:30"),
    ("ada", "09:20"),  # out of order
    ("bob", "09:10"),
]

env = StreamExecutionEnvironment.get_execution_environment()
rows = [(visitor, datetime.fromisoformat(f"2026-11-30T{time}Z")) for visitor, time in CLICKS]
clicks = env.from_collection(rows, "visitor string, at timestamp").uid("clicks")
times = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_minutes(5)).with_timestamp_column("at")

sessions = (
    clicks.assign_timestamps_and_watermarks(times)
    .key_by("visitor")
    .window(EventTimeSessionWindows.with_gap(Time.minutes(30)))
    .aggregate_batches(first=MinAggregate("at"), last=MaxAggregate("at"), clicks=CountAggregate())
    .uid("sessions")
)
for session in sorted(sessions.execute_and_collect()):
    print(f"{session.visitor}  {session.first:%H:%M} to {session.last:%H:%M}  clicks: {session.clicks}")
