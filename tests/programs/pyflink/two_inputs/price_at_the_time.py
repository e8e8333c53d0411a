"""Orders joined with the price at their event time: two streams, and a timer that waits for both."""

from pyflink.common import Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import KeyedCoProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import MapStateDescriptor


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[1]


class Priced(KeyedCoProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.orders = runtime_context.get_map_state(MapStateDescriptor("orders", Types.LONG(), Types.INT()))
        self.prices = runtime_context.get_map_state(MapStateDescriptor("prices", Types.LONG(), Types.DOUBLE()))

    def process_element1(self, order, ctx: KeyedCoProcessFunction.Context):
        self.orders.put(order[1], order[2])
        ctx.timer_service().register_event_time_timer(order[1])

    def process_element2(self, price, ctx: KeyedCoProcessFunction.Context):
        self.prices.put(price[1], price[2])

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext):
        pieces, valid = self.orders.get(timestamp), [at for at in self.prices if at <= timestamp]
        price = self.prices.get(max(valid)) if valid else None
        yield f"{ctx.get_current_key()} {pieces} at {timestamp}: {price and pieces * price}"
        self.orders.remove(timestamp)


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
in_order = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At())
orders = env.from_collection(
    [("kelp", 5, 2), ("rock", 6, 1), ("kelp", 10, 1), ("kelp", 25, 4)],
    type_info=Types.TUPLE([Types.STRING(), Types.LONG(), Types.INT()]),
).assign_timestamps_and_watermarks(in_order)
prices = env.from_collection(
    [("kelp", 0, 1.5), ("kelp", 10, 2.0), ("rock", 7, 9.0), ("kelp", 20, 2.5)],
    type_info=Types.TUPLE([Types.STRING(), Types.LONG(), Types.DOUBLE()]),
).assign_timestamps_and_watermarks(in_order)
(
    orders.connect(prices)
    .key_by(lambda order: order[0], lambda price: price[0], key_type=Types.STRING())
    .process(Priced(), output_type=Types.STRING())
    .print()
)
env.execute("price at the time")
