"""Late data: within the allowed lateness a window fires again; later elements go to a side output.

Here: all elements of a collection are one epoch, and elements of one epoch are never late against each other. If each
element is an epoch, the output equals PyFlink's.
"""

import time

from pyflink.common import Configuration, Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import OutputTag, ProcessWindowFunction, StreamExecutionEnvironment
from pyflink.datastream.window import TimeWindow, TumblingEventTimeWindows

LATE = OutputTag("late", Types.TUPLE([Types.STRING(), Types.LONG()]))


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[1]


class Counted(ProcessWindowFunction[tuple, str, str, TimeWindow]):
    def process(self, key, context: ProcessWindowFunction.Context, elements):
        yield f"{key} {context.window().start} {sorted(at for _, at in elements)}"


def slowly(click):
    time.sleep(0.25)  # a watermark comes before the next one
    return click


config = Configuration()
config.set_string("python.fn-execution.bundle.size", "1")
config.set_string("pipeline.auto-watermark-interval", "10 ms")
env = StreamExecutionEnvironment.get_execution_environment(config)
env.set_parallelism(1)
kind = Types.TUPLE([Types.STRING(), Types.LONG()])
times = [1_000, 2_000, 12_000, 3_000, 17_000, 4_000, 30_000, 14_000, 21_000]
counted = (
    env.from_collection([("a", at) for at in times], type_info=kind)
    .rebalance()  # Flink's sources of collections leave no time for watermarks in their own task
    .map(slowly, output_type=kind)
    .assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At()))
    .key_by(lambda click: click[0], key_type=Types.STRING())
    .window(TumblingEventTimeWindows.of(Time.seconds(10)))
    .allowed_lateness(5_000)
    .side_output_late_data(LATE)
    .process(Counted(), output_type=Types.STRING())
)
counted.print()
counted.get_side_output(LATE).map(lambda click: f"late {click}", output_type=Types.STRING()).print()
env.execute("late data")
