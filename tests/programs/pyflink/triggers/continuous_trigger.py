"""A window of a minute with a trigger that fires every ten seconds of event time.

Here: the trigger fires for each of its times that the watermark has passed, as in Flink's Java API. PyFlink
passes all due timers to Python at once, so the timer of the window's end fires before timers that are set meanwhile.
"""

from pyflink.common import Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import ProcessWindowFunction, StreamExecutionEnvironment
from pyflink.datastream.window import ContinuousEventTimeTrigger, TimeWindow, TumblingEventTimeWindows


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[1]


class Count(ProcessWindowFunction[tuple, str, str, TimeWindow]):
    def process(self, key, context, elements):
        yield f"{key} {context.window().start}: {sum(n for _, _, n in elements)}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
clicks = [("a", 1_000, 1), ("a", 12_000, 2), ("b", 13_000, 3), ("a", 59_000, 4), ("a", 61_000, 5)]
(
    env.from_collection(clicks, type_info=Types.TUPLE([Types.STRING(), Types.LONG(), Types.INT()]))
    .assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At()))
    .key_by(lambda click: click[0], key_type=Types.STRING())
    .window(TumblingEventTimeWindows.of(Time.minutes(1)))
    .trigger(ContinuousEventTimeTrigger.of(Time.seconds(10)))
    .process(Count(), output_type=Types.STRING())
    .print()
)
env.execute("continuous trigger")
