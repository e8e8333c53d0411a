"""Flink's training: join two keyed streams in either order; emit unmatched elements at the end."""

from pyflink.common import Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import KeyedCoProcessFunction, OutputTag, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor

ALONE = OutputTag("alone", Types.STRING())


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[2]


class Enriched(KeyedCoProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.ride = runtime_context.get_state(ValueStateDescriptor("ride", Types.STRING()))
        self.fare = runtime_context.get_state(ValueStateDescriptor("fare", Types.STRING()))

    def process_element1(self, value, ctx: KeyedCoProcessFunction.Context):
        return self.meet(value, ctx, self.ride, self.fare)

    def process_element2(self, value, ctx: KeyedCoProcessFunction.Context):
        return self.meet(value, ctx, self.fare, self.ride)

    def meet(self, value, ctx, mine, other):
        if other.value() is None:
            mine.update(value[1])
            ctx.timer_service().register_event_time_timer(value[2] + 1000)
        else:
            words = sorted([value[1], other.value()])
            other.clear()
            yield f"{value[0]} {' and '.join(words)}"

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext):
        for state in (self.ride, self.fare):
            if state.value() is not None:
                yield ALONE, f"{ctx.get_current_key()} {state.value()} alone"
                state.clear()


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
kind = Types.TUPLE([Types.INT(), Types.STRING(), Types.LONG()])
strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At())
rides = env.from_collection([(1, "ride A", 0), (2, "ride B", 10), (3, "ride C", 20)], type_info=kind)
fares = env.from_collection([(2, "fare 7", 5), (4, "fare 8", 15), (1, "fare 9", 25)], type_info=kind)
enriched = (
    rides.assign_timestamps_and_watermarks(strategy)
    .key_by(lambda ride: ride[0], key_type=Types.INT())
    .connect(fares.assign_timestamps_and_watermarks(strategy).key_by(lambda fare: fare[0], key_type=Types.INT()))
    .process(Enriched(), output_type=Types.STRING())
)
enriched.print()
enriched.get_side_output(ALONE).print()
env.execute("rides and fares")
