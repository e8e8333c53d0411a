"""Side outputs from timers, from windows and from functions of two inputs."""

from pyflink.common import Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import KeyedCoProcessFunction, OutputTag, ProcessWindowFunction, StreamExecutionEnvironment
from pyflink.datastream.functions import KeyedProcessFunction
from pyflink.datastream.window import TumblingEventTimeWindows

BESIDE = OutputTag("beside", Types.STRING())


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[1]


class Timed(KeyedProcessFunction):
    def process_element(self, value, ctx: KeyedProcessFunction.Context):
        ctx.timer_service().register_event_time_timer(value[1] + 1)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext):
        yield BESIDE, f"timer-{ctx.get_current_key()} {timestamp}"


class Windowed(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield f"window-{key} {len(list(elements))}"
        yield BESIDE, f"beside-{key} {context.window().end}"


class Both(KeyedCoProcessFunction):
    def process_element1(self, value, ctx: KeyedCoProcessFunction.Context):
        yield BESIDE, f"first-{value[0]} {value[1]}"

    def process_element2(self, value, ctx: KeyedCoProcessFunction.Context):
        yield f"second-{value[0]} {value[1]}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
kind = Types.TUPLE([Types.STRING(), Types.LONG()])
strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At())
timed = env.from_collection([("a", 1), ("b", 2), ("a", 1003)], kind).assign_timestamps_and_watermarks(strategy)
keyed = timed.key_by(lambda value: value[0], key_type=Types.STRING())
seconds = keyed.window(TumblingEventTimeWindows.of(Time.seconds(1)))
for stream in (
    keyed.process(Timed(), output_type=Types.STRING()),
    seconds.process(Windowed(), output_type=Types.STRING()),
    keyed.connect(keyed).process(Both(), output_type=Types.STRING()),
):
    stream.print()
    stream.get_side_output(BESIDE).print()
env.execute("outputs from anywhere")
