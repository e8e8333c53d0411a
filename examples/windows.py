"""Departures in windows: delays by airport and hour, busy times of aircraft, the worst airport of each hour.

python examples/windows.py IN_DIRECTORY_OF_PARQUET_FILES OUT_DIRECTORY CHECKPOINTS

The input has the columns `origin string, tailnum string, departs bigint, delay bigint`: milliseconds since 1970, and
minutes. Each file is an epoch; run it again when there are more files, and it goes on where it stopped.
"""

import sys

from holdfast.common import Duration, Time, WatermarkStrategy
from holdfast.datastream import OutputTag, ParquetFileSink, ProcessWindowFunction, StreamExecutionEnvironment
from holdfast.datastream.window import EventTimeSessionWindows, TumblingEventTimeWindows

DEPARTURE = "origin string, tailnum string, departs bigint, delay bigint"
HOUR = "origin string, starts bigint, flights bigint, delay bigint"


class OfTheHour(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key, context.window().start, len(elements), sum(one.delay for one in elements)


class OfTheSession(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key, context.window().start, context.window().end, len(elements)


departures, output, checkpoints = sys.argv[1:]
env = StreamExecutionEnvironment.get_execution_environment(
    {"execution.checkpointing.dir": checkpoints, "execution.trigger": "available-now"}
)
files = env.spark.readStream.schema(DEPARTURE).option("maxFilesPerTrigger", 1).parquet(departures)
strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_hours(2)).with_timestamp_column("departs")
timed = env.from_dataframe(files).uid("departures").assign_timestamps_and_watermarks(strategy)

late = OutputTag("late", DEPARTURE)
hours = (
    timed.key_by("origin")
    .window(TumblingEventTimeWindows.of(Time.hours(1)))
    .side_output_late_data(late)
    .process(OfTheHour(), HOUR)
    .uid("hours")
)
hours.sink_to(ParquetFileSink(f"{output}/hours")).uid("hours-out")
hours.get_side_output(late).sink_to(ParquetFileSink(f"{output}/late")).uid("late-out")

# What a window emits has the time of its end, so windows can follow windows.
worst = hours.window_all(TumblingEventTimeWindows.of(Time.hours(1))).reduce(
    lambda a, b: max(a, b, key=lambda hour: (hour.delay, hour.origin))
)
worst.uid("worst").sink_to(ParquetFileSink(f"{output}/worst")).uid("worst-out")

busy = timed.key_by("tailnum").window(EventTimeSessionWindows.with_gap(Time.hours(6)))
sessions = busy.process(OfTheSession(), "tailnum string, starts bigint, ends bigint, flights bigint").uid("busy")
sessions.sink_to(ParquetFileSink(f"{output}/busy")).uid("busy-out")
env.execute("windows")
