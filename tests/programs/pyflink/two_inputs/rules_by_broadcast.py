"""Rules for all keys in broadcast state. Earlier elements wait in keyed state until the end."""

from pyflink.common import Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import KeyedBroadcastProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ListStateDescriptor, MapStateDescriptor

LIMITS = MapStateDescriptor("limits", Types.STRING(), Types.DOUBLE())


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return 0


class Above(KeyedBroadcastProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.waiting = runtime_context.get_list_state(ListStateDescriptor("waiting", Types.DOUBLE()))

    def process_broadcast_element(self, value, ctx: KeyedBroadcastProcessFunction.Context):
        limits = ctx.get_broadcast_state(LIMITS)
        if value[1] < 0:
            limits.remove(value[0])
        else:
            limits.put(value[0], value[1])

    def process_element(self, value, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext):
        self.waiting.add(value[1])
        ctx.timer_service().register_event_time_timer(1)

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext):
        sensor, limits = ctx.get_current_key(), ctx.get_broadcast_state(LIMITS)
        for reading in self.waiting.get():
            if limits.contains(sensor) and reading > limits.get(sensor):
                yield sensor, reading
        self.waiting.clear()


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
kind = Types.TUPLE([Types.STRING(), Types.DOUBLE()])
zero = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At())
readings = env.from_collection([("t1", 5.0), ("t2", 9.0), ("t1", 3.0), ("t3", 8.0), ("t1", 4.5)], type_info=kind)
limits = env.from_collection([("t1", 9.0), ("t2", 1.0), ("t1", 4.0), ("t3", 7.0), ("t3", -1.0)], type_info=kind)
(
    readings.assign_timestamps_and_watermarks(zero)
    .key_by(lambda reading: reading[0], key_type=Types.STRING())
    .connect(limits.assign_timestamps_and_watermarks(zero).broadcast(LIMITS))
    .process(Above(), output_type=kind)
    .print()
)
env.execute("rules by broadcast")
