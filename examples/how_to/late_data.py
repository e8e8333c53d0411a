"""Count sales by minute, correct a count for one more minute, and keep the sales that come later than that."""

import os
import tempfile
from pathlib import Path

from holdfast.common import Duration, Time, WatermarkStrategy
from holdfast.datastream import OutputTag, StreamExecutionEnvironment
from holdfast.datastream.window import TumblingEventTimeWindows

SALE = "item string, second bigint"
SALES = ["kelp,10\nkelp,90\n", "kelp,50\nkelp,180\n", "kelp,20\n"]  # each text is a file, and an epoch
TOO_LATE = OutputTag("too late", SALE)


def count(item, context, sales):
    yield item, context.window().start // 60_000, len(list(sales))


with tempfile.TemporaryDirectory() as place:
    for number, text in enumerate(SALES, 1):
        Path(place, f"{number}.csv").write_text(text)
        os.utime(Path(place, f"{number}.csv"), (number, number))  # Spark reads the oldest file first
    env = StreamExecutionEnvironment.get_execution_environment({"execution.trigger": "available-now"})
    files = env.spark.readStream.schema(SALE).option("maxFilesPerTrigger", 1).csv(place)
    times = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(10))
    times = times.with_timestamp_assigner(lambda sale, _: sale.second * 1000)
    sales = env.from_dataframe(files).uid("sales").assign_timestamps_and_watermarks(times).key_by("item")

    minutes = sales.window(TumblingEventTimeWindows.of(Time.minutes(1))).allowed_lateness(Time.minutes(1))
    counts = minutes.side_output_late_data(TOO_LATE).process(count, "item string, minute bigint, n bigint")
    counts.set_parallelism(1).uid("counts").print("counted").uid("out")
    counts.get_side_output(TOO_LATE).print("too late").uid("late")
    env.execute("sales")
