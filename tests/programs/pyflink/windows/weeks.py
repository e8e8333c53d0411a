"""A custom window assigner: weeks that begin on Monday, for dates as days since 1970."""

from pyflink.common import Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import StreamExecutionEnvironment, WindowFunction
from pyflink.datastream.window import EventTimeTrigger, TimeWindow, TimeWindowSerializer, WindowAssigner

DAY = 24 * 3_600_000


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[1] * DAY


class Weeks(WindowAssigner[tuple, TimeWindow]):
    def assign_windows(self, element, timestamp, context):
        start = timestamp - (timestamp + 3 * DAY) % (7 * DAY)
        return [TimeWindow(start, start + 7 * DAY)]

    def get_default_trigger(self, env):
        return EventTimeTrigger.create()

    def get_window_serializer(self):
        return TimeWindowSerializer()

    def is_event_time(self):
        return True


class Sum(WindowFunction[tuple, str, str, TimeWindow]):
    def apply(self, key, window, inputs):
        yield f"{key} {window.start // DAY}: {sum(value[2] for value in inputs)}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
hours = [("ada", 3, 8), ("ada", 4, 7), ("bob", 5, 6), ("ada", 10, 1), ("ada", 11, 5), ("bob", 17, 4), ("bob", 18, 2)]
(
    env.from_collection(hours, type_info=Types.TUPLE([Types.STRING(), Types.LONG(), Types.INT()]))
    .assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At()))
    .key_by(lambda entry: entry[0], key_type=Types.STRING())
    .window(Weeks())
    .apply(Sum(), output_type=Types.STRING())
    .print()
)
env.execute("weeks")
