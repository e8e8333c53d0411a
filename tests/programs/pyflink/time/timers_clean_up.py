"""A timer that clears state: a visit ends half an hour after its first page and emits its page count."""

from pyflink.common import Duration, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment, TimeDomain
from pyflink.datastream.state import ListStateDescriptor

HALF_AN_HOUR = 30 * 60_000


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[2]


class Visit(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.pages = runtime_context.get_list_state(ListStateDescriptor("pages", Types.STRING()))

    def process_element(self, value, ctx: KeyedProcessFunction.Context):
        if not list(self.pages.get()):
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + HALF_AN_HOUR)
        self.pages.add(value[1])

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext):
        in_event_time = ctx.time_domain() == TimeDomain.EVENT_TIME
        yield f"{ctx.get_current_key()} {sorted(self.pages.get())} until {timestamp} event_time={in_event_time}"
        self.pages.clear()


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
visits = [("ada", "home", 1000), ("bob", "home", 2000), ("ada", "cart", 500), ("ada", "pay", 1_500_000)]
strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(10)).with_timestamp_assigner(At())
(
    env.from_collection(visits, type_info=Types.TUPLE([Types.STRING(), Types.STRING(), Types.LONG()]))
    .assign_timestamps_and_watermarks(strategy)
    .key_by(lambda visit: visit[0], key_type=Types.STRING())
    .process(Visit(), output_type=Types.STRING())
    .print()
)
env.execute("timers clean up")
