"""Inputs without elements end like others: they emit nothing and block nothing."""

from pyflink.common import Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.window import TumblingEventTimeWindows


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At())
nothing = env.from_collection([], type_info=Types.LONG()).assign_timestamps_and_watermarks(strategy)
some = env.from_collection([1, 2, 1001], type_info=Types.LONG()).assign_timestamps_and_watermarks(strategy)
second = TumblingEventTimeWindows.of(Time.seconds(1))
for name, stream in (("nothing", nothing), ("both", some.union(nothing))):
    (
        stream.key_by(lambda n: 0, key_type=Types.INT())
        .window(second)
        .reduce(lambda a, b: a + b)
        .map(lambda n, name=name: f"{name} {n}", output_type=Types.STRING())
        .print()
    )
env.execute("empty")
