"""Elements without timestamps: the times in functions, and event-time timers, which fire at the end.

Here: the timestamp is None, as PyFlink's documentation says; PyFlink returns the smallest long value.
"""

from pyflink.common import Types
from pyflink.datastream import KeyedProcessFunction, StreamExecutionEnvironment


class Timers(KeyedProcessFunction):
    def process_element(self, value, ctx: KeyedProcessFunction.Context):
        timers = ctx.timer_service()
        timers.register_event_time_timer(1000)
        recent = timers.current_processing_time() > 1_700_000_000_000
        yield f"{value} timestamp {ctx.timestamp()}, watermark {timers.current_watermark()}, now {recent}"

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext):
        yield f"{ctx.get_current_key()} timer {timestamp}, watermark {ctx.timer_service().current_watermark()}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
(
    env.from_collection(["a", "b", "a"], type_info=Types.STRING())
    .key_by(lambda word: word, key_type=Types.STRING())
    .process(Timers(), output_type=Types.STRING())
    .print()
)
env.execute("without time")
