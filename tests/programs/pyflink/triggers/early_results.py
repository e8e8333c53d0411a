"""A custom trigger: an event-time window emits early at every third element, and a final result."""

from pyflink.common import Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import ProcessWindowFunction, StreamExecutionEnvironment
from pyflink.datastream.state import ReducingStateDescriptor
from pyflink.datastream.window import TimeWindow, Trigger, TriggerResult, TumblingEventTimeWindows


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[1]


class EveryThird(Trigger[tuple, TimeWindow]):
    def __init__(self):
        self.count = ReducingStateDescriptor("count", lambda a, b: a + b, Types.LONG())

    def on_element(self, element, timestamp, window, ctx: Trigger.TriggerContext):
        ctx.register_event_time_timer(window.max_timestamp())
        count = ctx.get_partitioned_state(self.count)
        count.add(1)
        return TriggerResult.FIRE if count.get() % 3 == 0 else TriggerResult.CONTINUE

    def on_processing_time(self, time, window, ctx: Trigger.TriggerContext):
        return TriggerResult.CONTINUE

    def on_event_time(self, time, window, ctx: Trigger.TriggerContext):
        return TriggerResult.FIRE_AND_PURGE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def on_merge(self, window, ctx: Trigger.OnMergeContext):
        raise RuntimeError("these windows do not merge")

    def clear(self, window, ctx: Trigger.TriggerContext):
        ctx.get_partitioned_state(self.count).clear()
        ctx.delete_event_time_timer(window.max_timestamp())


class Count(ProcessWindowFunction[tuple, str, str, TimeWindow]):
    def process(self, key, context, elements):
        yield f"{key} {context.window().start}: {len(list(elements))}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
clicks = [("a", at) for at in (1, 2, 3, 4, 5, 6, 7, 1001, 1002)] + [("b", at) for at in (1003, 1004, 1005)]
(
    env.from_collection(clicks, type_info=Types.TUPLE([Types.STRING(), Types.LONG()]))
    .assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At()))
    .key_by(lambda click: click[0], key_type=Types.STRING())
    .window(TumblingEventTimeWindows.of(Time.seconds(1)))
    .trigger(EveryThird())
    .process(Count(), output_type=Types.STRING())
    .print()
)
env.execute("early results")
