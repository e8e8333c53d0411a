"""The end of a bounded input fires all event-time timers, but not a later processing-time timer."""

from pyflink.common import Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import KeyedProcessFunction, StreamExecutionEnvironment, TimeDomain

DAY = 24 * 3_600_000


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[1]


class Reminders(KeyedProcessFunction):
    def process_element(self, value, ctx: KeyedProcessFunction.Context):
        timers = ctx.timer_service()
        timers.register_event_time_timer(ctx.timestamp() + DAY)
        timers.register_processing_time_timer(timers.current_processing_time() + DAY)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext):
        domain = "event time" if ctx.time_domain() == TimeDomain.EVENT_TIME else "processing time"
        yield f"{ctx.get_current_key()} {domain}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
(
    env.from_collection([("a", 1), ("b", 2), ("a", 3)], type_info=Types.TUPLE([Types.STRING(), Types.LONG()]))
    .assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At()))
    .key_by(lambda value: value[0], key_type=Types.STRING())
    .process(Reminders(), output_type=Types.STRING())
    .print()
)
env.execute("end of input")
