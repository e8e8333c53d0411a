"""Sort by event time: elements wait in a map state until a timer emits them."""

from pyflink.common import Duration, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import MapStateDescriptor


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[1]


class InOrder(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        waiting = MapStateDescriptor("waiting", Types.LONG(), Types.LIST(Types.STRING()))
        self.waiting = runtime_context.get_map_state(waiting)

    def process_element(self, value, ctx: KeyedProcessFunction.Context):
        at = ctx.timestamp()
        self.waiting.put(at, [*(self.waiting.get(at) or []), value[2]])
        ctx.timer_service().register_event_time_timer(at)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext):
        for word in self.waiting.get(timestamp):
            yield ctx.get_current_key(), timestamp, word
        self.waiting.remove(timestamp)


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
words = [("a", 5, "e"), ("a", 1, "a"), ("b", 9, "z"), ("a", 3, "c"), ("b", 2, "y"), ("a", 1, "b"), ("a", 4, "d")]
strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(10)).with_timestamp_assigner(At())
kind = Types.TUPLE([Types.STRING(), Types.LONG(), Types.STRING()])
(
    env.from_collection(words, type_info=kind)
    .assign_timestamps_and_watermarks(strategy)
    .key_by(lambda word: word[0], key_type=Types.STRING())
    .process(InOrder(), output_type=kind)
    .print()
)
env.execute("order by event time")
