"""An aggregate with its own accumulator, and a window function that receives the result."""

from pyflink.common import Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import AggregateFunction, ProcessWindowFunction, StreamExecutionEnvironment
from pyflink.datastream.window import TumblingEventTimeWindows


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[2]


class Mean(AggregateFunction):
    def create_accumulator(self):
        return 0.0, 0

    def add(self, value, accumulator):
        return accumulator[0] + value[1], accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, a, b):
        return a[0] + b[0], a[1] + b[1]


class Told(ProcessWindowFunction):
    def process(self, key, context: ProcessWindowFunction.Context, elements):
        [mean] = elements
        return [f"{key} {mean:.2f} in {context.window()} until {context.window().max_timestamp()}"]


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
readings = [("t1", 1.0, 0), ("t1", 2.0, 500), ("t2", 5.0, 700), ("t2", 6.5, 800), ("t1", 9.0, 2100), ("t1", 4.0, 2900)]
(
    env.from_collection(readings, type_info=Types.TUPLE([Types.STRING(), Types.DOUBLE(), Types.LONG()]))
    .assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At()))
    .key_by(lambda reading: reading[0], key_type=Types.STRING())
    .window(TumblingEventTimeWindows.of(Time.seconds(1)))
    .aggregate(
        Mean(),
        window_function=Told(),
        accumulator_type=Types.TUPLE([Types.DOUBLE(), Types.LONG()]),
        output_type=Types.STRING(),
    )
    .print()
)
env.execute("average per window")
