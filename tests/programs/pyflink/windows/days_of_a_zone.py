"""Days of the time zone UTC+8: a window with an offset, and distinct visitors."""

from pyflink.common import Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import AggregateFunction, ProcessWindowFunction, StreamExecutionEnvironment
from pyflink.datastream.window import TumblingEventTimeWindows

HOUR = 3_600_000


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[2] * HOUR


class Visitors(AggregateFunction):
    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        return sorted({*accumulator, value[1]})

    def get_result(self, accumulator):
        return len(accumulator)

    def merge(self, a, b):
        return sorted({*a, *b})


class PerDay(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield f"{key} {context.window().start // HOUR} {next(iter(elements))}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
visits = [
    ("/", "a", 17),
    ("/", "b", 20),
    ("/", "a", 30),
    ("/x", "a", 39),
    ("/", "a", 40),
    ("/", "c", 41),
    ("/", "c", 63),
]
(
    env.from_collection(visits, type_info=Types.TUPLE([Types.STRING(), Types.STRING(), Types.LONG()]))
    .assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At()))
    .key_by(lambda visit: visit[0], key_type=Types.STRING())
    .window(TumblingEventTimeWindows.of(Time.days(1), Time.hours(-8)))
    .aggregate(
        Visitors(),
        window_function=PerDay(),
        accumulator_type=Types.LIST(Types.STRING()),
        output_type=Types.STRING(),
    )
    .print()
)
env.execute("days of a zone")
