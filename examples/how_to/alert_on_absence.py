"""Report each sensor that has sent nothing for ten minutes of event time."""

import os
import tempfile
from pathlib import Path

from holdfast.common import Duration, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from holdfast.datastream.state import ValueStateDescriptor

READINGS = ["a,0\nb,1\n", "a,6\n", "a,14\n", "b,15\na,20\n"]  # sensor, minute; each text is a file, and an epoch


class ReportSilence(KeyedProcessFunction):
    def open(self, runtime_context):
        self.last = runtime_context.get_state(ValueStateDescriptor("last", "bigint", -1))

    def process_element(self, reading, ctx):
        if reading.minute > self.last.value():  # otherwise it is out of order
            ctx.timer_service().delete_event_time_timer((self.last.value() + 10) * 60_000)
            ctx.timer_service().register_event_time_timer((reading.minute + 10) * 60_000)
            self.last.update(reading.minute)

    def on_timer(self, timestamp, ctx):
        yield f"sensor {ctx.get_current_key()}: nothing since minute {self.last.value()}"


with tempfile.TemporaryDirectory() as place:
    for number, text in enumerate(READINGS, 1):
        Path(place, f"{number}.csv").write_text(text)
        os.utime(Path(place, f"{number}.csv"), (number, number))  # Spark reads the oldest file first
    env = StreamExecutionEnvironment.get_execution_environment({"execution.trigger": "available-now"})
    files = env.spark.readStream.schema("sensor string, minute bigint").option("maxFilesPerTrigger", 1).csv(place)
    times = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_minutes(1))
    times = times.with_timestamp_assigner(lambda reading, _: reading.minute * 60_000)
    readings = env.from_dataframe(files).uid("readings").assign_timestamps_and_watermarks(times).key_by("sensor")
    readings.process(ReportSilence(), "string").set_parallelism(1).uid("silence").print().uid("out")
    env.execute("sensors")
