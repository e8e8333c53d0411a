"""Alert if a machine is silent for a minute: each event moves the timer."""

from pyflink.common import Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[1]


class Silence(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.timer = runtime_context.get_state(ValueStateDescriptor("timer", Types.LONG()))

    def process_element(self, value, ctx: KeyedProcessFunction.Context):
        timers = ctx.timer_service()
        before = self.timer.value()
        if before is not None and before > ctx.timestamp():
            timers.delete_event_time_timer(before)
        self.timer.update(ctx.timestamp() + 60_000)
        timers.register_event_time_timer(ctx.timestamp() + 60_000)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext):
        yield f"{ctx.get_current_key()} silent since {timestamp - 60_000}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
signs = [("m1", 0), ("m2", 10_000), ("m1", 30_000), ("m1", 80_000), ("m2", 100_000), ("m1", 200_000)]
(
    env.from_collection(signs, type_info=Types.TUPLE([Types.STRING(), Types.LONG()]))
    .assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At()))
    .key_by(lambda sign: sign[0], key_type=Types.STRING())
    .process(Silence(), output_type=Types.STRING())
    .print()
)
env.execute("alert after silence")
