"""Flink's taxi training: hourly tips of each driver with timers, then the best driver of each hour."""

from pyflink.common import Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import MapStateDescriptor
from pyflink.datastream.window import TumblingEventTimeWindows

HOUR = 3_600_000


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[1]


class Tips(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.tips = runtime_context.get_map_state(MapStateDescriptor("tips", Types.LONG(), Types.DOUBLE()))

    def process_element(self, value, ctx: KeyedProcessFunction.Context):
        end = value[1] - value[1] % HOUR + HOUR - 1
        ctx.timer_service().register_event_time_timer(end)
        self.tips.put(end, (self.tips.get(end) or 0.0) + value[2])

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext):
        yield ctx.get_current_key(), timestamp, self.tips.get(timestamp)
        self.tips.remove(timestamp)


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
rides = [("d1", 1_000, 2.0), ("d2", 2_000, 5.0), ("d1", 9_000, 4.0), ("d1", HOUR + 1, 1.0), ("d2", 2 * HOUR - 1, 3.0)]
kind = Types.TUPLE([Types.STRING(), Types.LONG(), Types.DOUBLE()])
(
    env.from_collection(rides, type_info=kind)
    .assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At()))
    .key_by(lambda ride: ride[0], key_type=Types.STRING())
    .process(Tips(), output_type=kind)
    .window_all(TumblingEventTimeWindows.of(Time.hours(1)))
    .reduce(lambda a, b: a if a[2] >= b[2] else b)
    .map(lambda tip: f"{tip[1]} {tip[0]} {tip[2]}", output_type=Types.STRING())
    .print()
)
env.execute("hourly tips")
