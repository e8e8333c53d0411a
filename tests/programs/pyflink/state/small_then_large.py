"""Flink's fraud tutorial: a small payment and a large one within a minute. A timer clears the state."""

from pyflink.common import Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor

MINUTE = 60_000


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[2]


class FraudDetector(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.small = runtime_context.get_state(ValueStateDescriptor("small", Types.BOOLEAN()))
        self.until = runtime_context.get_state(ValueStateDescriptor("until", Types.LONG()))

    def process_element(self, value, ctx: KeyedProcessFunction.Context):
        account, amount, at = value
        if self.small.value() and amount > 500 and at < self.until.value():
            yield f"{account} paid {amount} at {at}"
        if self.until.value() is not None:
            ctx.timer_service().delete_event_time_timer(self.until.value())
            self.small.clear()
            self.until.clear()
        if amount < 1:
            self.small.update(True)
            self.until.update(at + MINUTE)
            ctx.timer_service().register_event_time_timer(at + MINUTE)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext):
        self.small.clear()
        self.until.clear()
        yield f"{ctx.get_current_key()} is quiet at {timestamp}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
payments = [("a", 0.5, 0), ("a", 900.0, 1000), ("b", 0.1, 2000), ("b", 5.0, 3000), ("b", 800.0, 4000), ("c", 0.2, 5000)]
payments += [("c", 700.0, 90_000), ("a", 0.9, 95_000)]
(
    env.from_collection(payments, type_info=Types.TUPLE([Types.STRING(), Types.DOUBLE(), Types.LONG()]))
    .assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At()))
    .key_by(lambda payment: payment[0], key_type=Types.STRING())
    .process(FraudDetector(), output_type=Types.STRING())
    .print()
)
env.execute("small then large")
