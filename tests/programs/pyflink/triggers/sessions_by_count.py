"""Sessions with a trigger that counts and purges: merged windows add their counts.

Here: if an element joins two sessions, their counts are added, as in Flink's Java API. PyFlink loses the count of
one of them, so it fires one element later.
"""

from pyflink.common import Duration, Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import ProcessWindowFunction, StreamExecutionEnvironment
from pyflink.datastream.window import CountTrigger, EventTimeSessionWindows, PurgingTrigger, TimeWindow


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[1]


class Listed(ProcessWindowFunction[tuple, str, str, TimeWindow]):
    def process(self, key, context, elements):
        window = context.window()
        yield f"{key} {window.start} to {window.end}: {sorted(at for _, at in elements)}"


strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(1)).with_timestamp_assigner(At())
env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
clicks = [("a", 0), ("a", 20), ("b", 5), ("a", 10), ("a", 30), ("a", 35), ("b", 100), ("b", 12), ("a", 44), ("b", 8)]
(
    env.from_collection(clicks, type_info=Types.TUPLE([Types.STRING(), Types.LONG()]))
    .assign_timestamps_and_watermarks(strategy)
    .key_by(lambda click: click[0], key_type=Types.STRING())
    .window(EventTimeSessionWindows.with_gap(Time.milliseconds(15)))
    .trigger(PurgingTrigger.of(CountTrigger.of(3)))
    .process(Listed(), output_type=Types.STRING())
    .print()
)
env.execute("sessions by count")
