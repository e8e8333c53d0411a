"""Windows without keys: the maximum of each two elements, and of all elements of a second."""

from pyflink.common import Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.functions import AllWindowFunction
from pyflink.datastream.window import (
    CountTrigger,
    GlobalWindow,
    GlobalWindows,
    PurgingTrigger,
    TumblingEventTimeWindows,
)


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[1]


class Pair(AllWindowFunction[tuple, str, GlobalWindow]):
    def apply(self, window: GlobalWindow, inputs):
        yield f"pair {[word for word, _ in inputs]}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
words = env.from_collection(
    [("kelp", 100), ("rock", 200), ("anemone", 1000), ("sand", 1100), ("crab", 3000)],
    type_info=Types.TUPLE([Types.STRING(), Types.LONG()]),
).assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At()))
two = PurgingTrigger.of(CountTrigger.of(2))
words.window_all(GlobalWindows.create()).trigger(two).apply(Pair(), output_type=Types.STRING()).print()
(
    words.window_all(TumblingEventTimeWindows.of(Time.seconds(1)))
    .reduce(lambda a, b: max(a, b))
    .map(lambda word: f"second {word[0]}", output_type=Types.STRING())
    .print()
)
env.execute("without keys")
