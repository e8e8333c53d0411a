"""Timers of one key and time are one timer; other keys have their own; a deleted timer does not fire.

Here: timers fire in the order of their times, each once, as in Flink's Java API. PyFlink passes all due timers to
Python at once, so a new timer that is already due fires after them and may fire twice.
"""

from pyflink.common import Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import KeyedProcessFunction, StreamExecutionEnvironment


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[2]


class Timers(KeyedProcessFunction):
    def process_element(self, value, ctx: KeyedProcessFunction.Context):
        key, what, at = value
        if what == "set":
            ctx.timer_service().register_event_time_timer(at)
        else:
            ctx.timer_service().delete_event_time_timer(at)
        yield f"{key} {what} {at}"

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext):
        yield f"{ctx.get_current_key()} fires at {timestamp}"
        if timestamp < 400:
            ctx.timer_service().register_event_time_timer(timestamp + 100)


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
events = [("a", "set", 300), ("a", "set", 200), ("b", "set", 300), ("a", "set", 300), ("b", "delete", 300)]
events += [("c", "delete", 9), ("c", "set", 350), ("a", "set", 401)]
(
    env.from_collection(events, type_info=Types.TUPLE([Types.STRING(), Types.STRING(), Types.LONG()]))
    .assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At()))
    .key_by(lambda event: event[0], key_type=Types.STRING())
    .process(Timers(), output_type=Types.STRING())
    .print()
)
env.execute("one timer")
