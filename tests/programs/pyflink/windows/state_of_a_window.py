"""State of a window and state of its key, and clear at the end of the window."""

from pyflink.common import Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import ProcessWindowFunction, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.datastream.window import CountTrigger, TimeWindow, TumblingEventTimeWindows


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[1]


OF_WINDOW = ValueStateDescriptor("of window", Types.INT())
OF_KEY = ValueStateDescriptor("of key", Types.INT())


class Fired(ProcessWindowFunction[tuple, str, str, TimeWindow]):
    def process(self, key, context: ProcessWindowFunction.Context, elements):
        of_window = context.window_state().get_state(OF_WINDOW)
        of_key = context.global_state().get_state(OF_KEY)
        for state in (of_window, of_key):
            state.update((state.value() or 0) + 1)
        yield f"{key} {context.window().start}: {of_window.value()} of window, {of_key.value()} of key"

    def clear(self, context: ProcessWindowFunction.Context):
        context.window_state().get_state(OF_WINDOW).clear()


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
clicks = [("a", 0), ("a", 1), ("a", 2), ("b", 3), ("b", 4), ("a", 5), ("a", 1000), ("a", 1001), ("b", 2000)]
(
    env.from_collection(clicks, type_info=Types.TUPLE([Types.STRING(), Types.LONG()]))
    .assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At()))
    .key_by(lambda click: click[0], key_type=Types.STRING())
    .window(TumblingEventTimeWindows.of(Time.seconds(1)))
    .trigger(CountTrigger.of(2))
    .process(Fired(), output_type=Types.STRING())
    .print()
)
env.execute("state of a window")
