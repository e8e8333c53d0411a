"""Each element is in three windows that slide by a second; the first windows start before zero."""

from pyflink.common import Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import StreamExecutionEnvironment, WindowFunction
from pyflink.datastream.window import SlidingEventTimeWindows, TimeWindow


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[1]


class Count(WindowFunction[tuple, tuple, str, TimeWindow]):
    def apply(self, key: str, window: TimeWindow, inputs):
        return [(key, window.start, window.end, len(list(inputs)))]


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
clicks = [("a", 0), ("a", 999), ("b", 1500), ("b", 1600), ("a", 2000), ("a", 9000)]
(
    env.from_collection(clicks, type_info=Types.TUPLE([Types.STRING(), Types.LONG()]))
    .assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At()))
    .key_by(lambda click: click[0], key_type=Types.STRING())
    .window(SlidingEventTimeWindows.of(Time.seconds(3), Time.seconds(1)))
    .apply(Count(), output_type=Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG(), Types.INT()]))
    .print()
)
env.execute("sliding counts")
