"""A reduce with one value for each window, and a window function that adds the window's bounds."""

from pyflink.common import Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import ProcessWindowFunction, StreamExecutionEnvironment
from pyflink.datastream.window import TumblingEventTimeWindows


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[2]


class Bounds(ProcessWindowFunction):
    def process(self, key, context: ProcessWindowFunction.Context, elements):
        for element in elements:
            yield key, context.window().start, context.window().end, element[1]


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
sales = [("kelp", 2, 100), ("rock", 1, 900), ("kelp", 3, 999), ("kelp", 4, 1000), ("rock", 7, 5200)]
(
    env.from_collection(sales, type_info=Types.TUPLE([Types.STRING(), Types.INT(), Types.LONG()]))
    .assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At()))
    .key_by(lambda sale: sale[0], key_type=Types.STRING())
    .window(TumblingEventTimeWindows.of(Time.seconds(1)))
    .reduce(
        lambda a, b: (a[0], a[1] + b[1], b[2]),
        window_function=Bounds(),
        output_type=Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG(), Types.INT()]),
    )
    .print()
)
env.execute("sums with window")
