"""Chained windows: clicks of each page in ten seconds, then the two most clicked pages."""

from pyflink.common import Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import AggregateFunction, ProcessWindowFunction, StreamExecutionEnvironment
from pyflink.datastream.functions import ProcessAllWindowFunction
from pyflink.datastream.window import TumblingEventTimeWindows


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[1]


class Count(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + 1

    def get_result(self, accumulator):
        return accumulator

    def merge(self, a, b):
        return a + b


class OfPage(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key, next(iter(elements))


class Best(ProcessAllWindowFunction):
    def process(self, context, elements):
        best = sorted(elements, key=lambda page: (-page[1], page[0]))[:2]
        yield f"{context.window().end} {', '.join(f'{page} {n}' for page, n in best)}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
ten, counted = TumblingEventTimeWindows.of(Time.seconds(10)), Types.TUPLE([Types.STRING(), Types.INT()])
clicks = [(page, at * 100) for at, page in enumerate("abcabaadca")] + [(page, 15_000) for page in "ccbba"]
(
    env.from_collection(clicks, type_info=Types.TUPLE([Types.STRING(), Types.LONG()]))
    .assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At()))
    .key_by(lambda click: click[0], key_type=Types.STRING())
    .window(ten)
    .aggregate(Count(), window_function=OfPage(), accumulator_type=Types.INT(), output_type=counted)
    .window_all(ten)
    .process(Best(), output_type=Types.STRING())
    .print()
)
env.execute("top pages")
